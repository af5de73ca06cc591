"""`order.shuffling`: positions to samples and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.order.shuffling import (
    OrderKind,
    ShuffleState,
    digit_base,
    keyed_hash,
    shuffle_rounds,
)

pytestmark = pytest.mark.kernels

NETWORK = 1 << 16  # from so many samples on the shuffle is a network, below a table


def samples_at(state, positions):
    samples = np.empty(len(positions), np.int64)
    state.samples_at(np.array(positions, np.int64), samples)
    return samples


@pytest.mark.parametrize("kind", OrderKind)
@pytest.mark.parametrize("num_samples", [1, 2, 3, 100, NETWORK + 7])
def test_an_epoch_is_every_sample_once_and_can_be_inverted(kind, num_samples):
    block_size = 4 if kind >= OrderKind.BLOCKS else 1
    state = ShuffleState(kind, num_samples, seed=3, block_size=block_size, bucket_size=8)
    samples = samples_at(state, range(num_samples, 2 * num_samples))
    assert sorted(samples) == list(range(num_samples))
    indices = np.empty_like(samples)
    state.indices_of(1, samples, indices)
    assert indices.tolist() == list(range(num_samples))


@pytest.mark.parametrize("num_samples", [100, NETWORK + 7])
def test_positions_may_come_in_any_order_and_of_any_epochs(num_samples):
    state = ShuffleState(OrderKind.SHUFFLED, num_samples, seed=3, block_size=1, bucket_size=1)
    positions = [5 * num_samples + 2, 0, num_samples - 1, num_samples, 7]
    together = samples_at(state, positions).tolist()
    assert together == [int(samples_at(state, [position])[0]) for position in positions]


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 1 << 64), max_size=70),
    st.integers(2, (1 << 32) - 1),
    st.integers(0, 1 << 32),
)
def test_the_processors_rounds_are_those_of_the_portable_loop(numbers, base, seed):
    keys = np.random.default_rng(seed).integers(0, 1 << 64, 24, np.uint64)
    one = np.array([number % base**2 for number in numbers], np.uint64)
    other = one.copy()
    shuffle_rounds(one, keys, base, portable=True)
    shuffle_rounds(other, keys, base, portable=False)
    assert one.tolist() == other.tolist()
    assert all(number < base**2 for number in one.tolist())


def test_digests_of_neighbouring_ranges_add_up():
    state = ShuffleState(OrderKind.SHUFFLED, 10, seed=0, block_size=1, bucket_size=1)
    parts = [state.digest(start, stop) for start, stop in ((0, 3), (3, 3), (3, 25))]
    whole = state.digest(0, 25)
    assert whole == tuple(sum(words) % (1 << 64) for words in zip(*parts, strict=True))


def test_arguments_that_kernels_could_not_trust_are_refused():
    with pytest.raises(ValueError, match="block"):
        ShuffleState(OrderKind.BLOCKS, 10, seed=0, block_size=0, bucket_size=1)
    with pytest.raises(ValueError, match="no blocks"):
        ShuffleState(OrderKind.SHUFFLED, 10, seed=0, block_size=2, bucket_size=1)
    with pytest.raises(ValueError, match="at most"):
        ShuffleState(OrderKind.SHUFFLED, (1 << 63) + 1, seed=0, block_size=1, bucket_size=1)
    empty = ShuffleState(OrderKind.SHUFFLED, 0, seed=0, block_size=1, bucket_size=1)
    with pytest.raises(ValueError, match="no samples"):
        samples_at(empty, [0])
    with pytest.raises(ValueError, match="differ"):
        empty.samples_at(np.zeros(2, np.int64), np.zeros(1, np.int64))


def test_the_hash_is_threefry_and_the_base_a_square_root():
    assert keyed_hash(0, 0, 0, 0) == (0xC2B6E3A8C2C69865, 0x6F81ED42F350084D)
    assert [digit_base(n) for n in (1, 2, 4, 5, (1 << 62) + 1)] == [1, 2, 2, 3, (1 << 31) + 1]
