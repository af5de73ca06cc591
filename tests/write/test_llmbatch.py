"""LLMBATCH files: exact bytes, whatever fails or is limited."""

import errno
import json
import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import DatasetExistsError, FormatError, UsageError
from millstream.formats.llmbatch import Header, parse_header
from millstream.write.llmbatch import write_batch_dataset, write_batch_file
from tests.helpers.programs import run_python

GOLDEN_FIELDS = bytes.fromhex(
    "4c4c4d4241544348010000002000000000020000cb0c000000000000000000002a0000007d990100"
)
SMALLEST_SHARED_MEMORY = 16 << 20


@pytest.fixture
def quick_path():
    """A directory in memory where the system has one: hundreds of syncs cost nothing there."""
    with quick_directory() as path:
        yield Path(path)


def quick_directory():
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def numbered(num_records, seq_len):
    """Records that all differ: the first token is the number, if there is a second it is marked."""
    records = np.zeros((num_records, seq_len), np.uint32)
    records[:, 0] = np.arange(num_records)
    records[:, 1:] = 4_000_000_000
    return records


def rows_in(path):
    """The header and all rows, by the layout as it is documented, without our reader."""
    content = Path(path).read_bytes()
    header = parse_header(content[:4096], len(content), str(path))
    rows = []
    for i in range(header.num_batches):
        start = 4096 + i * header.padded_batch_bytes
        batch = content[start : start + header.padded_batch_bytes]
        assert not any(batch[header.batch_bytes :]), "the padding is not zero"
        tokens = np.frombuffer(batch[: header.batch_bytes], "<u4")
        rows += tokens.reshape(header.batch_size, header.seq_len).tolist()
    return header, rows


# The header


def test_the_header_is_the_one_of_the_source():
    header = Header(batch_size=32, seq_len=512, num_batches=3275, seed=42, total_records=104_829)
    assert header.pack() == GOLDEN_FIELDS + bytes(4056)
    assert header.padded_batch_bytes == header.batch_bytes == 65_536
    assert header.num_rows == 104_800
    assert header.size_bytes == 214_634_496
    assert parse_header(header.pack(), 214_634_496, "x") == header


@pytest.mark.parametrize(("shape", "padded"), [((1, 1), 4096), ((1, 1025), 8192), ((2, 512), 4096)])
def test_batches_are_padded_to_whole_pages(shape, padded):
    assert Header(*shape, num_batches=3, seed=0, total_records=3).padded_batch_bytes == padded


def test_reserved_bytes_may_be_used_by_a_later_version():
    head = GOLDEN_FIELDS + bytes([7] * 4056)
    assert parse_header(head, 214_634_496, "x").num_batches == 3275


def test_a_count_beyond_32_bits_is_saturated():
    head = Header(1, 1, 1, 0, total_records=1 << 33).pack()
    assert parse_header(head, 8192, "x").total_records == 0xFFFF_FFFF


