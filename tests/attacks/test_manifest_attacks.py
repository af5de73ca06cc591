"""Hostile manifests: a named check stops each.

A manifest is untrusted input. Whatever it says, opening it either gives a consistent dataset or
raises a `MillstreamError` that names the file: never another exception, a crash, a hang, a file
outside of the directory, or memory out of proportion to what is on disk.
"""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError
from millstream.verifying import find_problems
from tests.helpers.memory_limit import limit_memory

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def write_dataset(path):
    with millstream.Writer(path, vocab_size=100, metadata=bytes, shard_bytes=30) as writer:
        for k in range(3):
            writer.append([k] * 5, b"abc")
    return path


@pytest.fixture(scope="module")
def sound_dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("sound") / "data")


@pytest.fixture
def path(tmp_path, sound_dataset):
    """A copy, for a test to damage: hundreds of them would be slow to write and sync."""
    return shutil.copytree(sound_dataset, tmp_path / "data")


def manifest_of(path):
    return json.loads((path / "millstream.json").read_text())


def attack(path, manifest):
    """Replace the manifest; bytes and text as they are, anything else as JSON."""
    if not isinstance(manifest, bytes | str):
        manifest = json.dumps(manifest)
    if isinstance(manifest, str):
        manifest = manifest.encode("utf-8", "surrogatepass")
    (path / "millstream.json").write_bytes(manifest)


def assert_stopped(path, manifest, check):
    attack(path, manifest)
    with pytest.raises(FormatError) as caught:
        millstream.open(path)
    assert str(path / "millstream.json") in str(caught.value)
    assert check in str(caught.value)


