"""The memory of batches, used again only when nobody looks at the batch any more.

Fresh memory costs page faults as dear as the copy into it, so a pool keeps a few blocks.
Large ones are pages of their own, which go back to the system as soon as they are free.

A `BatchMemory` is at the root of every array and tensor that shows a batch, and of every view of
those: NumPy and torch keep it alive. When it is deallocated, its block returns to the pool. So a
batch that the user keeps is the user's, for as long as any row of it is held, whatever becomes of
the loader.

Page-locked memory is torch's: a copy to the accelerator that is still queued reads it after the
last tensor is gone, and only torch's own allocator knows of such copies.

The GIL guards the pool: memory is taken and deallocated by Python alone.
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


@cython.no_gc  # it is in no cycle, and the collector must not clear what dealloc needs
cdef class Pool:
    """Memory for batches of `num_bytes` each; the blocks of up to `keep` are kept for the next.

    With `new_tensor`, memory is page-locked: each is a tensor that this makes of a size in bytes.
    """

    def __cinit__(self, int64_t num_bytes, int64_t keep, new_tensor=None):
        if num_bytes < <int64_t>sizeof(BatchCounts) or keep < 0:
            raise ValueError("a batch is larger than what is said about it")
        self.num_bytes, self.keep, self.new_tensor = num_bytes, keep, new_tensor
        self.free_blocks = <void **>calloc(keep + 1, sizeof(void *))
        if not self.free_blocks:
            raise MemoryError

    def __dealloc__(self):
        while self.num_free:
            self.num_free -= 1
            free_block(self.free_blocks[self.num_free], self.num_bytes)
        free(self.free_blocks)

    cpdef BatchMemory take(self):
        """Memory that nobody else has."""
        cdef BatchMemory memory = BatchMemory.__new__(BatchMemory)
        if self.new_tensor is not None:
            memory.tensor = self.new_tensor(self.num_bytes)
            memory.address = <char *><uintptr_t>memory.tensor.data_ptr()
            if not memory.address:
                raise MemoryError(f"no page-locked memory for a batch of {self.num_bytes:,} bytes")
        elif self.num_free:
            self.num_free -= 1
            memory.address = <char *>self.free_blocks[self.num_free]
        else:
            memory.address = <char *>new_block(self.num_bytes)
            if not memory.address:
                raise MemoryError(f"no memory for a batch of {self.num_bytes:,} bytes")
        memory.pool, memory.num_bytes = self, self.num_bytes
        return memory


@cython.no_gc
@cython.freelist(16)
cdef class BatchMemory:
    """The memory of one batch, as a buffer of bytes; `Pool.take` makes it."""

    def __dealloc__(self):
        cdef Pool pool = self.pool
        if pool is None or self.tensor is not None:
            return
        if pool.num_free < pool.keep:
            pool.free_blocks[pool.num_free] = self.address
            pool.num_free += 1
        else:
            free_block(self.address, pool.num_bytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.pool is None:
            raise BufferError("there is no memory here")
        PyBuffer_FillInfo(view, self, self.address, self.pool.num_bytes, False, flags)

    @property
    def num_tokens(self):
        """Columns that hold records, in all rows together."""
        return self.counts().num_tokens if self.pool is not None else 0


cdef void *new_block(int64_t num_bytes) noexcept:
    """Aligned memory, or NULL."""
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
