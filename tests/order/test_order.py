"""Orders: bijections, golden values and digests."""

import copy
import math
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.order.block_shuffle import BlockShuffle
from millstream.order.digests import sum_digests
from millstream.order.length_buckets import LengthBuckets
from millstream.order.order import make_order
from millstream.order.shuffling import digit_base, keyed_hash

MAX_POSITION = (1 << 63) - 1
TABLE_EDGE = 1 << 16
# The square root of n in double precision, rounded up, is one off for many n next to a square.
ROOTS = (
    1 << 26,
    94_906_267,
    (1 << 27) + 1,
    (1 << 29) - 1,
    1 << 30,
    (1 << 31) - 1,
    1 << 31,
    3_037_000_499,
)
NEXT_TO_SQUARES = [root * root + d for root in ROOTS for d in (-1, 0, 1)]
EDGES = [1, 2, 3, TABLE_EDGE - 1, TABLE_EDGE, TABLE_EDGE + 1, *NEXT_TO_SQUARES]
EDGES += [(1 << 63) - 1, 1 << 63]

seeds = st.integers(0, (1 << 64) - 1)
few = st.integers(1, 300)
lengths = few | st.sampled_from(EDGES) | st.integers(1, 1 << 63)


def any_shuffle(block_sizes):
    return st.booleans() | st.builds(BlockShuffle, block_sizes, st.booleans())


block_sizes = st.integers(1, 100) | st.sampled_from([1 << 16, 1 << 62]) | st.integers(1, 1 << 63)
orders = st.builds(make_order, any_shuffle(block_sizes), lengths, seeds)


@st.composite
def orders_and_positions(draw):
    order = draw(orders)
    near = st.integers(0, min(4 * order.num_samples, MAX_POSITION))
    return order, draw(st.lists(near | st.integers(0, MAX_POSITION), max_size=12))


def whole_epoch(order, epoch=0):
    n = order.num_samples
    return order.samples_at(epoch * n + np.arange(n))


