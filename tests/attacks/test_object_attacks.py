"""Hostile datasets of objects: a named check stops each, or the result is right.

What is new in version 2 of our format: the manifest says that documents are objects, entry k of the
metadata is that of document k, and fields may be structs. Rows are planned as for other views; they
are sealed with right checksums here, as an attacker would.
"""

import contextlib
import json
import shutil
import tempfile
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, MillstreamError
from millstream.system.checksums import block_checksums
from millstream.verifying import find_problems
from tests.helpers.objects import MEMORY, write_objects

CONTENTS = [b"abc", b"", b"defgh", b"i", b""]
METADATA = [b"1", b"22", b"", b"4444", b"5"]
HEADER_BYTES = 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "data"
    write_objects(path, CONTENTS, metadata=METADATA)
    return path


@pytest.fixture
def path(tmp_path, monkeypatch, sound):
    """A copy, for a test to damage, and no other place for rows that would open."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(sound, tmp_path / "data")


def assert_stopped(path, check, **changes):
    manifest = json.loads((path / "millstream.json").read_text()) | changes
    (path / "millstream.json").write_text(json.dumps(manifest))
    with pytest.raises(FormatError) as caught:
        millstream.open(path)
    assert str(path / "millstream.json") in str(caught.value)
    assert check in str(caught.value)


@pytest.mark.parametrize(
    "value", [None, True, [], "x", {}, {"metadata": None}, {"metadata": 1}, {"metadata": "true"}]
)
def test_what_does_not_say_whether_there_is_metadata_is_stopped(path, value):
    assert_stopped(path, "objects: ", objects=value)


def test_objects_in_a_manifest_of_version_1_are_stopped_by_the_version(path):
    assert_stopped(path, "version is 1, which has no groups, objects", version=1)


def test_metadata_that_is_not_said_to_be_there_is_stopped_by_the_count(path):
    assert_stopped(path, "5 spans for 5 objects", objects={"metadata": False})


@pytest.mark.parametrize("count", [0, 4, 6, (1 << 63) - 1])
def test_metadata_of_another_number_of_objects_is_stopped_by_the_count(path, count):
    shards = json.loads((path / "millstream.json").read_text())["shards"]
    shards[0]["spans"] = count
    assert_stopped(path, f"{count:,} spans for 5 objects", shards=shards)


@pytest.mark.parametrize(
    "fields",
    [
        [["byte", "|i1"]],
        [["byte", "<u2"]],
        [["byte", "|u1", [2]]],
        [["token", "|u1"]],
        [["byte", "|u1"], ["metadata_id", "<u4"]],
    ],
    ids=str,
)
def test_objects_of_other_records_than_bytes_are_stopped(path, fields):
    assert_stopped(path, "but those of objects are [['byte', '|u1']]", fields=fields)


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ([["x", []]], "is not a list of [name, dtype]"),
        ([["x", [["y", "O"]]]], "the dtype must look like"),
        ([["x", [["y", "<u2", [0]]]]], "the shape must be"),
        ([["x", [["y", "|u1"], ["y", "|u1"]]]], "is not a NumPy record type"),
        ([["x", [["y", ">u2"]]]], "big-endian"),
        ([["token", [["y", "<u2"]]]], "one integer"),
        ([["x", [["y", "|u1", [1 << 16]]], [1 << 15]]], "is not a NumPy record type"),
        ([["x", [["y", "|u1", [(1 << 31) - 1]], ["z", "|u1", [(1 << 31) - 1]]]]], "fields: "),
        (
            [["x", [["y", "|u1", [(1 << 31) - 1]], ["z", "|u1", [(1 << 31) - 1]], ["w", "<u4"]]]],
            "fields: ",
        ),
    ],
    ids=str,
)
def test_structs_that_cannot_be_stored_are_stopped_by_their_own_fields(tmp_path, fields, check):
    with millstream.Writer(tmp_path / "data", fields=[("x", [("y", "u1")])]) as writer:
        writer.append({"x": np.zeros(3, [("y", "u1")])})
    assert_stopped(tmp_path / "data", check, fields=fields)


@pytest.mark.parametrize("depth", [9, 20, 300])
def test_structs_that_are_nested_too_deep_are_stopped_by_the_depth(path, depth):
    fields = [["y", "|u1"]]
    for _ in range(depth - 1):
        fields = [["x", fields]]
    assert_stopped(path, "nested more than 8 levels", fields=fields, shards=[])


# The rows


def change_rows(path, change):
    """Change the pieces of the stored rows, and seal them."""
    view = millstream.open(path).objects(bytes, metadata=bytes)
    stored = view.rows.path
    content = stored.read_bytes()
    size = json.loads(content[:HEADER_BYTES])["body_bytes"]
    pieces = np.frombuffer(content[HEADER_BYTES : HEADER_BYTES + size], np.int64).copy()
    change(pieces.reshape(-1, 3))
    sealed = block_checksums(pieces.view(np.uint8)).tobytes()
    stored.write_bytes(content[:HEADER_BYTES] + pieces.tobytes() + sealed)
    return stored


numbers = st.one_of(
    st.integers(-3, 12), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([1 << 62, 1 << 40])
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.integers(0, 4), st.tuples(numbers, numbers, numbers), st.sampled_from(["pread", "mmap"]))
@example(2, (0, 9, 0), "pread")
@example(2, (9, 0, 4), "mmap")
@example(2, (9, 1, 4), "mmap")
@example(2, (0, -1, 0), "pread")
@example(2, (0, 1, 5), "pread")
@example(2, (0, 1, -1), "pread")
@example(2, ((1 << 63) - 1, 2, 1), "pread")
def test_a_row_gives_what_it_says_or_is_stopped(row, piece, access):
    with tempfile.TemporaryDirectory(dir=MEMORY) as root, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", f"{root}/cache")
        data = write_objects(f"{root}/data", CONTENTS, metadata=METADATA, access=access)

        def change(pieces):
            pieces[row] = piece

        stored = change_rows(data.shards[0].directory, change)
        start, length, document = piece
        is_possible = 0 <= length <= 9 and 0 <= start <= 9 - length and 0 <= document < 5
        view = data.objects(bytes, metadata=bytes)
        if is_possible:
            expected = b"".join(CONTENTS)[start : start + length]
            assert view[row] == {"documents": expected, "metadata": METADATA[document]}
        else:
            with pytest.raises(FormatError, match="lies outside of the dataset") as caught:
                view[row]
            assert str(stored) in str(caught.value)
            with pytest.raises(FormatError), millstream.Loader(view, 5, output="numpy") as loader:
                list(loader)
        if is_possible and piece != (*_place(row), row):
            with pytest.raises(MillstreamError):
                millstream.audit_tokens(view)


def _place(row):
    return sum(map(len, CONTENTS[:row])), len(CONTENTS[row])


def test_rows_without_right_checksums_are_named(path):
    def change(pieces):
        pieces[1] = 0, 2, 1

    stored = change_rows(path, change)
    content = bytearray(stored.read_bytes())
    content[HEADER_BYTES] ^= 1
    stored.write_bytes(content)
    with pytest.raises(FormatError, match="are damaged, or their checksum is"):
        millstream.open(path).objects(bytes)[0]


# The index

words = st.one_of(
    st.integers(0, 10), st.integers(0, (1 << 64) - 1), st.sampled_from([1 << 63, 1 << 62])
)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.lists(words, min_size=6, max_size=6))
@example([0, 1, 3, 3, 7, 8])
@example([8, 8, 8, 8, 8, 8])
@example([0, 4, 2, 2, 7, 8])
@example([0, 1, 3, 3, 7, 1 << 63])
def test_an_index_gives_what_it_says_or_is_stopped(index):
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        directory = write_objects(f"{root}/data", CONTENTS, metadata=METADATA).shards[0].directory
        content = np.array(index, "<u8").tobytes()
        (directory / "00000.index").write_bytes(content)
        manifest = json.loads((directory / "millstream.json").read_text())
        entry = manifest["shards"][0]["files"][".index"]
        entry["xxh3"] = xxhash.xxh3_64_hexdigest(content)
        (directory / "millstream.json").write_text(json.dumps(manifest))
        for companion in directory.glob("*.checksums"):
            companion.unlink()
        data = millstream.open(directory)
        view, blobs = data.objects(bytes, metadata=bytes), b"".join(METADATA)
        for number in range(5):
            start, stop = index[number : number + 2]
            if start <= stop <= len(blobs):
                assert view[number]["metadata"] == blobs[start:stop]
            else:
                with pytest.raises(FormatError, match=r"00000\.index"):
                    view[number]
        is_sorted = index == sorted(index) and index[-1] <= len(blobs)
        if is_sorted:
            expected = [blobs[a:b] for a, b in pairwise(index)]
            assert [spans for (spans,) in _metadata(data)] == expected
        else:
            with pytest.raises(FormatError, match=r"00000\.index"):
                _metadata(data)
        is_right = is_sorted and index[0] == 0 and index[-1] == len(blobs)
        assert (find_problems(data) == []) == is_right


def _metadata(data):
    """The metadata of all documents, as functions that choose documents get it."""
    found = []
    data.objects().without(found.append)
    return found


def test_a_file_that_became_shorter_is_named(path):
    view = millstream.open(path).objects(bytes)
    assert view[0] == {"documents": b"abc"}
    with (path / "00000.stream").open("r+b") as file:
        file.truncate(4)
    with pytest.raises(FormatError, match=r"00000\.stream: 4 bytes, too short|00000\.stream"):
        view[2]
    with contextlib.suppress(FileNotFoundError):
        (path / "00000.stream").unlink()
    with pytest.raises(MillstreamError, match=r"00000\.stream"):
        view[2]
