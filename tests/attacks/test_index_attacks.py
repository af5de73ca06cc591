"""Hostile offsets and ids: a named check stops each, or the result is right.

The manifest and the sizes of the files agree with each other; it is the content of `.documents`,
`.index` and the records that lies. Reading then gives what the offsets say, where they make sense,
or raises a `MillstreamError` that names the file: never another exception, a crash, a hang, or
memory out of proportion to what is on disk. What could crash runs in another process.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, MissingDataError
from tests.helpers.memory_limit import UNDER_SANITIZER, limit_memory
from tests.helpers.metadata_by_hand import ACCESS, MEMORY, write_by_hand

NONE = 0xFFFFFFFF
HUGE = [1 << 31, 1 << 32, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]

words = st.one_of(st.integers(0, 14), st.integers(0, (1 << 64) - 1), st.sampled_from(HUGE))


def make_views(data, seq_len, **options):
    return [
        data.windows(seq_len, **options),
        data.windows(seq_len, extras="cu_seqlens", **options),
        data.packed(seq_len, **options),
        data.documents(seq_len, **options),
    ]


# The index


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    st.lists(words, min_size=2, max_size=6),
    st.lists(st.one_of(st.integers(0, 5), st.just(NONE)), min_size=2, max_size=8),
    st.booleans(),
    st.sampled_from(ACCESS),
)
@example([0, 4, 2, 8], [0, 1, 2, NONE], False, "pread")
@example([0, 13], [0, 0], False, "mmap")
@example([5, 5], [0, 0], False, "mmap")
@example([1 << 63, 1 << 63], [0, 0], False, "pread")
def test_an_index_gives_what_it_says_or_is_stopped(index, ids, is_sorted, access):
    content = b"twelve bytes"
    if is_sorted:
        index = sorted(index)
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        write_by_hand(path, ids=ids, index=index, metadata=content)
        view = millstream.open(path, access=access).windows(len(ids) - 1, metadata=bytes)
        used = [number for number in ids[:-1] if number != NONE]
        exists = all(number < len(index) - 1 for number in used)
        spans = [index[number : number + 2] for number in used] if exists else []
        if exists and all(start <= stop <= len(content) for start, stop in spans):
            # Two spans that are sound alone may still go backwards together; then that is stopped.
            try:
                sample = view[0]
            except FormatError:
                assert not is_sorted
                return
            found = [sample["metadata"][n] for n in sample["metadata_ids"] if n >= 0]
            assert found == [content[start:stop] for start, stop in spans]
        else:
            with pytest.raises(FormatError) as caught:
                view[0]
            where = "index: offset" if exists else "stream: a record refers to metadata"
            assert f"{path}/00000.{where}" in str(caught.value)


@pytest.mark.parametrize("prefetch", [0, 8])
@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize(
    ("ids", "index", "words"),
    [
        ([0, 1, 2], [0, 5, 3, 8], r"00000\.index: offset 2 is 3,"),
        ([0, 1, 2], [0, 5, 8, 12], r"00000\.index: offset 3 is 12,"),
        ([0, 1, 2], [0, 5, 1 << 62, 8], r"00000\.index: offset 2 is 4,611,686,018,427,387,904,"),
        ([0, 1, 3], [0, 1, 2, 8], r"00000\.stream: a record refers to metadata 3,"),
        ([0, 1, 0xFFFFFFFE], [0, 1, 2, 8], r"00000\.stream: a record refers to metadata 4,294,967"),
    ],
)
def test_a_loader_stops_at_offsets_and_ids_that_lie(tmp_path, access, prefetch, ids, index, words):
    path = write_by_hand(tmp_path / "d", ids=[*ids, NONE], index=index, metadata=b"8 bytes.")
    data = millstream.open(path, access=access)
    for view in make_views(data, 3, metadata=bytes):
        with pytest.raises(FormatError, match=words):
            view[:]
        with (
            millstream.Loader(view, 1, prefetch=prefetch, tail="keep", shuffle=False) as loader,
            pytest.raises(FormatError, match=words),
        ):
            list(loader)
    with pytest.raises(FormatError, match=words):
        data.metadata(0)


@pytest.fixture
def path(tmp_path):
    with millstream.Writer(tmp_path / "d", vocab_size=99, metadata=bytes, shard_bytes=1) as writer:
        for number in range(3):
            writer.append([number] * 5, bytes(1000))
    return tmp_path / "d"


@pytest.mark.slow
@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("suffix", ["index", "metadata", "documents"])
@pytest.mark.parametrize("size", [None, 0, 1, 15, 2000])
def test_a_file_that_changed_after_opening_is_stopped_with_its_name(path, access, suffix, size):
    data = millstream.open(path, access=access)
    rows = [view[:] and view for view in make_views(data, 4, metadata=bytes)]  # plans are made
    damaged = path / f"00001.{suffix}"
    if size is None:
        damaged.unlink()
    else:
        os.truncate(damaged, size)
    kind = MissingDataError if size is None else FormatError
    name = rf"00001\.{suffix}: "
    concerned = rows if suffix != "documents" else rows[1:2]
    for view in concerned:
        with pytest.raises(kind, match=name):
            view[:]
        with (
            millstream.Loader(view, 1, shuffle=False, tail="keep") as loader,
            pytest.raises(kind, match=name),
        ):
            list(loader)
        assert loader.position == 1  # the first row lies in the first shard
    if suffix != "documents" or size != 2000:
        with pytest.raises(kind, match=name):
            data.metadata(1)
    assert data.metadata(0) == [(0, 5, bytes(1000))]


@pytest.mark.parametrize("suffix", ["index", "metadata"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_file_that_is_cut_while_it_is_read_is_stopped_with_its_name(tmp_path, prefetch, suffix):
    with millstream.Writer(tmp_path / "d", vocab_size=99, metadata=bytes) as writer:
        for number in range(50):
            writer.append([number], bytes([number] * 100))
    view = millstream.open(tmp_path / "d").documents(1, metadata=bytes)
    with millstream.Loader(view, 1, shuffle=False, prefetch=prefetch, threads=1) as loader:
        next(iter(loader))  # the file is open
        os.truncate(tmp_path / "d" / f"00000.{suffix}", 160)
        with pytest.raises(FormatError, match=rf"00000\.{suffix}: .* truncated"):
            list(loader)


def run_elsewhere(path, script, memory_bytes=8 << 30):
    """Run a script on the dataset in a process that may crash, with a limit on its memory."""
    prelude = """
