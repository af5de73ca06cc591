"""`read.numbers`: integers of one size to integers of another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.read.numbers import convert_numbers

pytestmark = pytest.mark.kernels

SIZES = [1, 2, 4, 8]


@given(
    size=st.sampled_from(SIZES),
    size_out=st.sampled_from(SIZES),
    is_signed=st.booleans(),
    gap=st.integers(0, 3),
    count=st.integers(0, 70),
    seed=st.integers(0, 1 << 32),
)
def test_numbers_are_converted_as_numpy_converts_them(size, size_out, is_signed, gap, count, seed):
    raw = np.random.default_rng(seed).integers(0, 256, (count, size + gap), np.uint8)
    kind = "i" if is_signed else "u"
    numbers = raw[:, :size].copy().view(f"<{kind}{size}").reshape(-1)
    target = np.zeros(count * size_out, np.uint8)
    convert_numbers(raw.reshape(-1), size + gap, size, is_signed, target, size_out)
    expected = numbers.astype(f"<{kind}{size_out}")
    assert target.view(expected.dtype).tolist() == expected.tolist()


def test_numbers_may_lie_at_any_address():
    raw = np.zeros(1 + 2 * 5, np.uint8)
    raw[1:] = np.arange(5, dtype="<u2").view(np.uint8)
    target = np.zeros(5 * 8, np.uint8)
    convert_numbers(raw[1:], 2, 2, False, target, 8)
    assert target.view("<i8").tolist() == [0, 1, 2, 3, 4]


def test_sizes_and_memory_are_checked():
    memory = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="1, 2, 4 or 8"):
        convert_numbers(memory, 3, 3, False, memory.copy(), 8)
    with pytest.raises(ValueError, match="too short"):
        convert_numbers(memory[:3], 2, 2, False, memory.copy(), 8)
