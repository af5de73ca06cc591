"""Kernels that prove what occurs exactly once (`auditing/proofs.pyx`)."""

import numpy as np
import pytest

from millstream.auditing.proofs import mark_once

pytestmark = pytest.mark.kernels


def test_the_first_number_that_comes_twice_is_found():
    seen = np.zeros(2, np.uint64)
    assert mark_once(np.array([5, 127, 64, 0]), seen) == -1
    assert mark_once(np.array([63, 64, 5]), seen) == 64
    with pytest.raises(ValueError, match="out of range"):
        mark_once(np.array([128]), seen)