import sys, json, numpy, millstream, millstream.batches.batch_filling
path = sys.argv[1]
"""
    limit = limit_memory(memory_bytes)
    indented = "".join(f"    {line}\n" for line in script.strip().splitlines())
    body = f"""
try:
{indented}
    print("read")
except millstream.MillstreamError as error:
    print("stopped:", error)
except MemoryError:
    print("stopped: no memory")
"""
    result = subprocess.run(
        [sys.executable, "-c", prelude + limit + body, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    return result.returncode, result.stdout, result.stderr[-800:]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["|S64", "|V300", "<u8", "<f4", "|u1", "<i4", "shape"])
def test_metadata_ids_of_another_type_are_stopped_by_the_manifest(tmp_path, kind):
    """Kernels write what they read into 4 bytes a column: of 64, memory after the batch."""
    field = ["metadata_id", "<u4", [16]] if kind == "shape" else ["metadata_id", kind]
    num_bytes = 64 if kind == "shape" else np.dtype(kind).itemsize
    path = write_by_hand(tmp_path / "d", ids=[0] * 5001, index=[0, 1], metadata=b"x")
    records = 5001 * (2 + num_bytes)
    (path / "00000.stream").write_bytes(bytes(records))
    manifest = json.loads((path / "millstream.json").read_text())
    manifest["fields"][1] = field
    manifest["shards"][0]["files"][".stream"]["bytes"] = records
    (path / "millstream.json").write_text(json.dumps(manifest))
    script = "millstream.open(path).windows(5000, metadata=bytes).read([0])"
    code, output, errors = run_elsewhere(path, script)
    assert code == 0, errors
    assert "stopped" in output
    assert f"{path}/millstream.json: " in output
    assert "metadata_id" in output


@pytest.mark.process
@pytest.mark.skipif(MEMORY is None, reason="needs a file system that holds files of 2^62 bytes")
@pytest.mark.parametrize("num_spans", [4, 8])
def test_sizes_that_add_up_to_more_than_64_bits_are_stopped(num_spans):
    """Metadata that many records refer to in turn is read for each; the sum must not wrap."""
    part = (1 << 64) // num_spans + 4 * (num_spans == 8)  # then the sum wraps to 32 bytes
    part = min(part, (1 << 62) - 1)
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        write_by_hand(
            path,
            ids=[0, 2] * (num_spans // 2) + [NONE],
            index=[0, part, part, 2 * part],
            metadata=b"",
        )
        os.truncate(f"{path}/00000.metadata", 2 * part)
        with open(f"{path}/millstream.json", "r+") as file:  # noqa: PTH123
            manifest = json.load(file)
            manifest["shards"][0]["files"][".metadata"]["bytes"] = 2 * part
            file.seek(0)
            json.dump(manifest, file)
        script = f"millstream.open(path).windows({num_spans}, metadata=len).read([0])"
        code, output, errors = run_elsewhere(path, script)
    assert code == 0, errors
    assert "stopped" in output
    assert "Bad address" not in output, "it was read beyond its memory until the system refused"


@pytest.mark.process
def test_few_bytes_that_many_records_refer_to_in_turn_do_not_take_memory_for_each(tmp_path):
    """2 x 4 MiB on disk, referred to by 4,096 records: 16 GiB if each were read."""
    size = 4 << 20
    path = write_by_hand(
        tmp_path / "d",
        ids=[0, 2] * 2048 + [NONE],
        index=[0, size, size, 2 * size],
        metadata=bytes(2 * size),
    )
    script = """
