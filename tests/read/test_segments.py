"""`read.files` and `read.segments`: file segments to filled arrays."""

import errno
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batches.layout_table import COUNTS, LayoutTable
from millstream.read.files import FaultCode, FileKind
from millstream.read.segments import OUTPUT, SEGMENT, read_segments
from tests.helpers.descriptors import open_descriptors
from tests.helpers.kernel_inputs import array, open_files, token_layout, write_files

pytestmark = pytest.mark.kernels

ACCESS = pytest.mark.parametrize("use_mmap", [False, True])


def read(files, segments, rows, width, **options):
    """The inputs and labels of a batch that is -1 where nothing was read."""
    layout, starts = token_layout(rows, width, **options)
    memory = np.full(layout.num_bytes, 255, np.uint8)
    scratch = np.empty(1 << 12, np.uint8)
    listed = np.array([(*segment, 0) for segment in segments], SEGMENT)
    fault = read_segments(files, layout.together, listed, memory, scratch)
    files.close()
    assert fault is None
    return [array(memory, starts, name, rows, width).tolist() for name in ("input_ids", "labels")]


@ACCESS
def test_a_row_is_its_inputs_and_labels_one_further_on(tmp_path, use_mmap):
    files = write_files(tmp_path, [np.arange(10, dtype="<u2")], use_mmap=use_mmap)
    inputs, labels = read(files, [(0, 0, 2, 5, -1)], rows=1, width=4)
    assert inputs == [[2, 3, 4, 5]]
    assert labels == [[3, 4, 5, 6]]


@ACCESS
def test_a_segment_may_go_over_shards_and_empty_ones(tmp_path, use_mmap):
    parts = [np.arange(a, b, dtype="<u2") for a, b in ((0, 3), (3, 3), (3, 4), (4, 9))]
    paths = []
    for number, part in enumerate(parts):
        paths.append(tmp_path / str(number))
        part.tofile(paths[-1])
    files = open_files(paths, [3, 0, 1, 5], 2, use_mmap=use_mmap)
    inputs, _ = read(files, [(1, 0, 1, 7, -1), (0, 2, 8, 1, -1)], rows=2, width=6)
    assert inputs == [[-1, -1, 8, -1, -1, -1], [1, 2, 3, 4, 5, 6]]


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4),
    use_mmap=st.booleans(),
    scratch_records=st.integers(1, 5),
)
def test_any_segments_are_read_as_numpy_slices_them(
    tmp_path_factory, sizes, cuts, use_mmap, scratch_records
):
    stream = np.arange(100, 100 + sum(sizes), dtype="<u4")
    parts = np.split(stream, np.cumsum(sizes)[:-1])
    files = write_files(tmp_path_factory.mktemp("files"), parts, use_mmap=use_mmap)
    width, segments, expected, column = 20, [], np.full(21, -1), 0
    for start, length in cuts:
        start = min(start, len(stream))
        length = min(length, len(stream) - start, width + 1 - column)
        segments.append((0, column, start, length, -1))
        expected[column : column + length] = stream[start : start + length]
        column += length
    if segments:
        inputs, labels = read(files, segments, 1, width, token=4, scratch_records=scratch_records)
        assert inputs == [expected[:-1].tolist()]
        assert labels == [expected[1:].tolist()]


@ACCESS
def test_records_in_blocks_are_found_behind_the_padding(tmp_path, use_mmap):
    blocks = np.full((3, 5), 9999, "<u2")
    blocks[:, :4] = np.arange(12).reshape(3, 4)
    path = tmp_path / "blocks"
    path.write_bytes(b"head" + blocks.tobytes())
    geometry = {"first_byte": 4, "block_items": 4, "block_bytes": 10, "sizes": [34]}
    files = open_files([path], [12], 2, use_mmap=use_mmap, **geometry)
    assert read(files, [(0, 0, 1, 10, -1)], rows=1, width=9)[0] == [list(range(1, 10))]


