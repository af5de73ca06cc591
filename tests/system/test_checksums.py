"""`system.checksums`: block checksums against known values and a bitwise model."""

import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.system.checksums import (
    BLOCK_BYTES,
    BlockHasher,
    CheckedBlocks,
    block_checksums,
    crc32c,
    num_blocks,
)

pytestmark = pytest.mark.kernels

# RFC 3720, B.4, and the value that catalogues of CRCs give as the check.
KNOWN = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    bytes.fromhex(
        "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
        "0200000000000000"
    ): 0xD9963A56,
    b"123456789": 0xE3069283,
    b"": 0,
}


def model(data):
    """CRC32C as it is defined: a division, one bit at a time."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def sizes():
    """Sizes around those where a word or a block ends."""
    near = st.sampled_from([0, 8, BLOCK_BYTES, 3 * BLOCK_BYTES, 4 * BLOCK_BYTES, 7 * BLOCK_BYTES])
    return st.one_of(
        st.integers(0, 8 * BLOCK_BYTES),
        st.builds(lambda size, more: max(0, size + more), near, st.integers(-9, 9)),
    )


def random_bytes(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("portable", [False, True])
def test_known_values(portable):
    for data, expected in KNOWN.items():
        assert crc32c(data, portable=portable) == expected == model(data)


@settings(deadline=None)
@given(st.binary(max_size=100), st.binary(max_size=100), st.booleans())
def test_a_checksum_goes_on_where_another_ended(one, other, portable):
    assert crc32c(other, crc32c(one), portable=portable) == model(one + other)


@settings(deadline=None, max_examples=50)
@given(sizes(), st.integers(0, 7), st.integers(0, 99))
@example(0, 0, 0)
@example(3 * BLOCK_BYTES, 1, 0)
def test_blocks_have_the_checksums_of_the_table_wherever_they_lie_in_memory(size, start, seed):
    data = random_bytes(start + size, seed)[start:]
    expected = [
        crc32c(data[first : first + BLOCK_BYTES], portable=True)
        for first in range(0, size, BLOCK_BYTES)
    ]
    assert block_checksums(data).tolist() == expected
    assert num_blocks(size) == len(expected)


@settings(deadline=None, max_examples=50)
@given(st.lists(sizes(), max_size=6), st.integers(0, 99))
def test_what_comes_in_pieces_has_the_checksums_of_the_whole(lengths, seed):
    data = random_bytes(sum(lengths), seed)
    hasher, start = BlockHasher(), 0
    for length in lengths:
        hasher.update(data[start : start + length])
        start += length
        assert hasher.checksums().size == num_blocks(start)
    assert np.array_equal(hasher.checksums(), block_checksums(data))


@settings(deadline=None, max_examples=50)
@given(sizes().filter(bool), st.data())
def test_damage_is_found_in_the_blocks_that_are_used_and_in_no_others(size, draw):
    data = random_bytes(size)
    checksums = block_checksums(data)
    places = draw.draw(st.lists(st.integers(0, size - 1), max_size=3))
    for place in places:
        data[place] ^= 1 << draw.draw(st.integers(0, 7))
    damaged = {
        k
        for k in range(len(checksums))
        if crc32c(data[k * BLOCK_BYTES : (k + 1) * BLOCK_BYTES], portable=True) != checksums[k]
    }
    blocks = CheckedBlocks(data, checksums)
    for _ in range(3):
        start, stop = sorted(draw.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
        used = range(start // BLOCK_BYTES, num_blocks(stop)) if start < stop else ()
        assert blocks.find_damage(start, stop) == min(damaged & set(used), default=-1)


def test_a_block_is_looked_at_once_and_a_damaged_one_each_time():
    data = random_bytes(2 * BLOCK_BYTES)
    blocks = CheckedBlocks(data, block_checksums(data))
    assert blocks.find_damage(0, 1) == -1
    data[5], data[BLOCK_BYTES] = data[5] ^ 1, data[BLOCK_BYTES] ^ 1
    assert blocks.find_damage(0, BLOCK_BYTES) == -1
    assert blocks.find_damage(0, BLOCK_BYTES + 1) == 1
    assert blocks.find_damage(BLOCK_BYTES, BLOCK_BYTES + 1) == 1


def test_threads_that_come_at_once_find_the_same():
    data = random_bytes(300 * BLOCK_BYTES)
    checksums = block_checksums(data)
    data[200 * BLOCK_BYTES + 7] ^= 1
    blocks = CheckedBlocks(data, checksums)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(blocks.find_damage(0, data.size)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 4


@pytest.mark.parametrize(
    ("size", "count"), [(0, 0), (1, 0), (1, 2), (BLOCK_BYTES, 2), (BLOCK_BYTES + 1, 1)]
)
def test_checksums_that_are_not_one_for_each_block_are_refused(size, count):
    with pytest.raises(ValueError, match="one checksum for each block"):
        CheckedBlocks(bytes(size), np.zeros(count, np.uint32))


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 11), (3, 2), (11, 11)])
def test_bytes_that_are_not_there_are_refused(start, stop):
    with pytest.raises(ValueError, match="outside of the memory"):
        CheckedBlocks(bytes(10), block_checksums(bytes(10))).find_damage(start, stop)
