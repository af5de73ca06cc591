"""The memory of batches, reused only once nothing refers to the batch any more.

Page faults in fresh memory cost as much as the copy into it, so a pool keeps a few blocks. Large
blocks have their own pages, which return to the system as soon as they are freed.

A `BatchMemory` is the base object of every array and tensor of a batch, and of all their views:
NumPy and torch keep it alive. When it is deallocated, its block returns to the pool. So a batch
stays valid as long as the user holds any row of it, even after the loader is gone.

Page-locked memory belongs to torch: a copy that the user has queued may read it after the last
tensor is gone, and only torch's allocator knows about such copies. A feed queues its own, and holds
the memory until they have ended.

The GIL guards the pool: memory is only taken and deallocated by Python code.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **block, size_t alignment, size_t size)

cdef enum:
    ALIGNMENT_BYTES = 64
    LEAST_MAPPED_BYTES = 1 << 16


@cython.no_gc  # never part of a cycle, and the collector must not clear what dealloc needs
cdef class Pool:
    """Memory for batches of `num_bytes` each; keeps up to `keep` free blocks for reuse.

    With `new_tensor(num_bytes)`, which returns a tensor of bytes, memory is page-locked. Torch
    reuses it, unless `reuses_tensors`: then the pool does, as soon as nothing refers to a batch.
    """

    def __cinit__(
        self, int64_t num_bytes, int64_t keep, new_tensor=None, *, bint reuses_tensors=False
    ):
        if num_bytes < <int64_t>sizeof(BatchCounts) or keep < 0:
            raise ValueError("num_bytes must hold at least the counts of a batch, and keep be >= 0")
        self.num_bytes, self.keep, self.new_tensor = num_bytes, keep, new_tensor
        self.free_tensors = [] if reuses_tensors else None
        self.free_blocks = <void **>calloc(keep + 1, sizeof(void *))
        if not self.free_blocks:
            raise MemoryError

    def __dealloc__(self):
        while self.num_free:
            self.num_free -= 1
            free_block(self.free_blocks[self.num_free], self.num_bytes)
        free(self.free_blocks)

    cpdef BatchMemory take(self):
        """Return memory that nothing else refers to."""
        cdef BatchMemory memory = BatchMemory.__new__(BatchMemory)
        if self.new_tensor is not None:
            if self.free_tensors:
                memory.tensor = self.free_tensors.pop()
            else:
                memory.tensor = self.new_tensor(self.num_bytes)
            memory.address = <char *><uintptr_t>memory.tensor.data_ptr()
            if not memory.address:
                raise MemoryError(
                    f"cannot allocate {self.num_bytes:,} bytes of page-locked memory for a batch"
                )
        elif self.num_free:
            self.num_free -= 1
            memory.address = <char *>self.free_blocks[self.num_free]
        else:
            memory.address = <char *>new_block(self.num_bytes)
            if not memory.address:
                raise MemoryError(f"cannot allocate {self.num_bytes:,} bytes for a batch")
        memory.pool, memory.num_bytes = self, self.num_bytes
        return memory


@cython.no_gc
@cython.freelist(16)
cdef class BatchMemory:
    """The memory of one batch, as a buffer of bytes; created by `Pool.take`."""

    def __dealloc__(self):
        cdef Pool pool = self.pool
        if pool is None:
            return
        if self.tensor is not None:
            if pool.free_tensors is not None and len(pool.free_tensors) < pool.keep:
                pool.free_tensors.append(self.tensor)
            return
        if pool.num_free < pool.keep:
            pool.free_blocks[pool.num_free] = self.address
            pool.num_free += 1
        else:
            free_block(self.address, pool.num_bytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.pool is None:
            raise BufferError("this object has no memory; it was not created by Pool.take")
        PyBuffer_FillInfo(view, self, self.address, self.pool.num_bytes, False, flags)

    @property
    def num_tokens(self):
        """The number of columns that hold records, over all rows."""
        return self.counts().num_tokens if self.pool is not None else 0


cdef void *new_block(int64_t num_bytes) noexcept:
    """Return aligned memory, or NULL."""
    cdef void *block = NULL
    if num_bytes >= LEAST_MAPPED_BYTES:
        block = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        return NULL if block == MAP_FAILED else block
    return block if posix_memalign(&block, ALIGNMENT_BYTES, num_bytes) == 0 else NULL


cdef void free_block(void *block, int64_t num_bytes) noexcept:
    if num_bytes >= LEAST_MAPPED_BYTES:
        munmap(block, num_bytes)
    else:
        free(block)