@pytest.mark.slow
@given(orders_and_positions())
@settings(max_examples=300, deadline=None)
def test_an_order_is_inverted_at_any_position(case):
    order, positions = case
    for position, sample in zip(positions, order.samples_at(positions).tolist(), strict=True):
        assert 0 <= sample < order.num_samples
        assert order.positions_of([sample], epoch=position // order.num_samples) == [position]


@pytest.mark.slow
@given(orders_and_positions())
@settings(max_examples=200, deadline=None)
def test_a_batch_is_what_its_positions_are_one_by_one(case):
    order, positions = case
    one_by_one = [copy.copy(order).samples_at([position]).item() for position in positions]
    assert order.samples_at(positions).tolist() == one_by_one
    assert order.samples_at(positions[::-1]).tolist() == one_by_one[::-1]


@pytest.mark.slow
@given(any_shuffle(st.integers(1, 350)), few, seeds, st.integers(0, 1 << 40))
@settings(max_examples=200, deadline=None)
def test_every_epoch_has_every_sample_once(shuffle, num_samples, seed, epoch):
    order = make_order(shuffle, num_samples, seed)
    samples = whole_epoch(order, epoch)
    assert sorted(samples.tolist()) == list(range(num_samples))
    places = order.positions_of(samples, epoch) - epoch * num_samples
    assert places.tolist() == list(range(num_samples))


@pytest.mark.parametrize("n", [TABLE_EDGE - 1, TABLE_EDGE, TABLE_EDGE + 1, 257**2, 300**2 + 1])
@pytest.mark.parametrize("shuffle", [True, BlockShuffle(1), BlockShuffle(1000, inside=True)])
def test_every_epoch_of_a_larger_order_has_every_sample_once(shuffle, n):
    order = make_order(shuffle, n, seed=1)
    samples = whole_epoch(order, epoch=2)
    assert np.array_equal(np.sort(samples), np.arange(n))
    assert np.array_equal(order.positions_of(samples, epoch=2), 2 * n + np.arange(n))


@pytest.mark.parametrize("n", [*NEXT_TO_SQUARES, (1 << 63) - 1, 1 << 63])
def test_no_sample_of_a_huge_order_comes_twice(n):
    order = make_order(True, n, seed=1)
    positions = np.concatenate([np.arange(2000), n - 1 - np.arange(2000)])
    samples = order.samples_at(positions)
    assert np.unique(samples).size == positions.size
    assert np.array_equal(order.positions_of(samples), positions)


@pytest.mark.parametrize("shuffle", [False, True, BlockShuffle(7), BlockShuffle(7, inside=True)])
@pytest.mark.parametrize("n", [50, TABLE_EDGE + 1])
def test_a_batch_may_span_epochs_and_return_to_one(shuffle, n):
    order = make_order(shuffle, n, seed=3)
    samples = order.samples_at([n - 1, n, 0, 2 * n, n - 1, n])
    first, second, third = (whole_epoch(order, epoch).tolist() for epoch in range(3))
    assert samples.tolist() == [first[-1], second[0], first[0], third[0], first[-1], second[0]]


def test_an_order_of_nothing_has_no_positions():
    for shuffle in (False, True, BlockShuffle(3), BlockShuffle(3, inside=True)):
        order = make_order(shuffle, 0)
        assert order.samples_at([]).tolist() == []
        assert order.positions_of([], epoch=5).tolist() == []
        with pytest.raises(IndexError, match="order of 0 samples"):
            order.samples_at([0])
        with pytest.raises(IndexError, match="there are 0"):
            order.positions_of([0])


def test_a_single_sample_comes_every_epoch():
    for shuffle in (False, True, BlockShuffle(3), BlockShuffle(1, inside=True)):
        order = make_order(shuffle, 1)
        assert order.samples_at([0, 1, MAX_POSITION]).tolist() == [0, 0, 0]
        assert order.positions_of([0], epoch=MAX_POSITION).tolist() == [MAX_POSITION]


def test_two_samples_come_either_way_round():
    epochs = make_order(True, 2).samples_at(range(80)).reshape(40, 2)
    assert {tuple(epoch) for epoch in epochs.tolist()} == {(0, 1), (1, 0)}


def test_the_stored_order_is_the_same_every_epoch():
    order = make_order(False, 10, seed=7)
    assert order.samples_at(range(25)).tolist() == [*range(10), *range(10), *range(5)]
    assert order.positions_of([3, 0], epoch=2).tolist() == [23, 20]


def test_every_epoch_and_every_seed_is_another_order():
    for shuffle in (True, BlockShuffle(8), BlockShuffle(8, inside=True)):
        for n in (1000, TABLE_EDGE + 5):
            seen = {
                whole_epoch(make_order(shuffle, n, seed), epoch).tobytes()
                for seed in (0, 1, 42, 43, (1 << 64) - 1)
                for epoch in (0, 1, 2)
            }
            assert len(seen) == 15


def test_positions_and_samples_keep_their_shape():
    order = make_order(True, 1000)
    samples = order.samples_at(np.arange(12).reshape(3, 4))
    assert samples.shape == (3, 4)
    assert order.positions_of(samples).tolist() == np.arange(12).reshape(3, 4).tolist()
    assert order.samples_at(np.arange(12)[::3]).tolist() == samples.ravel()[::3].tolist()


@given(st.integers(1, 40), few, seeds, st.integers(0, 5), st.booleans())
@settings(max_examples=100, deadline=None)
def test_blocks_stay_together(block_size, num_samples, seed, epoch, inside):
    order = make_order(BlockShuffle(block_size, inside), num_samples, seed)
    for start in range(0, num_samples, block_size):
        block = np.arange(start, min(start + block_size, num_samples))
        places = order.positions_of(block, epoch)
        together = places.min() + np.arange(block.size)
        assert (np.sort(places) if inside else places).tolist() == together.tolist()


@given(st.integers(1, 40), few, seeds, st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_shuffling_inside_leaves_the_blocks_where_they_are(block_size, num_samples, seed, epoch):
    plain = make_order(BlockShuffle(block_size), num_samples, seed)
    inside = make_order(BlockShuffle(block_size, inside=True), num_samples, seed)
    blocks = whole_epoch(plain, epoch) // block_size
    assert (whole_epoch(inside, epoch) // block_size).tolist() == blocks.tolist()


def test_each_block_is_shuffled_inside_in_its_own_way_every_epoch():
    order = make_order(BlockShuffle(50, inside=True), 1000)
    samples = order.samples_at(np.arange(3000)).reshape(60, 50)
    assert len({tuple(block) for block in (samples % 50).tolist()}) == 60


def test_the_short_last_block_moves_and_all_after_it_move_up():
    order = make_order(BlockShuffle(4), 10, seed=0)
    lasts = {order.positions_of([8], epoch).item() % 10 for epoch in range(40)}
    assert lasts == {0, 4, 8}
    epochs = [whole_epoch(order, epoch).tolist() for epoch in range(40)]
    assert [8, 9, 0, 1, 2, 3, 4, 5, 6, 7] in epochs
    assert [4, 5, 6, 7, 8, 9, 0, 1, 2, 3] in epochs


def test_a_block_larger_than_the_dataset_is_the_dataset():
    assert whole_epoch(make_order(BlockShuffle(64), 10), 3).tolist() == list(range(10))
    inside = whole_epoch(make_order(BlockShuffle(64, inside=True), 10), 3)
    assert sorted(inside.tolist()) == list(range(10)) != inside.tolist()


def test_an_order_is_a_value():
    order = make_order(BlockShuffle(8), 100, seed=3)
    same = make_order(BlockShuffle(8), 100, seed=3)
    assert order == same
    assert hash(order) == hash(same)
    assert order != make_order(BlockShuffle(8, inside=True), 100, seed=3)
    assert order != make_order(BlockShuffle(8), 100, seed=4)


@pytest.mark.parametrize("shuffle", [False, True, BlockShuffle(7), BlockShuffle(7, inside=True)])
def test_a_pickled_order_goes_on_and_carries_no_tables(shuffle):
    order = make_order(shuffle, 60_000, seed=5)
    samples = order.samples_at([0, 1, 70_000])
    pickled = pickle.dumps(order)
    assert len(pickled) < 200
    assert pickle.loads(pickled) == order
    assert pickle.loads(pickled).samples_at([0, 1, 70_000]).tolist() == samples.tolist()


@pytest.mark.parametrize("n", [TABLE_EDGE - 1, TABLE_EDGE, 10**12, 1 << 63])
@pytest.mark.parametrize("shuffle", [True, BlockShuffle(1), BlockShuffle(1 << 40, inside=True)])
def test_no_order_needs_more_memory_than_its_tables(shuffle, n):
    state = make_order(shuffle, n).new_state()
    size_bytes = sys.getsizeof(state)
    assert size_bytes < 4 * TABLE_EDGE + 1024


@pytest.mark.parametrize("n", [60_000, 10**6])
def test_threads_may_share_an_order(n):
    order = make_order(True, n, seed=1)
    positions = [epoch * n + np.arange(4000) for epoch in range(3)]
    expected = [make_order(True, n, seed=1).samples_at(batch) for batch in positions]

    def count_wrong_batches(first_epoch):
        epochs = [first_epoch, first_epoch + 1] * 100
        return sum(
            not np.array_equal(order.samples_at(positions[epoch]), expected[epoch])
            for epoch in epochs
        )

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(count_wrong_batches, [0, 1])) == [0, 0]


def test_impossible_lengths_seeds_and_blocks_are_refused():
    for num_samples in (-1, (1 << 63) + 1, 10.0):
        with pytest.raises(UsageError, match=f"num_samples is {num_samples}; "):
            make_order(True, num_samples)
    for seed in (-1, 1 << 64, 1.5):
        with pytest.raises(UsageError, match=f"seed is {seed}; it must be an integer from 0"):
            make_order(True, 10, seed)
    for shuffle in ("blocks", 1024, None):
        with pytest.raises(UsageError, match="a BlockShuffle, LengthBuckets or Bands"):
            make_order(shuffle, 10)
    for block_size in (0, -4):
        with pytest.raises(UsageError, match=f"block_size is {block_size}; .* from 1 on"):
            BlockShuffle(block_size)


def test_positions_and_samples_that_do_not_exist_are_refused():
    order = make_order(True, 1234)
    with pytest.raises(IndexError, match=r"no position -1 in an order of 1,234 samples"):
        order.samples_at([0, -1])
    for samples in ([0, -1], [0, 1234]):
        with pytest.raises(IndexError, match=r"no sample .*: there are 1,234"):
            order.positions_of(samples)


def test_a_position_beyond_the_last_is_refused_and_not_made_negative():
    order = make_order(False, 3 << 61)
    with pytest.raises((IndexError, OverflowError)):
        order.positions_of([order.num_samples - 1], epoch=1)


def test_an_epoch_before_the_first_is_refused():
    with pytest.raises((IndexError, UsageError), match="epoch"):
        make_order(True, 10).positions_of([0], epoch=-1)


def test_a_block_larger_than_any_dataset_is_the_dataset():
    order = make_order(BlockShuffle((1 << 63) + 1), 1 << 63)
    assert order.samples_at([0, 1, 2]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 1 << 63)])
