"""Argument checks of compiled code, each found by breaking it."""

import numpy as np
import pytest

from millstream.batches.batch_reader import BatchReader, ReaderMemory
from millstream.batches.layout_table import LayoutTable
from millstream.batches.view_state import SampleTable, ViewKind
from millstream.load.plan import StepPlan
from millstream.load.step_reader import StepReader
from millstream.order.shuffling import OrderKind, ShuffleState
from millstream.read.files import OpenFiles
from millstream.read.numbers import convert_numbers
from millstream.read.segments import OUTPUT
from millstream.system.checksums import CheckedBlocks, block_checksums
from millstream.text.merging.merge_tables import MergeTables
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.splitting.pieces import split
from millstream.text.training import word_table
from tests.helpers.kernel_inputs import token_layout, view_state

pytestmark = pytest.mark.kernels


def test_none_is_no_object_and_no_buffer():
    with pytest.raises(TypeError):
        StepReader(StepPlan(num_samples=1, batch_size=1), None, None, None)
    with pytest.raises(TypeError):
        ShuffleState(OrderKind.SHUFFLED, 10, 0, 1, 1).samples_at(None, None)


@pytest.mark.parametrize("num_samples", [0, 10, 1 << 20])
def test_only_samples_of_the_order_have_an_index(num_samples):
    state = ShuffleState(OrderKind.SHUFFLED, num_samples, 0, 1, 1)
    for sample in (-1, num_samples, 1 << 40):
        with pytest.raises(ValueError, match="no sample"):
            state.indices_of(0, np.array([sample]), np.zeros(1, np.int64))


def test_a_stride_that_overflows_is_refused():
    with pytest.raises(ValueError, match="short"):
        convert_numbers(np.zeros(8, np.uint8), 1 << 62, 8, False, np.zeros(40, np.uint8), 8)


def test_more_places_for_files_than_memory_are_refused():
    with pytest.raises(MemoryError):
        OpenFiles((1 << 61) + 1)


@pytest.mark.parametrize("bad", [-1, 5, 1 << 62, -(1 << 63)])
def test_a_table_of_samples_names_only_samples_that_exist(bad):
    with pytest.raises(ValueError, match="does not exist"):
        SampleTable(np.array([0, 4, bad, 2]), 5)


@pytest.mark.parametrize(
    "choice",
    [
        {"first_sample": 1},
        {"first_sample": -1},
        {"first_sample": 1 << 62},
        {"num_base_samples": 2},
        {"num_base_samples": 4},
        {"table": SampleTable(np.array([0, 1]), 3)},
        {"table": SampleTable(np.array([0, 1, 2, 0]), 4)},
        {"table": SampleTable(np.array([0, 1, 2, 0]), 3), "first_sample": 2},
    ],
)
@pytest.mark.parametrize("kind", [ViewKind.WINDOWS, ViewKind.ROWS])
def test_a_view_chooses_only_samples_that_exist(kind, choice):
    pieces = [(0, 5, 0)] * 3 if kind == ViewKind.ROWS else ()
    sizes = {"num_samples": 3, "num_records": 13, "width": 4, "pieces": pieces}
    view_state(kind, **sizes)
    with pytest.raises(ValueError):  # noqa: PT011 (each for its own reason)
        view_state(kind, **(sizes | choice))


@pytest.mark.parametrize("start", [-8, 105, 1 << 62])
def test_outputs_stay_in_the_memory_of_a_batch(start):
    output = np.array([(0, 2, 2, 0, 8, 8, start, 0, 0, 0, 0, 0)], OUTPUT)
    sizes = {"scratch_records": 8, "num_bytes": 168, "rows": 1, "width": 8}
    with pytest.raises(ValueError, match="outside"):
        LayoutTable(output, output[:0], {}, **sizes)
    with pytest.raises(ValueError, match="outside"):
        LayoutTable(output[:0], output[:0], {"document_ids": (start, 8, 0)}, **sizes)


def test_words_survive_a_table_that_could_not_grow(monkeypatch):
    table = word_table.WordTable()
    words = np.arange(1 << 17, dtype="<u4").view(np.uint8)
    starts = np.arange(0, len(words) + 1, 4)
    counts = np.ones(1 << 17, np.int64)
    with monkeypatch.context() as patch:
        patch.setattr(word_table, "np", _WithoutMemory())
        with pytest.raises(MemoryError):
            table.add_words(words, starts, counts)
    before = len(table.words[2])
    table.add_words(words[:40], starts[:11], counts[:10])
    assert len(table.words[2]) == before == 1 << 16
    assert table.words[2][:11].tolist() == [2] * 10 + [1]


def test_a_table_of_pairs_is_never_filled_up():
    ids = np.arange(256, dtype=np.uint32)
    tables = MergeTables(ids, ids, ids.astype(np.uint8), np.arange(257), max_pairs=8)
    pairs = np.stack([np.arange(8), np.arange(8)], axis=1)
    tables.add_pairs(pairs, np.arange(8))
    with pytest.raises(ValueError, match="room"):
        tables.add_pairs(pairs + 8, np.arange(8))


@pytest.mark.parametrize("name", PATTERNS)
def test_no_piece_is_empty_whatever_the_classes_say(name):
    text = np.frombuffer(b" 1 a\n", np.uint8)
    ends = np.zeros(text.size, np.int64)
    for kind in range(32):
        classes = np.full(0x110000, kind, np.uint8)
        count = split(text, PATTERNS[name].code, classes, ends)
        assert np.all(np.diff(ends[:count], prepend=0) > 0)
        assert ends[count - 1] == text.size


def test_rows_outside_of_the_memory_that_is_checked_are_refused():
    memory = bytes(3 * 24)
    blocks = CheckedBlocks(memory, block_checksums(memory))
    with pytest.raises(ValueError, match="outside of the memory"):
        view_state(
            ViewKind.ROWS,
            num_samples=3,
            num_records=9,
            width=2,
            pieces=np.zeros((3, 3)),  # of which it takes a copy
            blocks=blocks,
        )


def test_a_view_without_its_files_is_refused():
    view = view_state(ViewKind.WINDOWS, num_samples=1, num_records=9, width=8)
    layout, _ = token_layout(1, 8)
    with pytest.raises(ValueError, match="records"):
        BatchReader(view, layout, (None,) * 5, None, ReaderMemory(9, 1 << 12))


@pytest.mark.parametrize("sizes", [{"width": -1}, {"stride": -1}, {"stride": 1 << 62}])
def test_windows_whose_sizes_overflow_are_refused(sizes):
    with pytest.raises(ValueError, match=r"negative|beyond"):
        view_state(ViewKind.WINDOWS, **({"num_samples": 9, "num_records": 99, "width": 8} | sizes))


class _WithoutMemory:
    def __getattr__(self, name):
        if name == "empty":
            raise MemoryError
        return getattr(np, name)
