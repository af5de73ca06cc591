"""`text.live.row_filling`: lanes of tokens to rows, without threads."""

import numpy as np
import pytest

from millstream.batches.layout import BatchLayout
from millstream.batches.outputs import IGNORED, Output, derived_outputs
from millstream.pack.waiting_buffer import SLOT
from millstream.text.live.lane_buffer import ABSENT, LaneOutcome, LivePolicyCode
from millstream.text.live.row_filling import LaneBuffers
from millstream.text.live.token_arena import tokens_between

pytestmark = pytest.mark.kernels

NO_MARKS = (-1, -1)
BOS, EOS = 1, 2
SMALL, WIDE = np.uint16, np.uint32


def layout_of(width, rows, stored=SMALL):
    int64 = np.dtype(np.int64)
    return BatchLayout(
        np.dtype([("token", stored)]),
        rows,
        width,
        (
            Output("input_ids", "token", int64, fill=0),
            Output("labels", "token", int64, first=1, fill=IGNORED),
        ),
        derived_outputs(("document_ids",), width + 1),
    )


class Batch:
    """Lanes of their own, and the memory of one batch."""

    def __init__(self, policy, width, *, rows=1, lanes=1, stored=SMALL, **options):
        self.layout = layout_of(width, rows, stored)
        options = {"buffer_size": 4, "refill": 1, "marks": NO_MARKS, **options}
        self.buffers = LaneBuffers(lanes, self.layout.for_kernels(), policy=policy, **options)
        self.memory = np.zeros(self.layout.num_bytes, np.uint8)

    def feed(self, documents, *, lane=0, number=0, **options):
        ids = np.array([token for document in documents for token in document], np.uint32)
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        self.buffers.feed(lane, ids, offsets, 100 + number, number, **options)

    def pack(self, lane_of_row=(0,), *, begins=True):
        if begins:
            self.buffers.begin_batch()
        return self.buffers.pack(np.array(lane_of_row, np.int64), self.memory)

    def show(self, name, row=0):
        counts = self.layout.counts(self.memory)
        place = self.layout.places()[name]
        return place.of(self.memory, self.layout.rows, counts)[row].tolist()


def test_flat_rows_are_cut_anywhere_and_labels_go_on_in_the_next():
    batch = Batch(LivePolicyCode.FLAT, 4)
    batch.feed([[10, 11, 12], [20, 21, 22, 23]])
    assert batch.pack() == LaneOutcome.DONE
    assert batch.show("input_ids") == [10, 11, 12, 20]
    assert batch.show("labels") == [11, 12, 20, 21]
    assert batch.show("document_ids") == [100, 100, 100, 101]
    batch.buffers.end(0)
    assert batch.pack() == LaneOutcome.DONE
    assert batch.show("input_ids") == [21, 22, 23, 0]
    assert batch.show("labels") == [22, 23, IGNORED, IGNORED]
    assert batch.pack() == LaneOutcome.LANE_ENDED


def test_best_fit_begins_with_the_oldest_goes_on_with_the_longest_that_fits_and_pads():
    batch = Batch(LivePolicyCode.BEST_FIT, 6, buffer_size=3)
    batch.feed([[10, 11, 12], [20], [30, 31]])
    assert batch.pack() == LaneOutcome.NEEDS_DOCUMENTS
    batch.buffers.end(0)
    assert batch.pack(begins=False) == LaneOutcome.DONE
    assert batch.show("input_ids") == [10, 11, 12, 30, 31, 20]
    assert batch.show("labels") == [11, 12, 30, 31, 20, IGNORED]


def test_bos_best_fit_crops_the_shortest_and_counts_what_it_drops():
    batch = Batch(LivePolicyCode.BOS_BEST_FIT, 4)
    batch.feed([[10, 11, 12], [20, 21, 22, 23]])
    assert batch.pack() == LaneOutcome.NEEDS_DOCUMENTS
    batch.buffers.end(0)
    assert batch.pack(begins=False) == LaneOutcome.DONE
    assert batch.show("input_ids") == [20, 21, 22, 23]
    assert batch.show("labels") == [21, 22, 23, 10]
    assert batch.buffers.losses == (2, 0, 0)
    assert batch.pack() == LaneOutcome.LANE_ENDED


def test_full_best_fit_lets_the_rest_wait():
    batch = Batch(LivePolicyCode.FULL_BEST_FIT, 4, rows=2)
    batch.feed([[10, 11, 12], [20, 21, 22]])
    assert batch.pack([0, 0]) == LaneOutcome.NEEDS_DOCUMENTS
    batch.buffers.end(0)
    assert batch.pack([0, 0], begins=False) == LaneOutcome.DONE
    assert batch.show("input_ids") == [10, 11, 12, 20]
    assert batch.show("labels") == [11, 12, 20, 21]
    assert batch.show("input_ids", 1) == [21, 22, 0, 0]