def test_a_digest_of_positions_that_do_not_exist_is_refused(start, stop):
    with pytest.raises(IndexError, match="no positions"):
        make_order(True, 10).digest(start, stop)
    with pytest.raises(IndexError, match="no positions"):
        make_order(True, 0).digest(0, 5)


def test_digests_of_neighbouring_ranges_add_up():
    order = make_order(True, 100_000, seed=3)
    parts = [order.digest(start, start + 500) for start in range(0, 5000, 500)]
    assert sum_digests(parts) == order.digest(0, 5000)
    assert len(set(parts)) == len(parts)
    assert order.digest(7, 7) == "0" * 32


def test_what_a_checkpoint_says_of_its_order():
    shuffles = (False, True, BlockShuffle(64), BlockShuffle(64, inside=True))
    assert [make_order(shuffle, 10_000, seed=9).fingerprint for shuffle in shuffles] == [
        "sequential-v1 over 10000",
        "shuffle-v1 over 10000",
        "blocks-v1 of 64 over 10000",
        "shuffled-blocks-v1 of 64 over 10000",
    ]


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0xC2B6E3A8C2C69865, 0x6F81ED42F350084D)),
        (
            (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF),
            (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF),
            (0xE02CB7C4D95D277A, 0xD06633D0893B8B68),
        ),
        (
            (0xA4093822299F31D0, 0x082EFA98EC4E6C89),
            (0x243F6A8885A308D3, 0x13198A2E03707344),
            (0x263C7D30BB0F0AF1, 0x56BE8361D3311526),
        ),
    ],
)
def test_threefry_gives_the_known_answers_of_random123(key, counter, expected):
    assert keyed_hash(*key, *counter) == expected
    assert plain_threefry(key, counter) == expected


