"""Writing objects: the files, encoders, metadata, and processes that are killed."""

import json
import signal
import threading

import numpy as np
import pytest

import millstream
from millstream.errors import DatasetExistsError, UsageError
from millstream.verifying import find_problems
from tests.helpers.objects import write_objects
from tests.helpers.programs import run_python, start_python


def test_the_bytes_of_written_objects_never_change(tmp_path):
    # A user's data outlive our release: change these bytes only with a new format version.
    with millstream.Writer(tmp_path, encode=str.encode, metadata=bytes, shard_bytes=4) as writer:
        writer.append("é1", b"m")
        writer.extend(["", "xy", "z"], metadata=[b"only", b"", b"n"])
    hexes = {
        path.name: path.read_bytes().hex()
        for path in tmp_path.iterdir()
        if path.suffix not in (".json", ".checksums")
    }
    assert hexes == {
        "00000.stream": "c3a9317879",
        "00000.documents": "0000000000000000030000000000000003000000000000000500000000000000",
        "00000.index": "0000000000000000010000000000000005000000000000000500000000000000",
        "00000.metadata": "6d6f6e6c79",
        "00001.stream": "7a",
        "00001.documents": "00000000000000000100000000000000",
        "00001.index": "00000000000000000100000000000000",
        "00001.metadata": "6e",
    }
    manifest = json.loads((tmp_path / "millstream.json").read_text())
    shards = manifest.pop("shards")
    assert manifest == {
        "format": "millstream-stream",
        "version": 2,
        "fields": [["byte", "|u1"]],
        "vocab_size": None,
        "tokenizer": {},
        "bos_id": None,
        "eos_id": None,
        "objects": {"metadata": True},
    }
    counts = [(each["records"], each["documents"], each["spans"]) for each in shards]
    assert counts == [(5, 3, 3), (1, 1, 1)]
    assert millstream.open(tmp_path).fingerprint == "a3808b501c18f3f6"


def test_streams_of_records_keep_version_1(tmp_path):
    with millstream.Writer(tmp_path, fields=[("byte", "u1")]) as writer:
        writer.append({"byte": [1, 2]})
    manifest = json.loads((tmp_path / "millstream.json").read_text())
    assert manifest["version"] == 1
    assert "objects" not in manifest


def test_encoders_may_return_anything_with_a_buffer(tmp_path):
    contents = [b"ab", bytearray(b"cd"), memoryview(b"ef"), np.arange(2, dtype="<u2"), b""]
    with millstream.Writer(tmp_path, encode=lambda content: content) as writer:
        for content in contents:
            writer.append(content)
        writer.extend(contents)
        writer.extend([])
    stored = [bytes(memoryview(content).cast("B")) if len(content) else b"" for content in contents]
    assert millstream.open(tmp_path).objects(bytes)[:]["documents"] == 2 * stored
    assert writer.num_documents == 10
    assert writer.num_records == 20


def test_a_document_may_change_after_it_was_appended(tmp_path):
    content = bytearray(b"abc")
    with millstream.Writer(tmp_path, encode=lambda each: each) as writer:
        for letter in b"xyz":
            content[0] = letter
            writer.append(content)
    assert millstream.open(tmp_path).objects(bytes)[:]["documents"] == [b"xbc", b"ybc", b"zbc"]


def test_encoders_may_reuse_their_buffers(tmp_path):
    scratch = bytearray(4)

    def encode(number):
        scratch[:] = number.to_bytes(4, "little")
        return scratch

    numbers = [1, 2, 3, 4, 5, 6]
    with millstream.Writer(tmp_path, encode=encode, metadata=encode) as writer:
        writer.extend(numbers[:3], metadata=[10, 20, 30])
        writer.extend(iter(numbers[3:5]), metadata=[40, 50])
        writer.append(6, 60)
    view = millstream.open(tmp_path).objects(bytes, metadata=bytes)
    assert view[:] == {
        "documents": [number.to_bytes(4, "little") for number in numbers],
        "metadata": [(10 * number).to_bytes(4, "little") for number in numbers],
    }


