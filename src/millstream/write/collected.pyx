"""Documents that were appended one by one, collected to be written many at a time.

To write a document took 30 us or more, whatever its length; to collect one of 600 tokens takes 0.3
from an array and 3 from a list.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

from millstream.formats.shard import TOKEN as _TOKEN
from millstream.read.numbers cimport store_integer
from millstream.write.record_checks import integer_range

cdef type ndarray = np.ndarray
cdef type memmap = np.memmap

# What users have: ids of 64 bits are signed, of fewer bits most often not.
ctypedef fused Given:
    uint8_t
    uint16_t
    uint32_t
    int32_t
    int64_t

ctypedef fused Stored:
    uint8_t
    uint16_t
    uint32_t
    uint64_t

cdef struct IntegerRun:
    const char *first  # integers side by side
    int64_t count

# Where integers go, and which of them may.
cdef struct IntegerTarget:
    char *first
    int64_t size  # bytes of each: 1, 2, 4 or 8
    int64_t lowest
    int64_t highest


cdef class Collected:
    """Documents of bare integers, end to end, that belong into the shard that is open.

    A document is taken whole, or left to the caller with nothing changed: because it is not a list
    of ints or an array of a usual integer type, a number of it is out of range, there is no room
    for it, or the shard is full. `add` holds the GIL and calls no Python code, so that threads may
    share an object.
    """

    cdef IntegerTarget target  # its `first` is that of all the documents
    cdef object records
    cdef object lengths
    cdef uint8_t[::1] bytes_of_records  # memory of `records`
    cdef int64_t[::1] each_length  # memory of `lengths`
    cdef int64_t max_records
    cdef int64_t num_waiting  # documents
    cdef int64_t num_waiting_records
    cdef int64_t room  # records up to which the shard takes another document
    cdef readonly int64_t num_documents  # of all that were ever taken
    cdef readonly int64_t num_records

    def __cinit__(
        self,
        fields,
        vocab_size,
        *,
        int64_t max_bytes,
        int64_t max_documents,
        bint of_objects=False,
    ):
        """Collect records that are bare token ids, or the bytes of objects; no others."""
        if max_bytes < 8 or max_documents < 1:
            raise ValueError("there must be room for a document")
        is_bare = of_objects or fields.names == (_TOKEN,)
        self.records = np.empty(max_bytes // fields.itemsize if is_bare else 0, fields)
        self.lengths = np.empty(max_documents, np.int64)
        self.each_length = self.lengths
        if is_bare:
            lowest, limit = integer_range(fields[fields.names[0]], vocab_size)
            self.max_records = len(self.records)
            self.bytes_of_records = self.records.view(np.uint8)
            self.target = IntegerTarget(
                <char *>&self.bytes_of_records[0], fields.itemsize, lowest, min(limit, 1 << 63) - 1
            )

    def begin(self, int64_t room):
        """Take documents until they have `room` records; none if it is not positive."""
        self.room = room if self.max_records else 0

    def add(self, document):
        """Take a copy of a document; False if it is left to the caller."""
        cdef int64_t count
        if self.room <= 0 or self.num_waiting == self.each_length.shape[0]:
            return False
        if type(document) is list:
            count = self.add_list(document)
        elif type(document) is ndarray or type(document) is memmap:
            count = self.add_array(document)
        else:
            return False
        if count < 0:
            return False
        self.each_length[self.num_waiting] = count
        self.num_waiting += 1
        self.num_waiting_records += count
        self.room -= count
        self.num_documents += 1
        self.num_records += count
        return True

    def take(self):
        """Return the records and lengths of what was collected, and stop until `begin`.

        They are the object's own: valid until something is added.
        """
        cdef int64_t num_documents = self.num_waiting, num_records = self.num_waiting_records
        # First, since other threads may run while the arrays are made.
        self.num_waiting = self.num_waiting_records = self.room = 0
        return self.records[:num_records], self.lengths[:num_documents]

    cdef int64_t add_list(self, list numbers):
        """Copy the ints of a list behind the records; -1 if it is left to the caller."""
        cdef IntegerTarget target = self.end()
        cdef int64_t count = len(numbers)
        cdef int overflow = 0
        cdef long long value
        if count > self.space():
            return -1
        for number in numbers:
            if not PyLong_CheckExact(number):
                return -1
            value = PyLong_AsLongLongAndOverflow(number, &overflow)
            if overflow or not target.lowest <= value <= target.highest:
                return -1
            store_integer(target.first, target.size, value)
            target.first += target.size
        return count

    cdef int64_t add_array(self, array):
        """Copy the integers of an array behind the records; -1 if it is left to the caller."""
        cdef IntegerTarget target = self.end()
        cdef Py_buffer view
        cdef int64_t count
        try:
            PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_STRIDED_RO)
        except (ValueError, BufferError):  # of a type that no buffer has, such as dates
            return -1
        count = count_of_run(&view)
        if not 0 <= count <= self.space() or not copy_array(
            IntegerRun(<const char *>view.buf, count), view.format, &target
        ):
            count = -1
        PyBuffer_Release(&view)
        return count

    cdef inline IntegerTarget end(self) noexcept:
        """Where the next document goes."""
        cdef IntegerTarget target = self.target
        target.first += self.num_waiting_records * target.size
        return target

    cdef inline int64_t space(self) noexcept:
        """How many more records fit."""
        return self.max_records - self.num_waiting_records


cdef int64_t count_of_run(const Py_buffer *view) noexcept nogil:
    """How many items a buffer of one dimension has side by side; -1 for any other."""
    if view.ndim != 1 or (view.shape[0] > 1 and view.strides[0] != view.itemsize):
        return -1
    return view.shape[0]


cdef bint copy_array(IntegerRun run, const char *format, IntegerTarget *target) noexcept nogil:
    """Copy the items of a buffer; False if no loop is made for them, or one is out of range."""
    if format[0] == 0 or format[1] != 0:  # records, and numbers of the other byte order
        return False
    if format[0] == c"H":
        return copy_given(run, target, <uint16_t>0)
    if format[0] == c"I":
        return copy_given(run, target, <uint32_t>0)
    if format[0] == c"i":
        return copy_given(run, target, <int32_t>0)
    if format[0] == c"q" or (format[0] == c"l" and sizeof(long) == 8):
        return copy_given(run, target, <int64_t>0)
    if format[0] == c"B":
        return copy_given(run, target, <uint8_t>0)
    return False


cdef bint copy_given(IntegerRun run, IntegerTarget *target, Given type_) noexcept nogil:
    """Copy integers of one type."""
    if target.size == 2:
        return copy_run(run, target, type_, <uint16_t>0)
    if target.size == 4:
        return copy_run(run, target, type_, <uint32_t>0)
    if target.size == 8:
        return copy_run(run, target, type_, <uint64_t>0)
    return copy_run(run, target, type_, <uint8_t>0)


cdef inline bint copy_run(
    IntegerRun run, IntegerTarget *target, Given low, Stored stored
) noexcept nogil:
    """Copy integers of one type to another; False if one is out of range.

    Compilers vectorize the smallest and the largest, but not a comparison of each with two bounds.
    """
    cdef const char *first = run.first
    cdef char *out = target.first
    cdef Given high, value
    cdef int64_t i
    if run.count == 0:
        return True
    memcpy(&low, first, sizeof(low))
    high = low
    for i in range(run.count):
        memcpy(&value, first + i * <int64_t>sizeof(value), sizeof(value))
        low = min(low, value)
        high = max(high, value)
        stored = <Stored>value
        memcpy(out + i * <int64_t>sizeof(stored), &stored, sizeof(stored))
    return target.lowest <= <int64_t>low and <int64_t>high <= target.highest