def open_in_another_process(path, memory_bytes=2 << 30):
    """Open in a process that may crash, with a limit on its memory; returns what it printed."""
    script = f"""
import sys, millstream
millstream.open
{limit_memory(memory_bytes)}try:
    millstream.open(sys.argv[1])
    print("opened")
except millstream.MillstreamError as error:
    print("stopped:", error)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    return result.returncode, result.stdout, result.stderr[-500:]


# The document


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"{",
        b"\xff\xfe\xfd",
        b'{"format": "\xff"}',
        b"\x80\x04N.",
        b'{"format": "millstream-stream"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format": ' + b"9" * 5000 + b"}",
        b"\x00" * 1000,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_what_is_no_json_is_stopped_by_the_parser(path, content):
    assert_stopped(path, content, "not valid JSON")


@pytest.mark.parametrize("content", ["null", "[]", "NaN", "-Infinity", '"x"', "1e999", "true"])
def test_json_that_is_no_object_is_stopped_by_its_type(path, content):
    assert_stopped(path, content, "is not an object")


@pytest.mark.parametrize("key", ["format", "version", "fields", "shards", "tokenizer"])
def test_a_missing_key_is_stopped_by_the_check_of_that_key(path, key):
    manifest = manifest_of(path)
    del manifest[key]
    assert_stopped(path, manifest, key)


@pytest.mark.parametrize("key", ["name", "records", "documents", "spans", "files"])
def test_a_missing_key_of_a_shard_is_stopped_by_the_check_of_that_key(path, key):
    manifest = manifest_of(path)
    del manifest["shards"][1][key]
    assert_stopped(path, manifest, "shards[1]")


@pytest.mark.parametrize("key", ["format", "version", "fields", "shards", "tokenizer", "bos_id"])
@pytest.mark.parametrize("depth", [100, 900, 960, 980, 990, 1000, 5000])
def test_deep_nesting_is_stopped_wherever_it_is(path, key, depth):
    manifest = json.dumps({**manifest_of(path), key: "@"}).replace('"@"', "[" * depth + "]" * depth)
    assert_stopped(path, manifest, "")


def test_unknown_keys_change_nothing(path):
    before = millstream.open(path).fingerprint
    attack(path, {**manifest_of(path), "extra": [1], "__proto__": {}})
    assert millstream.open(path).fingerprint == before


@pytest.mark.parametrize("version", [0, 3, -1, "1", None, [1], 1.5])
def test_another_version_is_stopped_by_the_version(path, version):
    assert_stopped(path, {**manifest_of(path), "version": version}, "version is")


def test_a_directory_in_place_of_the_manifest_is_no_dataset(path):
    (path / "millstream.json").unlink()
    (path / "millstream.json").mkdir()
    with pytest.raises(millstream.MillstreamError, match=str(path / "millstream.json")):
        millstream.open(path)


def test_a_pipe_in_place_of_the_manifest_is_not_waited_for(path):
    (path / "millstream.json").unlink()
    os.mkfifo(path / "millstream.json")
    with pytest.raises(millstream.MillstreamError, match=str(path / "millstream.json")):
        millstream.open(path)


def test_a_manifest_that_points_to_itself_is_no_dataset(path):
    (path / "millstream.json").unlink()
    (path / "millstream.json").symlink_to("millstream.json")
    with pytest.raises(millstream.MillstreamError, match=str(path / "millstream.json")):
        millstream.open(path)


def test_a_shard_that_points_to_itself_is_named(path):
    (path / "00000.stream").unlink()
    (path / "00000.stream").symlink_to("00000.stream")
    with pytest.raises(millstream.MillstreamError, match=r"00000\.stream"):
        millstream.open(path)


@pytest.mark.process
def test_a_manifest_of_a_terabyte_is_stopped_before_it_is_in_memory(path):
    os.truncate(path / "millstream.json", 1 << 40)
    returncode, out, err = open_in_another_process(path)
    assert (returncode, err) == (0, "")
    assert out.startswith(f"stopped: {path / 'millstream.json'}")


# Shards


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..",
        ".",
        "a/b",
        "/etc/passwd",
        "a\0b",
        "a\nb",
        "00000\n",
        "a b",
        "",
        "é",
        "\ud800",
        "x" * 101,
        "a.b",
        "~",
        "C:\\x",
        7,
        None,
        ["00000"],
        {"a": 1},
    ],
    ids=repr,
)
def test_a_shard_outside_of_the_directory_is_stopped_by_its_name(path, name):
    manifest = manifest_of(path)
    manifest["shards"][0]["name"] = name
    assert_stopped(path, manifest, "is not a plain file name")


def test_a_shard_listed_twice_is_stopped_by_its_name(path):
    manifest = manifest_of(path)
    manifest["shards"].append(manifest["shards"][0])
    assert_stopped(path, manifest, "a name is listed twice")


@pytest.mark.parametrize("key", ["records", "documents", "spans"])
@pytest.mark.parametrize(
    "value", [-1, 1 << 63, 1 << 200, 1.0, 5.0, True, "5", None, [], float("nan"), float("inf")]
)
def test_what_is_no_count_is_stopped_as_such(path, key, value):
    manifest = manifest_of(path)
    manifest["shards"][0][key] = value
    assert_stopped(path, manifest, f"{key} is {value!r:.40}"[:40])


@pytest.mark.parametrize("key", ["records", "documents", "spans"])
@pytest.mark.parametrize("value", [0, 4, 6, (1 << 63) - 1, 1 << 62])
def test_counts_that_disagree_with_sizes_are_stopped_by_their_product(path, key, value):
    manifest = manifest_of(path)
    manifest["shards"][0][key] = value
    assert_stopped(path, manifest, "need")


def test_sizes_that_overflow_are_stopped_by_the_count(path):
    manifest = manifest_of(path)
    shard = manifest["shards"][0]
    shard["records"] = (1 << 63) // 6 + 1
    shard["files"][".stream"]["bytes"] = shard["records"] * 6
    assert_stopped(path, manifest, "bytes is 9223372036854775812, not a count")


def test_a_sum_that_overflows_is_stopped_by_the_sum(path):
    manifest = manifest_of(path)
    manifest["fields"] = [["token", "|u1"], ["metadata_id", "<u4"]]
    for shard in manifest["shards"]:
        shard["records"] = ((1 << 63) - 1) // 5
        shard["files"][".stream"]["bytes"] = shard["records"] * 5
    manifest["shards"] *= 4
    for k, shard in enumerate(copy.deepcopy(manifest["shards"])):
        manifest["shards"][k] = {**shard, "name": f"x{k}"}
    assert_stopped(path, manifest, "more than 2^63 - 1 records")


def test_counts_that_agree_with_each_other_are_stopped_by_the_size_of_the_file(path):
    manifest = manifest_of(path)
    shard = manifest["shards"][0]
    shard["records"] = 1 << 58
    shard["files"][".stream"]["bytes"] = 6 << 58
    attack(path, manifest)
    with pytest.raises(FormatError, match=r"00000\.stream: .* bytes, too short"):
        millstream.open(path)


def test_two_directories_whose_sum_overflows_are_stopped(tmp_path):
    with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        paths = [Path(memory) / name for name in "ab"]
        most = (1 << 63) - 1
        for each in paths:
            with millstream.Writer(each, fields="u1") as writer:
                writer.append([1])
            try:
                os.truncate(each / "00000.stream", most)
            except OSError:
                pytest.skip("this file system takes no file of 2^63 - 1 bytes")
            manifest = manifest_of(each)
            manifest["shards"][0]["records"] = most
            manifest["shards"][0]["files"][".stream"]["bytes"] = most
            attack(each, manifest)
        assert millstream.open(paths[0]).records(0, 2).tolist() == [1, 0]
        with pytest.raises(FormatError):
            millstream.open(paths)


@pytest.mark.parametrize("suffix", [".stream", ".documents", ".index", ".metadata"])
def test_a_file_left_out_is_stopped_by_the_list_of_files(path, suffix):
    manifest = manifest_of(path)
    del manifest["shards"][0]["files"][suffix]
    assert_stopped(path, manifest, "expected ['.documents', '.index', '.metadata', '.stream']")


@pytest.mark.parametrize("suffix", ["/../../etc/passwd", "", ".exe", "\0", ".stream "])
def test_a_file_too_many_is_stopped_by_the_list_of_files(path, suffix):
    manifest = manifest_of(path)
    files = manifest["shards"][0]["files"]
    files[suffix] = files[".stream"]
    assert_stopped(path, manifest, "lists [")


@pytest.mark.parametrize("checksum", ["", "x" * 16, "A" * 16, "0" * 15, "0" * 16 + "\n", 5, None])
def test_what_is_no_checksum_is_stopped_as_such(path, checksum):
    manifest = manifest_of(path)
    manifest["shards"][0]["files"][".stream"]["xxh3"] = checksum
    assert_stopped(path, manifest, "is not 16 hex digits")


# Fields

NO_FIELD = ["O", "object", "V0", "|S0", "U0", "u2,u2", "u2,", "i4,(2,3)f8", "T"]
NO_TYPE = ["", ",", "<", "u3", "V99999999999", "S-5", "M8[x]", "M8[-1s]", "\ud800", "é", "<u2\0"]
NO_TYPE += ["(" * 2000 + "2" + ")" * 2000 + "u2", "(-1,)u1", "u2#", "__import__('os')", "u2" * 9]
ODD_TYPES = ["a5", "\0", "M8[s/0]", "(0,)u2", "M8[0s]"]


@pytest.mark.parametrize("kind", NO_FIELD)
def test_a_type_that_is_no_plain_value_is_stopped_by_its_kind(path, kind):
    fields = [["token", "<u2"], ["x", kind]]
    assert_stopped(path, {**manifest_of(path), "fields": fields, "shards": []}, "fields: ")


@pytest.mark.parametrize("kind", NO_TYPE, ids=lambda kind: ascii(kind[:20]))
def test_a_type_that_numpy_does_not_know_is_stopped_by_numpy(path, kind):
    fields = [["token", "<u2"], ["x", kind]]
    assert_stopped(path, {**manifest_of(path), "fields": fields, "shards": []}, "fields: ")


@pytest.mark.process
@pytest.mark.parametrize("kind", ODD_TYPES, ids=ascii)
def test_a_type_on_which_numpy_stumbles_never_reaches_it(path, kind):
    # "M8[s/0]" divides by zero inside of NumPy, which ends the process: hence another process.
    fields = [["token", "<u2"], ["x", kind]]
    attack(path, {**manifest_of(path), "fields": fields, "shards": []})
    returncode, out, err = open_in_another_process(path)
    assert (returncode, err) == (0, "")
    assert out.startswith(f"stopped: {path / 'millstream.json'}: fields: ")


@pytest.mark.parametrize("kind", [">u2", ">f8", ">U3", ">M8[s]"])
def test_a_big_endian_type_is_stopped_by_its_byte_order(path, kind):
    fields = [["token", "<u2"], ["x", kind]]
    assert_stopped(path, {**manifest_of(path), "fields": fields, "shards": []}, "big-endian")


@pytest.mark.parametrize("kind", ["<f2", "<M8[ns]", "<U3", "|S3", "|V3", "<c8", "|b1"])
def test_the_token_is_stopped_unless_it_is_an_integer(path, kind):
    fields = [["token", kind]]
    assert_stopped(path, {**manifest_of(path), "fields": fields, "shards": []}, "one integer")


@pytest.mark.parametrize(
    "shape",
    [[0], [-1], [1.5], [True], "3", 3, None, {}, [[2]], [1] * 17, [1 << 31], [1 << 70], ["2"]],
    ids=str,
)
def test_what_is_no_shape_is_stopped_as_such(path, shape):
    fields = [["token", "<u2"], ["x", "<u2", shape]]
    check = "the shape must be a list of positive integers"
    assert_stopped(path, {**manifest_of(path), "fields": fields, "shards": []}, check)


@pytest.mark.parametrize(
    "fields",
    [
        [["token", "<u2"], ["x", "|u1", [(1 << 31) - 1] * 16]],
        [["token", "<u2"], ["x", "|u1", [1 << 16, 1 << 15]]],
        [["token", "<u2"], ["x", "|u1", [(1 << 31) - 1]]],
        # 2 + 2 * (2^31 - 3) + 4 + 4 bytes come out as 4 in 32 bits.
        [
            ["token", "<u2"],
            ["x", "|u1", [(1 << 31) - 3]],
            ["y", "|u1", [(1 << 31) - 3]],
            ["z", "<u4"],
            ["w", "<u4"],
        ],
    ],
)
def test_a_record_whose_size_overflows_is_stopped(path, fields):
    assert_stopped(path, {**manifest_of(path), "fields": fields, "shards": []}, "fields: ")


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        "<u2",
        [[]],
        [["token"]],
        [["token", "<u2", [1], 1]],
        ["token"],
        [["", "<u2"]],
        [[1, "<u2"]],
        [["token", ["<u2"]]],
        [["token", "<u2"], ["token", "<u2"]],
        [["token", "<u2", [1]]],
    ],
    ids=str,
)
def test_what_is_no_record_is_stopped_as_such(path, fields):
    assert_stopped(path, {**manifest_of(path), "fields": fields}, "fields: ")


@pytest.mark.parametrize("key", ["vocab_size", "bos_id", "eos_id"])
@pytest.mark.parametrize("value", [-1, 1 << 63, 1.0, True, "1", [], float("nan")], ids=str)
def test_an_id_that_is_no_count_is_stopped_as_such(path, key, value):
    assert_stopped(path, {**manifest_of(path), key: value}, f"{key} is")


@pytest.mark.parametrize("tokenizer", [None, [], "gpt2", {"name": 1}, {"a": None}, {"a": {}}])
def test_a_tokenizer_that_is_no_object_of_strings_is_stopped_as_such(path, tokenizer):
    assert_stopped(path, {**manifest_of(path), "tokenizer": tokenizer}, "tokenizer: ")


# Anything


def places(value, at=()):
    """Every place in a JSON document, as a path of keys."""
    yield at
    if isinstance(value, dict | list):
        children = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in children:
            yield from places(child, (*at, key))


EVIL_NUMBERS = [-1, 0, 1, 5, 1 << 31, 1 << 63, 1 << 64, 10**400, 0.5, float("nan"), float("inf")]
EVIL_TEXTS = ["", "..", "../x", "00000", "00001", "<u2", "<u8", "|S3", "<u2,<u2", ".stream"]
EVIL = st.one_of(
    st.sampled_from([*EVIL_NUMBERS, *EVIL_TEXTS, None, True, [], {}, [[]]]),
    st.integers(),
    st.text(max_size=8),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=5,
    ),
)


@st.composite
def mutations(draw):
    """A function that changes a manifest in up to three places."""
    chosen = draw(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 2), EVIL), min_size=1))

    def mutate(manifest):
        for number, action, chosen_value in chosen[:3]:
            value = copy.deepcopy(chosen_value)  # which may be chosen again, and go into itself
            everywhere = list(places(manifest))
            *parents, last = everywhere[number % len(everywhere)] or (None,)
            parent = manifest
            for key in parents:
                parent = parent[key]
            if last is None:
                return value
            if action == 0:
                del parent[last]
            elif action == 1 and isinstance(parent, list):
                parent.insert(last, value)
            else:
                parent[last] = value
            if not isinstance(manifest, dict | list):
                break
        return manifest

    return mutate


def assert_opens_consistently_or_is_stopped(path):
    try:
        data = millstream.open(path)
    except millstream.MillstreamError as error:
        if str(path) not in str(error):
            raise
        return
    assert data.num_records == sum(shard.num_records for shard in data.shards)
    sizes = [(path / f"{shard.name}.stream").stat().st_size for shard in data.shards]
    assert data.num_records * data.fields.itemsize == sum(sizes)
    assert len(data.records(0, data.num_records)) == data.num_records
    assert all(isinstance(problem, str) for problem in find_problems(data))


@pytest.fixture(scope="module")
def shared_path():
    with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        yield write_dataset(Path(memory) / "data")


@pytest.fixture(scope="module")
def sound_text(shared_path):
    return (shared_path / "millstream.json").read_bytes()


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(mutate=mutations())
def test_any_change_of_the_document_opens_consistently_or_is_stopped(
    shared_path, sound_text, mutate
):
    attack(shared_path, mutate(json.loads(sound_text)))
    assert_opens_consistently_or_is_stopped(shared_path)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(place=st.integers(0, 10_000), length=st.integers(0, 3), new=st.binary(max_size=3))
def test_any_change_of_the_bytes_opens_consistently_or_is_stopped(
    shared_path, sound_text, place, length, new
):
    place %= len(sound_text)
    attack(shared_path, sound_text[:place] + new + sound_text[place + length :])
    assert_opens_consistently_or_is_stopped(shared_path)