view = millstream.open(path).windows(4096, metadata=len)
sizes = view.read([0])["metadata"][0]
assert sizes == [4 << 20] * 4096
"""
    code, output, errors = run_elsewhere(path, script, memory_bytes=4 << 30)
    assert code == 0, errors
    assert output == "read\n" or f"{path}/00000." in output


# The documents


def write_documents(path, offsets, num_records):
    """A dataset whose only shard has these offsets of documents."""
    os.makedirs(path, exist_ok=True)  # noqa: PTH103
    content = {
        ".stream": np.arange(num_records, dtype="<u2").tobytes(),
        ".documents": np.array(offsets, "<u8").tobytes(),
    }
    for suffix, values in content.items():
        with open(f"{path}/00000{suffix}", "wb") as file:  # noqa: PTH123
            file.write(values)
    files = {
        suffix: {"bytes": len(b), "xxh3": xxhash.xxh3_64_hexdigest(b)}
        for suffix, b in content.items()
    }
    shard = {
        "name": "00000",
        "records": num_records,
        "documents": len(offsets) - 1,
        "spans": 0,
        "files": files,
    }
    manifest = {
        "format": "millstream-stream",
        "version": 1,
        "fields": [["token", "<u2"]],
        "vocab_size": None,
        "tokenizer": {},
        "shards": [shard],
    }
    with open(f"{path}/millstream.json", "w") as file:  # noqa: PTH123
        json.dump(manifest, file)
    return path


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.one_of(st.integers(0, 22), words), min_size=1, max_size=12),
    st.booleans(),
    st.booleans(),
    st.sampled_from(ACCESS),
)
@example([0, 5, 3, 20], True, False, "pread")
@example([3, 10, 20], True, False, "pread")
@example([0, 10, 19], False, False, "pread")
@example([0, 20, 20, 21, 20], True, False, "pread")
def test_a_window_over_all_documents_has_their_boundaries_or_is_stopped(
    offsets, is_framed, is_sorted, access
):
    num_records = 20
    if is_framed:
        offsets = [0, *offsets, num_records]
    if is_sorted:
        offsets = sorted(offsets)
    sound = offsets[0] == 0 and offsets[-1] == num_records
    sound = sound and all(start <= stop for start, stop in pairwise(offsets))
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        write_documents(path, offsets, num_records)
        data = millstream.open(path, access=access)
        extras = ("cu_seqlens", "document_ids")
        view = data.windows(num_records - 1, extras=extras)
        if sound:
            ids = view[0]["document_ids"].tolist()
            assert ids == [
                sum(start <= record for start in offsets[:-1]) - 1
                for record in range(num_records - 1)
            ]
            return
        for read in (view.__getitem__, data.packed(7).__getitem__, data.documents(7).__getitem__):
            with pytest.raises(FormatError, match=r"00000\.documents: "):
                read(0)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.one_of(st.integers(0, 500), words), min_size=1, max_size=300),
    st.integers(1, 50),
    st.sampled_from(ACCESS),
    st.data(),
)
def test_windows_over_any_offsets_end_with_a_batch_or_an_error(offsets, seq_len, access, draw):
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        write_documents(path, offsets, 500)
        data = millstream.open(path, access=access)
        view = data.windows(seq_len, extras=("cu_seqlens", "document_ids", "position_ids"))
        chosen = draw.draw(st.lists(st.integers(0, len(view) - 1), min_size=1, max_size=4))
        for sample in chosen:
            with contextlib.suppress(FormatError):
                batch = view.read([sample])
                start = sample * seq_len
                assert batch["input_ids"][0].tolist() == list(range(start, start + seq_len))
                assert batch["cu_seqlens"][-1] == seq_len
                assert np.all(np.diff(batch["cu_seqlens"]) > 0)


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_document_that_lies_is_stopped(tmp_path, access, number):
    for offsets in ([0, 21, 20, 20], [0, 1 << 63, 20, 20], [5, 3, 2, 20], [0, 5, 30, 3]):
        path = write_documents(tmp_path / str(offsets[1]), offsets, 20)
        data = millstream.open(path, access=access)
        start, stop = offsets[number : number + 2]
        if start <= stop <= 20:
            assert data.document(number).tolist() == list(range(start, stop))
        else:
            with pytest.raises(FormatError, match=r"00000\.documents: "):
                data.document(number)


def test_a_shard_of_records_without_documents_is_stopped(tmp_path):
    data = millstream.open(write_documents(tmp_path / "d", [0], 20))
    assert data.windows(5)[0]["input_ids"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(FormatError, match=r"00000\.documents: "):
        data.windows(5, extras="position_ids")[0]


@pytest.mark.process
@pytest.mark.skipif(UNDER_SANITIZER, reason="sanitizers reserve more memory than there is")
def test_the_limit_on_memory_holds_in_these_tests():
    """Else the tests above that rely on it could not fail."""
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    code, output, errors = run_elsewhere("", "numpy.ones(9 << 30, numpy.uint8)")
    assert (code, output) == (0, "stopped: no memory\n"), errors
