"""`pack.waiting_buffer`: documents found by length and by arrival, against a plain list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pack.waiting_buffer import WaitingDocuments

pytestmark = pytest.mark.kernels


def filled(lengths, *, longest=100):
    waiting = WaitingDocuments(len(lengths) + 1, longest)
    for document, length in enumerate(lengths):
        waiting.put(document, length)
    return waiting


def test_the_best_is_the_longest_that_fits():
    waiting = filled([5, 9, 7])
    assert [waiting.take_best(8) for _ in range(3)] == [2, 0, None]


def test_the_shortest_is_the_shortest_that_does_not_fit():
    waiting = filled([5, 9, 7])
    assert [waiting.take_shortest(5) for _ in range(3)] == [2, 1, None]


def test_of_equals_the_first_to_come_is_taken():
    waiting = filled([4, 4, 4])
    assert [waiting.take_best(4), waiting.take_shortest(0), waiting.take_oldest()] == [0, 1, 2]


def test_documents_longer_than_a_row_wait_too():
    waiting = filled([300, 200, 200, 250], longest=100)
    assert waiting.take_best(100) is None
    assert [waiting.take_shortest(100) for _ in range(5)] == [1, 2, 3, 0, None]


def test_a_slot_is_used_again():
    waiting = WaitingDocuments(1, 10)
    for document in range(3):
        waiting.put(document, 3)
        with pytest.raises(ValueError, match="full"):
            waiting.put(9, 3)
        assert waiting.take_oldest() == document
    assert len(waiting) == 0
    assert waiting.take_oldest() is None


@pytest.mark.parametrize("edge", [1, 63, 64, 65, 4095, 4096, 4097, 300_000])
def test_lengths_around_the_words_of_the_set_are_found(edge):
    waiting = filled([edge, edge + 1], longest=edge + 1)
    assert waiting.take_shortest(edge) == 1
    assert waiting.take_best(edge + 1) == 0
    assert waiting.take_best(edge + 1) is None
    assert waiting.take_shortest(0) is None


class ListOfDocuments:
    """What `WaitingDocuments` promises, searched through."""

    def __init__(self):
        self.waiting = []

    def put(self, document, length):
        self.waiting.append((length, document))

    def _take(self, candidates, key):
        if not candidates:
            return None
        found = min(candidates, key=key)
        self.waiting.remove(found)
        return found[1]

    def take_best(self, space):
        return self._take([each for each in self.waiting if each[0] <= space], lambda e: -e[0])

    def take_shortest(self, space):
        return self._take([each for each in self.waiting if each[0] > space], lambda e: e[0])

    def take_oldest(self):
        return self.waiting.pop(0)[1] if self.waiting else None


LONGEST = 130
STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 2 * LONGEST)),
    st.tuples(st.just("take_best"), st.integers(1, LONGEST)),
    st.tuples(st.just("take_shortest"), st.integers(0, LONGEST)),
)


@pytest.mark.slow
@given(st.lists(STEPS, max_size=80))
def test_it_gives_what_a_list_gives(steps):
    waiting, model = WaitingDocuments(80, LONGEST), ListOfDocuments()
    for number, (step, value) in enumerate(steps):
        if step == "put":
            waiting.put(number, value)
            model.put(number, value)
        else:
            assert getattr(waiting, step)(value) == getattr(model, step)(value)
        assert len(waiting) == len(model.waiting)


@given(st.lists(st.one_of(st.integers(1, LONGEST), st.none(), st.just(0)), max_size=80))
def test_the_oldest_is_known_whatever_leaves_before_it(steps):
    waiting, model = WaitingDocuments(80, LONGEST), ListOfDocuments()
    for number, step in enumerate(steps):
        if step is None:
            assert waiting.take_oldest() == model.take_oldest()
        elif step == 0:
            assert waiting.take_best(LONGEST // 2) == model.take_best(LONGEST // 2)
        else:
            waiting.put(number, step)
            model.put(number, step)


def test_lengths_and_spaces_out_of_range_are_refused():
    waiting = WaitingDocuments(2, 10)
    for call in (
        lambda: waiting.put(0, 0),
        lambda: waiting.take_best(11),
        lambda: waiting.take_best(0),
        lambda: waiting.take_shortest(-1),
        lambda: waiting.take_shortest(11),
        lambda: WaitingDocuments(0, 10),
    ):
        with pytest.raises(ValueError, match=r".+"):
            call()