def test_rows_are_of_the_lanes_that_they_are_asked_of():
    batch = Batch(LivePolicyCode.FLAT, 2, rows=3, lanes=2)
    batch.feed([[10, 11, 12, 13, 14]], lane=0)
    assert batch.pack([0, 1, 0]) == LaneOutcome.NEEDS_DOCUMENTS
    assert batch.buffers.next_row == 1
    batch.feed([[20, 21, 22]], lane=1)
    assert batch.pack([0, 1, 0], begins=False) == LaneOutcome.DONE
    assert [batch.show("input_ids", row) for row in range(3)] == [[10, 11], [20, 21], [12, 13]]


def test_marks_stand_around_every_document():
    batch = Batch(LivePolicyCode.FLAT, 7, marks=(BOS, EOS))
    batch.feed([[10, 11], [], [20, 21]])
    assert batch.pack() == LaneOutcome.DONE
    assert batch.show("input_ids") == [BOS, 10, 11, EOS, BOS, EOS, BOS]
    assert batch.show("labels")[-1] == 20


def test_ends_are_masked_if_asked():
    batch = Batch(LivePolicyCode.FLAT, 4, mask_ends=True)
    batch.feed([[10, 11], [20, 21, 22]])
    assert batch.pack() == LaneOutcome.DONE
    assert batch.show("labels") == [11, IGNORED, 21, 22]


@pytest.mark.parametrize("stored", [SMALL, WIDE])
@pytest.mark.parametrize("marks", [NO_MARKS, (BOS, -1), (-1, EOS), (BOS, EOS)])
def test_any_tokens_of_a_document_are_copied_with_its_marks(stored, marks):
    for num_ids in (0, 1, 5, 40):
        ids = np.arange(60_000, 60_000 + num_ids, dtype=np.uint32)
        whole = [mark for mark in marks[:1] if mark >= 0] + ids.tolist()
        whole += [mark for mark in marks[1:] if mark >= 0]
        for first in range(len(whole)):
            for last in range(first + 1, len(whole) + 1):
                size = np.dtype(stored).itemsize
                found = tokens_between(ids, marks, first, last, size)
                assert found.dtype == stored
                assert found.tolist() == whole[first:last]


def test_counting_rows_needs_lengths_only():
    batch = Batch(LivePolicyCode.FULL_BEST_FIT, 4)
    batch.buffers.feed(0, None, np.array([0, 3, 9, 14]), 0, 0)
    lanes = np.zeros(10, np.int64)
    batch.buffers.begin_batch()
    assert batch.buffers.pack(lanes, None) == LaneOutcome.NEEDS_DOCUMENTS
    batch.buffers.end(0)
    assert batch.buffers.pack(lanes, None) == LaneOutcome.LANE_ENDED
    assert batch.buffers.next_row == 4  # of 14 tokens


def test_a_snapshot_shows_what_waits_and_how_far_the_feed_is():
    batch = Batch(LivePolicyCode.FULL_BEST_FIT, 4, buffer_size=2)
    batch.feed([[10, 11, 12, 13, 14, 15, 16, 17, 18], [20, 21]], number=7)
    assert batch.pack() == LaneOutcome.DONE
    assert batch.show("input_ids") == [10, 11, 12, 13]
    assert batch.show("labels") == [11, 12, 13, 14]
    assert batch.buffers.progress(0) == (0, 8)
    waiting = batch.buffers.snapshot(0)
    assert waiting.dtype == SLOT
    waiting = waiting[waiting["arrival"] >= 0]
    assert waiting[["document", "first_record", "length", "goes_on"]].tolist() == [(107, 4, 4, 1)]


def restored():
    """A batch with documents 107, from token 4 on, and 108 put back."""
    batch = Batch(LivePolicyCode.FULL_BEST_FIT, 4, buffer_size=2)
    columns = ([107, 108], [4, 0], [1, 2], [0, 0])
    batch.buffers.put_back(0, *(np.array(column) for column in columns))
    batch.buffers.end(0)
    return batch


def test_tokens_of_documents_that_were_put_back_are_asked_for_when_they_are_chosen():
    batch = restored()
    assert batch.buffers.chosen(0) is None
    assert batch.pack() == LaneOutcome.NEEDS_TOKENS
    first = batch.buffers.chosen(0)
    slots = batch.buffers.snapshot(0)
    assert (slots["document"][first], slots["start"][first]) == (107, ABSENT)
    assert batch.buffers.bring(0, first, np.arange(10, 15, dtype=np.uint32))
    assert batch.pack(begins=False) == LaneOutcome.NEEDS_TOKENS
    second = batch.buffers.chosen(0)
    assert batch.buffers.bring(0, second, np.array([20, 21], np.uint32))
    assert batch.pack(begins=False) == LaneOutcome.DONE
    assert batch.show("input_ids") == [14, 20, 21, 0]


@pytest.mark.parametrize("length", [0, 4, 6, 9])
def test_a_document_of_another_length_is_not_the_one_that_waited(length):
    batch = restored()
    assert batch.pack() == LaneOutcome.NEEDS_TOKENS
    assert not batch.buffers.bring(0, batch.buffers.chosen(0), np.zeros(length, np.uint32))