def test_arrays_of_structs_and_of_foreign_byte_order_are_stored_as_they_are(tmp_path):
    arrays = [np.array([(1, 2.0)], [("O", "<i4"), ("x", "<f8")]), np.array([1, 2], ">u4")]
    with millstream.Writer(tmp_path, encode=np.asarray) as writer:
        writer.append(arrays[0])
        writer.extend(arrays)
    assert millstream.open(tmp_path).objects(bytes)[:]["documents"] == [
        each.tobytes() for each in (arrays[0], *arrays)
    ]


@pytest.mark.parametrize("with_metadata", [False, True])
def test_a_shard_ends_with_the_object_that_fills_it(tmp_path, with_metadata):
    contents = [b"x" * length for length in (3, 0, 5, 9, 0, 0, 1)]
    metadata = [b"m"] * 7 if with_metadata else None
    data = write_objects(tmp_path / "one", contents, metadata=metadata, shard_bytes=8)
    counts = [(shard.num_records, shard.num_documents) for shard in data.shards]
    assert counts == [(8, 3), (9, 1), (1, 3)]
    with millstream.Writer(
        tmp_path / "many", encode=bytes, metadata=metadata and bytes, shard_bytes=8
    ) as writer:
        writer.extend(contents, metadata=metadata)
    assert millstream.open(tmp_path / "many").fingerprint == data.fingerprint


@pytest.mark.slow
def test_threads_share_a_writer(tmp_path):
    with millstream.Writer(tmp_path, encode=str.encode, shard_bytes=500) as writer:

        def write(name):
            for number in range(300):
                writer.append(f"{name} {number} " + "x" * (number % 7))

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = millstream.open(tmp_path).objects(lambda each: str(each, "utf-8").split()[:2])
    assert sorted(found[:]["documents"]) == sorted(
        [name, str(number)] for name in "abcd" for number in range(300)
    )
    assert list(find_problems(found.dataset)) == []


WRITER = """
import sys, millstream
path, part, count, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
options = {"encode": str.encode, "metadata": str.encode, "shard_bytes": 900}
with millstream.Writer(path, part=part, **options) as w:
    for number in range(count):
        w.append(f"{part} {number} " * (number % 9), metadata=f"{part} {number}")
        if pause == "wait" and number == count // 2:
            print("half", flush=True)
            import time
            time.sleep(100)
"""


@pytest.mark.process
@pytest.mark.slow
def test_parts_of_several_processes_are_one_dataset_even_after_a_kill(tmp_path):
    path = tmp_path / "data"
    killed = start_python(WRITER, path, 1, 200, "wait")
    assert killed.stdout.readline() == "half\n"
    others = [start_python(WRITER, path, part, 200, "go") for part in (0, 2)]
    for process in others:
        assert process.wait() == 0, process.stderr.read()
        process.communicate()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(millstream.MissingDataError, match=r"missing \['00001\.part\.json'\]"):
        millstream.finish(path, parts=3)
    again = run_python(WRITER, path, 1, 200, "go")
    assert again.returncode == 0, again.stderr
    millstream.finish(path, parts=3)
    data = millstream.open(path)
    view = data.objects(lambda each: str(each, "utf-8"), metadata=lambda each: each.decode())
    expected = [(part, number) for part in range(3) for number in range(200)]
    batch = view[:]
    assert batch["metadata"] == [f"{part} {number}" for part, number in expected]
    assert batch["documents"] == [f"{part} {number} " * (number % 9) for part, number in expected]
    assert list(find_problems(data)) == []
    assert not list(path.glob("*.tmp"))


def test_parts_must_agree_on_what_they_hold(tmp_path):
    with millstream.Writer(tmp_path / "data", encode=bytes, part=0) as writer:
        writer.append(b"a")
    with millstream.Writer(tmp_path / "data", encode=bytes, metadata=bytes, part=1) as writer:
        writer.append(b"a", b"")
    with pytest.raises(millstream.FormatError, match=r"json: encode or metadata differ from"):
        millstream.finish(tmp_path / "data")


