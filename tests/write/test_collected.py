"""`write.collected`: a document is collected whole and exactly, or nothing changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.write.collected import Collected

pytestmark = pytest.mark.kernels

STORED = ["u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8"]
TAKEN_FROM = ["u1", "<u2", "<u4", "<i4", "<i8"]


def collecting(stored="<u2", vocab_size=None, *, room=1 << 40, max_bytes=1 << 12, max_documents=8):
    collected = Collected(
        np.dtype([("token", stored)]), vocab_size, max_bytes=max_bytes, max_documents=max_documents
    )
    collected.begin(room)
    return collected


def as_array(numbers):
    return np.array(numbers, np.int64)


def contents(collected):
    records, lengths = collected.take()
    ends = np.cumsum(lengths)
    return [records["token"][end - n : end].tolist() for end, n in zip(ends, lengths, strict=True)]


@st.composite
def integers_of(draw, kind):
    """Numbers of a type, with its bounds and those of narrower types among them."""
    info = np.iinfo(kind)
    edges = [
        0,
        99,
        100,
        *(sign * (1 << bits) for bits in (7, 8, 15, 16, 31, 32) for sign in (1, -1)),
    ]
    near = [edge + k for edge in edges for k in (-1, 0) if info.min <= edge + k <= info.max]
    number = st.one_of(st.sampled_from([*near, int(info.min), int(info.max)]), st.integers(0, 90))
    if draw(st.booleans()):
        number = st.integers(0, 90)
    return draw(st.lists(number, max_size=40))


@given(
    stored=st.sampled_from(STORED),
    kind=st.sampled_from([*TAKEN_FROM, "list"]),
    vocab_size=st.sampled_from([None, 1, 100]),
    data=st.data(),
)
def test_a_document_comes_back_exactly_or_is_left(stored, kind, vocab_size, data):
    numbers = data.draw(integers_of("<i8" if kind == "list" else kind))
    document = numbers if kind == "list" else np.array(numbers, kind)
    info = np.iinfo(stored)
    low, high = (0, vocab_size - 1) if vocab_size else (info.min, info.max)
    fits = all(low <= number <= high for number in numbers)
    collected = collecting(stored, vocab_size)
    assert collected.add([7 % (vocab_size or 100)])
    assert collected.add(document) == fits
    assert (collected.num_documents, collected.num_records) == (
        (2, 1 + len(numbers)) if fits else (1, 1)
    )
    assert collected.add([0])
    assert contents(collected)[1:-1] == ([numbers] if fits else [])


class Own(np.ndarray):
    """Could do anything when it is asked for its buffer."""


def test_what_is_no_plain_run_of_integers_is_left():
    collected = collecting()
    numbers = np.arange(6, dtype="<u2")
    for document in (
        numbers.astype(">u2"),
        numbers.astype(">u2")[:0],
        numbers.astype(float),
        numbers.astype(bool),
        numbers.astype("M8[s]"),
        numbers.astype(object),
        numbers[::2],
        numbers[::-1],
        numbers.reshape(2, 3),
        numbers.reshape(6, 1),
        numbers[:0].reshape(0, 3),
        np.array(3, "<u2"),
        numbers[3],
        numbers.view(Own),
        numbers.view([("token", "<u2")]),
        numbers[:0].view([("other", "<u2")]),
        numbers.tobytes(),
        [1, True],
        [1, numbers[1]],
        [1.0],
        [1 << 70],
        [-1 << 70],
        [[1]],
        [None],
        (1, 2),
        range(3),
        {"token": [1]},
        "12",
        5,
        None,
    ):
        assert collected.add(document) is False
    assert contents(collected) == []


def test_arrays_are_taken_wherever_they_lie_and_copied(tmp_path):
    collected = collecting()
    numbers = np.arange(6, dtype="<u2")
    fixed = numbers.copy()
    fixed.flags.writeable = False
    apart = np.zeros((4, 2), "<u2")
    unaligned = np.frombuffer(b"\0" + numbers.tobytes(), "<u2", offset=1)
    mapped = np.memmap(tmp_path / "numbers", "<u2", "w+", shape=6)
    mapped[:] = numbers
    for document in (numbers, fixed, mapped, numbers[2:4], apart[1:2, 0]):
        assert collected.add(document)
    assert collected.add(numbers[:0])
    was_taken = collected.add(unaligned)
    numbers[:] = 9
    assert contents(collected) == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
        [2, 3],
        [0],
        [],
        *([[0, 1, 2, 3, 4, 5]] if was_taken else []),
    ]


@pytest.mark.parametrize("make", [list, as_array])
def test_the_document_that_fills_the_shard_is_the_last(make):
    collected = collecting(room=4)
    taken = [collected.add(make([1] * n)) for n in (3, 0, 5, 1, 0)]
    assert taken == [True, True, True, False, False]
    assert contents(collected) == [[1, 1, 1], [], [1] * 5]


@pytest.mark.parametrize("make", [list, as_array])
def test_what_does_not_fit_is_left_and_less_is_taken(make):
    collected = collecting(max_bytes=8)  # 4 numbers
    assert [collected.add(make([1] * n)) for n in (3, 2, 1, 1)] == [True, False, True, False]
    assert collected.add([])
    assert contents(collected) == [[1, 1, 1], [1], []]


def test_there_is_room_for_so_many_documents():
    collected = collecting(max_documents=2)
    assert [collected.add([k]) for k in range(3)] == [True, True, False]
    assert contents(collected) == [[0], [1]]


def test_nothing_is_taken_before_it_begins_nor_after_it_was_taken():
    collected = Collected(np.dtype([("token", "<u2")]), 100, max_bytes=64, max_documents=4)
    assert not collected.add([1])
    collected.begin(10)
    assert collected.add([1])
    assert contents(collected) == [[1]]
    assert not collected.add([2])
    collected.begin(0)
    assert not collected.add([])
    collected.begin(1)
    assert collected.add([3])
    assert contents(collected) == [[3]]
    assert (collected.num_documents, collected.num_records) == (2, 2)


@pytest.mark.parametrize("fields", [[("token", "<u2"), ("x", "u1")], [("x", "<u2")]])
def test_records_of_other_fields_are_left(fields):
    collected = Collected(np.dtype(fields), None, max_bytes=64, max_documents=4)
    collected.begin(10)
    assert not collected.add([1])
    assert not collected.add(np.zeros(2, "<u2"))


@pytest.mark.parametrize("limits", [(7, 1), (8, 0), (-1, -1)])
def test_a_collection_without_room_is_refused(limits):
    with pytest.raises(ValueError, match="room for a document"):
        collecting(max_bytes=limits[0], max_documents=limits[1])
