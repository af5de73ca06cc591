"""`MixtureOrder`: a bijection of positions and samples of all sources, at any size."""

import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.order.digests import sum_digests
from millstream.order.mixing import DENOMINATOR, MAX_POSITION
from millstream.order.mixture_order import MixtureOrder, ShareChange
from millstream.order.order import make_order
from millstream.order.shares import to_shares

sizes = st.lists(
    st.sampled_from([1, 2, 3, 1000, (1 << 31) + 1, 1 << 40, (1 << 57) - 1]) | st.integers(1, 50),
    min_size=1,
    max_size=6,
)


def shares(*weights):
    return to_shares(weights, [""] * len(weights))


def new_order(num_samples, *changes, limits=None, when_exhausted="stop", seed=0, shuffle=True):
    """An order of sources of these sizes; by default all have the same share."""
    changes = changes or (ShareChange(0, 0, shares(*[1] * len(num_samples))),)
    return MixtureOrder(
        [make_order(shuffle, size, seed) for seed, size in enumerate(num_samples)],
        changes,
        seed=seed,
        limits=limits or [None] * len(num_samples),
        when_exhausted=when_exhausted,
    )


@given(sizes, st.lists(st.integers(0, MAX_POSITION - 1), max_size=30), st.integers(0, 99))
def test_positions_lead_to_samples_and_back_at_any_size(num_samples, positions, seed):
    order = new_order(num_samples, seed=seed)
    sources, samples = order.locate(positions)
    same_sources, numbers = order.numbers_at(positions)
    assert sources.tolist() == same_sources.tolist()
    found = zip(positions, sources.tolist(), samples.tolist(), numbers.tolist(), strict=True)
    for position, source, sample, number in found:
        size = num_samples[source]
        assert 0 <= sample < size
        assert sample == order.orders[source].samples_at([number])[0]
        assert order.positions_of(source, [sample], number // size).tolist() == [position]
        counts = order.counts_at(position)
        assert counts[source] == number
        assert counts.sum() == position


@given(sizes, st.integers(0, 10**6), st.integers(0, 3000))
def test_samples_are_numbered_over_all_sources(num_samples, start, count):
    order = new_order(num_samples)
    assert order.num_samples == sum(num_samples)
    positions = np.arange(start, start + count)
    sources, samples = order.locate(positions)
    first = np.cumsum([0, *num_samples])
    assert np.array_equal(order.samples_at(positions), first[sources] + samples)


def test_a_source_of_one_sample_gives_it_again_and_again():
    order = new_order([1, 1 << 40])
    sources, samples = order.locate(range(100))
    assert (samples[sources == 0] == 0).all()
    assert (sources == 0).sum() == 50
    assert len(set(samples[sources == 1].tolist())) == 50


def test_the_shape_of_positions_is_kept():
    order = new_order([5, 7])
    positions = np.arange(12).reshape(3, 4)
    assert order.samples_at(positions).shape == (3, 4)
    assert order.locate(positions.T)[1].tolist() == order.locate(positions)[1].T.tolist()
    assert order.locate([])[0].size == 0


def test_digests_of_adjacent_ranges_add_up():
    order = new_order([50, 30])
    parts = [order.digest(0, 13), order.digest(13, 13), order.digest(13, 90)]
    assert sum_digests(parts) == order.digest(0, 90)
    assert new_order([50, 30], seed=1).digest(0, 90) != order.digest(0, 90)


@pytest.mark.parametrize("limits", [None, [10, None]])
def test_positions_that_do_not_exist_are_refused(limits):
    order = new_order([10, 10], limits=limits)
    end = MAX_POSITION if order.end is None else order.end
    assert order.counts_at(end).sum() == end
    for call in (
        lambda: order.samples_at([end]),
        lambda: order.locate([-1]),
        lambda: order.numbers_at([0, end]),
        lambda: order.counts_at(end + 1),
        lambda: order.counts_at(-1),
        lambda: order.digest(0, end + 1),
        lambda: order.digest(-1, 1),
        lambda: order.digest(2, 1),
    ):
        with pytest.raises(IndexError, match="no position"):
            call()
    for call in (lambda: order.counts_at(0.5), lambda: order.digest(0.5, 1)):
        with pytest.raises(TypeError, match="integer"):
            call()


@given(
    st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(1, 20)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=3),
    st.sampled_from(["stop", "redistribute"]),
    st.data(),
)
def test_limits_are_never_passed_and_stages_never_overlap(sources, waits, when_exhausted, data):
    weights, limits = zip(*sources, strict=True)
    changes, at = [ShareChange(0, 0, shares(*weights))], 0
    for wait, over in waits:
        at += wait
        new = data.draw(st.lists(st.integers(0, 3), min_size=len(weights), max_size=len(weights)))
        changes.append(ShareChange(at, over, shares(*new) if any(new) else shares(*weights)))
        at += over
    order = new_order([7] * len(weights), *changes, limits=limits, when_exhausted=when_exhausted)
    starts = [stage.start for stage in order.stages]
    assert starts == sorted(set(starts))
    stop = 400 if order.end is None else min(400, order.end)
    found, numbers = order.numbers_at(range(stop))
    for source, limit in enumerate(limits):
        own = numbers[found == source]
        assert own.tolist() == list(range(len(own)))
        assert limit is None or len(own) <= limit
    for position, source in order.exhausted:
        assert order.counts_at(position)[source] == limits[source]
        assert order.counts_at(position - 1)[source] == limits[source] - 1
        samples = order.orders[source].samples_at([limits[source] - 1, limits[source]])
        epochs = [(limits[source] - 1) // 7, limits[source] // 7]
        last, never = (
            order.positions_of(source, [sample], epoch)[0]
            for sample, epoch in zip(samples, epochs, strict=True)
        )
        assert (last, never) == (position - 1, -1)


def test_sources_that_run_out_in_a_ramp():
    old, new = ShareChange(0, 0, shares(1, 1, 0)), ShareChange(20, 100, shares(0, 1, 1))
    order = new_order([9, 9, 9], old, new, limits=[None, 15, 20], when_exhausted="redistribute")
    assert [source for _, source in order.exhausted] == [1, 2]
    (first, _), (second, _) = order.exhausted
    assert 20 < first < second
    assert order.end == 120, "where only sources would have a share that have nothing left"
    sources, _ = order.locate(range(120))
    assert not set(sources[first:second].tolist()) & {1}
    assert set(sources[second:].tolist()) == {0}
    assert order.counts_at(120)[1:].tolist() == [15, 20]


def test_an_order_ends_where_no_source_with_a_share_is_left():
    first, second = ShareChange(0, 0, shares(1, 0)), ShareChange(50, 0, shares(0, 1))
    order = new_order([5, 5], first, second, limits=[30, None], when_exhausted="redistribute")
    assert order.end == 30
    assert [stage.start for stage in order.stages] == [0]


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute"])
def test_a_source_that_may_give_nothing_is_never_read(when_exhausted):
    order = new_order([5, 5], limits=[None, 0], when_exhausted=when_exhausted)
    assert set(order.locate(range(20))[0].tolist()) == {0}
    assert new_order([5], limits=[0], when_exhausted=when_exhausted).end == 0


@pytest.mark.parametrize(
    "changes",
    [
        [(0, 0), (5, 0), (5, 0)],
        [(0, 0), (5, 0), (4, 0)],
        [(0, 0), (5, 10), (14, 0)],
        [(0, 0), (MAX_POSITION, 0)],
        [(0, 0), (MAX_POSITION - 5, 5)],
        [(0, 0), (5, 1 << 48)],
    ],
)
def test_changes_that_overlap_or_are_too_far_are_refused(changes):
    with pytest.raises(UsageError, match=r"comes too early|is too far"):
        new_order([5], *(ShareChange(at, over, (DENOMINATOR,)) for at, over in changes))


def test_an_order_says_what_it_is_and_survives_pickling():
    change = ShareChange(100, 5, shares(1, 3))
    order = new_order(
        [5, 7],
        ShareChange(0, 0, shares(1, 1)),
        change,
        limits=[40, None],
        seed=9,
        when_exhausted="redistribute",
    )
    assert repr(order) == "<MixtureOrder mixture-v1 of 2 sources, 1 change, seed 9>"
    copy = pickle.loads(pickle.dumps(order))
    assert copy.digest(0, 500) == order.digest(0, 500)
    assert (copy.exhausted, copy.end, copy.stages) == (order.exhausted, order.end, order.stages)


@pytest.mark.slow
@settings(max_examples=5)
@given(st.integers(0, 10))
def test_threads_evaluate_one_order_at_once(seed):
    order = new_order([1000, 70, 3], seed=seed)
    positions = np.arange(200_000)
    expected = order.samples_at(positions)
    results = {}

    def evaluate(number):
        for _ in range(3):
            results[number] = np.array_equal(order.samples_at(positions), expected)

    threads = [threading.Thread(target=evaluate, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(3), True)