def test_a_failed_encoder_names_the_document_and_leaves_nothing(tmp_path):
    def encode(number):
        return b"x" * (10 // number)

    with (
        pytest.raises(ZeroDivisionError) as caught,
        millstream.Writer(tmp_path / "data", encode=encode) as writer,
    ):
        writer.append(5)
        writer.append(0)
    assert caught.value.__notes__ == ["while encoding document 1"]
    assert not (tmp_path / "data").exists()


def test_a_failed_metadata_encoder_names_the_document(tmp_path):
    def encode(number):
        return b"x" * (10 // number) if number < 9 else "text"

    with millstream.Writer(tmp_path / "data", encode=bytes, metadata=encode) as writer:
        writer.append(b"", 1)
        with pytest.raises(ZeroDivisionError) as caught:
            writer.extend([b"", b""], metadata=[1, 0])
        assert caught.value.__notes__ == ["while encoding the metadata of document 2"]
        with pytest.raises(UsageError, match="document 1: the metadata encoder returned str"):
            writer.append(b"", 9)
    with millstream.Writer(tmp_path / "tokens", vocab_size=9, metadata=encode) as writer:
        writer.append([1])
        with pytest.raises(ZeroDivisionError) as caught:
            writer.extend([1, 2, 3], [1, 1, 1], spans=[[(0, 1, 1)], [], [(0, 1, 0)]])
        assert caught.value.__notes__ == ["while encoding the metadata of document 3"]


def test_an_object_that_was_refused_is_not_written(tmp_path):
    with millstream.Writer(tmp_path, encode=bytes, metadata=bytes) as writer:
        writer.append(b"a", b"1")
        for arguments, message in (
            (([b"b"], None, [b"1", b"2"]), "2 metadata objects for 1 documents"),
            (([b"b", b"c"], None, [b"1", None]), "document 2 has no metadata, and every object"),
            (([b"b"], [1], [b"1"]), "leave out lengths"),
            (([b"b"], [b"1"]), r"pass metadata=… by its name"),
        ):
            with pytest.raises(UsageError, match=message):
                writer.extend(*arguments)
        with pytest.raises(UsageError, match="document 1 has no metadata"):
            writer.append(b"b")
        with pytest.raises(UsageError, match="objects take no spans; use metadata"):
            writer.append(b"b", spans=[(0, 1, b"")])
        writer.append(b"c", b"2")
    view = millstream.open(tmp_path).objects(bytes, metadata=bytes)
    assert view[:] == {"documents": [b"a", b"c"], "metadata": [b"1", b"2"]}
    with pytest.raises(UsageError, match="this writer is finished"):
        writer.append(b"d", b"3")
    with pytest.raises(DatasetExistsError):
        millstream.Writer(tmp_path, encode=bytes)


def test_content_that_cannot_be_stored_is_refused(tmp_path):
    with millstream.Writer(tmp_path, encode=lambda each: each) as writer:
        with pytest.raises(UsageError, match="document 0: encode returned str, not bytes"):
            writer.append("text")
        for array in (np.array([{}, {}]), np.zeros(2, [("a", "<i4"), ("b", object)])):
            with pytest.raises(UsageError, match="document 0: encode returned an array of Python"):
                writer.append(array)
        with pytest.raises(UsageError, match=r"0: encode returned ndarray, not bytes \(.*M"):
            writer.append(np.zeros(2, "M8[s]"))
        with pytest.raises(UsageError, match="document 0: encode returned a buffer with gaps"):
            writer.append(np.zeros((4, 4))[:, ::2])
        with pytest.raises(UsageError, match="no metadata encoder"):
            writer.append(b"", b"metadata")
    with millstream.Writer(tmp_path / "tokens", vocab_size=9) as writer:
        with pytest.raises(UsageError, match="needs the length of each document"):
            writer.extend([1, 2])
        writer.append([1])


@pytest.mark.parametrize(
    "options",
    [
        {"fields": "<u2"},
        {"vocab_size": 9},
        {"tokenizer": {"name": "x"}},
        {"bos_id": 1},
        {"eos_id": 1},
    ],
)
def test_what_belongs_to_tokens_is_refused(tmp_path, options):
    with pytest.raises(UsageError, match=f"leave out {next(iter(options))}"):
        millstream.Writer(tmp_path / "data", encode=bytes, **options)
    with pytest.raises(UsageError, match="encode is 3; it must be a function"):
        millstream.Writer(tmp_path / "data", encode=3)
    assert not (tmp_path / "data").exists()
