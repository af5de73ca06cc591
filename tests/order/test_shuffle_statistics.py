"""Shuffles are fair, by statistics with a known distribution under a fair shuffle.

Every statistic takes permutations and returns how likely a fair shuffle is to be as far off, in
either direction: too regular is not random either. The same limit holds for Millstream's shuffle
and for NumPy's, and for each statistic there is a weak shuffle that it must catch.
"""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest

from millstream.order.block_shuffle import BlockShuffle
from millstream.order.order import make_order

# About six standard deviations. Some two thousand probabilities are compared with it, on fixed
# seeds: a fair shuffle would fail one of them with a chance of a few in a million.
UNBELIEVABLE = 1e-9

SIZES = (
    1000,
    4096,
    65_535,
    1 << 16,
    (1 << 16) + 1,
    257**2,
    (1 << 18) - 1,
    536_632,
    10**6,
    1000**2 + 1,
    1 << 20,
)
SEEDS_AND_EPOCHS = ((0, 0), (0, 1), (42, 7))


def chance_of_normal(z):
    return math.erfc(abs(z) / math.sqrt(2))


def chance_of_chi2(chi2, dof):
    """The cube root of chi2 / dof is all but normal (Wilson and Hilferty)."""
    spread = 2 / (9 * dof)
    return chance_of_normal((math.cbrt(chi2 / dof) - (1 - spread)) / math.sqrt(spread))


def chance_of_count(count, mean):
    """Chernoff's bound for a Poisson variable, which a count of rare events is."""
    away = mean - count + (count * math.log(count / mean) if count else 0)
    return math.exp(-away)


def chance_of_table(rows, columns, num_rows, num_columns):
    """Whether two labels of the same things, with fixed totals, are independent."""
    n = rows.size
    table = np.bincount(rows * num_columns + columns, minlength=num_rows * num_columns)
    table = table.reshape(num_rows, num_columns)
    expected = np.outer(table.sum(1), table.sum(0)) / n
    chi2 = ((table - expected) ** 2 / expected).sum()
    return chance_of_chi2(chi2 * (n - 1) / n, (num_rows - 1) * (num_columns - 1))


def lags(n):
    """Near and far, and one digit of a two-digit network."""
    return 1, 2, math.isqrt(n - 1) + 1, n // 2


