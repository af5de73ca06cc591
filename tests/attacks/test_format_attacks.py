"""Hostile files of other formats: a named check stops each, or the result is right.

Headers, tables and JSON indexes of other software are untrusted input, and so is everything that a
directory may hold in the place of a file. Opening and then reading everything gives data of which
all views say the same, or a `MillstreamError`: never another exception, a crash, a hang, memory out
of proportion to what is on disk, or other tokens than those that are there. What the files
contradict each other about is found at opening, at reading, or at the latest by `verify`. What
could crash runs in another process.
"""

import bz2
import contextlib
import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError
from millstream.formats.decompression import decompress
from millstream.formats.file_formats import FORMATS
from millstream.formats.llmbatch import Header
from millstream.formats.llmchnk import HEADER as CHUNK_HEADER
from millstream.formats.llmchnk import MAGIC as CHUNK_MAGIC
from millstream.verifying import find_problems
from tests.helpers import paths
from tests.helpers.datasets import documents_of, tokens_of
from tests.helpers.memory_limit import limit_memory

GOLDEN = paths.GOLDEN / "formats"

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
HUGE = [(1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63]
HUGE += [(1 << 64) - 8, (1 << 64) - 1]
SECONDS = 20


@contextlib.contextmanager
def no_hang():
    def stop(*_):
        raise AssertionError(f"it took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_all(path, **options):
    """The documents, the same by every way to read them; or None if an error stopped it."""
    with no_hang():
        try:
            data = millstream.open(path, **options)
            if find_problems(data):
                return None
        except MillstreamError:
            return None
        return checked_documents(data)  # what verify found to be sound raises nothing


def checked_documents(data):
    """The documents, which must be those of its stream and of its windows."""
    documents = documents_of(data)
    stream = tokens_of(data.records(0, data.num_records))
    assert sum(documents, []) == stream
    if len(stream) > 5 and "token" in data.fields.names and data.fields["token"] != np.uint64:
        view = data.windows(4, extras=("position_ids", "document_ids"))
        batch = view.read(range(min(len(view), 8)))
        count = batch["input_ids"].size
        owners = [number for number, ids in enumerate(documents) for _ in ids]
        assert batch["input_ids"].reshape(-1).tolist() == stream[:count]
        assert batch["document_ids"].reshape(-1).tolist() == owners[:count]
        packed = data.packed(8)
        assert packed.report.is_lossless
        packed[0]
    return documents


def stop_of(path, **options):
    """The error that opening, verifying or reading ends with; there must be one."""
    with no_hang():
        try:
            data = millstream.open(path, **options)
            problems = find_problems(data)
            if problems:
                return problems[0]
            checked_documents(data)
        except MillstreamError as error:
            return str(error)
    raise AssertionError(f"{path}: was read")


# Small datasets: files to attack, and what to open


def llmbatch(path):
    header = Header(batch_size=2, seq_len=3, num_batches=2, seed=0, total_records=4)
    batches = [np.arange(6 * k, 6 * k + 6, dtype="<u4").tobytes() for k in range(2)]
    content = header.pack() + b"".join(batch.ljust(4096, b"\0") for batch in batches)
    (path / "x.batch").write_bytes(content)


def llmchnk(path):
    header = CHUNK_HEADER.pack(CHUNK_MAGIC, 1, 1, 3, 10)
    offsets = np.array([0, 4, 4, 10], "<u8").tobytes()
    (path / "x.chnk").write_bytes(header + offsets + np.arange(10, dtype="<u2").tobytes())


def copied(*names):
    def copy(path):
        for name in names:
            shutil.copy(GOLDEN / name, path)

    return copy


def copied_directory(name):
    return copied(*(f"{name}/{file.name}" for file in sorted((GOLDEN / name).iterdir())))


# What makes it, and the files that hold more than tokens. An empty one may be as good as none.
DATASETS = {
    "llmbatch": (llmbatch, ["x.batch"]),
    "llmchnk": (llmchnk, ["x.chnk"]),
    "llmc": (copied("llmc/gpt2.bin"), ["gpt2.bin"]),
    "npy": (copied("dolma/numpy/u16_2d.npy"), ["u16_2d.npy"]),
    "megatron": (copied("megatron/modes.bin", "megatron/modes.idx"), ["modes.idx", "modes.bin"]),
    "datatrove": (
        copied(*(f"datatrove/zero.ds{suffix}" for suffix in ("", ".index", ".loss", ".metadata"))),
        ["zero.ds.index", "zero.ds.metadata", "zero.ds.loss", "zero.ds"],
    ),
    "dolma": (
        copied("dolma/memmap_empty.npy", "dolma/memmap_empty.csv.gz"),
        ["memmap_empty.csv.gz", "memmap_empty.npy"],
    ),
    "litdata": (
        copied_directory("litdata/numpy_uint16_two_workers"),
        ["chunk-1-2.bin", "index.json"],
    ),
    "litdata zstd": (copied_directory("litdata/torch_int32_zstd"), ["chunk-0-2.zstd.bin"]),
    "mds": (copied_directory("mds/bytes_empty"), ["shard.00000.mds", "index.json"]),
    "mds in place": (copied_directory("mds/fixed_int32"), ["shard.00000.mds"]),
    "mds zstd": (copied_directory("mds/zstd_xxh64"), ["shard.00000.mds.zstd"]),
    "arrow": (copied("arrow/offsets_not_zero.arrow"), ["offsets_not_zero.arrow"]),
    "arrow stream": (copied("arrow/sliced.arrows"), ["sliced.arrows"]),
    "parquet": (copied("arrow/null_lists.parquet"), ["null_lists.parquet"]),
    "parquet lists": (copied("arrow/list_uint16.parquet"), ["list_uint16.parquet"]),
    "datasets": (copied_directory("arrow/hf_uint16"), ["state.json"]),
    "list views": (copied("arrow/list_view.arrow"), ["list_view.arrow"]),
    "labels": (
        copied("huggingface/sft_left/data-00000-of-00002.arrow"),
        ["data-00000-of-00002.arrow"],
    ),
}
VICTIMS = [(name, file) for name, (_, files) in DATASETS.items() for file in files]


@contextlib.contextmanager
def dataset(name, **changed):
    """A fresh copy, in a directory of its own: tables are remembered by path, size and time."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        DATASETS[name][0](Path(directory))
        yield Path(directory)


def documents_in(name):
    with dataset(name) as path:
        return read_all(path)


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "parquet"])
def test_what_is_attacked_is_sound_before(name):
    assert documents_in(name)


# Any bytes


def lengths_to_try(size):
    """Every length of a small file; of a larger one those at its ends, and some between."""
    some = {*range(0, size, max(1, size // 100)), *range(min(size, 40)), *range(size - 40, size)}
    return sorted(length for length in some if 0 <= length < size)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), VICTIMS)
def test_a_file_that_was_cut_is_stopped_by_its_size_or_reads_as_before(name, file):
    """Sizes are checked against counts; what may be cut is text that nobody needs."""
    before = documents_in(name)
    with dataset(name) as path:
        content = (path / file).read_bytes()
    for length in lengths_to_try(len(content)):
        if length == 0 and file.endswith((".loss", ".metadata")):
            continue  # as datatrove leaves them where it knows nothing
        if length < 12 and name in ("llmc", "npy"):
            continue  # what is left of the magic is as good a token as any
        with dataset(name) as path:
            (path / file).write_bytes(content[:length])
            after = read_all(path)
            if file == "zero.ds.index" and after is not None:  # its last documents may be empty
                after += before[len(after) :]
            assert after is None or after == before, length


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), VICTIMS)
@pytest.mark.parametrize("more", [b"\0", b"\xff" * 8, bytes(4096)], ids=["1", "8", "4096"])
def test_a_file_with_bytes_behind_its_end_is_stopped_or_reads_as_before(name, file, more):
    before = documents_in(name)
    with dataset(name) as path:
        with (path / file).open("ab") as opened:
            opened.write(more)
        after = read_all(path)
        assert after is None or after == before


@st.composite
def damages(draw):
    """Where in a file, by parts of a thousand, what goes, and what comes in its place."""
    word = st.sampled_from([0, 1, *HUGE]).flatmap(
        lambda value: st.sampled_from([4, 8]).map(
            lambda width: (value % (1 << 8 * width)).to_bytes(width, "little")
        )
    )
    new = draw(st.one_of(st.binary(min_size=1, max_size=2), word))
    kind = draw(st.sampled_from(["replace", "replace", "insert", "delete"]))
    old = {"replace": len(new), "insert": 0, "delete": draw(st.sampled_from([1, 2, 4, 8]))}[kind]
    return draw(st.integers(0, 999)), old, b"" if kind == "delete" else new


@pytest.mark.slow
@settings(deadline=None, max_examples=250)
@given(st.sampled_from(VICTIMS), st.lists(damages(), min_size=1, max_size=3))
def test_damaged_files_end_with_data_that_agree_or_with_an_error(victim, changes):
    name, file = victim
    with dataset(name) as path:
        content = bytearray((path / file).read_bytes())
        for place, old, new in changes:
            at = place * len(content) // 1000
            content[at : at + old] = new
        (path / file).write_bytes(content)
        first = read_all(path)  # which asserts that all ways to read agree
        assert read_all(path) == first, "what the cache keeps is not what was read"


TELLING = [(name, file) for name, file in VICTIMS if file in ("modes.idx", "zero.ds.index")]
TELLING += [("dolma", "memmap_empty.csv.gz"), ("datatrove", "zero.ds.metadata")]


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(st.sampled_from(TELLING), st.lists(damages(), min_size=1, max_size=2))
def test_a_damaged_index_never_changes_the_tokens(victim, changes):
    """An index may tell other documents; it cannot tell other tokens than the file has."""
    name, file = victim
    before = documents_in(name)
    with dataset(name) as path:
        content = bytearray((path / file).read_bytes())
        for place, old, new in changes:
            at = place * len(content) // 1000
            content[at : at + old] = new
        (path / file).write_bytes(content)
        after = read_all(path)
        assert after is None or sum(after, []) == sum(before, [])


@pytest.mark.parametrize("format", FORMATS)  # `format` is the argument's name
def test_a_format_that_is_forced_on_other_files_reads_or_is_refused(format):  # noqa: A002
    for name in DATASETS:
        with dataset(name) as path:
            for target in [path, *path.iterdir()]:
                with no_hang():
                    try:
                        data = millstream.open(target, format=format)
                        first = data.document(0)
                    except MillstreamError:
                        continue
                assert len(first) == len(data.document_range(0))


# Numbers in headers


def words_of(name):
    """Where in which file a number stands, and its bytes."""
    return {
        "llmbatch": ("x.batch", [(8, 4), (12, 4), (16, 4), (20, 8), (28, 4)]),
        "llmchnk": (
            "x.chnk",
            [(8, 4), (12, 4), (16, 8), (24, 8), *((32 + 8 * k, 8) for k in range(4))],
        ),
        "llmc": ("gpt2.bin", [(4, 4), (8, 4)]),
        "megatron": ("modes.idx", [(9, 8), (17, 1), (18, 8), (26, 8), (34, 4), (38, 4)]),
        "datatrove": ("zero.ds.index", [(0, 8), (56, 8), (112, 8)]),
        "litdata": ("chunk-1-2.bin", [(0, 4), (4, 4), (8, 4)]),
        "mds": ("shard.00000.mds", [(0, 4), (4, 4), (8, 4)]),
    }[name]


@pytest.mark.slow
@pytest.mark.parametrize("value", [*HUGE, "one more", "one less"], ids=str)
@pytest.mark.parametrize("name", ["llmbatch", "llmchnk", "llmc", "megatron", "litdata", "mds"])
def test_a_number_in_a_header_that_lies_is_stopped_by_the_sizes_of_the_files(name, value):
    """Counts by the file's own size; offsets by their neighbours, and by verify."""
    file, words = words_of(name)
    before = documents_in(name)
    for at, width in words:
        with dataset(name) as path:
            content = bytearray((path / file).read_bytes())
            found = int.from_bytes(content[at : at + width], "little")
            new = {"one more": found + 1, "one less": found - 1}.get(value, value)
            new %= 1 << 8 * width
            if new == found:
                continue
            content[at : at + width] = new.to_bytes(width, "little")
            (path / file).write_bytes(content)
            after = read_all(path)
            # A table may be moved within its neighbours: other documents, the same tokens.
            moved = isinstance(value, str) and name == "llmchnk" and at > 32
            # Up to whole pages, batches of LLMBATCH are filled with what could be tokens.
            padded = isinstance(value, str) and name == "llmbatch" and at in (12, 16)
            is_same = after is not None and sum(after, []) == sum(before, [])
            assert after is None or padded or (moved and is_same), (at, width)


@pytest.mark.parametrize("ends", [[5, 3, 10], [11, 10], [10, 10, 9], [1 << 63, 10], [0, 0, 0], [9]])
def test_ends_of_documents_that_go_backwards_or_elsewhere_are_stopped(tmp_path, ends):
    """By datatrove's last end, or by its neighbours when it is read."""
    np.arange(10, dtype="<u2").tofile(tmp_path / "x.ds")
    np.array(ends, "<u8").tofile(tmp_path / "x.ds.index")
    assert "x.ds" in stop_of(tmp_path)


def megatron(path, lengths, starts, firsts):
    np.arange(10, dtype="<u2").tofile(path / "x.bin")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(firsts))
    tables = ((lengths, "<i4"), (starts, "<i8"), (firsts, "<i8"))
    content = b"".join(np.array(table, kind).tobytes() for table, kind in tables)
    (path / "x.idx").write_bytes(header + content)


@pytest.mark.parametrize(
    ("lengths", "starts", "firsts"),
    [
        ([4, 6], [0, 8], [0, 2, 1]),
        ([4, 6], [0, 8], [0, 1]),
        ([4, 6], [0, 8], [1, 2]),
        ([4, 6], [0, 8], [0, 3, 2]),
        ([4, 6], [0, 8], [0, -1, 2]),
        ([4, 5], [0, 10], [0, 2]),  # a gap
        ([6, 6], [0, 8], [0, 2]),  # an overlap
        ([-4, 14], [0, -8], [0, 2]),
        ([6, 4], [8, 0], [0, 2]),
        ([1 << 30, 6], [0, 8], [0, 2]),
        ([4, -6], [0, 32], [0, 2]),
    ],
)
@pytest.mark.parametrize("format", ["megatron", "megatron-sequences"])
def test_sequences_and_documents_that_disagree_are_stopped(
    tmp_path,
    lengths,
    starts,
    firsts,
    format,  # noqa: A002
):
    """Lengths by starts, the last of them by the size of the tokens, documents by both."""
    megatron(tmp_path, lengths, starts, firsts)
    is_about_documents = (lengths, starts) == ([4, 6], [0, 8])
    if is_about_documents and format == "megatron-sequences":
        assert read_all(tmp_path, format=format) == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    else:
        assert str(tmp_path / "x.") in stop_of(tmp_path, format=format)


def test_zero_tokens_and_zero_documents_are_read_as_such(tmp_path):
    megatron(tmp_path, [], [], [0])
    assert "x.bin: 20 bytes, too long" in stop_of(tmp_path)
    os.truncate(tmp_path / "x.bin", 0)
    assert read_all(tmp_path) == []
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "x.bin").touch()
    assert read_all(tmp_path / "y") == []


