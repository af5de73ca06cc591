"""Laying out documents for the writer, outside the GIL."""

import numpy as np
from numba import types

from penstock.jit import kernel


@kernel(
    types.uint32[::1],
    types.int64[::1],
    types.int64[::1],
    types.int64,
    types.int64,
    types.uint32[::1],
)
def lay_out(ids, offsets, chosen, bos_id, eos_id, out):
    """Copy the chosen documents, each between its marks, end to end; -1 is no mark."""
    end = 0
    for k in range(chosen.size):
        start, stop = offsets[chosen[k]], offsets[chosen[k] + 1]
        if bos_id >= 0:
            out[end] = np.uint32(bos_id)
            end += 1
        source, target = ids[start:stop], out[end : end + stop - start]
        for i in range(source.size):
            target[i] = source[i]
        end += stop - start
        if eos_id >= 0:
            out[end] = np.uint32(eos_id)
            end += 1
