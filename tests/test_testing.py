"""`millstream.testing` reports every defect: each test gives it a pipeline with one mistake."""

import pytest

import millstream
from millstream.errors import VerificationError
from millstream.testing import assert_ranks_share_exactly, assert_resumes_exactly, assert_same


class Counting:
    """A pipeline that hands out 0 to 9, with prefetching that may be counted by mistake."""

    def __init__(self, read_ahead=0, restart_at_epoch=False):
        self.position = 0
        self.read_ahead = read_ahead
        self.restart_at_epoch = restart_at_epoch

    def __iter__(self):
        while True:
            self.position += 1
            yield {"value": (self.position - 1) % 10}
            if self.position % 10 == 0:
                return

    def state_dict(self):
        return {"position": self.position + self.read_ahead}

    def load_state_dict(self, state):
        self.position = state["position"]
        if self.restart_at_epoch and self.position >= 10:
            self.position = 0


def test_an_exact_pipeline_passes():
    assert_resumes_exactly(Counting, steps=25)


def test_a_state_that_counts_what_was_read_ahead_is_seen():
    with pytest.raises(VerificationError, match=r"resumed at step 0: batch 0\['value'\]"):
        assert_resumes_exactly(lambda: Counting(read_ahead=1))


def test_a_state_that_forgets_the_epoch_is_seen_by_the_state_after_it():
    with pytest.raises(VerificationError, match="resumed at step 10: state"):
        assert_resumes_exactly(lambda: Counting(restart_at_epoch=True))


def test_a_pipeline_without_batches_is_an_error_and_no_hang():
    class Empty(Counting):
        def __iter__(self):
            return iter(())

    with pytest.raises(VerificationError, match="yielded no batch"):
        assert_resumes_exactly(Empty)


def test_ranks_that_read_the_same_rows_are_seen(data):
    def make(rank, ranks, batch_size):
        return millstream.Loader(data.windows(5), batch_size, rank=0, ranks=ranks)

    with pytest.raises(VerificationError, match="2 ranks of 6 rows"):
        assert_ranks_share_exactly(make, splits=[(1, 12), (2, 6)])


def test_ranks_with_different_numbers_of_steps_are_seen():
    with pytest.raises(VerificationError, match=r"different numbers of steps: \[3, 2\]"):
        assert_ranks_share_exactly(lambda rank, ranks, size: range(3 - rank), splits=[(2, 1)])


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        ({"a": 1}, {"b": 1}, "keys"),
        ([1], [1, 2], "1 items, expected 2"),
        ([1.0], [1], "float64"),
        ({"a": [0, 3]}, {"a": [0, 4]}, r"batch\['a'\]\[1\]"),
    ],
)
def test_differences_are_named_by_their_path(found, expected, words):
    with pytest.raises(VerificationError, match=words):
        assert_same(found, expected)


@pytest.mark.parametrize(("one", "other"), [(b"", b"\0"), (b"a", b"a\0"), ("a", b"a"), (b"a", "a")])
def test_bytes_and_texts_are_compared_as_they_are(one, other):
    assert_same({"documents": [one]}, {"documents": [one]})
    with pytest.raises(VerificationError, match=r"batch\['documents'\]\[0\]: .*, expected "):
        assert_same({"documents": [one]}, {"documents": [other]})