@pytest.mark.parametrize(
    ("change", "size_change", "complaint"),
    [
        ((0, b"LLMCHNK\0"), 0, "starts with b'LLMCHNK"),
        ((8, b"\2"), 0, "version 2; this version of Millstream reads 1"),
        ((28, b"\1"), 0, "dtype code 1"),
        ((12, b"\0"), 0, "are empty"),
        ((16, b"\0\0"), 0, "are empty"),
        ((20, bytes(8)), 0, "are empty"),
        ((20, b"\xff" * 8), 0, "too short"),
        ((0, b""), -1, "too short: 3,275 batches of 32 x 512 tokens make 214,634,496"),
        ((0, b""), 1, "too long"),
        ((0, b""), -214_634_000, "less than an LLMBATCH header of 4,096"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(change, size_change, complaint):
    head = bytearray(GOLDEN_FIELDS + bytes(4056))
    offset, replacement = change
    head[offset : offset + len(replacement)] = replacement
    with pytest.raises(FormatError, match=complaint) as caught:
        parse_header(bytes(head), 214_634_496 + size_change, "some.batch")
    assert str(caught.value).startswith("some.batch: ")


@pytest.mark.parametrize("length", [0, 3, 8, 39])
def test_a_file_that_ends_within_the_header_is_refused(length):
    with pytest.raises(
        FormatError, match=r"not an LLMBATCH file|less than an LLMBATCH header of 4,096"
    ):
        parse_header(GOLDEN_FIELDS[:length], length, "x")


# The bytes


def test_the_bytes_of_a_written_file_never_change(quick_path):
    # What a seed means must outlive our release: the same seed, the same file.
    records = np.arange(14).reshape(7, 2)
    assert write_batch_file(quick_path / "a.batch", records, 3, 2, seed=42) == 2
    content = (quick_path / "a.batch").read_bytes()
    assert len(content) == 4096 * 3
    fields = (
        "4c4c4d4241544348 01000000 03000000 02000000 0200000000000000 00000000 2a000000 07000000"
    )
    assert content[:40] == bytes.fromhex(fields)
    _, rows = rows_in(quick_path / "a.batch")
    assert rows == [[8, 9], [2, 3], [6, 7], [12, 13], [0, 1], [4, 5]]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    num_records=st.integers(1, 300),
    batch_size=st.integers(1, 20),
    seq_len=st.integers(1, 5),
    seed=st.integers(0, 0xFFFF_FFFF),
    capacity=st.integers(2, 200),
    expected=st.integers(0, 2000),
)
def test_every_record_is_written_once_whatever_the_memory_and_the_total(
    num_records, batch_size, seq_len, seed, capacity, expected
):
    records = numbered(num_records, seq_len)
    memory_bytes = -(-capacity * (8 + 4 * seq_len + 48) * 4 // 3)
    with quick_directory() as directory:
        a, b = Path(directory, "a"), Path(directory, "b")
        if num_records < batch_size:
            with pytest.raises(UsageError, match="are less than a batch"):
                write_batch_file(a, records, batch_size, seq_len, seed)
            with pytest.raises(UsageError, match="are less than a batch"):
                write_dataset(b, records, expected, batch_size, seq_len, seed, memory_bytes)
            assert os.listdir(directory) == []
            return
        num_batches = write_batch_file(a, records, batch_size, seq_len, seed)
        written = write_dataset(b, records, expected, batch_size, seq_len, seed, memory_bytes)
        assert written == num_batches == num_records // batch_size
        assert a.read_bytes() == b.read_bytes()
        header, rows = rows_in(a)
        assert header == Header(batch_size, seq_len, num_batches, seed, num_records)
        assert len({row[0] for row in rows}) == len(rows) == header.num_rows
        assert all(row == records[row[0]].tolist() for row in rows)
        assert sorted(os.listdir(directory)) == ["a", "a.checksums", "b", "b.checksums"]


def write_dataset(path, records, expected, batch_size, seq_len, seed, memory_bytes):
    arguments = (path, iter(records), expected, batch_size, seq_len, seed)
    if expected == len(records) or len(records) < batch_size:
        return write_batch_dataset(*arguments, memory_bytes=memory_bytes)
    with pytest.warns(UserWarning, match=f"{len(records)} records, but total_records is"):
        return write_batch_dataset(*arguments, memory_bytes=memory_bytes)


@pytest.mark.slow
def test_every_row_is_equally_likely_to_hold_every_record(quick_path):
    counts = np.zeros((6, 6))
    for seed in range(600):
        path = quick_path / "a.batch"
        write_batch_file(path, numbered(6, 1), 6, 1, seed)
        for row, (record,) in enumerate(rows_in(path)[1]):
            counts[row, record] += 1
        path.unlink()
    # 25 degrees of freedom: 60 would be one in ten thousand, and the seeds are fixed.
    assert ((counts - 100) ** 2 / 100).sum() < 60


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, ">u4", np.int64, np.uint64])
def test_integers_of_any_width_are_taken(quick_path, dtype):
    records = numbered(10, 2) % 100
    write_batch_file(quick_path / "a", records, 2, 2, 0)
    write_batch_file(quick_path / "b", records.astype(dtype), 2, 2, 0)
    write_batch_dataset(quick_path / "c", iter(records.astype(dtype)), 10, 2, 2, 0)
    write_batch_dataset(quick_path / "d", records.tolist(), 10, 2, 2, 0)
    assert len({(quick_path / name).read_bytes() for name in "abcd"}) == 1


def test_several_files_are_one_dataset_with_a_list(quick_path):
    records = numbered(107, 3)
    write_batch_file(quick_path / "one", records, 5, 3, 9)
    made = quick_path / "new" / "many"
    assert write_batch_dataset(made, iter(records), 107, 5, 3, 9, batches_per_file=8) == 21
    listed = json.loads((made / "files.json").read_text())
    assert [entry["path"] for entry in listed] == ["00000.batch", "00001.batch", "00002.batch"]
    files = [entry["path"] for entry in listed] + ["files.json"]
    checksums = [Path(name).with_suffix(".checksums").name for name in files]
    assert sorted(os.listdir(made)) == sorted(files + checksums)
    rows, sizes = [], []
    for entry in listed:
        content = (made / entry["path"]).read_bytes()
        assert entry["size"] == len(content)
        assert entry["xxh3"] == xxhash.xxh3_64_hexdigest(content)
        header, part = rows_in(made / entry["path"])
        assert header.total_records == 107
        rows += part
        sizes.append(header.num_batches)
    assert sizes == [8, 8, 5]
    assert rows == rows_in(quick_path / "one")[1]


def test_progress_tells_how_many_records_came(quick_path):
    seen = []
    write_batch_dataset(
        quick_path / "a", numbered(50, 1), 50, 1, 1, 0, memory_bytes=1600, progress=seen.append
    )
    assert [(each.done, each.total) for each in seen] == [(20, 50), (40, 50), (50, 50)]


# Refusals


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ([1, 2, 3], r"record 3 has shape \(3,\), expected \(2,\)"),
        ([[1, 2]], r"record 3 has shape \(1, 2\)"),
        (7, r"record 3 has shape \(\)"),
        ([[1], [1, 2]], "record 3 is not an array"),
        ([1.0, 2.0], "record 3 is float64; tokens must be integers"),
        ([True, False], "record 3 is bool"),
        ([1, -1], "record 3: token 1 is -1, expected 0 to 4,294,967,295"),
        ([1 << 32, 0], "record 3: token 0 is 4294967296"),
        ([1 << 80, 0], "record 3 is object"),
    ],
)
def test_a_record_that_does_not_fit_is_named(quick_path, record, complaint):
    for memory_bytes in (1 << 20, 250):  # as one block, and after two others were spilled
        with pytest.raises(UsageError, match=complaint):
            write_batch_dataset(
                quick_path / "a", [[1, 2]] * 3 + [record], 4, 1, 2, 0, memory_bytes=memory_bytes
            )
        assert os.listdir(quick_path) == []


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        (np.zeros((4, 3), int), r"shape \(4, 3\), expected \(records, 2\)"),
        (np.zeros(4, int), r"shape \(4,\)"),
        (np.zeros((4, 2)), "tokens_array is float64"),
        (np.array([[0, 0], [0, 0], [0, -5]]), "record 2: token 1 is -5"),
        (np.full((300_000, 2), 1) - np.eye(300_000, 2, -299_000, dtype=int) * 2, "record 299,000"),
        (np.zeros((0, 2), int), "0 records are less than a batch of 1"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(quick_path, tokens, complaint):
    with pytest.raises(UsageError, match=complaint):
        write_batch_file(quick_path / "a", tokens, 1, 2, 0)
    assert os.listdir(quick_path) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 1 << 32),
        ("seq_len", 0),
        ("seq_len", 1 << 30),
        ("seed", -1),
        ("seed", 1 << 32),
        ("seed", None),
        ("total_records", -1),
        ("memory_bytes", 100),
        ("batches_per_file", 0),
    ],
)
def test_arguments_that_cannot_work_are_refused(quick_path, name, value):
    arguments = {"batch_size": 1, "seq_len": 2, "seed": 0, "total_records": 3} | {name: value}
    with pytest.raises(UsageError, match=name):
        write_batch_dataset(quick_path / "a", [[1, 2]] * 3, **arguments)
    assert os.listdir(quick_path) == []


