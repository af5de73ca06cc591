"""`batches.batch_filling`: samples to filled batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batches.batch_reader import BatchReader, ReaderMemory
from millstream.batches.view_state import ViewKind
from millstream.read.files import FaultCode, FileKind
from tests.helpers.kernel_inputs import array, token_layout, view_state, write_files

pytestmark = pytest.mark.kernels

DERIVED = ("position_ids", "document_ids", "attention_mask", "cu_seqlens")


class Batch:
    """The arrays of samples, by their names."""

    def __init__(self, view, files, samples, width, max_segments=64):
        self.rows, self.width = len(samples), width
        layout, self._starts = token_layout(max(1, len(samples)), width, derived=DERIVED, pad=7)
        self._memory = np.full(layout.num_bytes, 255, np.uint8)
        by_kind = tuple(files.get(kind) for kind in FileKind)
        self.reader = BatchReader(view, layout, by_kind, None, ReaderMemory(max_segments, 1 << 13))
        self.is_read = self.reader.read(np.array(samples, np.int64), self._memory)
        for opened in files.values():
            opened.close()

    def __getitem__(self, name):
        if name == "cu_seqlens":
            num = int(self._memory[16:24].view(np.int64)[0])
            return np.ndarray(num, "<i4", self._memory, self._starts[name]).tolist()
        return array(self._memory, self._starts, name, self.rows, self.counts[1]).tolist()

    @property
    def counts(self):
        """Tokens, width, entries of cu_seqlens, the longest of its runs."""
        return self._memory[:32].view(np.int64).tolist()

    @property
    def lengths(self):
        return self._memory[48 : 48 + 8 * self.rows].view(np.int64).tolist()


@pytest.fixture
def stream(tmp_path):
    """Twenty tokens, which are their own numbers, in two shards."""
    parts = np.split(np.arange(20, dtype="<u2"), [9])
    return lambda: {FileKind.RECORDS: write_files(tmp_path, parts)}


def test_everything_in_a_row_follows_from_its_pieces(stream):
    view = view_state(
        ViewKind.ROWS,
        num_samples=2,
        num_records=20,
        width=6,
        # start, length and document: a row of two pieces, and one whose last record is a label
        pieces=[(3, 2, 50), (10, 3, 51), (0, 7, 52)],
        row_first=[0, 2, 3],
        mask_ends=True,
    )
    batch = Batch(view, stream(), [0, 1], width=6)
    assert batch["input_ids"] == [[3, 4, 10, 11, 12, 7], [0, 1, 2, 3, 4, 5]]
    assert batch["labels"] == [[4, -100, 11, 12, -100, -100], [1, 2, 3, 4, 5, 6]]
    assert batch["position_ids"] == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]
    assert batch["document_ids"] == [[50, 50, 51, 51, 51, -1], [52] * 6]
    assert batch["attention_mask"] == [[1, 1, 1, 1, 1, 0], [1] * 6]
    assert batch["cu_seqlens"] == [0, 2, 5, 6, 12]
    assert batch.lengths == [5, 6]
    assert batch.counts == [11, 6, 5, 6]


def test_the_label_at_the_end_of_a_document_is_the_next_document_unless_ends_are_masked(stream):
    pieces = {"pieces": [(3, 2, 50), (10, 3, 51)], "row_first": [0, 2]}
    view = view_state(ViewKind.ROWS, num_samples=1, num_records=20, width=6, **pieces)
    assert Batch(view, stream(), [0], width=6)["labels"] == [[4, 10, 11, 12, -100, -100]]


def test_a_batch_may_be_as_narrow_as_its_longest_row(stream):
    view = view_state(
        ViewKind.ROWS,
        num_samples=2,
        num_records=20,
        width=8,
        pieces=[(0, 3, 0), (5, 2, 1)],
        narrow_to=2,
    )
    batch = Batch(view, stream(), [0, 1], width=8)
    assert batch["input_ids"] == [[0, 1, 2, 7], [5, 6, 7, 7]]
    assert Batch(view, stream(), [1], width=8)["input_ids"] == [[5, 6]]


def test_cu_seqlens_can_have_the_same_length_in_every_batch(stream):
    options = {"pieces": [(0, 3, 0)], "pad_boundaries": True}
    view = view_state(ViewKind.ROWS, num_samples=1, num_records=20, width=4, **options)
    assert Batch(view, stream(), [0], width=4)["cu_seqlens"] == [0, 3, 4, 4, 4, 4, 4]


def test_windows_can_be_cut_after_a_token(stream):
    view = view_state(ViewKind.WINDOWS_BY_EOS, num_samples=3, num_records=20, width=6, eos_id=8)
    batch = Batch(view, stream(), [1], width=6)
    assert batch["input_ids"] == [[6, 7, 8, 9, 10, 11]]
    assert batch["position_ids"] == [[0, 1, 2, 0, 1, 2]]
    assert batch["cu_seqlens"] == [0, 3, 6]


@pytest.mark.slow
@given(
    lengths=st.lists(
        st.lists(st.integers(0, 7) | st.integers(0, 400), min_size=1, max_size=90),
        min_size=1,
        max_size=3,
    ),
    width=st.integers(1, 30),
    draw=st.data(),
)
def test_windows_know_their_documents(tmp_path_factory, lengths, width, draw):
    owners = [
        document
        for document, length in enumerate(length for shard in lengths for length in shard)
        for _ in range(length)
    ]
    num_samples = (len(owners) - 1) // width
    if num_samples < 1:
        return
    directory = tmp_path_factory.mktemp("documents")
    records = [np.zeros(sum(shard), "<u2") for shard in lengths]
    tables = [np.cumsum([0, *shard]).astype("<u8") for shard in lengths]
    files = {
        FileKind.RECORDS: write_files(directory, records),
        FileKind.DOCUMENT_OFFSETS: write_files(directory, tables, FileKind.DOCUMENT_OFFSETS),
    }
    sample = draw.draw(st.integers(0, num_samples - 1))
    kind = ViewKind.WINDOWS_BY_DOCUMENT
    view = view_state(kind, num_samples=num_samples, num_records=len(owners), width=width)
    batch = Batch(view, files, [sample], width)
    assert batch.is_read
    expected = owners[sample * width : (sample + 1) * width]
    assert batch["document_ids"] == [expected]
    starts = [k for k in range(1, width) if expected[k] != expected[k - 1]]
    assert batch["cu_seqlens"] == [0, *starts, width]


@pytest.mark.parametrize("table", [[0, 4, 3, 10], [1, 4, 5, 10], [0, 4, 11, 10], [0, 4, 5, 9]])
def test_a_table_of_documents_that_cannot_be_right_is_a_fault(tmp_path, table):
    files = {
        FileKind.RECORDS: write_files(tmp_path, [np.zeros(10, "<u2")]),
        FileKind.DOCUMENT_OFFSETS: write_files(
            tmp_path, [np.array(table, "<u8")], FileKind.DOCUMENT_OFFSETS
        ),
    }
    view = view_state(ViewKind.WINDOWS_BY_DOCUMENT, num_samples=1, num_records=10, width=9)
    batch = Batch(view, files, [0], width=9)
    assert not batch.is_read
    assert batch.reader.fault[:3] == (FaultCode.WRONG_CONTENT, FileKind.DOCUMENT_OFFSETS, 0)


@pytest.mark.parametrize(
    ("pieces", "row_first"),
    [
        ([(0, 0, 0)], []),
        ([(0, 8, 0)], []),
        ([(-1, 3, 0)], []),
        ([(18, 3, 0)], []),
        ([((1 << 63) - 1, 3, 0)], []),
        ([(0, 3, 0), (0, 3, 0)], [0, 3]),
        ([(0, 3, 0), (0, 3, 0)], [2, 1]),
        ([(0, 3, 0), (0, 3, 0)], [-1, 1]),
        ([(0, 4, 0), (0, 4, 0)], [0, 2]),
        ([(0, 1, 0)] * 4, [0, 4]),
    ],
)
def test_rows_that_cannot_be_right_are_a_fault(stream, pieces, row_first):
    options = {"pieces": pieces, "row_first": row_first}
    view = view_state(ViewKind.ROWS, num_samples=1, num_records=20, width=6, **options)
    batch = Batch(view, stream(), [0], width=6, max_segments=3)
    assert not batch.is_read
    assert batch.reader.fault == (FaultCode.WRONG_ROWS, FileKind.RECORDS, 0, 0, 0)


def test_a_reader_that_was_stopped_reads_no_more(stream):
    view = view_state(ViewKind.WINDOWS, num_samples=3, num_records=20, width=6, is_plain=True)
    batch = Batch(view, stream(), [0], width=6)
    assert batch.is_read
    batch.reader.stop()
    assert batch.reader.is_stopped
    layout, _ = token_layout(1, 6, derived=DERIVED)
    assert not batch.reader.read(np.zeros(1, np.int64), np.zeros(layout.num_bytes, np.uint8))


def test_views_and_samples_that_kernels_could_not_trust_are_refused(stream):
    with pytest.raises(ValueError, match="beyond"):
        view_state(ViewKind.WINDOWS, num_samples=4, num_records=20, width=6)
    with pytest.raises(ValueError, match="one row for each"):
        view_state(ViewKind.ROWS, num_samples=2, num_records=20, width=6, pieces=[(0, 1, 0)])
    view = view_state(ViewKind.WINDOWS, num_samples=3, num_records=20, width=6)
    for sample in (-1, 3):
        with pytest.raises(ValueError, match="outside of the view"):
            Batch(view, stream(), [sample], width=6)
    with pytest.raises(ValueError, match="does not belong to this view"):
        Batch(view, stream(), [0], width=5)
