"""`load.batch_sizes`, and plans whose steps have these sizes, compared with a naive walk."""

import json
import pickle
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.load.batch_sizes import BatchSizes
from millstream.load.plan import StepPlan

TAILS = ["drop", "keep", "wrap"]


@st.composite
def schedules(draw, largest=60):
    """Stages with sizes up to `largest`, some of which no step may start in."""
    starts = draw(st.lists(st.integers(1, 150), max_size=5, unique=True))
    return [(start, draw(st.integers(1, largest))) for start in (0, *sorted(starts))]


@st.composite
def runs(draw):
    """The number of samples, a schedule, the tail, and whether it is endless."""
    tail, endless = draw(st.sampled_from(TAILS)), draw(st.booleans())
    num_samples = draw(st.integers(1, 80))
    drops = tail == "drop" and not endless
    return num_samples, draw(schedules(num_samples if drops else 60)), tail, endless


shapes = st.tuples(st.integers(1, 5), st.integers(1, 7))  # ranks, batch_size


def plans_of(run, ranks, batch_size):
    num_samples, schedule, tail, endless = run
    return [
        StepPlan(
            num_samples=num_samples,
            batch_size=batch_size,
            rank=rank,
            ranks=ranks,
            tail=tail,
            endless=endless,
            global_batch_size=schedule,
        )
        for rank in range(ranks)
    ]


def naive_steps(run, position):
    """Where every step starts and stops, by the words of the documentation."""
    num_samples, schedule, tail, endless = run
    while True:
        rows = [rows for start, rows in schedule if start <= position][-1]
        left = num_samples - position % num_samples
        if tail == "drop" and not endless and left < rows:
            position += left
            continue
        stop = position + (min(rows, left) if tail == "keep" and not endless else rows)
        yield position, stop
        position = stop


def positions_of(plan, position):
    return [
        start + plan.rank + k * plan.ranks
        for start, rows in plan.batches_at(position)
        for k in range(rows)
    ]


@given(runs(), shapes, st.integers(0, 200))
def test_all_ranks_together_have_the_positions_of_each_step_once(run, shape, start):
    plans, position = plans_of(run, *shape), start
    for first, stop in islice(naive_steps(run, start), 30):
        steps = [plan.step_at(position) for plan in plans]
        assert {step.position for step in steps} == {first}
        assert len({step.end for step in steps}) == 1
        shares = [positions_of(plan, position) for plan in plans]
        assert sorted(sum(shares, [])) == list(range(first, stop))
        for plan, step, share in zip(plans, steps, shares, strict=True):
            assert share == [first + plan.rank + k * plan.ranks for k in range(step.rows)]
        position = steps[0].end