@pytest.mark.parametrize("policy", list(LivePolicyCode))
@pytest.mark.parametrize("stored", [SMALL, WIDE])
def test_tokens_stay_what_they_are_while_the_arena_is_moved_and_grows(policy, stored):
    """Token k of document d is a function of both, so rows say what they should be made of."""
    chosen, width = np.random.default_rng(0), 500
    batch = Batch(policy, width, rows=4, buffer_size=300, refill=16, stored=stored)
    lengths, number, begins = {}, 0, True
    for _ in range(60):
        while (outcome := batch.pack([0] * 4, begins=begins)) != LaneOutcome.DONE:
            assert outcome == LaneOutcome.NEEDS_DOCUMENTS
            documents = []
            for k in range(32):
                length = int(chosen.integers(1, 900))
                lengths[100 + number + k] = length
                documents.append(((number + k) * 7 + np.arange(length)) % 60_000)
            batch.feed([document.tolist() for document in documents], number=number)
            number += 32
            begins = False
        begins = True
        for row in range(4):
            ids = np.array(batch.show("document_ids", row))
            tokens = np.array(batch.show("input_ids", row))
            for document in np.unique(ids[ids >= 0]):
                found = tokens[ids == document]
                first = (found[0] - (document - 100) * 7) % 60_000
                expected = ((document - 100) * 7 + first + np.arange(len(found))) % 60_000
                assert found.tolist() == expected.tolist()
                assert first + len(found) <= lengths[document]
    waiting = batch.buffers.snapshot(0)
    waiting = waiting[waiting["arrival"] >= 0]
    assert all(lengths[each["document"]] >= each["length"] for each in waiting)


@pytest.mark.parametrize(
    ("policy", "marks", "width"),
    [
        (LivePolicyCode.FLAT, (BOS, -1), 4),
        (LivePolicyCode.BOS_BEST_FIT, (BOS, -1), 4),
        (LivePolicyCode.FULL_BEST_FIT, (-1, EOS), 4),
        (LivePolicyCode.BEST_FIT, (BOS, -1), 1),
    ],
)
def test_repeating_a_mark_needs_one_and_documents_that_are_cut(policy, marks, width):
    with pytest.raises(ValueError, match="repeat_bos needs"):
        Batch(policy, width, marks=marks, repeat_bos=True)


@pytest.mark.parametrize(
    ("length", "ids"),
    [(1, [10, 11]), (2, []), (2, [10]), (2, [10, 11]), (2, [10, 11, 12, 13])],
    ids=str,
)
def test_a_piece_of_the_mark_alone_or_of_another_length_is_not_brought(length, ids):
    batch = Batch(LivePolicyCode.FULL_BEST_FIT, 4, buffer_size=2, marks=(BOS, -1), repeat_bos=True)
    columns = ([107], [3], [length], [0])  # from token 3 of BOS and ids on, behind another BOS
    batch.buffers.put_back(0, *(np.array(column) for column in columns))
    batch.buffers.end(0)
    assert batch.pack() == LaneOutcome.NEEDS_TOKENS
    assert not batch.buffers.bring(0, batch.buffers.chosen(0), np.array(ids, np.uint32))
    if length == 2:
        assert batch.buffers.bring(0, batch.buffers.chosen(0), np.array([10, 11, 12], np.uint32))
        assert batch.pack(begins=False) == LaneOutcome.DONE
        assert batch.show("input_ids") == [BOS, 12, 0, 0]


def test_what_would_leave_the_memory_is_refused():
    batch = Batch(LivePolicyCode.FLAT, 4)
    buffers, offsets = batch.buffers, np.array([0, 2, 3])
    ids = np.zeros(3, np.uint32)
    for message, call in {
        "beyond the end": lambda: buffers.feed(0, ids[:2], offsets, 0, 0),
        "descending": lambda: buffers.feed(0, ids, np.array([0, 2, 1]), 0, 0),
        "not within": lambda: buffers.feed(0, ids, offsets, 0, 0, first_token=2),
        "must not be empty": lambda: buffers.feed(0, ids, offsets[:0], 0, 0),
        "do not fit": lambda: buffers.pack(np.zeros(2, np.int64), batch.memory),
        "the memory": lambda: buffers.pack(np.zeros(1, np.int64), batch.memory[:-1]),
        "not aligned": lambda: buffers.pack(
            np.zeros(1, np.int64), np.zeros(len(batch.memory) + 1, np.uint8)[1:]
        ),
        "holds": lambda: buffers.put_back(0, *[np.ones(2, np.int64)] * 4),
        "impossible": lambda: buffers.put_back(0, *[np.zeros(1, np.int64)] * 4),
        "longer than a row": lambda: buffers.put_back(
            0, *(np.array([value]) for value in (0, 0, 5, 0))
        ),
        "slot 0 is empty": lambda: buffers.bring(0, 0, ids),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    for lane in (-1, 1):
        with pytest.raises(IndexError, match="does not exist"):
            buffers.end(lane)
        with pytest.raises(IndexError, match="does not exist"):
            buffers.pack(np.array([lane]), batch.memory)