@pytest.mark.slow
@given(st.integers(1, 1 << 63) | st.sampled_from(EDGES))
@settings(max_examples=300, deadline=None)
def test_the_base_is_the_exact_square_root_rounded_up(n):
    assert digit_base(n) == math.isqrt(n - 1) + 1


@pytest.mark.slow
@given(st.integers(TABLE_EDGE, 1 << 63) | st.sampled_from([n for n in EDGES if n >= TABLE_EDGE]))
@settings(max_examples=300, deadline=None)
def test_the_walk_back_into_range_costs_less_than_one_percent(n):
    # A walk from one index in range to the next is a stretch of a cycle of the network. All n
    # stretches together visit each value of the domain at most once.
    domain = digit_base(n) ** 2
    assert n <= domain < 1.01 * n


@given(few)
@settings(max_examples=100, deadline=None)
def test_the_walk_inside_a_block_costs_at_most_twice(block_size):
    assert digit_base(block_size) ** 2 <= 2 * block_size


# The same order once more, from its description and with Python's integers, which neither wrap
# around nor round: what an implementation in another language would be checked against.

WORD = (1 << 64) - 1
FOR_NETWORK, FOR_TABLE, FOR_INSIDE = 1, 2, 3


def plain_threefry(key, counter):
    keys = [*key, 0x1BD11BDAA9FC1A22 ^ key[0] ^ key[1]]
    x, y = (counter[0] + keys[0]) & WORD, (counter[1] + keys[1]) & WORD
    for step in range(20):
        bits = (16, 42, 12, 31, 16, 32, 24, 21)[step % 8]
        x = (x + y) & WORD
        y = ((y << bits | y >> (64 - bits)) & WORD) ^ x
        if step % 4 == 3:
            group = step // 4 + 1
            x = (x + keys[group % 3]) & WORD
            y = (y + keys[(group + 1) % 3] + group) & WORD
    return x, y


