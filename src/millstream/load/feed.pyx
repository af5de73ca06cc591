"""The feed: batches cross to a CUDA device ahead of the consumer, on a stream of their own.

Everything happens in the consumer's thread, inside `next`: CUDA calls from other threads would
break a user's graph capture. A batch is uploaded as soon as it has been read, up to `AHEAD` steps
before its turn, and the host never waits for the device:

    consumer's stream   allocate memory, record a                    wait for b, step k
    feed's stream                  wait for a, copy, widen, record b

- A batch lies in a block on the device: memory of the consumer's stream, which returns to it. The
  feed writes to it after event a, when all earlier uses of this memory have ended; the consumer
  reads it after event b. Small blocks are allocated several at a time, as a `Slab`.
- Page-locked memory is kept until event b has passed.
- What the feed keeps on the device is used by its own stream alone, in order.
"""

import threading
from collections import deque

import numpy as np
import torch

from millstream.batches.outputs import SEGMENT_TABLE as _SEGMENT_TABLE
from millstream.load.widening import CompactShape, DeviceWidening, Recorder, max_words, torch_dtype

cimport cython
from libc.stdint cimport int64_t, uintptr_t
from posix.unistd cimport getpid

from millstream.batches.layout_table cimport table_length
from millstream.load.batch_memory cimport BatchMemory
from millstream.system.cuda_driver cimport (
    DriverContext,
    DriverEvent,
    Handle,
    driver,
    is_capturing,
    raise_error,
)

AHEAD = 2  # the copy of the next batch overlaps a whole step, even if the consumer synchronizes
cdef enum:
    MAX_SHAPES = 32
    SLAB_BLOCKS = 8
    SLAB_BYTES = 1 << 23  # a batch that is held keeps its slab: this much, or one large batch

cdef list orphans = []  # what deallocated feeds left in flight


cdef class Slab:
    """Memory for several batches of one shape, of the stream that was current when it was made."""

    cdef object words
    cdef dict typed  # the same memory, as numbers of other types
    cdef uintptr_t address
    cdef Handle stream
    cdef int num_blocks, num_used


cdef class Upload