@pytest.mark.parametrize(
    "count", ["322\n", "323\n322 T", "0\n", "999999999999999999\n"], ids=lambda text: text[:4]
)
def test_another_number_of_tokens_than_datatrove_s_metadata_says_is_stopped(tmp_path, count):
    shutil.copy(GOLDEN / "datatrove" / "t2.ds", tmp_path)
    (tmp_path / "t2.ds.metadata").write_text(f"gpt2|2\n{count}")
    if count.startswith("322"):
        assert len(sum(read_all(tmp_path), [])) == 322
    else:
        assert "t2.ds: 322 tokens of 2 bytes, but its metadata says" in stop_of(tmp_path)


# Headers of NumPy


def npy(path, descr="'<u2'", shape="(4,)", version=1, length=None):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = len(text) if length is None else length
    prefix = struct.pack("<H" if version == 1 else "<I", size)
    content = (
        b"\x93NUMPY" + bytes([version, 0]) + prefix + text + np.arange(4, dtype="<u2").tobytes()
    )
    (path / "x.npy").write_bytes(content)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"descr": "'O'"}, "tokens must be little-endian integers"),
        ({"descr": "'>u2'"}, "tokens must be little-endian integers"),
        ({"descr": "'<f2'"}, "tokens must be little-endian integers"),
        ({"descr": "'<u2,<u2'"}, "tokens must be little-endian integers"),
        ({"descr": "[('a', '<u2')]"}, "tokens must be little-endian integers"),
        ({"descr": "None"}, "tokens must be little-endian integers"),
        ({"descr": "'V99999999999'"}, "tokens must be little-endian integers"),
        ({"descr": "__import__('os')"}, "not a NumPy header"),
        ({"descr": "(" * 1900 + ")" * 1900}, "x.npy: "),
        ({"shape": "(" + "-" * 3000 + "4,)"}, "x.npy: "),
        ({"shape": "(-4,)"}, "one or two dimensions"),
        ({"shape": "(-4, -1)"}, "one or two dimensions"),
        ({"shape": "()"}, "one or two dimensions"),
        ({"shape": "(True,)"}, "is not an array shape"),
        ({"shape": "(4.0,)"}, "is not an array shape"),
        ({"shape": "[4]"}, "is not an array shape"),
        ({"shape": "4"}, "is not an array shape"),
        ({"shape": f"({1 << 61},)"}, "too short"),
        ({"shape": f"({1 << 61}, {1 << 61})"}, "too short"),
        ({"shape": f"({1 << 64},)"}, "one or two dimensions"),
        ({"shape": "(3,)"}, "too long"),
        ({"version": 4}, "reads 1.0 to 3.0"),
        ({"version": 0}, "reads 1.0 to 3.0"),
        ({"version": 2, "length": 0xFFFF_FFFF}, "x.npy: "),
        ({"length": 0}, "not a NumPy header"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_header_of_numpy_that_lies_is_stopped(tmp_path, change, check):
    npy(tmp_path)
    assert read_all(tmp_path) == [[0, 1, 2, 3]]
    npy(tmp_path, **change)
    stop = stop_of(tmp_path)
    assert check in stop
    assert len(stop) < 500


@pytest.mark.process
@pytest.mark.parametrize("descr", ["'M8[s/0]'", "'m8[s/0]'", "[('a', 'M8[s/0]')]"])
def test_a_type_that_ends_the_process_inside_of_numpy_never_reaches_it(tmp_path, descr):
    npy(tmp_path, descr)
    code, output, errors = run_elsewhere(tmp_path, "millstream.open(path)")
    assert (code, errors) == (0, "")
    assert f"stopped: {tmp_path}/x.npy: has dtype " in output


def run_elsewhere(path, script, memory_bytes=8 << 30):
    """Run a script in a process that may crash, with a limit on its memory."""
    body = "".join(f"    {line}\n" for line in script.strip().splitlines())
    whole = f"""
import sys, numpy, millstream, millstream.formats.arrow, pyarrow.ipc, pyarrow.parquet
path = sys.argv[1]
millstream.open
{limit_memory(memory_bytes)}try:
{body}
    print("read")
except millstream.MillstreamError as error:
    print("stopped:", error)
"""
    result = subprocess.run(
        [sys.executable, "-c", whole, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    return result.returncode, result.stdout, result.stderr[-800:]


# Indexes in JSON

GONE = object()
WRONG = [GONE, None, "abc", -1, 0, 1.5, [], {}, 1 << 63, 10**400, "\ud800", [[]]]
PLACES = {
    "litdata": ("index.json", ["config", "data_format"]),
    "litdata chunks": ("index.json", ["chunks", 0]),
    "litdata name": ("index.json", ["chunks", 0, "filename"]),
    "litdata items": ("index.json", ["chunks", 0, "chunk_size"]),
    "litdata bytes": ("index.json", ["chunks", 0, "chunk_bytes"]),
    "litdata zstd items": ("index.json", ["chunks", 0, "chunk_size"]),
    "litdata zstd bytes": ("index.json", ["chunks", 0, "chunk_bytes"]),
    "litdata zstd name": ("index.json", ["chunks", 0, "filename"]),
    "mds": ("index.json", ["version"]),
    "mds shards": ("index.json", ["shards", 0]),
    "mds samples": ("index.json", ["shards", 0, "samples"]),
    "mds names": ("index.json", ["shards", 0, "column_names"]),
    "mds encodings": ("index.json", ["shards", 0, "column_encodings"]),
    "mds sizes": ("index.json", ["shards", 0, "column_sizes"]),
    "mds file": ("index.json", ["shards", 0, "raw_data"]),
    "mds bytes": ("index.json", ["shards", 0, "raw_data", "bytes"]),
    "mds basename": ("index.json", ["shards", 0, "raw_data", "basename"]),
    "mds zstd samples": ("index.json", ["shards", 0, "samples"]),
    "mds zstd file": ("index.json", ["shards", 0, "zip_data"]),
    "mds zstd bytes": ("index.json", ["shards", 0, "raw_data", "bytes"]),
    "datasets": ("state.json", ["_data_files"]),
    "datasets file": ("state.json", ["_data_files", 0]),
    "datasets name": ("state.json", ["_data_files", 0, "filename"]),
}


def edit(path, place, value):
    """Replace a value in a JSON file, or remove it."""
    document = json.loads(path.read_text())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("what", PLACES)
def test_a_value_of_another_type_in_an_index_is_stopped_by_its_type(what):
    name = max((name for name in DATASETS if what.startswith(name)), key=len)
    file, place = PLACES[what]
    is_entry = isinstance(place[-1], int)
    for value in WRONG:
        with dataset(name) as path:
            edit(path / file, place, value)
            if value is GONE and is_entry:
                read_all(path)  # one entry fewer is another dataset
                continue
            stop = stop_of(path)
            assert str(path) in stop
            assert len(stop) < 500


NAMES = [
    "../x",
    "..",
    ".",
    "/etc/passwd",
    "a/b",
    "",
    "a\0b",
    "\ud800",
    "é" * 300,
    "nowhere",
    7,
    None,
]


@pytest.mark.parametrize(
    "what", ["litdata name", "litdata zstd name", "mds basename", "datasets name"]
)
@pytest.mark.parametrize("file_name", NAMES, ids=lambda name: ascii(name)[:12])
def test_a_name_that_leads_elsewhere_is_stopped(what, file_name):
    """By `plain_name`, or by the system if there is no such file."""
    name = max((name for name in DATASETS if what.startswith(name)), key=len)
    with dataset(name) as path:
        edit(path / PLACES[what][0], PLACES[what][1], file_name)
        stop = stop_of(path)
        is_only_missing = file_name in ("é" * 300, "nowhere")
        assert is_only_missing or "is not a plain file name" in stop


@pytest.mark.parametrize(
    ("name", "file", "key"),
    [
        ("litdata", "index.json", "chunks"),
        ("litdata zstd", "index.json", "chunks"),
        ("mds", "index.json", "shards"),
        ("mds zstd", "index.json", "shards"),
        ("datasets", "state.json", "_data_files"),
    ],
)
def test_a_file_that_is_listed_twice_is_stopped(name, file, key):
    """Else its documents would be repeated without a word."""
    with dataset(name) as path:
        document = json.loads((path / file).read_text())
        edit(path / file, [key], document[key] * 2)
        assert "is listed 2 times" in stop_of(path)


@pytest.mark.parametrize("name", ["litdata", "mds", "datasets"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000],
    ids=lambda content: repr(content[:8]),
)
def test_an_index_that_is_none_is_stopped_by_the_parser(name, content):
    with dataset(name) as path:
        file = path / ("state.json" if name == "datasets" else "index.json")
        file.write_bytes(content)
        assert str(file) in stop_of(path)


def test_an_index_of_a_terabyte_is_stopped_before_it_is_in_memory(tmp_path):
    for name in ("index.json", "state.json", "files.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
        os.truncate(tmp_path / name / name, 1 << 40)
        tracemalloc.start()
        try:
            assert "too large" in stop_of(tmp_path / name)
            assert tracemalloc.get_traced_memory()[1] < 300 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "content", ["[]", "{}", "null", "[{}]", '[{"path": "x", "size": 1e3}]', '[{"path": "\\u0000"}]']
)
def test_a_list_of_files_that_lists_none_is_stopped(tmp_path, content):
    (tmp_path / "files.json").write_text(content)
    (tmp_path / "a.bin").write_bytes(bytes(20))
    assert str(tmp_path / "files.json") in stop_of(tmp_path)


@pytest.mark.parametrize(
    ("column", "encoding", "size", "check"),
    [
        ("tokens", "ndarray:int32:16", 60, "but has 60 bytes"),
        ("tokens", "ndarray:int32:15", 64, "but has 64 bytes"),
        ("tokens", "ndarray:int32", 60, "shard.00000.mds: a sample"),
        ("tokens", "ndarray:int32", None, "shard.00000.mds: a sample"),
        ("tokens", "str", 64, "not bytes or ndarray"),
        ("text", "ndarray:int32:16", 64, "expected one named"),
    ],
)
def test_columns_that_do_not_fill_their_samples_are_stopped(column, encoding, size, check):
    with dataset("mds in place") as path:
        number_of_columns = 0
        document = json.loads((path / "index.json").read_text())
        for shard in document["shards"]:
            number_of_columns = len(shard["column_names"])
            shard |= {"column_names": [column], "column_encodings": [encoding]}
            shard["column_sizes"] = [size]
        (path / "index.json").write_text(json.dumps(document))
        assert number_of_columns == 1
        assert check in stop_of(path)


def test_samples_of_one_size_that_tell_different_types_are_stopped(tmp_path):
    """Of samples in place only some are looked at: those that tell their type are all decoded."""
    uint16, int16, one_dimension_in_a_byte = 16, 17, 1 << 2
    samples = [
        struct.pack("<IBBB3H", 9, kind, one_dimension_in_a_byte, 3, 7, 8, 9)
        for kind in [uint16, int16] + [uint16] * 38
    ]
    first = 4 * (len(samples) + 2)
    offsets = [first + len(samples[0]) * k for k in range(len(samples) + 1)]
    content = struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + b"".join(samples)
    (tmp_path / "x.mds").write_bytes(content)
    entry = {
        "format": "mds",
        "column_names": ["tokens"],
        "column_encodings": ["ndarray"],
        "column_sizes": [None],
        "compression": None,
        "samples": len(samples),
        "raw_data": {"basename": "x.mds", "bytes": len(content)},
    }
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    assert "x.mds: its samples have different token types" in stop_of(tmp_path)


# What stands in the place of a file


def make_dangling(path):
    path.symlink_to("nowhere")


def make_loop(path):
    path.symlink_to(path.name)


IN_PLACE = {"link": make_dangling, "loop": make_loop, "pipe": os.mkfifo, "directory": os.mkdir}
NEEDED = [
    ("megatron", "modes.idx"),
    ("datatrove", "zero.ds.index"),
    ("datatrove", "zero.ds.loss"),
    ("datatrove", "zero.ds.metadata"),
    ("dolma", "memmap_empty.csv.gz"),
    ("litdata", "index.json"),
    ("litdata", "chunk-1-2.bin"),
    ("mds", "index.json"),
    ("mds zstd", "shard.00000.mds.zstd"),
    ("datasets", "state.json"),
    ("datasets", "data-00000-of-00001.arrow"),
]


@pytest.mark.parametrize("what", IN_PLACE)
@pytest.mark.parametrize(("name", "file"), NEEDED)
def test_what_is_no_file_is_stopped_with_its_name_and_never_left_out(name, file, what):
    """A companion that cannot be read is not one that is not there."""
    with dataset(name) as path:
        (path / file).unlink()
        IN_PLACE[what](path / file)
        stop = stop_of(path)
        assert str(path / file) in stop


@pytest.mark.parametrize("what", ["link", "loop", "pipe"])
def test_a_file_of_many_that_cannot_be_read_is_not_skipped(tmp_path, what):
    for name in ("a", "c"):
        np.arange(10, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    IN_PLACE[what](tmp_path / "b.bin")
    assert str(tmp_path / "b.bin") in stop_of(tmp_path)


def test_chunks_of_litdata_without_their_index_are_no_tokens():
    """They would be read as uint16, their tables too."""
    with dataset("litdata") as path:
        (path / "index.json").unlink()
        assert "is a litdata chunk" in stop_of(path)


# What changes after it was opened

LATER = [
    ("megatron", "modes.idx"),
    ("megatron", "modes.bin"),
    ("datatrove", "zero.ds"),
    ("datatrove", "zero.ds.index"),
    ("llmchnk", "x.chnk"),
    ("llmbatch", "x.batch"),
    ("litdata", "chunk-1-2.bin"),
    ("arrow", "offsets_not_zero.arrow"),
]


@pytest.mark.slow
@pytest.mark.parametrize("access", ["pread", "mmap"])
@pytest.mark.parametrize("how", ["removed", "cut to nothing", "cut", "longer", "pipe", "directory"])
@pytest.mark.parametrize(("name", "file"), LATER)
def test_a_file_that_changes_after_opening_is_stopped_with_its_name(name, file, how, access):
    """By the size, which is checked again when a file is opened to read it."""
    before = documents_in(name)
    with dataset(name) as path, no_hang():
        data = millstream.open(path, access=access)
        size = (path / file).stat().st_size
        if how in ("removed", "pipe", "directory"):
            (path / file).unlink()
            {"removed": lambda _: None, **IN_PLACE}[how](path / file)
        else:
            os.truncate(
                path / file, {"cut to nothing": 0, "cut": size // 2, "longer": size + 1}[how]
            )
        stops = []
        for number, expected in enumerate(before):
            try:
                assert tokens_of(data.document(number)) == expected
            except (FormatError, MissingDataError, ReadError) as error:
                stops.append(str(error))
        assert stops or (how == "longer" and file in ("modes.idx", "zero.ds.index"))
        assert all(str(path / file) in stop for stop in stops)


def test_a_file_that_is_cut_while_marks_are_looked_for_leaves_no_table(tmp_path, monkeypatch):
    """A table with the marks of half the file would be found by everybody later."""
    np.tile(np.arange(10, dtype="<u2"), 100).tofile(tmp_path / "a.bin")
    whole = (tmp_path / "a.bin").read_bytes()
    times = (tmp_path / "a.bin").stat().st_mtime_ns
    read_head = millstream.read.eos_scan.read_head

    def cut_after(path, num_bytes):
        head = read_head(path, num_bytes)
        os.truncate(path, 1000)
        return head

    with monkeypatch.context() as patch:
        patch.setattr("millstream.read.eos_scan.read_head", cut_after)
        with pytest.raises(FormatError, match=r"a\.bin: truncated while it was read"):
            millstream.open(tmp_path / "a.bin", eos_id=9)
    (tmp_path / "a.bin").write_bytes(whole)
    os.utime(tmp_path / "a.bin", ns=(times, times))
    assert millstream.open(tmp_path / "a.bin", eos_id=9).num_documents == 100


def test_a_table_is_not_taken_for_that_of_the_same_file_read_otherwise(tmp_path):
    shutil.copy(GOLDEN / "llmc" / "gpt2.bin", tmp_path)
    path = tmp_path / "gpt2.bin"
    with_header = read_all(path, eos_id=50256)
    without = read_all(path, eos_id=255, format="flat:uint8")
    assert bytes(sum(without, []))[1024:] == np.array(sum(with_header, []), "<u2").tobytes()
    with dataset("litdata zstd") as path:
        assert read_all(path)
    with dataset("litdata") as path:
        documents = read_all(path)
        edit(path / "index.json", ["config", "data_format"], ["no_header_numpy:1"])  # signed
        assert [np.array(ids, "<i2").view("<u2").tolist() for ids in read_all(path)] == documents
        edit(path / "index.json", ["config", "data_format"], ["no_header_numpy:4"])  # bytes
        assert [len(ids) for ids in read_all(path)] == [2 * len(ids) for ids in documents]


# What grows when it is unpacked


@pytest.mark.parametrize(
    ("line", "check"),
    [
        (b"0,5\n4,10\n", "document 1 is tokens 4 to 10"),
        (b"0,5\n6,10\n", "document 1 is tokens 6 to 10"),
        (b"0,5\n5,4\n", "document 1 is tokens 5 to 4"),
        (b"-5,10\n", "document 0 is tokens -5 to 10"),
        (b"0,9223372036854775807\n", "document 0 is"),
        (b"0,18446744073709551616\n", "document 0 is"),
        (b"0," + b"9" * 4000 + b"\n", "line 1 does not start with two numbers"),
        (b"0\n", "line 1 does not start with two numbers"),
        (b"0,5\n\n", "line 2 does not start with two numbers"),
        (b"0,1e1\n", "line 1 does not start with two numbers"),
        (b"\0\0\0\n", "line 1 does not start with two numbers"),
        (b"0,10,x" * 1_000_000, "line 1 does not start with two numbers"),
        (b'0,10,"x\n' * 100_000, "document 1 is tokens 0 to 10"),
        (b'0,10,"' + b"x\n" * 100_000, "line 1 does not start with two numbers"),
        (b"", "do not fit the 0 tokens"),
        (b"0,7\n", "do not fit the 7 tokens"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_a_list_of_documents_that_lies_is_stopped_by_its_line(tmp_path, line, check):
    np.arange(10, dtype="<u4").tofile(tmp_path / "x.npy")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(line))
    stop = stop_of(tmp_path)
    assert check in stop
    assert len(stop) < 400


@pytest.mark.slow
def test_a_line_without_end_is_stopped_before_it_fills_the_memory(tmp_path):
    np.arange(10, dtype="<u4").tofile(tmp_path / "x.npy")
    with gzip.open(tmp_path / "x.csv.gz", "wb", 1) as file:
        for _ in range(100):
            file.write(bytes(10 << 20))
    tracemalloc.start()
    try:
        assert "line 1 does not start" in stop_of(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def compressed_by_pyarrow(codec):
    arrow = pytest.importorskip("pyarrow")
    return lambda content: arrow.compress(content, codec=codec, asbytes=True)


CODECS = {"gz": gzip.compress, "bz2": bz2.compress}
CODECS |= {"zstd": None, "snappy": None, "br": None}


@pytest.mark.parametrize("codec", CODECS)
def test_a_size_that_lies_about_what_is_packed_is_stopped(codec):
    """pyarrow gives what was in memory for bytes that a file does not have."""
    compress = CODECS[codec] or compressed_by_pyarrow({"br": "brotli"}.get(codec, codec))
    content = bytes(range(200)) * 5
    packed = compress(content)
    assert decompress(Path("x"), packed, codec, 1000) == content
    for size in (0, 1, 999, 1001, 5000, (1 << 32) - 1):
        with pytest.raises(FormatError, match=r"^x: "):
            decompress(Path("x"), packed, codec, size)
    for length in range(len(packed)):
        with pytest.raises(FormatError, match=r"^x: "):
            decompress(Path("x"), packed[:length], codec, 1000)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(list(CODECS)), st.integers(0, 999), st.integers(0, 255))
@example("gz", 100, 17)
def test_packed_bytes_that_are_damaged_raise_nothing_else(codec, place, byte):
    compress = CODECS[codec] or compressed_by_pyarrow({"br": "brotli"}.get(codec, codec))
    packed = bytearray(compress(b"0123456789" * 50))
    packed[place * len(packed) // 1000] = byte
    with contextlib.suppress(FormatError):
        assert len(decompress(Path("x"), bytes(packed), codec, 500)) == 500


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["gz", "bz2"])
def test_what_unpacks_to_a_gigabyte_is_stopped_at_the_size_that_is_known(codec):
    packed = CODECS[codec](bytes(300 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="x: 1,001 bytes, too long"):
            decompress(Path("x"), packed, codec, 1000)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", ["rot13", 7, ["zstd"], "", "zstd:99"], ids=str)
def test_another_compression_than_the_file_has_is_stopped_by_its_name(compression):
    with dataset("mds zstd") as path:
        for number in range(len(json.loads((path / "index.json").read_text())["shards"])):
            edit(path / "index.json", ["shards", number, "compression"], compression)
        if compression == "zstd:99":
            assert read_all(path)
        else:
            assert "is not known" in stop_of(path)


def test_a_checksum_in_an_index_that_does_not_fit_is_stopped():
    with dataset("mds zstd") as path:
        place = ["shards", 1, "zip_data", "hashes", "xxh64"]
        edit(path / "index.json", place, "0" * 16)
        assert "shard.00001.mds.zstd: xxh64 is" in stop_of(path)


# Arrow and Parquet


def write_arrow(path, columns, names=None):
    import pyarrow as pa
    import pyarrow.ipc

    table = pa.table(columns) if names is None else pa.table(columns, names=names)
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_two_columns_of_one_name_are_stopped(tmp_path, kind):
    import pyarrow as pa
    import pyarrow.parquet

    columns, names = [[[1, 2], [3]], [[4, 5], [6]]], ["input_ids", "input_ids"]
    if kind == "arrow":
        write_arrow(tmp_path / "x.arrow", columns, names)
    else:
        pyarrow.parquet.write_table(pa.table(columns, names=names), tmp_path / "x.parquet")
    assert "more than one column 'input_ids'" in stop_of(tmp_path)


@pytest.mark.process
def test_lists_of_nothing_are_stopped_however_many_a_file_says_they_are(tmp_path):
    """Eight billion of them need no byte in the file."""
    import pyarrow as pa

    write_arrow(tmp_path / "x.arrow", {"input_ids": pa.array([[], []], pa.list_(pa.uint16(), 0))})
    content = (tmp_path / "x.arrow").read_bytes()
    assert struct.pack("<q", 2) in content
    content = content.replace(struct.pack("<q", 2), struct.pack("<q", 1 << 33))
    (tmp_path / "x.arrow").write_bytes(content)
    code, output, errors = run_elsewhere(tmp_path, "millstream.open(path)")
    assert code == 0, errors
    assert f"stopped: {tmp_path}/x.arrow: columns are " in output


@pytest.mark.process
def test_offsets_of_arrow_that_point_elsewhere_are_stopped_by_pyarrow(tmp_path):
    import pyarrow as pa

    lists = pa.array([[7, 8], [9], [10, 11, 12]], pa.list_(pa.uint16()))
    write_arrow(tmp_path / "x.arrow", {"input_ids": lists})
    content = (tmp_path / "x.arrow").read_bytes()
    offsets = struct.pack("<4i", 0, 2, 3, 6)
    assert content.count(offsets) == 1
    for number, lie in enumerate([(0, 3, 2, 6), (0, 2, 3, 1 << 30), (0, -9, 3, 6), (-1, 2, 3, 6)]):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "x.arrow").write_bytes(content.replace(offsets, struct.pack("<4i", *lie)))
        code, output, errors = run_elsewhere(place, "millstream.open(path).document(0)")
        assert code == 0, errors
        assert f"stopped: {place}/x.arrow: pyarrow cannot read it" in output


def test_a_page_of_parquet_whose_checksum_does_not_fit_is_stopped(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table({"input_ids": pa.array([[7, 8, 9] * 30], pa.list_(pa.uint16()))})
    pyarrow.parquet.write_table(
        table,
        tmp_path / "x.parquet",
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    content = (tmp_path / "x.parquet").read_bytes()
    tokens = struct.pack("<3i", 7, 8, 9)
    assert tokens in content
    (tmp_path / "x.parquet").write_bytes(content.replace(tokens, struct.pack("<3i", 7, 8, 1), 1))
    assert "x.parquet: pyarrow cannot read it" in stop_of(tmp_path)


# Sizes beyond what there is


@pytest.mark.skipif(MEMORY is None, reason="needs a file system that holds files of 2^62 bytes")
def test_sparse_files_of_2_to_the_62_bytes_are_read_where_they_are_asked():
    """Counts that are true, but near what 64 bits hold, overflow nowhere."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        path = Path(directory)
        paths = [path / f"{name}.bin" for name in "ab"]
        for each in paths:
            each.touch()
            os.truncate(each, 1 << 62)
        data = millstream.open(paths, format="flat:uint16")
        assert data.num_records == 1 << 62
        assert data.records((1 << 61) - 2, (1 << 61) + 2).tolist() == [0] * 4
        last = data.windows(1 << 10).read([len(data.windows(1 << 10)) - 1])
        assert last["input_ids"].sum() == 0
        header = Header(1 << 20, 1 << 19, 1 << 21, 0, 0)
        batch = path / "x.batch"
        batch.write_bytes(header.pack())
        os.truncate(batch, header.size_bytes)
        data = millstream.open(batch)
        assert data.num_records == 1 << 60
        assert data.document(data.num_documents - 1).shape == (1 << 19,)


def test_a_batch_without_rows_whose_offsets_lead_nowhere_is_empty(tmp_path):
    """pyarrow validates such an array, and then ends the process; found by `make fuzz`."""
    arrow = pytest.importorskip("pyarrow")
    offsets = arrow.py_buffer(np.array([2048], "<i4").tobytes())
    kind = arrow.list_(arrow.uint16())
    empty = arrow.Array.from_buffers(
        kind, 0, [None, offsets], children=[arrow.array([], arrow.uint16())]
    )
    full = arrow.array([[1, 2], [3]], kind)
    schema = arrow.schema([("input_ids", kind)])
    with arrow.ipc.new_stream(tmp_path / "x.arrow", schema) as writer:
        for lists in (empty, full):
            writer.write_batch(arrow.record_batch([lists], schema=schema))
    data = millstream.open(tmp_path / "x.arrow")
    assert [data.document(k).tolist() for k in range(data.num_documents)] == [[1, 2], [3]]
