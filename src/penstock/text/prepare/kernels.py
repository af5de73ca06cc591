"""Laying out documents for the writer, outside the GIL."""

from numba import types

from penstock.jit import helper, kernel


@helper
def _copy_documents(ids, offsets, chosen, bos_id, eos_id, out):
    end = 0
    for k in range(chosen.size):
        start, stop = offsets[chosen[k]], offsets[chosen[k] + 1]
        if bos_id >= 0:
            out[end] = bos_id
            end += 1
        source, target = ids[start:stop], out[end : end + stop - start]
        for i in range(source.size):
            target[i] = source[i]
        end += stop - start
        if eos_id >= 0:
            out[end] = eos_id
            end += 1


_GIVEN = (types.uint32[::1], types.int64[::1], types.int64[::1], types.int64, types.int64)


@kernel(*_GIVEN, types.uint16[::1])
def lay_out_narrow(ids, offsets, chosen, bos_id, eos_id, out):
    """Copy the chosen documents, each between its marks, end to end; -1 is no mark."""
    _copy_documents(ids, offsets, chosen, bos_id, eos_id, out)


@kernel(*_GIVEN, types.uint32[::1])
def lay_out_wide(ids, offsets, chosen, bos_id, eos_id, out):
    """The same for ids of 32 bits."""
    _copy_documents(ids, offsets, chosen, bos_id, eos_id, out)
