"""Bands: they come in order, each shuffled inside, and stay as they are for good."""

import itertools
import pickle
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.order.bands import Bands
from millstream.order.block_shuffle import BlockShuffle
from millstream.order.order import make_order

MAX_POSITION = (1 << 63) - 1
LAST_SEED = (1 << 64) - 1

seeds = st.integers(0, LAST_SEED)


def whole_epoch(order, epoch=0):
    n = order.num_samples
    return order.samples_at(epoch * n + np.arange(n))


def edges_of(num_bands, n):
    """Where bands start, and the end: the first n % num_bands have one sample more."""
    num_bands = min(num_bands, n)
    sizes = [n // num_bands + (band < n % num_bands) for band in range(num_bands)]
    return np.cumsum([0, *sizes])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 400), seeds, st.integers(0, 1 << 40))
@example(1, 1, 0, 0)
@example(300, 301, 0, 0)
def test_every_epoch_is_a_bijection_that_keeps_the_bands_in_order(n, num_bands, seed, epoch):
    order = make_order(Bands(num_bands), n, seed)
    samples = whole_epoch(order, epoch)
    assert sorted(samples.tolist()) == list(range(n))
    edges = edges_of(num_bands, n)
    assert np.diff(edges).max() - np.diff(edges).min() <= 1
    for start, stop in itertools.pairwise(edges):
        assert sorted(samples[start:stop].tolist()) == list(range(start, stop))
    assert np.array_equal(order.positions_of(samples, epoch), epoch * n + np.arange(n))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 1 << 63),
    st.integers(1, 1 << 63) | st.integers(1, 100),
    seeds,
    st.lists(st.integers(0, MAX_POSITION), max_size=8),
)
@example(1 << 63, 1, 0, [0, MAX_POSITION])
@example(1 << 63, (1 << 63) - 1, 0, [0, 1, 2, MAX_POSITION])
@example((1 << 63) - 1, 1 << 62, 0, [0, MAX_POSITION - 1, MAX_POSITION])
def test_an_order_of_any_size_is_inverted_at_any_position(n, num_bands, seed, positions):
    order = make_order(Bands(num_bands), n, seed)
    for position in positions:
        (sample,) = order.samples_at([position]).tolist()
        assert order.positions_of([sample], position // n).tolist() == [position]


@pytest.mark.parametrize(("n", "num_bands"), [(60, 1), (60, 4), (70_000, 7), (131_072, 1)])
def test_a_band_is_shuffled_as_a_block_is_inside(n, num_bands):
    """So the statistics of blocks hold for bands."""
    size = n // num_bands
    bands = make_order(Bands(num_bands), n, seed=5)
    blocks = make_order(BlockShuffle(size, inside=True), n, seed=5)
    for epoch in (0, 3):
        in_order = np.sort(blocks.positions_of(np.arange(0, n, size), epoch) // size)
        found = whole_epoch(blocks, epoch).reshape(-1, size)
        found = found[np.argsort(found[:, 0] // size)]
        assert in_order.size == num_bands
        assert np.array_equal(found.reshape(-1), whole_epoch(bands, epoch))


def test_bands_are_shuffled_anew_every_epoch_and_each_in_its_own_way():
    order = make_order(Bands(4), 400, seed=1)
    offsets = [
        tuple(whole_epoch(order, epoch)[first : first + 100] - first)
        for epoch in range(3)
        for first in range(0, 400, 100)
    ]
    assert len(set(offsets)) == len(offsets)


def test_as_many_bands_as_samples_are_the_stored_order():
    for num_bands in (10, 11, 1 << 63):
        order = make_order(Bands(num_bands), 10)
        assert whole_epoch(order, 2).tolist() == list(range(10))
        assert order.fingerprint == "bands-v1 of 10 over 10"


def test_no_samples_have_no_positions_and_one_comes_every_epoch():
    assert make_order(Bands(3), 0).samples_at([]).tolist() == []
    with pytest.raises(IndexError, match="order of 0 samples"):
        make_order(Bands(3), 0).samples_at([0])
    assert make_order(Bands(3), 1).samples_at([0, 1, MAX_POSITION]).tolist() == [0, 0, 0]


def test_an_order_of_bands_is_a_small_value():
    order = make_order(Bands(1000), 10**12, seed=3)
    assert order == make_order(Bands(1000), 10**12, seed=3) != make_order(Bands(999), 10**12, 3)
    assert pickle.loads(pickle.dumps(order)) == order
    assert sys.getsizeof(order.new_state()) < 2048


def test_a_number_of_bands_that_makes_no_sense_is_refused():
    for num_bands in (0, -1, 1.5, True, None):
        with pytest.raises(UsageError, match="num_bands is"):
            Bands(num_bands)


# A user's checkpoint is a position in one of these orders; see `test_order`. Samples are those at
# 0, 1, 2, n // 2 and n - 1 of the epoch; of ten samples, all.
GOLDEN = [
    # number of bands, number of samples, seed, epoch, samples
    (3, 10, 0, 0, [3, 2, 1, 0, 6, 5, 4, 9, 7, 8]),
    (3, 10, 0, 1, [2, 3, 1, 0, 4, 6, 5, 8, 9, 7]),
    (1, 10, 42, 3, [7, 6, 4, 1, 0, 3, 5, 8, 9, 2]),
    (4, 10, LAST_SEED, 0, [1, 0, 2, 3, 5, 4, 7, 6, 8, 9]),
    (7, 1000, 0, 0, [37, 41, 119, 431, 937]),
    (7, 1000, 42, 3, [63, 99, 34, 553, 934]),
    (2, 1_000_003, 0, 1, [114_217, 451_049, 174_221, 344_263, 822_844]),
    (
        1000,
        10**12,
        42,
        3,
        [707_098_964, 984_334_147, 992_186_970, 500_946_047_587, 999_587_213_986],
    ),
    (
        3,
        1 << 63,
        0,
        0,
        [
            1_288_024_152_422_846_595,
            2_818_173_073_782_518_743,
            1_971_501_710_375_510_088,
            3_582_778_939_647_375_841,
            7_782_182_806_384_891_465,
        ],
    ),
]


@pytest.mark.parametrize(("num_bands", "n", "seed", "epoch", "samples"), GOLDEN)
def test_bands_stay_as_they_are_for_good(num_bands, n, seed, epoch, samples):
    order = make_order(Bands(num_bands), n, seed)
    indices = range(10) if n == 10 else (0, 1, 2, n // 2, n - 1)
    positions = [epoch * n + index for index in indices]
    assert order.samples_at(positions).tolist() == samples
    assert order.positions_of(samples, epoch).tolist() == positions


def test_what_a_checkpoint_says_of_bands():
    assert make_order(Bands(4), 10_000, seed=9).fingerprint == "bands-v1 of 4 over 10000"
