"""`metadata.groups`: the metadata of a batch, found by the ids of its records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batches.batch_reader import BatchReader, ReaderMemory
from millstream.batches.layout_table import LayoutTable
from millstream.batches.view_state import ViewKind
from millstream.formats.shard import NO_METADATA
from millstream.metadata.span_groups import SpanTable
from millstream.read.files import FaultCode, FileKind
from millstream.read.segments import OUTPUT
from tests.helpers.kernel_inputs import view_state, write_files

pytestmark = pytest.mark.kernels

RECORD = np.dtype([("token", "<u2"), ("metadata_id", "<u4")])


class Spans:
    """The spans of a batch of windows over shards of metadata ids."""

    def __init__(self, directory, shards, blobs, width, samples):
        records, index, contents = [], [], []
        for ids, blob in zip(shards, blobs, strict=True):
            records.append(np.zeros(len(ids), RECORD))
            records[-1]["metadata_id"] = ids
            index.append(np.cumsum([0, *map(len, blob)]).astype("<u8"))
            contents.append(np.frombuffer(b"".join(blob), np.uint8))
        files = {
            FileKind.RECORDS: write_files(directory, records),
            FileKind.METADATA_OFFSETS: write_files(directory, index, FileKind.METADATA_OFFSETS),
            FileKind.METADATA_BYTES: write_files(directory, contents, FileKind.METADATA_BYTES),
        }
        rows = len(samples)
        start = 48 + 8 * rows + 64
        layout = LayoutTable(
            np.array([(2, 4, 4, 0, 4, 4, start, 0, -1, 0, 0, 0)], OUTPUT),
            np.empty(0, OUTPUT),
            {"metadata_ids": (start, 4, 0)},
            scratch_records=16,
            num_bytes=start + 4 * rows * width,
            rows=rows,
            width=width,
        )
        num_records = sum(map(len, shards))
        view = view_state(
            ViewKind.WINDOWS,
            num_samples=(num_records - 1) // width,
            num_records=num_records,
            width=width,
        )
        self.table = SpanTable(rows, width)
        by_kind = tuple(files.get(kind) for kind in FileKind)
        reader = BatchReader(view, layout, by_kind, self.table, ReaderMemory(1, 1 << 10))
        memory = np.zeros(layout.num_bytes, np.uint8)
        self.fault = None
        if not reader.read(np.array(samples, np.int64), memory):
            self.fault = reader.fault
            return
        self.content = np.zeros(self.table.total_bytes, np.uint8)
        assert self.table.read(files[FileKind.METADATA_BYTES], self.content) is None
        self.ids = memory[start:].view("<i4").reshape(rows, width)
        for opened in files.values():
            opened.close()

    def of_row(self, row):
        first, stop = self.table.row_first[row : row + 2].tolist()
        return [
            bytes(self.content[span["start"] : span["stop"]])
            for span in self.table.spans[first:stop]
        ]


def test_ids_become_numbers_of_spans_and_spans_know_their_bytes(tmp_path):
    none = NO_METADATA
    ids = [0, 0, 1, none, 2, 2, 2]
    spans = Spans(tmp_path, [ids], [[b"zero", b"", b"two!"]], width=3, samples=[0, 1])
    assert spans.ids.tolist() == [[0, 0, 1], [-1, 0, 0]]
    assert spans.of_row(0) == [b"zero", b""]
    assert spans.of_row(1) == [b"two!"]
    assert spans.table.num_spans == 3
    assert spans.table.num_groups == 1  # ids that follow each other are read together


@pytest.mark.slow
@given(draw=st.data(), width=st.integers(1, 6))
def test_every_record_has_the_metadata_of_its_id(tmp_path_factory, draw, width):
    num_ids = draw.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    blobs = [[bytes([shard, k]) * k for k in range(num)] for shard, num in enumerate(num_ids)]
    shards = [
        draw.draw(
            st.lists(st.integers(0, num - 1) | st.just(NO_METADATA), min_size=width + 1, max_size=9)
        )
        for num in num_ids
    ]
    stream = [
        None if number == NO_METADATA else blob[number]
        for ids, blob in zip(shards, blobs, strict=True)
        for number in ids
    ]
    num_samples = (len(stream) - 1) // width
    samples = draw.draw(st.lists(st.integers(0, num_samples - 1), min_size=1, max_size=4))
    if not any(map(len, (b"".join(blob) for blob in blobs))):
        return
    spans = Spans(tmp_path_factory.mktemp("spans"), shards, blobs, width, samples)
    for row, sample in enumerate(samples):
        found = spans.of_row(row)
        expected = stream[sample * width : (sample + 1) * width]
        assert [None if k < 0 else found[k] for k in spans.ids[row].tolist()] == expected


@pytest.mark.parametrize("stored", [3, 1 << 31, NO_METADATA - 1])
def test_an_id_that_the_shard_does_not_have_is_a_fault(tmp_path, stored):
    spans = Spans(tmp_path, [[0, stored, 0]], [[b"a", b"b", b"c"]], width=2, samples=[0])
    assert spans.fault == (FaultCode.WRONG_CONTENT, FileKind.RECORDS, 0, 0, stored)


def test_memory_that_is_too_small_is_refused(tmp_path):
    spans = Spans(tmp_path, [[0, 0, 0]], [[b"abc"]], width=2, samples=[0])
    files = write_files(tmp_path, [np.zeros(3, np.uint8)], FileKind.METADATA_BYTES)
    with pytest.raises(ValueError, match="too small for the metadata"):
        spans.table.read(files, np.zeros(2, np.uint8))
