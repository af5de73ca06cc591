"""Memory for batches of objects: reused when nothing refers to it, and never before."""

import numpy as np
import pytest

from millstream.batches.object_memory import ObjectMemory, ObjectPool

pytestmark = pytest.mark.kernels


def taken(pool, num_bytes):
    return np.frombuffer(pool.take(num_bytes), np.uint8)


def test_memory_is_reused_after_the_last_view_is_gone():
    pool = ObjectPool(16)
    array = taken(pool, 1000)
    address = array.ctypes.data
    part = memoryview(array)[10:20]
    del array
    assert taken(pool, 1000).ctypes.data != address
    del part
    assert taken(pool, 1000).ctypes.data == address


def test_memory_is_large_enough_whatever_was_taken_before():
    pool = ObjectPool(16)
    sizes = np.random.default_rng(0).integers(0, 1 << 19, 200)
    held = []
    for number, size in enumerate(sizes.tolist()):
        array = taken(pool, size)
        assert array.size >= size
        array[:size] = number % 256
        held.append((array[:size], number % 256))
        if number % 3:
            held.pop(number % len(held))
    assert all((part == value).all() for part, value in held)


def test_few_blocks_are_kept_and_none_that_is_far_too_large():
    pool = ObjectPool(5)
    held = [taken(pool, 100_000) for _ in range(40)]
    held.clear()
    assert pool.num_free == 5
    huge = taken(pool, 1 << 24)
    for _ in range(100):
        taken(pool, 100_000)
    before = pool.num_free
    del huge
    assert pool.num_free == before


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        ObjectPool(16).take(-1)
    for size in (1 << 60, (1 << 63) - 1):
        with pytest.raises(MemoryError, match="cannot allocate"):
            ObjectPool(16).take(size)
    with pytest.raises(BufferError, match="was not created by ObjectPool"):
        memoryview(ObjectMemory())
