"""`load.plan`: which samples each rank reads at each step."""

import pickle
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.load.plan import Step, StepPlan

TAILS = st.sampled_from(["drop", "keep", "wrap"])


@st.composite
def plans(draw):
    """The plans of all ranks of one run."""
    batch_size, ranks = draw(st.integers(1, 7)), draw(st.integers(1, 6))
    tail, endless = draw(TAILS), draw(st.booleans())
    shortest = batch_size * ranks if tail == "drop" and not endless else 1
    num_samples = draw(st.integers(shortest, 100))
    return [
        StepPlan(
            num_samples=num_samples,
            batch_size=batch_size,
            rank=rank,
            ranks=ranks,
            tail=tail,
            endless=endless,
        )
        for rank in range(ranks)
    ]


def steps_from(plan, position):
    while True:
        step = plan.step_at(position)
        yield step
        position = step.end


def positions_of(plan, step):
    return [step.position + plan.rank + k * plan.ranks for k in range(step.rows)]


@given(plans(), st.integers(0, 300), st.integers(1, 40))
def test_ranks_together_cover_what_the_step_spans_once_and_agree_where_it_ends(ranks, start, count):
    position = ranks[0].settle(start)
    for _ in range(count):
        steps = [plan.step_at(position) for plan in ranks]
        assert len({(step.position, step.end) for step in steps}) == 1
        covered = sorted(
            p for plan, step in zip(ranks, steps, strict=True) for p in positions_of(plan, step)
        )
        assert covered == list(range(position, position + len(covered)))
        skipped = steps[0].end - position - len(covered)
        if ranks[0].tail == "drop" and not ranks[0].endless:
            assert 0 <= skipped < ranks[0].step_size
            if skipped:
                assert steps[0].end % ranks[0].num_samples == 0
        else:
            assert skipped == 0
        position = steps[0].end


@given(plans(), st.integers(0, 300))
def test_the_number_of_steps_is_exact_on_every_rank(ranks, start):
    for plan in ranks:
        if plan.endless:
            continue
        end = plan.end_of_epoch(start)
        steps = list(islice(steps_from(plan, start), plan.num_steps(start)))
        assert steps[-1].end == end
        assert all(step.end < end for step in steps[:-1])
        assert plan.num_steps(start) == ranks[0].num_steps(start) >= 1


@given(plans(), st.integers(0, 300))
def test_the_steps_of_an_epoch_are_those_that_were_taken_and_those_that_remain(ranks, start):
    for plan in ranks:
        if plan.endless:
            continue
        position = plan.start_of_epoch(start % 5)
        whole = plan.num_steps(position)
        for taken, step in enumerate(islice(steps_from(plan, position), whole)):
            assert plan.num_steps_of_epoch(step.position) == whole
            assert plan.num_steps(step.position) == whole - taken


def test_a_short_last_step_is_kept_with_rows_that_differ_by_at_most_one():
    plans = [
        StepPlan(num_samples=10, batch_size=2, rank=rank, ranks=4, tail="keep") for rank in range(4)
    ]
    assert [plan.step_at(8) for plan in plans] == [
        Step(8, 1, 10),
        Step(8, 1, 10),
        Step(8, 0, 10),
        Step(8, 0, 10),
    ]


def test_wrap_takes_the_missing_rows_from_the_next_epoch_and_goes_on_after_them():
    plan = StepPlan(num_samples=10, batch_size=4, tail="wrap")
    assert [step.position for step in islice(steps_from(plan, 0), 6)] == [0, 4, 8, 12, 16, 20]
    assert plan.num_steps(0) == 3
    assert plan.num_steps(12) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rank": 2, "ranks": 2}, "rank is 2; it must be an integer from 0 to 1"),
        ({"tail": "pad"}, "'pad'"),
        ({"num_samples": 0}, "no samples"),
        ({"batch_size": 6, "ranks": 2}, "every epoch would be dropped; use tail='keep' or 'wrap'"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(settings, words):
    with pytest.raises(UsageError, match=words):
        StepPlan(**({"num_samples": 10, "batch_size": 1} | settings))


def test_a_plan_travels_to_other_processes():
    plan = StepPlan(num_samples=10, batch_size=2, rank=1, ranks=2, tail="keep")
    copy = pickle.loads(pickle.dumps(plan))
    assert [tuple(copy.step_at(position)) for position in (0, 4, 8)] == [
        (0, 2, 4),
        (4, 2, 8),
        (8, 1, 10),
    ]
    assert copy.tail == "keep"