def test_nothing_that_is_there_is_replaced(quick_path):
    (quick_path / "file").write_text("mine")
    (quick_path / "full").mkdir()
    (quick_path / "full" / "x").write_text("mine")
    (quick_path / "empty").mkdir()
    records = numbered(4, 1)
    for name in ("file", "full", "empty"):
        with pytest.raises(DatasetExistsError, match="exists already"):
            write_batch_file(quick_path / name, records, 1, 1, 0)
    with pytest.raises(DatasetExistsError, match="is a file, not a directory"):
        write_batch_file(quick_path / "file" / "a", records, 1, 1, 0)
    for name in ("file", "full"):
        with pytest.raises(DatasetExistsError, match="exists already"):
            write_batch_dataset(quick_path / name, records, 4, 1, 1, 0, batches_per_file=2)
    write_batch_dataset(quick_path / "empty", records, 4, 1, 1, 0, batches_per_file=2)
    assert (quick_path / "file").read_text() == (quick_path / "full" / "x").read_text() == "mine"
    assert sorted(os.listdir(quick_path)) == ["empty", "file", "full"]


# Accidents


def test_two_writers_of_one_name_do_not_meet(quick_path):
    def records():
        with pytest.raises(DatasetExistsError, match="another process is writing"):
            write_batch_file(quick_path / "a", numbered(4, 1), 1, 1, 0)
        yield from numbered(4, 1)

    assert write_batch_dataset(quick_path / "a", records(), 4, 1, 1, 0) == 4


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_users_iterator_leaves_nothing(quick_path, error):
    def records():
        yield from numbered(100, 1)
        raise error

    with pytest.raises(error):
        write_batch_dataset(quick_path / "a", records(), 100, 1, 1, 0, memory_bytes=1600)
    assert os.listdir(quick_path) == []


