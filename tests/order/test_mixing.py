"""Mixtures in the kernels: exact shares for every prefix, inverses, ramps, and golden values."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.order.mixing import DENOMINATOR, MAX_POSITION, MixtureTable
from millstream.order.mixture_state import MixtureState
from millstream.order.order import make_order
from millstream.order.shares import to_shares

pytestmark = pytest.mark.kernels

seeds = st.integers(0, (1 << 64) - 1)
# Weights of all sizes; equal ones, and ones next to a half or to 1, are where intervals line up.
weights = st.one_of(
    st.integers(1, 10),
    st.fractions(Fraction(1, 10**9), 1, max_denominator=10**12),
    st.sampled_from([1, Fraction(10**9 - 1, 10**9), Fraction(1, 10**9)]),
).map(Fraction)
several_weights = st.lists(weights, min_size=1, max_size=12)


def shares_of(given_weights):
    names = [str(k) for k in range(len(given_weights))]
    return np.array(to_shares([Fraction(weight) for weight in given_weights], names), np.uint64)


def new_table(given_weights, seed=0):
    table = MixtureTable(len(given_weights), seed)
    table.add_stage(0, shares_of(given_weights))
    return table


def located(table, positions):
    positions = np.ascontiguousarray(positions, np.int64)
    sources, numbers = np.empty_like(positions), np.empty_like(positions)
    table.locate(positions, sources, numbers)
    return sources, numbers


def inverted(table, source, numbers):
    numbers = np.ascontiguousarray(numbers, np.int64)
    positions = np.empty_like(numbers)
    table.positions_of(source, numbers, positions)
    return positions


def counts_at(table, position):
    counts = np.empty(table.num_sources, np.int64)
    table.counts_at(position, counts)
    return counts


def check_prefixes(table, length):
    """Every source counts its own samples up from 0, and every way back leads to its position."""
    sources, numbers = located(table, np.arange(length))
    seen = [0] * table.num_sources
    for source, number in zip(sources.tolist(), numbers.tolist(), strict=True):
        assert number == seen[source]
        seen[source] += 1
    assert counts_at(table, length).tolist() == seen
    for source in range(table.num_sources):
        places = np.flatnonzero(sources == source)
        assert np.array_equal(inverted(table, source, np.arange(seen[source])), places)
    return sources


def largest_error(sources, shares):
    """The largest difference of a count from its share, over all prefixes and sources."""
    counts = np.cumsum(sources[:, None] == np.arange(len(shares)), axis=0)
    lengths = np.arange(1, len(sources) + 1)
    return max(
        abs(Fraction(int(counts[k - 1, source])) - k * Fraction(int(share), DENOMINATOR))
        for k in lengths[np.argsort(-np.abs(_float_errors(counts, shares)).max(axis=1))[:20]]
        for source, share in enumerate(shares.tolist())
    )


def _float_errors(counts, shares):
    lengths = np.arange(1, len(counts) + 1)[:, None]
    return counts - lengths * (shares.astype(np.float64) / DENOMINATOR)


def bound(num_sources):
    return 1 if num_sources <= 2 else 4


@settings(max_examples=300)
@given(several_weights, seeds)
def test_every_prefix_has_its_shares_and_every_position_an_inverse(given_weights, seed):
    table = new_table(given_weights, seed)
    sources = check_prefixes(table, 200)
    assert largest_error(sources, shares_of(given_weights)) < bound(len(given_weights))


@pytest.mark.slow
def test_ten_thousand_mixtures_keep_their_shares_at_every_prefix():
    random = np.random.default_rng(0)
    for seed in range(10_000):
        num_sources = int(random.integers(1, 30))
        given_weights = [Fraction(float(w)) for w in 10.0 ** random.uniform(-9, 0, num_sources)]
        shares = shares_of(given_weights)
        table = MixtureTable(num_sources, seed)
        table.add_stage(0, shares)
        sources, numbers = located(table, np.arange(300))
        turns = sources[:, None] == np.arange(num_sources)
        counts = np.cumsum(turns, axis=0)
        assert np.array_equal(numbers, (counts - turns)[np.arange(300), sources])
        assert np.abs(_float_errors(counts, shares)).max() < bound(num_sources)
        source = int(sources[-1])
        found = inverted(table, source, numbers[sources == source])
        assert np.array_equal(found, np.flatnonzero(sources == source))


@given(several_weights, seeds, st.lists(st.integers(0, MAX_POSITION - 1), max_size=20))
def test_positions_far_out_keep_their_shares_too(given_weights, seed, positions):
    table, shares = new_table(given_weights, seed), shares_of(given_weights).tolist()
    for position in positions:
        (source,), (number,) = located(table, [position])
        assert inverted(table, int(source), [number]).tolist() == [position]
        for count, share in zip(counts_at(table, position).tolist(), shares, strict=True):
            assert abs(count - Fraction(position * share, DENOMINATOR)) < bound(len(shares))


@pytest.mark.parametrize("num_sources", [1, 2, 3, 64, 65, 1000])
def test_many_sources_of_very_different_weights(num_sources):
    random = np.random.default_rng(num_sources)
    given_weights = [Fraction(float(w)) for w in 10.0 ** random.uniform(-9, 0, num_sources)]
    sources = check_prefixes(new_table(given_weights), 3000)
    assert largest_error(sources, shares_of(given_weights)) < bound(num_sources)


def test_the_deepest_trees_keep_their_shares():
    """Weights that each are the sum of the two before make a tree as deep as it can be."""
    fibonacci = [1, 1]
    while sum(fibonacci) < DENOMINATOR // 10:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    assert len(fibonacci) > 75
    table, shares = new_table(fibonacci), shares_of(fibonacci)
    sources = check_prefixes(table, 3000)
    assert largest_error(sources, shares) < 4
    positions = inverted(table, 0, np.arange(2))
    assert all(positions >= 0)
    assert located(table, positions)[0].tolist() == [0, 0]


def test_a_sample_of_a_rare_source_that_never_comes_has_no_position():
    table = new_table([1, Fraction(1, 10**9)])
    assert inverted(table, 1, [0])[0] >= 0
    assert inverted(table, 1, [1 << 40, (1 << 61) - 1, (1 << 63) - 1]).tolist() == [-1] * 3


@pytest.mark.parametrize("weight", [Fraction(1, 2), Fraction(2, 5), Fraction(1, 3), Fraction(3, 8)])
def test_no_period_shows(weight):
    """Every position has the source with the probability of its share, over all seeds."""
    length, num_seeds = 48, 6000
    hits = np.zeros(length)
    for seed in range(num_seeds):
        sources, _ = located(new_table([weight, 1 - weight], seed), np.arange(length))
        hits += sources == 0
    spread = math.sqrt(weight * (1 - weight) / num_seeds)
    assert np.abs(hits / num_seeds - float(weight)).max() < 4.5 * spread


def test_neighbouring_turns_of_a_rare_source_are_independent_of_each_other():
    """Where in its interval a rare sample lies says nothing about the next."""
    table = new_table([Fraction(1, 100), Fraction(99, 100)])
    places = inverted(table, 0, np.arange(40_000)) % 100
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.025
    assert abs(np.bincount(places, minlength=100) - 400).max() < 5.5 * 20


@given(several_weights, st.data())
def test_ramps_pass_from_some_shares_to_others(given_weights, data):
    num_sources = len(given_weights)
    new_weights = data.draw(st.lists(weights, min_size=num_sources, max_size=num_sources))
    start, length = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 120))
    cut = data.draw(st.integers(0, length - 1))
    old, new = shares_of(given_weights), shares_of(new_weights)
    table = MixtureTable(num_sources, data.draw(seeds))
    table.add_stage(0, old)
    table.add_stage(start, old, new, ramp_start=start, ramp_length=length)
    if cut:  # as where a source has run out
        table.add_stage(start + cut, old, new, ramp_start=start, ramp_length=length)
    table.add_stage(start + length, new)
    check_prefixes(table, start + length + 40)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7, 9, 40])
def test_the_share_of_a_ramp_grows_linearly(length):
    num_seeds = 4000
    hits = np.zeros(length)
    for seed in range(num_seeds):
        table = MixtureTable(2, seed)
        table.add_stage(0, shares_of([1, 0]), shares_of([0, 1]), ramp_start=0, ramp_length=length)
        hits += located(table, np.arange(length))[0]
    expected = (2 * np.arange(length) + 1) / (2 * length)
    spread = np.sqrt(expected * (1 - expected) / num_seeds)
    assert np.abs((hits / num_seeds - expected) / spread).max() < 4.5


@given(st.integers(1, 1 << 40), st.floats(0, 1), seeds)
@example(2476531, 0.75, 48446)  # 2.16 off
def test_counts_in_a_ramp_are_near_the_parabola(length, place, seed):
    table = MixtureTable(2, seed)
    table.add_stage(0, shares_of([1, 0]), shares_of([0, 1]), ramp_start=0, ramp_length=length)
    table.add_stage(length, shares_of([0, 1]))
    position = int(place * length)
    count = int(counts_at(table, position)[1])
    bound = 1 if position <= length / 2 else 3
    assert abs(count - Fraction(position * position, 2 * length)) < bound
    if count:
        assert inverted(table, 1, [count - 1])[0] < position


def test_later_stages_leave_earlier_ones_alone():
    shares, other = shares_of([3, 1, 1]), shares_of([1, 0, 9])
    before, after = new_table([3, 1, 1]), new_table([3, 1, 1])
    after.add_stage(50, other)
    assert np.array_equal(located(before, np.arange(50)), located(after, np.arange(50)))
    sources = check_prefixes(after, 400)
    assert not (sources[50:] == 1).any()
    assert before.num_stages == 1
    assert shares.sum() == DENOMINATOR


def test_golden_turns():
    """Only change these if you know what you are doing: saved positions depend on them."""
    table = new_table([7, 2, 1], seed=1)
    assert "".join(map(str, located(table, np.arange(60))[0].tolist())) == GOLDEN
    far = located(table, 10**12 + np.arange(8))
    assert [each.tolist() for each in far] == GOLDEN_FAR
    ramp = MixtureTable(2, 1)
    ramp.add_stage(0, shares_of([1, 0]), shares_of([0, 1]), ramp_start=0, ramp_length=60)
    assert "".join(map(str, located(ramp, np.arange(60))[0].tolist())) == GOLDEN_RAMP


GOLDEN = "000101002000200101000001200001010002010010001002000020001001"
GOLDEN_FAR = [
    [0, 1, 0, 1, 0, 0, 0, 0],
    [
        *(700000000000, 200000000000, 700000000001, 200000000001),
        *(700000000002, 700000000003, 700000000004, 700000000005),
    ],
]
GOLDEN_RAMP = "000001000001000000110001001011011001011010111110111011111111"


def test_samples_come_from_the_orders_of_the_sources():
    sizes, table = [5, 70_000, 1], new_table([5, 70, 1], seed=3)
    orders = [make_order(True, size, seed) for seed, size in enumerate(sizes)]
    first = np.cumsum([0, *sizes])
    state = MixtureState(table, [order.new_state() for order in orders], first)
    positions = np.random.default_rng(0).integers(0, 10**6, 3000)
    samples = np.empty_like(positions)
    state.samples_at(positions, samples)
    for position, sample in zip(positions.tolist(), samples.tolist(), strict=True):
        (source,), (number,) = located(table, [position])
        assert sample == first[source] + orders[source].samples_at([number])[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: MixtureTable(0, 0),
        lambda: MixtureTable(2, 0).add_stage(1, shares_of([1, 1])),
        lambda: MixtureTable(2, 0).add_stage(0, shares_of([1, 1, 1])),
        lambda: MixtureTable(2, 0).add_stage(0, np.array([1, 2], np.uint64)),
        lambda: MixtureTable(2, 0).add_stage(0, np.array([2**63, 2**63 + 10**18], np.uint64)),
        lambda: MixtureTable(1, 0).add_stage(0, shares_of([1]), shares_of([1])),
        lambda: MixtureTable(1, 0).add_stage(0, shares_of([1]), ramp_length=4),
        lambda: new_table([1]).add_stage(0, shares_of([1])),
        lambda: new_table([1]).add_stage(
            9, shares_of([1]), shares_of([1]), ramp_start=2, ramp_length=7
        ),
        lambda: located(new_table([1]), [-1]),
        lambda: located(new_table([1]), [MAX_POSITION]),
        lambda: located(MixtureTable(1, 0), [0]),
        lambda: inverted(new_table([1]), 1, [0]),
        lambda: inverted(new_table([1]), 0, [-1]),
        lambda: new_table([1]).counts_at(5, np.empty(2, np.int64)),
        lambda: new_table([1, 1]).first_to_reach(np.empty(1, np.int64)),
        lambda: MixtureState(new_table([1]), [], np.zeros(1, np.int64)),
        lambda: MixtureState(new_table([1]), [make_order(True, 3).new_state()], np.array([0, 4])),
        lambda: MixtureState(
            MixtureTable(1, 0), [make_order(True, 3).new_state()], np.array([0, 3])
        ),
    ],
)
def test_what_kernels_could_not_trust_is_refused(make):
    with pytest.raises(ValueError, match=r"\w"):
        make()
