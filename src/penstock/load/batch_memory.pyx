"""The memory of batches, used again only when nobody looks at the batch any more.

Fresh memory costs page faults as dear as the copy into it, so a pool keeps a few blocks of pages.
A `BatchMemory` is at the root of every array and tensor that shows a batch, and of every view of
those: NumPy and torch keep it alive. When it is deallocated, its pages return to the pool. So a
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


@cython.no_gc  # it is in no cycle, and the collector must not clear what dealloc needs
cdef class Pool:
    """Memory for batches of `num_bytes` each; the pages of up to `keep` are kept for the next.

    With `new_tensor`, memory is page-locked: each is a tensor that this makes of a size in bytes.
    """

    def __cinit__(self, int64_t num_bytes, int64_t keep, new_tensor=None):
        if num_bytes < <int64_t>sizeof(Counts) or keep < 0:
            raise ValueError("a batch is larger than what is said about it")
        self.num_bytes, self.keep, self.new_tensor = num_bytes, keep, new_tensor
        self.free_pages = <void **>calloc(keep + 1, sizeof(void *))
        if not self.free_pages:
            raise MemoryError

    def __dealloc__(self):
        while self.num_free:
            self.num_free -= 1
            munmap(self.free_pages[self.num_free], self.num_bytes)
        free(self.free_pages)

    cpdef BatchMemory take(self):
        """Memory that nobody else has."""
        cdef BatchMemory memory = BatchMemory.__new__(BatchMemory)
        cdef void *pages
        if self.new_tensor is not None:
            memory.tensor = self.new_tensor(self.num_bytes)
            memory.address = <char *><uintptr_t>memory.tensor.data_ptr()
        elif self.num_free:
            self.num_free -= 1
            memory.address = <char *>self.free_pages[self.num_free]
        else:
            pages = mmap(
                NULL, self.num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0
            )
            if pages == MAP_FAILED:
                raise MemoryError(f"no memory for a batch of {self.num_bytes:,} bytes")
            memory.address = <char *>pages
        memory.pool = self
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
            pool.free_pages[pool.num_free] = self.address
            pool.num_free += 1
        else:
            munmap(self.address, pool.num_bytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.pool is None:
            raise BufferError("there is no memory here")
        PyBuffer_FillInfo(view, self, self.address, self.pool.num_bytes, False, flags)

    @property
    def num_tokens(self):
        """Columns that hold records, in all rows together."""
        return self.counts().num_tokens if self.pool is not None else 0