@given(runs(), shapes, st.integers(0, 200))
def test_all_ranks_have_as_many_batches_and_only_the_last_is_short(run, shape, start):
    (ranks, batch_size), plans = shape, plans_of(run, *shape)
    for first, stop in islice(naive_steps(run, start), 10):
        rows = [[rows for _, rows in plan.batches_at(first)] for plan in plans]
        assert {len(of_rank) for of_rank in rows} == {-(-(stop - first) // (ranks * batch_size))}
        assert all(of_rank[:-1] == [batch_size] * (len(of_rank) - 1) for of_rank in rows)
        last = [of_rank[-1] for of_rank in rows]
        assert 0 <= max(last) - min(last) <= 1
        assert max(len(of_rank) for of_rank in rows) <= plans[0].max_batches


@given(runs(), st.integers(0, 200))
def test_the_number_of_steps_of_an_epoch_is_that_of_a_walk(run, start):
    num_samples, _, tail, endless = run
    plan = plans_of(run, 1, 3)[0]
    if endless:
        return
    position = plan.settle(start)
    steps = []
    for first, stop in naive_steps(run, position):
        if first // num_samples != position // num_samples:
            break
        steps.append((first, stop))
    assert plan.num_steps(start) == len(steps)
    end = (position // num_samples + 1) * num_samples
    assert plan.end_of_epoch(start) == (steps[-1][1] if tail == "wrap" else end)
    assert plan.step_at(steps[-1][0]).end == plan.end_of_epoch(start)


@given(runs(), st.integers(0, 4))
def test_epochs_begin_and_count_their_steps_as_a_walk_from_the_start_does(run, epoch):
    num_samples, _, _, endless = run
    plan = plans_of(run, 2, 2)[0]
    if endless:
        return
    starts = []
    for first, _ in naive_steps(run, 0):
        if first >= (epoch + 1) * num_samples:
            break
        starts.append(first)
    of_epoch = [first for first in starts if first // num_samples == epoch]
    for taken, first in enumerate(of_epoch):
        assert plan.num_steps_of_epoch(first) == len(of_epoch)
        assert plan.num_steps(first) == len(of_epoch) - taken
    if of_epoch:
        assert plan.start_of_epoch(epoch) == of_epoch[0]


@given(st.integers(1, 99), st.integers(0, 300), shapes, st.sampled_from(["keep", "wrap"]))
def test_a_size_of_one_batch_on_all_ranks_makes_the_steps_that_a_plan_has_without(
    num_samples, position, shape, tail
):
    ranks, batch_size = shape
    for rank, plan in enumerate(
        plans_of((num_samples, ranks * batch_size, tail, False), ranks, batch_size)
    ):
        plain = StepPlan(
            num_samples=num_samples, batch_size=batch_size, rank=rank, ranks=ranks, tail=tail
        )
        assert plan.step_at(position) == plain.step_at(position)
        assert plan.num_steps_of_epoch(position) == plain.num_steps_of_epoch(position)
        assert (plan.accumulates, plain.accumulates) == (True, False)


def test_steps_of_a_schedule_start_where_they_always_did():
    """Golden values: a run that is resumed must find the steps of the run that was saved."""
    schedule = [(0, 4), (10, 8), (30, 3), (31, 16)]
    starts = {}
    for tail in TAILS:
        plan, position, starts[tail] = plans_of((50, schedule, tail, False), 2, 3)[1], 0, []
        while len(starts[tail]) < 11:
            step = plan.step_at(position)
            starts[tail].append(step.position)
            position = step.end
    assert starts == {
        "drop": [0, 4, 8, 12, 20, 28, 50, 66, 82, 100, 116],
        "keep": [0, 4, 8, 12, 20, 28, 36, 50, 66, 82, 98],
        "wrap": [0, 4, 8, 12, 20, 28, 36, 52, 68, 84, 100],
    }
    assert plans_of((50, schedule, "keep", False), 2, 3)[1].batches_at(36) == [
        (36, 3),
        (42, 3),
        (48, 1),
    ]
    assert plans_of((50, schedule, "keep", False), 4, 3)[3].batches_at(36) == [(36, 3), (48, 0)]


def test_a_schedule_of_many_stages_is_found_without_a_walk_over_steps():
    schedule = [(position, 1 + position % 7) for position in range(50_000)]
    plan = StepPlan(num_samples=1 << 50, batch_size=1, tail="wrap", global_batch_size=schedule)
    last_rows = schedule[-1][1]
    assert plan.num_steps(1 << 40) == -(-((1 << 50) - (1 << 40)) // last_rows)
    assert plan.size_at(49_998) == schedule[49_998][1]
    assert plan.size_at(1 << 60) == last_rows


def test_sizes_are_values():
    sizes = BatchSizes.of([(0, 8), (100, 16)])
    assert (
        sizes == BatchSizes.of(((0, 8), (100, 16))) == BatchSizes.of(np.array([(0, 8), (100, 16)]))
    )
    assert pickle.loads(pickle.dumps(sizes)) == sizes == BatchSizes.of(sizes)
    assert hash(sizes) == hash(BatchSizes.of([(0, 8), (100, 16)]))
    assert BatchSizes.of(8) == BatchSizes.of([(0, 8)]) != sizes
    assert [sizes.at(position) for position in (0, 99, 100, 1 << 60)] == [8, 8, 16, 16]
    assert json.loads(json.dumps(sizes.to_json())) == [[0, 8], [100, 16]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "global_batch_size is 0; it must be an integer from 1"),
        (True, "global_batch_size is True"),
        (2.5, r"global_batch_size is 2.5; it must be a number of rows, or a list of \(position"),
        ("0:256", "it must be a number of rows, or a list"),
        ([], "it must be a number of rows, or a list"),
        ([0, 256], "it must be a number of rows, or a list"),
        ([(5, 256)], r"starts at position 5; its first pair must be \(0, rows\)"),
        ([(0, 8), (10, 16), (10, 32)], "has position 10 after 10; positions must ascend"),
        ([(0, 8), (10, 0)], "global_batch_size is 0"),
        ([(0, 8), (2.5, 8)], "position in global_batch_size is 2.5"),
        (1 << 49, "global_batch_size is 562949953421312; it must be an integer from 1 to"),
    ],
)
def test_sizes_that_cannot_be_are_refused(value, words):
    with pytest.raises(UsageError, match=words):
        BatchSizes.of(value)


def test_an_epoch_that_would_be_dropped_whole_is_refused():
    words = "epoch of 10 samples is less than one step of 11 rows, so every epoch would be dropped"
    with pytest.raises(UsageError, match=words):
        StepPlan(num_samples=10, batch_size=1, global_batch_size=[(0, 10), (99, 11)])


def test_a_plan_with_a_schedule_travels_to_other_processes():
    plan = StepPlan(num_samples=50, batch_size=2, global_batch_size=[(0, 4), (10, 8)], tail="keep")
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.sizes == plan.sizes
    assert copy.batches_at(12) == plan.batches_at(12) == [(12, 2), (14, 2), (16, 2), (18, 2)]