def position_by_value(order):
    n = order.size
    num_bins = min(64, math.isqrt(n // 8))
    return chance_of_table(np.arange(n) * num_bins // n, order * num_bins // n, num_bins, num_bins)


def longest_runs_of_low_bits(order):
    chances = []
    for bit in range(8):
        bits = order >> bit & 1
        ends = np.flatnonzero(np.diff(bits, prepend=1 - bits[0], append=1 - bits[-1]))
        longest = int(np.diff(ends).max())
        share = bits.mean()
        chances.append(order.size * (share**longest + (1 - share) ** longest))
    return min(chances)


def number_of_runs_of_low_bits(order):
    """Wald and Wolfowitz's runs test."""
    chances = []
    for bit in range(8):
        bits = order >> bit & 1
        num_ones = int(bits.sum())
        mean = 2 * num_ones * (order.size - num_ones) / order.size
        deviation = math.sqrt(mean * (mean - 1) / (order.size - 1))
        chances.append(chance_of_normal((np.count_nonzero(np.diff(bits)) - mean) / deviation))
    return min(chances)


def label_per_window(order, labels, num_labels):
    window = min(256, order.size // 16)
    num_windows = order.size // window
    kept = labels[: num_windows * window]
    return chance_of_table(np.arange(kept.size) // window, kept, num_windows, num_labels)


def even_count_per_window(order):
    return label_per_window(order, order & 1, 2)


def upper_half_count_per_window(order):
    return label_per_window(order, (order >= order.size // 2).astype(np.int64), 2)


def residues_mod_8_per_window(order):
    return label_per_window(order, order & 7, 8)


def most_frequent_neighbour_difference(order):
    """Each difference mod n is a Poisson count of mean 1; the chance is that of any being so."""
    n = order.size
    chances = []
    for lag in lags(n):
        differences = (order[lag:] - order[:-lag]) % n
        chances.append(n * chance_of_count(int(np.bincount(differences).max()), 1))
    return min(chances)


def kept_adjacent_pairs(order):
    n = order.size
    return min(
        chance_of_count(
            np.count_nonzero(np.abs(order[lag:] - order[:-lag]) == 1), 2 * (n - lag) / n
        )
        for lag in lags(n)
    )


def serial_correlation(order):
    n = order.size
    centred = (order - (n - 1) / 2) / math.sqrt((n * n - 1) / 12)
    return min(
        chance_of_normal(float(centred[lag:] @ centred[:-lag]) / math.sqrt(n - lag))
        for lag in lags(n)
    )


def number_of_ascents(order):
    n = order.size
    ascents = np.count_nonzero(order[1:] > order[:-1])
    return chance_of_normal((ascents - (n - 1) / 2) / math.sqrt((n + 1) / 12))


def agreements(first, second):
    return chance_of_count(np.count_nonzero(first == second), 1)


def correlation(first, second):
    return chance_of_normal(float(np.corrcoef(first, second)[0, 1]) * math.sqrt(first.size - 1))


def displacement(first, second):
    """Spearman's footrule."""
    n = first.size
    total = int(np.abs(first - second).sum())
    return chance_of_normal((total - (n * n - 1) / 3) / math.sqrt((n + 1) * (2 * n * n + 7) / 45))


def value_by_value(first, second):
    joint = np.empty_like(first)
    joint[first] = second
    return position_by_value(joint)


def most_frequent_shift(first, second):
    n = first.size
    return n * chance_of_count(int(np.bincount((first - second) % n).max()), 1)


@lru_cache(maxsize=8)
def shuffled(n, seed=0, epoch=0):
    return make_order(True, n, seed).samples_at(epoch * n + np.arange(n))


@lru_cache(maxsize=8)
def shuffled_by_numpy(n, seed=0):
    return np.random.default_rng(seed).permutation(n)


def multiply_add_network(n, seed=0):
    """Levanter's network: low bits of a round never see the high bits of its input."""
    keys = np.random.default_rng(seed).integers(1 << 32, size=5)
    num_bits = ((n - 1).bit_length() + 1) // 2
    mask = (1 << num_bits) - 1

    def once(index):
        left, right = index >> num_bits, index & mask
        for key in keys:
            left, right = right, left ^ (right * 2654435761 + key) & mask
        return left << num_bits | right

    values = once(np.arange(n))
    while (outside := values >= n).any():
        values[outside] = once(values[outside])
    return values


def two_rounds(n, seed=0):
    """A network with perfectly random round functions, but too few of them; n is a square."""
    base = math.isqrt(n)
    assert base * base == n
    right, left = np.divmod(np.arange(n), base)
    for table in np.random.default_rng(seed).integers(base, size=(2, base)):
        left, right = right, (left + table[right]) % base
    return right * base + left


def multiplied(n, seed=0):
    factor = int(0.618 * n) | 1
    while math.gcd(factor, n) > 1:
        factor += 2
    return (np.arange(n) * factor + seed) % n


def blocks_of_16(n, seed=0):
    blocks = np.random.default_rng(seed).permutation(n // 16)
    return (blocks[:, None] * 16 + np.arange(16)).ravel()


def shuffle_buffer(n, seed=0):
    """Random near by, sorted from afar."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(part) for part in np.array_split(np.arange(n), 16)])


def spread_evenly(n, seed=0):
    """Every window holds one of each stretch of n / 256 samples."""
    stretches = np.arange(n).reshape(256, n // 256)
    return np.random.default_rng(seed).permuted(stretches, axis=1).T.ravel()


def keyed_by_sum(n, seed, epoch):
    return shuffled_by_numpy(n, seed + epoch)


def shifted_by_epoch(n, seed, epoch):
    return (shuffled_by_numpy(n, seed) + epoch) % n


WEAK_ORDERS = {
    position_by_value: (multiply_add_network, two_rounds, multiplied, shuffle_buffer),
    longest_runs_of_low_bits: (multiply_add_network, blocks_of_16),
    number_of_runs_of_low_bits: (multiply_add_network, multiplied, blocks_of_16),
    even_count_per_window: (multiply_add_network, multiplied, blocks_of_16),
    upper_half_count_per_window: (multiplied, blocks_of_16, shuffle_buffer, spread_evenly),
    residues_mod_8_per_window: (multiply_add_network, multiplied, blocks_of_16),
    most_frequent_neighbour_difference: (multiply_add_network, two_rounds, blocks_of_16),
    kept_adjacent_pairs: (two_rounds, blocks_of_16),
    serial_correlation: (multiplied, blocks_of_16, shuffle_buffer, spread_evenly),
    number_of_ascents: (multiplied, blocks_of_16, spread_evenly),
}

WEAK_PAIRS = {
    agreements: keyed_by_sum,
    correlation: keyed_by_sum,
    displacement: keyed_by_sum,
    value_by_value: shifted_by_epoch,
    most_frequent_shift: shifted_by_epoch,
}

PAIRS = (
    ((42, 1), (43, 0)),
    ((0, 1), (1, 0)),
    ((0, 0), (0, 1)),
    ((0, 1), (0, 2)),
    ((7, 5), (8, 5)),
    ((1 << 63, 0), (0, 0)),
    (((1 << 64) - 1, 1), (0, 0)),
)

by_size = pytest.mark.parametrize("n", SIZES)
by_statistic = pytest.mark.parametrize("statistic", WEAK_ORDERS)
by_pair_statistic = pytest.mark.parametrize("statistic", WEAK_PAIRS)


@pytest.mark.slow
@by_size
@by_statistic
def test_the_global_shuffle_looks_fair(n, statistic):
    for seed, epoch in SEEDS_AND_EPOCHS:
        assert statistic(shuffled(n, seed, epoch)) > UNBELIEVABLE, f"seed {seed}, epoch {epoch}"


@pytest.mark.slow
@by_size
@by_statistic
def test_numpys_shuffle_looks_fair(n, statistic):
    assert statistic(shuffled_by_numpy(n)) > UNBELIEVABLE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statistic", "weak_order"),
    [(statistic, weak) for statistic, all_weak in WEAK_ORDERS.items() for weak in all_weak],
)
def test_a_weak_shuffle_does_not_look_fair(statistic, weak_order):
    assert statistic(weak_order(1 << 20)) < UNBELIEVABLE


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [1000, 1 << 16, 257**2, 536_632])
@by_statistic
def test_the_order_of_blocks_looks_fair(num_blocks, statistic):
    starts = 8 * np.arange(num_blocks)
    blocks = make_order(BlockShuffle(8), 8 * num_blocks, seed=3).samples_at(starts) // 8
    assert statistic(blocks) > UNBELIEVABLE


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 65_535, 1 << 16, (1 << 16) + 1, 536_632])
@by_pair_statistic
def test_other_seeds_and_epochs_are_unrelated(n, statistic):
    for one, other in PAIRS:
        assert statistic(shuffled(n, *one), shuffled(n, *other)) > UNBELIEVABLE, (one, other)


@by_size
@by_pair_statistic
def test_the_global_shuffle_is_unrelated_to_the_stored_order(n, statistic):
    assert statistic(shuffled(n), np.arange(n)) > UNBELIEVABLE


@pytest.mark.slow
@by_size
@by_pair_statistic
def test_numpys_shuffles_are_unrelated(n, statistic):
    assert statistic(shuffled_by_numpy(n, 1), shuffled_by_numpy(n, 2)) > UNBELIEVABLE


@by_pair_statistic
def test_weakly_mixed_seeds_and_epochs_do_not_look_unrelated(statistic):
    weak_order = WEAK_PAIRS[statistic]
    n, same_seed = 1 << 16, weak_order is shifted_by_epoch
    one, other = weak_order(n, 42, 1), weak_order(n, 42 if same_seed else 43, 0)
    assert statistic(one, other) < UNBELIEVABLE


def agreements_of_epochs(epochs):
    """Neither too many nor too few; one pair of epochs alone cannot show the latter."""
    together = sum(np.count_nonzero(one == other) for one, other in pairwise(epochs))
    return chance_of_count(together, len(epochs) - 1)


def fixed_points_of_epochs(epochs):
    stored = np.arange(epochs.shape[1])
    return chance_of_count(np.count_nonzero(epochs == stored), len(epochs))


def position_by_value_of_epochs(epochs):
    """As above, with a cell for each position and sample; every epoch fixes the totals anew."""
    num_epochs, n = epochs.shape
    table = np.bincount((epochs + n * np.arange(n)).ravel(), minlength=n * n)
    chi2 = ((table - num_epochs / n) ** 2).sum() / (num_epochs / n)
    return chance_of_chi2(chi2 * (n - 1) / n, (n - 1) ** 2)


def differences_of_epochs(epochs):
    num_epochs, n = epochs.shape
    counts = np.bincount((np.diff(epochs) % n).ravel(), minlength=n)[1:]
    return chance_of_chi2(((counts - num_epochs) ** 2).sum() / num_epochs, n - 2)


def derangements(num_epochs, n):
    """No two consecutive epochs agree anywhere, nor does one agree with the stored order."""
    return (np.arange(n) + 1 + np.arange(num_epochs)[:, None] % 2) % n


def repeated(num_epochs, n):
    return np.tile(shuffled_by_numpy(n), (num_epochs, 1))


def rotated(num_epochs, n):
    shifts = np.random.default_rng(0).integers(n, size=(num_epochs, 1))
    return (np.arange(n) + shifts) % n


WEAK_EPOCHS = {
    agreements_of_epochs: (derangements, repeated),
    fixed_points_of_epochs: (derangements,),
    position_by_value_of_epochs: (repeated,),
    differences_of_epochs: (repeated, rotated),
}
by_epoch_statistic = pytest.mark.parametrize("statistic", WEAK_EPOCHS)


@pytest.mark.slow
@pytest.mark.parametrize("n", [16, 25, 255, 256, 257, 1000])
@by_epoch_statistic
def test_many_epochs_look_fair_together(n, statistic):
    num_epochs = (1 << 20) // n
    epochs = make_order(True, n, seed=4).samples_at(np.arange(num_epochs * n))
    assert statistic(epochs.reshape(num_epochs, n) % n) > UNBELIEVABLE


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 25, 255, 256, 257, 1000])
@by_epoch_statistic
def test_the_insides_of_many_blocks_look_fair_together(size, statistic):
    num_blocks = (1 << 20) // size
    order = make_order(BlockShuffle(size, inside=True), num_blocks * size, seed=5)
    samples = order.samples_at(np.arange(num_blocks * size))
    assert statistic(samples.reshape(num_blocks, size) % size) > UNBELIEVABLE


@pytest.mark.parametrize("n", [16, 25, 255, 256, 257, 1000])
@by_epoch_statistic
def test_many_shuffles_of_numpy_look_fair_together(n, statistic):
    epochs = np.tile(np.arange(n), ((1 << 20) // n, 1))
    assert statistic(np.random.default_rng(6).permuted(epochs, axis=1)) > UNBELIEVABLE


@pytest.mark.parametrize(
    ("statistic", "weak_epochs"),
    [(statistic, weak) for statistic, all_weak in WEAK_EPOCHS.items() for weak in all_weak],
)
def test_weak_epochs_do_not_look_fair_together(statistic, weak_epochs):
    assert statistic(weak_epochs(4096, 256)) < UNBELIEVABLE


@pytest.mark.slow
def test_many_epochs_of_a_large_shuffle_agree_as_often_as_chance_has_it():
    n = 1 << 16
    epochs = make_order(True, n, seed=7).samples_at(np.arange(100 * n)).reshape(100, n) % n
    assert agreements_of_epochs(epochs) > UNBELIEVABLE
    assert fixed_points_of_epochs(epochs) > UNBELIEVABLE


def evenness(values, num_values):
    counts = np.bincount(values, minlength=num_values)
    expected = values.size / num_values
    return chance_of_chi2(((counts - expected) ** 2).sum() / expected, num_values - 1)


def evenness_of_permutations(rows):
    """Whether each of the n! permutations, by its place in the dictionary, is as frequent."""
    n = rows.shape[1]
    place = np.zeros(len(rows), np.int64)
    for column in range(n):
        smaller_to_come = (rows[:, column + 1 :] < rows[:, column : column + 1]).sum(1)
        place = place * (n - column) + smaller_to_come
    return evenness(place, math.factorial(n))


NUM_TRIALS = 24_000
by_small_size = pytest.mark.parametrize("n", [2, 3, 4, 5, 6])


@by_small_size
def test_every_permutation_of_few_samples_is_equally_likely_over_epochs(n):
    samples = make_order(True, n, seed=8).samples_at(np.arange(NUM_TRIALS * n))
    assert evenness_of_permutations(samples.reshape(NUM_TRIALS, n)) > UNBELIEVABLE


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 5])
def test_every_permutation_of_few_samples_is_equally_likely_over_seeds(n):
    rows = [make_order(True, n, seed).samples_at(range(n)) for seed in range(NUM_TRIALS)]
    assert evenness_of_permutations(np.array(rows)) > UNBELIEVABLE


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7])
def test_every_permutation_inside_small_blocks_is_equally_likely(n):
    order = make_order(BlockShuffle(n, inside=True), NUM_TRIALS * n, seed=9)
    samples = order.samples_at(np.arange(NUM_TRIALS * n))
    assert evenness_of_permutations(samples.reshape(NUM_TRIALS, n) % n) > UNBELIEVABLE


@by_small_size
def test_numpy_makes_every_permutation_equally_likely(n):
    rows = np.tile(np.arange(n), (NUM_TRIALS, 1))
    assert evenness_of_permutations(np.random.default_rng(0).permuted(rows, axis=1)) > UNBELIEVABLE


@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_swapping_each_sample_with_any_other_is_not_fair(n):
    rng = np.random.default_rng(0)
    rows = np.tile(np.arange(n), (NUM_TRIALS, 1))
    every = np.arange(NUM_TRIALS)
    for column in range(n):
        other = rng.integers(n, size=NUM_TRIALS)
        rows[every, column], rows[every, other] = rows[every, other], rows[every, column]
    assert evenness_of_permutations(rows) < UNBELIEVABLE


def is_odd(order):
    """Whether an odd number of swaps makes it: its size less the number of its cycles."""
    smallest, jump = np.arange(order.size), order
    for _ in range(order.size.bit_length()):
        smallest = np.minimum(smallest, smallest[jump])
        jump = jump[jump]
    return (order.size - np.count_nonzero(smallest == np.arange(order.size))) % 2


def balance_of_signs(orders):
    num_odd = sum(is_odd(order) for order in orders)
    return chance_of_normal((2 * num_odd - len(orders)) / math.sqrt(len(orders)))


NEAR_ODD_SQUARES = ((1 << 16) + 1, 257**2 - 1, 257**2)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 1 << 16, *NEAR_ODD_SQUARES])
def test_odd_and_even_permutations_are_equally_likely(n):
    assert balance_of_signs([shuffled(n, epoch=epoch) for epoch in range(64)]) > UNBELIEVABLE


@pytest.mark.parametrize("size", [9, 16, 24, 25, 255, 256, 257, 289])
def test_odd_and_even_permutations_inside_blocks_are_equally_likely(size):
    order = make_order(BlockShuffle(size, inside=True), 400 * size)
    blocks = order.samples_at(np.arange(400 * size)).reshape(400, size) % size
    assert balance_of_signs(blocks) > UNBELIEVABLE


@pytest.mark.slow
def test_numpy_makes_odd_and_even_permutations_equally_likely():
    orders = [shuffled_by_numpy(257**2, seed) for seed in range(64)]
    assert balance_of_signs(orders) > UNBELIEVABLE


@pytest.mark.slow
def test_a_network_to_an_odd_base_makes_only_even_permutations():
    assert balance_of_signs([two_rounds(257**2, seed) for seed in range(64)]) < UNBELIEVABLE


NUM_BINS = 64


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 65_535, 1 << 16, (1 << 16) + 1, 10**12, 1 << 40])
def test_what_stands_at_a_place_is_spread_evenly_over_epochs(n):
    num_epochs = 8192 if n >= 1 << 16 else 1024
    positions = n * np.arange(num_epochs)[:, None] + (0, 1, n // 2, n - 1)
    samples = make_order(True, n, seed=10).samples_at(positions)
    bins = (samples.astype(float) * NUM_BINS / n).astype(np.int64)
    for column in bins.T:
        assert evenness(column, NUM_BINS) > UNBELIEVABLE
        coarse = column // 8
        assert chance_of_table(coarse[:-1], coarse[1:], 8, 8) > UNBELIEVABLE


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 1 << 16, (1 << 16) + 1, 1 << 63])
def test_what_stands_at_a_place_is_spread_evenly_over_seeds(n):
    places = (0, 1, n // 2, n - 1)
    samples = np.array([make_order(True, n, seed).samples_at(places) for seed in range(8192)])
    bins = (samples.astype(float) * NUM_BINS / n).astype(np.int64)
    for column in bins.T:
        assert evenness(column, NUM_BINS) > UNBELIEVABLE
    for one, other in pairwise(bins.T // 8):
        assert chance_of_table(one, other, 8, 8) > UNBELIEVABLE


def test_a_place_that_moves_by_one_each_epoch_is_not_spread_evenly():
    n, epochs = 1 << 16, np.arange(8192)
    assert evenness((12_345 + epochs) % n * NUM_BINS // n, NUM_BINS) < UNBELIEVABLE


def test_the_short_last_block_comes_anywhere():
    num_blocks, num_epochs = 64, 8192
    num_samples = 8 * num_blocks - 5
    order = make_order(BlockShuffle(8), num_samples, seed=11)
    places = [order.positions_of([num_samples - 1], epoch)[0] for epoch in range(num_epochs)]
    slots = (np.array(places) % num_samples) // 8
    assert evenness(slots, num_blocks) > UNBELIEVABLE
