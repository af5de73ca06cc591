"""`compat.widening`: stored uint32 batches to int64, through a ring of buffers."""

import numpy as np
import pytest

from millstream.compat.widening import BatchTable, Ring

pytestmark = pytest.mark.kernels


def maps(*sizes, rows=2, tokens=3, gap=0):
    """One map for each size, of batches with `gap` tokens between them, counted up throughout."""
    found, first = [], 0
    for size in sizes:
        block = np.zeros((size, rows * tokens + gap), np.uint32)
        count = size * rows * tokens
        block[:, : rows * tokens] = np.arange(first, first + count).reshape(size, rows * tokens)
        found.append(
            np.ndarray((size, rows, tokens), np.uint32, block, 0, (block.strides[0], 4 * tokens, 4))
        )
        first += count
    return found


def expected(batch, rows=2, tokens=3):
    size = rows * tokens
    return np.arange(batch * size, (batch + 1) * size).reshape(rows, tokens).tolist()


@pytest.mark.parametrize("gap", [0, 5])
def test_batches_are_numbered_through_all_maps(gap):
    table = BatchTable(maps(1, 4, 0, 2, gap=gap))
    assert (table.num_batches, table.num_tokens) == (7, 6)
    out = np.zeros((2, 3), np.int64)
    for batch in range(7):
        table.widen(batch, out)
        assert out.tolist() == expected(batch)


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 31, 1000])
def test_tokens_of_all_32_bits_stay_what_they_are(tokens):
    batch = np.random.default_rng(tokens).integers(0, 1 << 32, (1, 1, tokens), np.uint32)
    batch[0, 0, -1] = (1 << 32) - 1
    out = np.full((1, tokens), -1)
    BatchTable([batch]).widen(0, out)
    assert (out == batch[0]).all()


def test_what_is_not_a_batch_is_refused():
    table, out = BatchTable(maps(2)), np.zeros((2, 3), np.int64)
    for batch in (-1, 2):
        with pytest.raises(IndexError, match=f"batch {batch} does not exist; there are 2"):
            table.widen(batch, out)
    with pytest.raises(ValueError, match="must have the 6 tokens"):
        table.widen(0, np.zeros((2, 2), np.int64))
    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        table.widen(0, np.zeros((2, 3), np.int32))


def test_maps_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="differ in size: 8 tokens after 6"):
        BatchTable([*maps(1), *maps(1, tokens=4)])
    with pytest.raises(ValueError, match="not contiguous"):
        BatchTable([maps(3)[0][:, ::2].repeat(2, 1)[:, ::2]])
    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        BatchTable([np.zeros((1, 1, 1), np.int64)])
    assert BatchTable([]).num_batches == 0


def test_a_table_keeps_its_maps_alive():
    table, out = BatchTable(maps(3)), np.zeros((2, 3), np.int64)
    np.full((3, 6), 77, np.uint32)
    table.widen(2, out)
    assert out.tolist() == expected(2)


def test_a_ring_fills_arrays_that_nobody_holds():
    table, ring = BatchTable(maps(40)), Ring(2, 3)
    held, batches = [], np.arange(40)
    for first in range(0, 40, 10):
        held += ring.widen(table, batches[first : first + 10])
    assert [array.tolist() for array in held] == [expected(batch) for batch in range(40)]


def test_a_ring_uses_memory_again_that_was_let_go():
    table, ring = BatchTable(maps(32)), Ring(2, 3)
    seen = set()
    for _ in range(5):
        seen |= {array.ctypes.data for array in ring.widen(table, np.arange(32))}
    assert len(seen) == ring.group + 2
    assert {address % 64 for address in seen} == {0}


def test_a_group_is_about_3_mib():
    assert Ring(32, 512).group == 24
    assert Ring(1, 1).group == 32
    assert Ring(1 << 10, 1 << 10).group == 1


def test_a_ring_refuses_more_than_a_group_or_other_batches():
    ring, table = Ring(2, 3), BatchTable(maps(2))
    with pytest.raises(ValueError, match="more batches than in a group"):
        ring.widen(table, np.zeros(33, np.int64))
    with pytest.raises(ValueError, match="they differ in size"):
        Ring(3, 3).widen(table, np.zeros(1, np.int64))
    with pytest.raises(IndexError, match="batch 2 does not exist; there are 2"):
        ring.widen(table, np.array([0, 2]))
    for shape in [(0, 1), (1, 0), (-1, 1), (1 << 40, 1 << 40)]:
        with pytest.raises(ValueError, match="a batch cannot have"):
            Ring(*shape)