@pytest.mark.process
@pytest.mark.parametrize("limit_bytes", [100, 3_000, 9_000, 60_000])
@pytest.mark.parametrize("batches_per_file", [None, 50])
def test_a_full_disk_leaves_nothing(quick_path, limit_bytes, batches_per_file):
    # Spilled files have some 3,000 bytes here; 100 batches of a page are 409,600.
    script = (
        "import sys, resource, signal, numpy as np\n"
        "from millstream.write.llmbatch import write_batch_dataset\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))\n"
        "try:\n"
        "    write_batch_dataset(sys.argv[1], np.zeros((3000, 7), int), 3000, 30, 7, 0,\n"
        f"        memory_bytes=20_000, batches_per_file={batches_per_file})\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    done = run_python(script, quick_path / "a")
    assert (done.stdout.strip(), done.stderr) == (str(errno.EFBIG), "")
    assert os.listdir(quick_path) == []


@pytest.mark.process
@pytest.mark.parametrize("batches_per_file", [None, 50])
@pytest.mark.parametrize("moment", ["reading", "sorting", "renaming"])
def test_a_killed_writer_leaves_nothing_that_opens_and_the_next_one_cleans_up(
    quick_path, moment, batches_per_file
):
    script = (
        "import os, signal, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from millstream.write import llmbatch, sorting\n"
        "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        "def records():\n"
        "    yield from np.zeros((3000, 7), int)\n"
        f"    if {moment!r} == 'reading': die()\n"
        "calls = iter(range(1000))\n"
        "sort = sorting._sorted\n"
        f"if {moment!r} == 'sorting':\n"
        "    sorting._sorted = lambda block: die() if next(calls) == 5 else sort(block)\n"
        f"if {moment!r} == 'renaming':\n"
        "    llmbatch._refuse_to_replace = lambda *_: die() if next(calls) == 1 else None\n"
        "llmbatch.write_batch_dataset(sys.argv[1], records(), 3000, 30, 7, 0,\n"
        f"    memory_bytes=20_000, batches_per_file={batches_per_file})\n"
    )
    done = run_python(script, quick_path / "a")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (quick_path / "a").exists()
    assert os.listdir(quick_path) != []
    write_batch_dataset(
        quick_path / "a",
        np.zeros((3000, 7), int),
        3000,
        30,
        7,
        0,
        memory_bytes=20_000,
        batches_per_file=batches_per_file,
    )
    companion = ["a.checksums"] if batches_per_file is None else []
    assert sorted(os.listdir(quick_path)) == ["a", *companion]


@pytest.mark.process
@pytest.mark.parametrize(("seq_len", "total"), [(512, 60_000), (512, 10), (1, 4_000_000)])
def test_the_memory_stays_within_its_bound(tmp_path, seq_len, total):
    # Some 60 to 120 MB of records in 16 MiB; what the interpreter and NumPy take is measured first.
    script = (
        "import sys, warnings, numpy as np\n"
        "from millstream.write.llmbatch import write_batch_dataset\n"
        "warnings.simplefilter('ignore')\n"
        "def peak():\n"
        "    return [int(l.split()[1]) for l in open('/proc/self/status') if 'VmHWM' in l][0]\n"
        "write_batch_dataset(sys.argv[1] + '-first', np.zeros((300, 7), int), 300, 3, 7, 0,\n"
        "    memory_bytes=20_000)\n"
        "before = peak()\n"
        f"record = np.zeros({seq_len}, np.uint32)\n"
        f"count = max({total}, 60_000)\n"
        f"write_batch_dataset(sys.argv[1], (record for _ in range(count)), {total}, 4096,\n"
        f"    {seq_len}, 0, memory_bytes={SMALLEST_SHARED_MEMORY})\n"
        "print((peak() - before) * 1024)\n"
    )
    done = run_python(script, tmp_path / "a")
    assert done.stderr == ""
    assert 1 << 20 < int(done.stdout) <= SMALLEST_SHARED_MEMORY


def test_too_few_records_for_a_batch_are_told_with_a_size_that_works(tmp_path):
    with pytest.raises(UsageError, match="write more records, or choose batch_size=2 or less"):
        write_batch_file(tmp_path / "x", np.zeros((2, 3), int), 5, 3, seed=0)
    with pytest.raises(UsageError, match=r"write more records$"):
        write_batch_file(tmp_path / "x", np.zeros((0, 3), int), 5, 3, seed=0)