@ACCESS
def test_fields_of_records_go_out_under_their_own_and_masks_ignore_labels(tmp_path, use_mmap):
    record = np.dtype([("token", "<u2"), ("name", "S3"), ("wanted", "u1")])
    records = np.array([(1, b"one", 1), (2, b"two", 0), (3, b"six", 1)], record)
    files = write_files(tmp_path, [records], use_mmap=use_mmap)
    rows = [
        # where in the record, bytes; number: in, signed, out; a column, start, first, fill, mask,
        # extra columns
        (0, 2, 2, 0, 8, 8, 64, 1, -100, 5, 1, 0),
        (2, 3, 3, 0, 3, 3, 96, 0, 0, 0, 0, 0),
    ]
    layout = LayoutTable(
        np.array(rows, OUTPUT),
        np.empty(0, OUTPUT),
        {},
        scratch_records=8,
        num_bytes=128,
        rows=1,
        width=2,
    )
    memory, scratch = np.zeros(128, np.uint8), np.empty(64, np.uint8)
    segments = np.array([(0, 0, 0, 3, -1, 0)], SEGMENT)
    assert read_segments(files, layout.together, segments, memory, scratch) is None
    assert memory[64:80].view("<i8").tolist() == [-100, 3]
    assert bytes(memory[96:102]) == b"onetwo"


def test_more_shards_than_places_take_turns_and_close_leaves_nothing_open(tmp_path):
    parts = [np.full(1, k, "<u2") for k in range(50)]
    files = write_files(tmp_path, parts, num_places=3)
    before = open_descriptors()
    inputs, _ = read(files, [(0, 0, 0, 50, -1)], rows=1, width=49)
    assert inputs == [list(range(49))]
    assert open_descriptors() <= before


def fault_of(files):
    layout, _ = token_layout(1, 4)
    memory, scratch = np.zeros(layout.num_bytes, np.uint8), np.empty(1 << 12, np.uint8)
    segments = np.array([(0, 0, 0, 5, -1, 0)], SEGMENT)
    fault = read_segments(files, layout.together, segments, memory, scratch)
    files.close()
    return fault


@ACCESS
def test_what_goes_wrong_is_reported_with_its_shard(tmp_path, use_mmap):
    good, bad = tmp_path / "good", tmp_path / "bad"
    np.arange(3, dtype="<u2").tofile(good)
    fault = fault_of(open_files([good, bad], [3, 3], 2, use_mmap=use_mmap))
    assert fault == (FaultCode.CANNOT_OPEN, FileKind.RECORDS, 1, 0, errno.ENOENT)
    bad.write_bytes(b"12345")
    fault = fault_of(open_files([good, bad], [3, 3], 2, use_mmap=use_mmap))
    assert fault == (FaultCode.WRONG_SIZE, FileKind.RECORDS, 1, 0, 5)
    # A geometry that does not fit the file: it is never read beyond its end.
    bad.write_bytes(b"123")
    fault = fault_of(open_files([good, bad], [3, 3], 2, use_mmap=use_mmap, sizes=[6, 3]))
    assert (fault.code, fault.shard) == (FaultCode.SHORT_READ, 1)
    assert fault_of(open_files([tmp_path], [9], 2, sizes=[tmp_path.stat().st_size])).code in (
        FaultCode.WRONG_SIZE,
        FaultCode.CANNOT_READ,
    )


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert fault_of(open_files([tmp_path / "pipe"], [9], 2)).code == FaultCode.WRONG_SIZE


@pytest.mark.parametrize(
    "segment",
    [
        (0, 0, -1, 2, -1),
        (0, 0, 9, 2, -1),
        (0, 0, 0, -1, -1),
        (0, 0, 0, 6, -1),
        (0, 4, 0, 2, -1),
        (0, -1, 0, 2, -1),
        (1, 0, 0, 2, -1),
        (-1, 0, 0, 2, -1),
        (0, 0, 1 << 62, 1 << 62, -1),
    ],
)
def test_segments_outside_of_the_files_or_the_batch_are_refused(tmp_path, segment):
    files = write_files(tmp_path, [np.arange(10, dtype="<u2")])
    with pytest.raises(ValueError, match="outside"):
        read(files, [segment], rows=1, width=4)


def test_memory_that_is_too_small_is_refused(tmp_path):
    files = write_files(tmp_path, [np.arange(10, dtype="<u2")])
    layout, _ = token_layout(1, 4)
    segments = np.array([(0, 0, 0, 5, -1, 0)], SEGMENT)
    for memory, scratch in ((layout.num_bytes - 1, 1 << 12), (layout.num_bytes, 1 << 10)):
        with pytest.raises(ValueError, match="too small"):
            read_segments(
                files,
                layout.together,
                segments,
                np.zeros(memory, np.uint8),
                np.zeros(scratch, np.uint8),
            )


def test_counts_are_six_numbers():
    of_batch = ("num_tokens", "width", "num_boundaries", "max_seqlen")
    assert COUNTS.names == (*of_batch, "num_row_boundaries", "row_max_seqlen")
    assert COUNTS.itemsize == 48
