"""The feed: batches cross to a CUDA device ahead of the consumer, on a stream of their own.

Everything happens in the consumer's thread, inside `next`: CUDA calls from other threads would
break a user's graph capture. A batch is uploaded as soon as it has been read, up to `AHEAD` steps
before its turn, and the host never waits for the device:

    consumer's stream   allocate a block, record a                    wait for b, step k
    feed's stream                  wait for a, copy, widen, record b

- The block that holds a batch on the device is memory of the consumer's stream and returns to it.
  The feed writes to it after event a, when all earlier uses of this memory have ended; the consumer
  reads it after event b.
- Page-locked memory is torch's, which reuses it once the copies that read it have ended.
- Everything else on the device is used by the feed's stream alone, in order.
"""

import os
import threading

import numpy as np
import torch

from penstock.load.widening import CompactShape, DeviceWidening, max_words, torch_dtype

from libc.stdint cimport int64_t

from penstock.batches.layout_table cimport table_length
from penstock.load.batch_memory cimport BatchMemory

AHEAD = 2  # the copy of the next batch overlaps a whole step, even if the consumer synchronizes
cdef enum:
    MAX_SHAPES = 32


cdef class Upload:
    """A batch on its way to the device, or there."""

    cdef object widening, block
    cdef object stream  # whose memory the block is
    cdef object has_arrived
    cdef int64_t num_boundaries
    cdef dict on_host
    cdef bint is_pending
    cdef object pid

    def __del__(self):
        # Not handed out, the block may still be written to when its memory is used again.
        if self.is_pending and self.pid == os.getpid():
            self.stream.wait_event(self.has_arrived)


cdef class CudaFeed:
    """Brings batches of `layout` to a CUDA device in their compact form, and widens them there.

    With `static_addresses`, all batches of full size are handed out in the same tensors.
    """

    cdef readonly int ahead
    cdef readonly int64_t num_bytes
    cdef object layout, device, stream, compact, widenings, static_block, lock
    cdef list on_host
    cdef bint has_table, has_boundaries, static_addresses
    cdef int64_t num_uploads

    def __cinit__(self, layout, device, *, bint static_addresses=False):
        compact = layout.compact()
        self.ahead = AHEAD
        self.layout, self.device, self.static_addresses = layout, device, static_addresses
        self.has_table, self.has_boundaries = bool(compact.derived), "cu_seqlens" in layout.places()
        self.on_host = [
            (name, place)
            for name, place in compact.places().items()
            if name in layout.places() and torch_dtype(place.dtype) is None
        ]
        self.stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self.stream):
            self.compact = torch.empty(compact.num_bytes, dtype=torch.uint8, device=device)
        self.widenings, self.lock = {}, threading.RLock()

    def upload(self, BatchMemory memory, int64_t rows):
        """Queue the copy of a batch to the device, and the operations that widen it there."""
        cdef int64_t number, num_segments = 0
        cdef Upload upload
        num_boundaries, width = memory.counts().num_boundaries, memory.counts().width
        if self.has_table:
            num_segments = table_length(num_boundaries - 1)
        shape = CompactShape(rows, width, num_segments)
        with self.lock:
            while True:
                self.num_uploads += 1
                number = self.num_uploads
                upload = self.queue(memory, shape)
                if number == self.num_uploads:  # no signal handler used the loader meanwhile
                    break
        upload.num_boundaries = num_boundaries
        if self.has_boundaries:
            upload.on_host["max_seqlen"] = memory.counts().max_seqlen
        for name, place in self.on_host:
            content = np.frombuffer(memory, np.uint8)
            upload.on_host[name] = place.of(content, rows, self.layout.counts(content)).copy()
        return upload

    cdef Upload queue(self, BatchMemory memory, shape):
        """Queue the operations of one upload; torch's current stream stays what it is."""
        cdef Upload upload = Upload.__new__(Upload)
        consumer = torch.cuda.current_stream(self.device)
        upload.stream, upload.pid, upload.on_host = consumer, os.getpid(), {}
        upload.has_arrived = torch.cuda.Event()
        try:
            torch.cuda.set_stream(self.stream)
            upload.widening = self.widening_for(shape)
        finally:
            restore(consumer)
        upload.block = torch.empty(
            upload.widening.num_words, dtype=torch.int64, device=self.device
        )
        upload.has_arrived.record(consumer)
        try:
            torch.cuda.set_stream(self.stream)
            self.stream.wait_event(upload.has_arrived)
            upload.is_pending = True
            upload.widening.upload(pinned(memory), upload.block)
            self.num_bytes += upload.widening.num_bytes
        finally:
            try:
                upload.has_arrived.record(self.stream)
            finally:
                restore(consumer)
        return upload

    cdef object widening_for(self, shape):
        """Return the widening of batches of a shape; the least recently made one makes room."""
        widening = self.widenings.get(shape)
        if widening is None:
            while len(self.widenings) >= MAX_SHAPES:
                self.widenings.pop(next(iter(self.widenings)))
            widening = DeviceWidening(self.layout, shape, self.compact)
            self.widenings[shape] = widening
        return widening

    def hand_out(self, Upload upload):
        """Return the batch of an upload; the current stream waits for it, the host does not."""
        consumer = torch.cuda.current_stream(self.device)
        upload.has_arrived.wait(consumer)
        block = upload.block
        if consumer == upload.stream:
            upload.is_pending = False
        else:  # the memory would be reused in the order of the other stream
            block = block.clone()
            upload.has_arrived.record(consumer)
        if self.static_addresses and upload.widening.is_full_size:
            block = self.in_place(block)
        return upload.widening.views(block, upload.num_boundaries) | upload.on_host

    cdef object in_place(self, block):
        """Return the static block with the content of this one."""
        if self.static_block is None:
            size = max_words(self.layout)
            self.static_block = torch.empty(size, dtype=torch.int64, device=self.device)
        self.static_block[: block.numel()].copy_(block)
        return self.static_block


cdef int restore(stream) except -1:
    """Make a stream the current one, even if a signal handler raises meanwhile."""
    try:
        torch.cuda.set_stream(stream)
    except BaseException:
        torch.cuda.set_stream(stream)
        raise
    return 0


cdef object pinned(BatchMemory memory):
    """Return the memory of a batch as page-locked bytes, copied if it is not."""
    if memory.tensor is not None:
        return memory.tensor
    return torch.frombuffer(memory, dtype=torch.uint8).pin_memory()