def plain_network(index, n, key, number):
    base = math.isqrt(n - 1) + 1
    if index < 2 <= n:
        index ^= plain_threefry(key, (12, number))[0] & 1
    while True:
        right, left = divmod(index, base)
        for j in range(12):
            first, second = plain_threefry(key, (j, number))
            x = (right ^ first) * 0x9E3779B97F4A7C15 & WORD
            x = ((x ^ x >> 32) + second) * 0xD1B54A32D192ED03 & WORD
            left, right = right, (left + ((x ^ x >> 29) * base >> 64)) % base
        index = right * base + left
        if index < n:
            return index


def plain_table(n, key):
    table = list(range(n))
    for drawn, i in enumerate(range(n - 1, 0, -1)):
        word = plain_threefry(key, (drawn // 2 * 2, 0))[drawn % 2]
        j = word * (i + 1) >> 64
        table[i], table[j] = table[j], table[i]
    return table


def plain_sample(shuffle, n, seed, epoch, index):
    if shuffle is True:
        if n < TABLE_EDGE:
            return plain_table(n, plain_threefry((seed, FOR_TABLE), (epoch, 0)))[index]
        return plain_network(index, n, plain_threefry((seed, FOR_NETWORK), (epoch, 0)), 0)
    size = shuffle.block_size
    for slot in range(-(-n // size)):
        block = plain_sample(True, -(-n // size), seed, epoch, slot)
        length = min(size, n - block * size)
        if index < length:
            break
        index -= length
    if shuffle.inside:
        key = plain_threefry((seed, FOR_INSIDE), (epoch, 0))
        index = plain_network(index, length, key, block)
    return block * size + index


@pytest.mark.parametrize("seed", [0, 42, WORD])
@pytest.mark.parametrize("n", [2, 5, 1000, TABLE_EDGE, TABLE_EDGE + 1, 10**12, *NEXT_TO_SQUARES])
def test_the_global_shuffle_is_the_one_described(n, seed):
    order = make_order(True, n, seed)
    for epoch in (0, 1):
        indices = [i for i in (0, 1, n // 2, n - 1) if epoch * n + i <= MAX_POSITION]
        samples = order.samples_at([epoch * n + index for index in indices])
        expected = [plain_sample(True, n, seed, epoch, index) for index in indices]
        assert samples.tolist() == expected


@pytest.mark.parametrize("n", [(1 << 63) - 1, 1 << 63])
def test_the_largest_shuffles_are_the_ones_described(n):
    indices = [0, 1, n // 2, n - 1]
    expected = [plain_sample(True, n, 7, 0, index) for index in indices]
    assert make_order(True, n, seed=7).samples_at(indices).tolist() == expected


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("n", "size"), [(10, 4), (100, 7), (1 << 40, 1 << 37), (1 << 62, 3 << 58)])
def test_the_block_shuffle_is_the_one_described(n, size, inside):
    shuffle = BlockShuffle(size, inside)
    indices = [0, 1, n // 3, n // 2, n - 2, n - 1]
    for epoch in (0, 1):
        samples = make_order(shuffle, n, seed=42).samples_at([epoch * n + i for i in indices])
        expected = [plain_sample(shuffle, n, 42, epoch, index) for index in indices]
        assert samples.tolist() == expected


# A user's checkpoint is a position in one of these orders: if a value here changes, resumed runs
# silently repeat some samples and never see others. A new order needs a new version in
# `Order.fingerprint` and the old one beside it; these lines stay as they are.
# The samples are those at 0, 1, 2, n // 2 and n - 1 of the epoch; of ten samples, all.
LAST_SEED = (1 << 64) - 1
GOLDEN = [
    # shuffle, number of samples, seed, epoch, samples
    (False, 10, 0, 0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    (False, 10**12, 42, 3, [0, 1, 2, 500_000_000_000, 999_999_999_999]),
    (True, 10, 0, 0, [5, 3, 2, 0, 6, 7, 8, 4, 9, 1]),
    (True, 10, 0, 1, [3, 6, 4, 5, 8, 2, 0, 1, 9, 7]),
    (True, 10, 42, 3, [5, 9, 6, 1, 3, 8, 0, 4, 2, 7]),
    (True, 10, LAST_SEED, 0, [0, 8, 9, 2, 7, 5, 3, 6, 1, 4]),
    (True, 1000, 0, 0, [363, 174, 842, 109, 162]),
    (True, 1000, 0, 1, [562, 305, 945, 982, 742]),
    (True, 1000, 42, 3, [644, 620, 948, 785, 732]),
    (True, 1000, LAST_SEED, 0, [904, 920, 327, 975, 479]),
    (True, 65_535, 0, 0, [58_542, 3420, 46_727, 16_388, 10_654]),
    (True, 65_535, 0, 1, [46_285, 53_025, 30_571, 56_594, 48_660]),
    (True, 65_535, 42, 3, [15_956, 34_133, 24_824, 30_277, 48_003]),
    (True, 65_535, LAST_SEED, 0, [18_175, 54_049, 7657, 34_535, 31_426]),
    (True, 65_536, 0, 0, [23_829, 59_877, 39_587, 38_684, 3049]),
    (True, 65_536, 0, 1, [60_357, 10_288, 6741, 33_235, 11_059]),
    (True, 65_536, 42, 3, [37_920, 57_928, 2357, 5347, 13_267]),
    (True, 65_536, LAST_SEED, 0, [50_737, 20_924, 42_833, 6340, 13_023]),
    (True, 1_000_003, 0, 0, [655_537, 535_918, 559_252, 168_755, 255_576]),
    (True, 1_000_003, 0, 1, [406_332, 387_729, 940_942, 907_163, 719_982]),
    (True, 1_000_003, 42, 3, [130_533, 513_562, 102_921, 999_399, 665_376]),
    (True, 1_000_003, LAST_SEED, 0, [371_882, 699_249, 459_771, 112_109, 271_224]),
    (
        True,
        10**12,
        0,
        0,
        [254_436_095_673, 912_768_155_614, 829_794_164_538, 55_415_335_111, 979_483_246_490],
    ),
    (
        True,
        10**12,
        0,
        1,
        [314_820_958_947, 496_547_783_080, 791_301_757_669, 973_614_326_205, 680_574_259_157],
    ),
    (
        True,
        10**12,
        42,
        3,
        [964_294_565_525, 501_901_771_988, 743_631_441_207, 799_144_415_561, 746_501_033_027],
    ),
    (
        True,
        10**12,
        LAST_SEED,
        0,
        [205_483_833_354, 176_694_759_441, 890_583_189_083, 875_592_094_353, 137_464_410_516],
    ),
    (
        True,
        1 << 63,
        0,
        0,
        [
            1_523_109_649_458_939_446,
            6_988_225_382_961_230_110,
            4_467_175_466_999_155_559,
            4_976_567_010_765_097_812,
            4_395_430_523_037_318_367,
        ],
    ),
    (
        True,
        1 << 63,
        42,
        0,
        [
            3_277_501_955_925_894_542,
            2_620_038_538_571_537_451,
            8_756_314_402_546_030_749,
            1_332_903_155_915_574_369,
            8_838_203_271_402_599_727,
        ],
    ),
    (BlockShuffle(4), 10, 0, 0, [4, 5, 6, 7, 8, 9, 0, 1, 2, 3]),
    (BlockShuffle(4), 10, 42, 3, [4, 5, 6, 7, 0, 1, 2, 3, 8, 9]),
    (BlockShuffle(64), 1000, 0, 0, [256, 257, 258, 396, 191]),
    (BlockShuffle(64), 1000, 42, 3, [960, 961, 962, 12, 767]),
    (BlockShuffle(1), 65_535, 0, 0, [58_542, 3420, 46_727, 16_388, 10_654]),
    (BlockShuffle(1), 65_535, 42, 3, [15_956, 34_133, 24_824, 30_277, 48_003]),
    (BlockShuffle(1), 65_536, 0, 0, [23_829, 59_877, 39_587, 38_684, 3049]),
    (BlockShuffle(1), 65_536, 42, 3, [37_920, 57_928, 2357, 5347, 13_267]),
    (BlockShuffle(8), 1_000_003, 0, 0, [152_408, 152_409, 152_410, 835_593, 122_687]),
    (BlockShuffle(8), 1_000_003, 42, 3, [115_168, 115_169, 115_170, 900_361, 13_055]),
    (
        BlockShuffle(256),
        10**12,
        0,
        0,
        [31_929_207_040, 31_929_207_041, 31_929_207_042, 155_419_834_880, 449_842_015_487],
    ),
    (
        BlockShuffle(256),
        10**12,
        42,
        3,
        [712_269_751_040, 712_269_751_041, 712_269_751_042, 479_850_105_344, 381_328_498_175],
    ),
    (
        BlockShuffle(1000),
        1 << 63,
        0,
        0,
        [
            3_629_572_989_001_994_000,
            3_629_572_989_001_994_001,
            3_629_572_989_001_994_002,
            6_512_083_499_519_983_904,
            865_834_072_128_736_999,
        ],
    ),
    (
        BlockShuffle(1000),
        1 << 63,
        42,
        0,
        [
            1_373_953_650_487_431_000,
            1_373_953_650_487_431_001,
            1_373_953_650_487_431_002,
            5_345_430_797_811_691_904,
            4_039_199_951_086_948_999,
        ],
    ),
    (BlockShuffle(4, inside=True), 10, 0, 0, [7, 5, 4, 6, 9, 8, 3, 2, 1, 0]),
    (BlockShuffle(4, inside=True), 10, 42, 3, [5, 4, 6, 7, 3, 1, 0, 2, 9, 8]),
    (BlockShuffle(64, inside=True), 1000, 0, 0, [264, 271, 310, 388, 168]),
    (BlockShuffle(64, inside=True), 1000, 42, 3, [973, 981, 979, 53, 739]),
    (BlockShuffle(100, inside=True), 65_535, 0, 0, [16_325, 16_309, 16_314, 43_594, 10_638]),
    (BlockShuffle(100, inside=True), 65_535, 42, 3, [4296, 4267, 4290, 63_713, 48_053]),
    (BlockShuffle(100, inside=True), 65_536, 0, 0, [16_325, 16_309, 16_314, 43_594, 10_638]),
    (BlockShuffle(100, inside=True), 65_536, 42, 3, [4296, 4267, 4290, 63_713, 48_053]),
    (BlockShuffle(8, inside=True), 1_000_003, 0, 0, [152_411, 152_409, 152_413, 835_596, 122_683]),
    (BlockShuffle(8, inside=True), 1_000_003, 42, 3, [115_173, 115_171, 115_172, 900_360, 13_054]),
    (
        BlockShuffle(256, inside=True),
        10**12,
        0,
        0,
        [31_929_207_047, 31_929_207_252, 31_929_207_093, 155_419_834_971, 449_842_015_340],
    ),
    (
        BlockShuffle(256, inside=True),
        10**12,
        42,
        3,
        [712_269_751_137, 712_269_751_252, 712_269_751_097, 479_850_105_401, 381_328_497_972],
    ),
    (
        BlockShuffle(1000, inside=True),
        1 << 63,
        0,
        0,
        [
            3_629_572_989_001_994_041,
            3_629_572_989_001_994_275,
            3_629_572_989_001_994_601,
            6_512_083_499_519_983_885,
            865_834_072_128_736_509,
        ],
    ),
    (
        BlockShuffle(1000, inside=True),
        1 << 63,
        42,
        0,
        [
            1_373_953_650_487_431_783,
            1_373_953_650_487_431_234,
            1_373_953_650_487_431_292,
            5_345_430_797_811_691_224,
            4_039_199_951_086_948_434,
        ],
    ),
    (LengthBuckets(2, 4), 10, 0, 0, [7, 5, 4, 6, 1, 0, 9, 8, 3, 2]),
    (LengthBuckets(4, 4), 10, 0, 1, [2, 3, 1, 0, 6, 9, 7, 8, 4, 5]),
    (LengthBuckets(32, 2048), 100_000, 42, 3, [36_383, 35_419, 35_455, 13_922, 73_171]),
    (
        LengthBuckets(256),
        1 << 40,
        0,
        1,
        [426_738_431_333, 426_738_418_540, 426_738_421_541, 1_061_571_189_226, 1_049_297_352_206],
    ),
]


@pytest.mark.parametrize(("shuffle", "n", "seed", "epoch", "samples"), GOLDEN)
def test_orders_stay_as_they_are_for_good(shuffle, n, seed, epoch, samples):
    order = make_order(shuffle, n, seed)
    indices = range(10) if n == 10 else (0, 1, 2, n // 2, n - 1)
    positions = [epoch * n + index for index in indices]
    assert order.samples_at(positions).tolist() == samples
    assert order.positions_of(samples, epoch).tolist() == positions