cdef class DeviceShape:
    """How batches of one shape are made on the device: a `DeviceWidening`, with its addresses."""

    cdef object widening
    cdef list outputs
    cdef Slab slab
    cdef int64_t num_words  # of a block
    cdef int64_t first_byte, num_bytes  # of the compact batch
    cdef uintptr_t made  # the block that the recorded graph writes to
    cdef Handle graph  # NULL if it is not recorded, or torch does not expose it

    def __cinit__(self, widening):
        self.widening, self.num_words = widening, widening.num_words
        self.first_byte, self.num_bytes = widening.first_byte, widening.num_bytes
        self.outputs = [
            (name, out.dtype, out.size, out.stride, out.offset, 8 // out.dtype.itemsize)
            for name, out in widening.outputs.items()
        ]

    cdef Slab slab_with_room(self, device):
        """Return a slab whose next block is free, for the current stream."""
        cdef Slab slab = self.slab
        cdef Handle stream = current_stream(device)
        if slab is None or slab.num_used == slab.num_blocks or slab.stream != stream:
            most = SLAB_BYTES // (8 * max(1, self.num_words))
            slab = self.slab = new_slab(self.num_words, max(1, min(most, SLAB_BLOCKS)), device)
            slab.stream = stream
        return slab

    cdef int note_recording(self) except -1:
        """Take over the graph, once it is recorded."""
        if not self.graph and self.widening.graph is not None:
            self.made = self.widening.made.data_ptr()
            self.graph = <Handle><uintptr_t>self.widening.graph_handle
        return 0

    cdef dict views(self, Slab slab, int64_t block, Upload upload):
        """The outputs of an upload in a block, which may be a copy."""
        cdef dict views = {}
        cdef int64_t offset, per_word
        for name, dtype, size, stride, offset, per_word in self.outputs:
            typed = slab.typed.get(dtype)
            if typed is None:
                with torch.inference_mode(False):
                    typed = slab.typed[dtype] = slab.words.view(dtype)
            if name == "cu_seqlens":
                size = (upload.num_boundaries,)
            elif name == "row_cu_seqlens":
                size = (upload.num_row_boundaries,)
            offset += block * self.num_words * per_word
            views[name] = typed.as_strided(size, stride, offset)
        return views


@cython.no_gc
cdef class Upload:
    """A batch on its way to the device, or there."""

    cdef DeviceShape shape
    cdef Slab slab
    cdef int64_t block  # its number in the slab
    cdef DriverEvent has_arrived
    cdef int64_t num_boundaries, num_row_boundaries
    cdef dict on_host
    cdef bint is_pending

    def __dealloc__(self):
        # The block may still be written to, or copied, when its memory is used again.
        if self.is_pending and self.has_arrived.context.pid == getpid():
            self.has_arrived.wait_in(self.slab.stream)


cdef Slab new_slab(int64_t num_words, int num_blocks, device):
    cdef Slab slab = Slab.__new__(Slab)
    with torch.inference_mode(False):  # the next batches may be for training
        slab.words = torch.empty(num_words * num_blocks, dtype=torch.int64, device=device)
    slab.typed, slab.address, slab.num_blocks = {}, slab.words.data_ptr(), num_blocks
    return slab


@cython.no_gc_clear  # dealloc needs what is in flight
cdef class CudaFeed:
    """Brings batches of `layout` to a CUDA device in their compact form, and widens them there.

    With `static_addresses`, all batches of full size are handed out in the same tensors.
    """

    cdef readonly int ahead
    cdef readonly int64_t num_bytes
    cdef object layout, device, torch_stream, recorder, compact, lock
    cdef DriverContext context
    cdef Handle stream
    cdef uintptr_t compact_address
    cdef Slab static_slab
    cdef dict shapes
    cdef object in_flight  # events, and the memory that is needed until they pass
    cdef list on_host
    cdef bint has_table, has_boundaries, has_row_boundaries, static_addresses
    cdef int64_t num_uploads

    def __cinit__(self, layout, device, *, bint static_addresses=False):
        compact = layout.compact()
        self.ahead = AHEAD
        self.layout, self.device, self.static_addresses = layout, device, static_addresses
        self.has_table = _SEGMENT_TABLE in compact.places()
        self.has_boundaries = "cu_seqlens" in layout.places()
        self.has_row_boundaries = "row_cu_seqlens" in layout.places()
        self.on_host = [
            (name, place)
            for name, place in compact.places().items()
            if name in layout.places() and torch_dtype(place.dtype) is None
        ]
        self.torch_stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self.torch_stream), torch.inference_mode(False):
            self.recorder = Recorder(layout, device)
            self.compact = torch.empty(compact.num_bytes, dtype=torch.uint8, device=device)
            self.context = DriverContext()
        self.stream = <Handle><uintptr_t>self.torch_stream.cuda_stream
        self.compact_address = self.compact.data_ptr()
        self.shapes, self.in_flight, self.lock = {}, deque(), threading.RLock()

    def __dealloc__(self):
        if self.in_flight:
            orphans.append(self.in_flight)

    def check_process(self):
        """Raise in a process that cannot use the device."""
        if self.context.pid != getpid():
            raise RuntimeError(
                "a forked process cannot use CUDA: start it by spawn, or make its loader with "
                "device='cpu'"
            )

    def upload(self, BatchMemory memory, int64_t rows):
        """Queue the copy of a batch to the device, and what makes its outputs there."""
        cdef int64_t number
        cdef Upload upload
        cdef DeviceShape shape
        with self.lock:
            shape = self.shape_of(memory, rows)
            while True:
                self.num_uploads += 1
                number = self.num_uploads
                upload = self.queue(memory, shape)
                if number == self.num_uploads:  # no signal handler used the loader meanwhile
                    break
        upload.num_boundaries = memory.counts().num_boundaries
        upload.num_row_boundaries, upload.on_host = memory.counts().num_row_boundaries, {}
        if self.has_boundaries:
            upload.on_host["max_seqlen"] = memory.counts().max_seqlen
        if self.has_row_boundaries:
            upload.on_host["row_max_seqlen"] = memory.counts().row_max_seqlen
        for name, place in self.on_host:
            content = np.frombuffer(memory, np.uint8)
            upload.on_host[name] = place.of(content, rows, self.layout.counts(content)).copy()
        return upload

    cdef DeviceShape shape_of(self, BatchMemory memory, int64_t rows):
        """Return how to make a batch; beyond `MAX_SHAPES`, the least recently used is forgotten."""
        cdef int64_t num_segments = 0
        if self.has_table:
            num_segments = table_length(memory.counts().num_boundaries - 1)
        key = (rows, memory.counts().width, num_segments)
        shape = self.shapes.pop(key, None)
        if shape is None:
            while len(self.shapes) >= MAX_SHAPES:
                self.shapes.pop(next(iter(self.shapes)))
            with torch.cuda.stream(self.torch_stream), torch.inference_mode(False):
                widening = DeviceWidening(
                    self.layout, CompactShape(*key), self.compact, self.recorder
                )
            shape = DeviceShape(widening)
        self.shapes[key] = shape
        return shape

    cdef Upload queue(self, BatchMemory memory, DeviceShape shape):
        """Queue the operations of one upload."""
        cdef Upload upload = Upload.__new__(Upload)
        cdef Slab slab = shape.slab_with_room(self.device)
        pinned = page_locked(memory, shape)
        source = pinned.data_ptr()
        if memory.tensor is None and shape.num_bytes:
            source -= shape.first_byte
        if is_capturing(slab.stream):
            raise RuntimeError(
                "a batch cannot be loaded while the current stream is being captured into a graph: "
                "call next() before the capture"
            )
        upload.shape, upload.slab, upload.block = shape, slab, slab.num_used
        upload.has_arrived = DriverEvent(self.context)
        self.forget_copied()
        try:
            raise_error(self.begin(upload, shape, source))
            self.in_flight.append((upload.has_arrived, memory, pinned))
            if not shape.graph:
                self.make(upload)
        except BaseException:
            shape.slab = None  # its later blocks may lack what its first one waited for
            upload.has_arrived.record(self.stream)
            raise
        raise_error(upload.has_arrived.record(self.stream))
        self.num_bytes += shape.num_bytes
        return upload

    cdef int make(self, Upload upload) except -1:
        """Make the outputs of a batch by torch's operations."""
        cdef DeviceShape shape = upload.shape
        consumer = torch.cuda.current_stream(self.device)
        first = upload.block * shape.num_words
        with torch.cuda.stream(self.torch_stream), torch.inference_mode(False):
            block = upload.slab.words[first : first + shape.num_words]
            shape.widening.make_for(consumer, block)
        shape.note_recording()
        return 0

    cdef int begin(self, Upload upload, DeviceShape shape, uintptr_t source) noexcept:
        """Queue the copy, and the recorded graph if there is one; returns an error, or 0."""
        cdef Slab slab = upload.slab
        cdef Handle event = upload.has_arrived.handle, popped
        cdef Handle block = <Handle>(slab.address + 8 * upload.block * shape.num_words)
        cdef int error = driver.push_context(self.context.handle)
        if error:
            return error
        if slab.num_used == 0:  # all its memory is free by the same time
            error = driver.record_event(event, slab.stream)
            if not error:
                error = driver.wait_event(self.stream, event, 0)
        slab.num_used += 1
        upload.is_pending = True
        if not error and shape.num_bytes:
            error = driver.copy(
                <Handle>(self.compact_address + shape.first_byte),
                <Handle>(source + shape.first_byte),
                shape.num_bytes,
                self.stream,
            )
        if not error and shape.graph:
            error = driver.launch_graph(shape.graph, self.stream)
            if not error:
                error = driver.copy(block, <Handle>shape.made, 8 * shape.num_words, self.stream)
        driver.pop_context(&popped)
        return error

    cdef int forget_copied(self) except -1:
        """Let go of page-locked memory whose copies have ended."""
        while orphans:
            self.in_flight.extend(orphans.pop())
        while self.in_flight and (<DriverEvent>self.in_flight[0][0]).has_passed():
            self.in_flight.popleft()
        return 0

    def hand_out(self, Upload upload):
        """Return the batch of an upload; the current stream waits for it, the host does not."""
        cdef Handle consumer = current_stream(self.device)
        cdef DeviceShape shape = upload.shape
        cdef Slab slab
        cdef int64_t block
        raise_error(upload.has_arrived.wait_in(consumer))
        slab, block = upload.slab, upload.block
        if consumer == slab.stream:
            upload.is_pending = False
        else:  # the memory would be reused in the order of the other stream
            copied = new_slab(shape.num_words, 1, self.device)
            copy_block(slab, block, shape, copied)
            slab, block = copied, 0
            upload.is_pending = True  # until this copy has ended
            raise_error(upload.has_arrived.record(consumer))
        if self.static_addresses and shape.widening.is_full_size:
            if self.static_slab is None:
                self.static_slab = new_slab(max_words(self.layout), 1, self.device)
            copy_block(slab, block, shape, self.static_slab)
            slab, block = self.static_slab, 0
        return shape.views(slab, block, upload) | upload.on_host


cdef int copy_block(Slab slab, int64_t block, DeviceShape shape, Slab target) except -1:
    """Copy a block to the first block of another slab, on the current stream."""
    cdef int64_t first = block * shape.num_words
    source = slab.words[first : first + shape.num_words]
    target.words[: shape.num_words].copy_(source)
    return 0


cdef object raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


cdef Handle current_stream(device) except? NULL:
    """Return torch's current stream of a device; NULL is the default stream."""
    if raw_stream is not None:  # 5 us faster than the public way
        return <Handle><uintptr_t>raw_stream(device.index)
    return <Handle><uintptr_t>torch.cuda.current_stream(device).cuda_stream


cdef object page_locked(BatchMemory memory, DeviceShape shape):
    """Return the memory of a batch if it is page-locked, else a copy of the compact batch."""
    if memory.tensor is not None:
        return memory.tensor
    content = torch.frombuffer(memory, dtype=torch.uint8)
    return content[shape.first_byte : shape.first_byte + shape.num_bytes].pin_memory()
