"""Makes the dict that the user gets from the memory of a batch, without a Python frame.

Arrays and tensors are new objects for each batch; they share its memory and keep it alive.
"""

import math

import numpy as np

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from millstream.load.batch_memory cimport BatchMemory
from millstream.batches.layout_table cimport BatchCounts

cdef extern from "Python.h":
    # With the limited API, Cython would create a tuple for the call.
    object PyObject_CallFunctionObjArgs(object function, ...)

cdef object ndarray = np.ndarray


cdef class Shown:
    """One output of a batch: its place in the memory, and its shape and type."""

    def __cinit__(self, str name, place, int64_t rows, torch_dtype):
        self.name, self.dtype, self.start = name, place.dtype, place.offset
        self.rows, self.row_shape, self.torch_dtype = rows, place.row_shape, torch_dtype
        self.shape = (rows, *place.row_shape)
        self.length = OF_LAYOUT
        if place.count == "width":
            self.length = OF_WIDEST_ROW
        elif place.count == "num_boundaries":
            self.length = OF_BOUNDARIES
        elif place.count == "num_row_boundaries":
            self.length = OF_ROW_BOUNDARIES

    cdef tuple shape_of(self, int64_t rows, const BatchCounts *counts):
        """Return the output's shape in a batch of `rows` rows."""
        if self.length == OF_BOUNDARIES:
            return (counts.num_boundaries,)
        if self.length == OF_ROW_BOUNDARIES:
            return (counts.num_row_boundaries,)
        if self.length == OF_WIDEST_ROW:
            return (rows, counts.width, *self.row_shape[1:])
        return self.shape if rows == self.rows else (rows, *self.row_shape)

    cdef object as_array(self, memory, tuple shape):
        """Return an array that shares the memory."""
        if shape is not self.shape and 0 in shape:
            return ndarray(shape, self.dtype)
        return ndarray(shape, self.dtype, memory, self.start)

    cdef object as_pinned(self, block, tuple shape):
        """Return a tensor that shares page-locked memory, given as a tensor of bytes."""
        cdef int64_t num_bytes = math.prod(shape) * self.dtype.itemsize
        if self.torch_dtype is None:
            # A copy, so that it does not keep page-locked memory from being reused.
            return self.as_array(block.numpy(), shape).copy()
        return block[self.start:self.start + num_bytes].view(self.torch_dtype).view(shape)


cdef class BatchMaker:
    """Makes batches of `rows` rows as NumPy arrays, or as torch tensors by `from_numpy`.

    Outputs whose type torch lacks stay NumPy arrays.
    """

    def __cinit__(self, dict places, int64_t rows, from_numpy=None):
        self.from_numpy = from_numpy
        self.has_boundaries = "cu_seqlens" in places
        self.has_row_boundaries = "row_cu_seqlens" in places
        self.outputs = []
        for name, place in places.items():
            torch_dtype = None
            if from_numpy is not None:
                try:
                    torch_dtype = from_numpy(np.empty(0, place.dtype)).dtype
                except TypeError:
                    pass
            self.outputs.append(Shown(name, place, rows, torch_dtype))

    cpdef dict make(self, BatchMemory memory, int64_t rows):
        """Return the batch that was read into `memory`."""
        cdef const BatchCounts *counts = memory.counts()
        cdef dict batch = {}
        cdef Shown shown
        cdef tuple shape
        if not memory.address:
            raise ValueError("this memory was not taken from a pool")
        for shown in self.outputs:
            shape = shown.shape_of(rows, counts)
            if memory.tensor is not None:
                output = shown.as_pinned(memory.tensor, shape)
            else:
                output = shown.as_array(memory, shape)
                if shown.torch_dtype is not None:
                    output = PyObject_CallFunctionObjArgs(
                        self.from_numpy, <PyObject *>output, <PyObject *>NULL
                    )
            batch[shown.name] = output
        if self.has_boundaries:
            batch["max_seqlen"] = counts.max_seqlen
        if self.has_row_boundaries:
            batch["row_max_seqlen"] = counts.row_max_seqlen
        return batch
