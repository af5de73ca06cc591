"""Memory that is lent and reused (`system/lent_memory.pyx`)."""

import numpy as np

from millstream.system.lent_memory import LentMemory


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_reused_when_no_view_of_it_is_left():
    memory = LentMemory(1 << 12)
    first = memory.lend(100, np.uint32)
    first[:] = 7
    view, place = first[10:20], address(first)
    del first
    assert address(memory.lend(100, np.uint32)) != place
    assert view.tolist() == [7] * 10
    del view
    assert place in {address(memory.lend(100, np.uint8)) for _ in range(2)}


def test_only_the_start_of_returned_memory_stays():
    memory = LentMemory(5000)  # rounded up to whole pages
    array = memory.lend(1 << 16, np.uint8)
    array[:] = 1
    del array
    again = memory.lend(1 << 16, np.uint8)
    assert again[:5000].all()
    assert not again[1 << 15 :].any()


def test_longer_arrays_are_as_long_as_asked_for():
    memory = LentMemory(0)
    assert len(memory.lend(3, np.uint32)) >= 3
    assert len(memory.lend(1 << 21, np.uint32)) >= 1 << 21
