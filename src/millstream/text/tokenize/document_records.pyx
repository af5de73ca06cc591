"""Records of chosen documents, end to end, each between its marks, for the writer."""

from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memcpy

from millstream.text.marks cimport MarksParams, num_marks

cdef extern from "copies.h" nogil:
    void narrow "millstream_u32_to_u16"(const uint32_t *source, uint16_t *target, int64_t count)

ctypedef fused Record:
    uint16_t
    uint32_t

cdef struct EncodedDocuments:
    const uint32_t *ids
    const int64_t *offsets  # document k has the ids [offsets[k], offsets[k + 1])
    const int64_t *chosen
    Py_ssize_t num_chosen


def fill_records_u16(
    const uint32_t[::1] ids,
    const int64_t[::1] offsets,
    const int64_t[::1] chosen,
    int64_t bos_id,
    int64_t eos_id,
    uint16_t[::1] out,
):
    """Fill `out` with the chosen documents, each between its marks; -1 stands for no mark.

    Ids must be less than 2^16.
    """
    cdef EncodedDocuments documents = checked(ids, offsets, chosen)
    cdef MarksParams marks = MarksParams(bos_id, eos_id)
    check_size(&documents, &marks, out.shape[0])
    if out.shape[0]:
        with nogil:
            copy_documents(&documents, &marks, &out[0])


def fill_records_u32(
    const uint32_t[::1] ids,
    const int64_t[::1] offsets,
    const int64_t[::1] chosen,
    int64_t bos_id,
    int64_t eos_id,
    uint32_t[::1] out,
):
    """Like `fill_records_u16`, for any ids."""
    cdef EncodedDocuments documents = checked(ids, offsets, chosen)
    cdef MarksParams marks = MarksParams(bos_id, eos_id)
    check_size(&documents, &marks, out.shape[0])
    if out.shape[0]:
        with nogil:
            copy_documents(&documents, &marks, &out[0])


cdef EncodedDocuments checked(
    const uint32_t[::1] ids, const int64_t[::1] offsets, const int64_t[::1] chosen
):
    """Refuse documents that do not exist, or that lie outside the ids."""
    cdef EncodedDocuments documents = EncodedDocuments(NULL, NULL, NULL, chosen.shape[0])
    cdef Py_ssize_t k
    cdef int64_t document
    for k in range(chosen.shape[0]):
        document = chosen[k]
        if not 0 <= document < offsets.shape[0] - 1:
            raise ValueError(f"no document {document} among {offsets.shape[0] - 1}")
        if not 0 <= offsets[document] <= offsets[document + 1] <= ids.shape[0]:
            raise ValueError(f"document {document} is not inside the {ids.shape[0]} ids")
    if chosen.shape[0]:
        documents.offsets, documents.chosen = &offsets[0], &chosen[0]
    if ids.shape[0]:
        documents.ids = &ids[0]
    return documents


cdef int check_size(
    const EncodedDocuments *documents, const MarksParams *marks, Py_ssize_t num_records
) except -1:
    """Refuse records that the documents would not fill exactly."""
    cdef int64_t total = documents.num_chosen * num_marks(marks)
    cdef Py_ssize_t k
    for k in range(documents.num_chosen):
        total += length(documents, documents.chosen[k])
    if total != num_records:
        raise ValueError(f"the chosen documents have {total} records, not {num_records}")
    return 0


cdef inline int64_t length(const EncodedDocuments *documents, int64_t document) noexcept nogil:
    """The number of ids of a document."""
    return documents.offsets[document + 1] - documents.offsets[document]


cdef void copy_documents(
    const EncodedDocuments *documents, const MarksParams *marks, Record *out
) noexcept nogil:
    """Fill `out`, which has exactly the size of these documents and their marks."""
    cdef Py_ssize_t k
    cdef int64_t size
    for k in range(documents.num_chosen):
        if marks.bos_id >= 0:
            out[0] = <Record>marks.bos_id
            out += 1
        size = length(documents, documents.chosen[k])
        if size:
            copy_ids(documents.ids + documents.offsets[documents.chosen[k]], out, size)
        out += size
        if marks.eos_id >= 0:
            out[0] = <Record>marks.eos_id
            out += 1


cdef inline void copy_ids(const uint32_t *ids, Record *out, int64_t count) noexcept nogil:
    """Copy ids that fit the records."""
    if Record is uint16_t:
        narrow(ids, out, count)
    else:
        memcpy(out, ids, count * sizeof(uint32_t))
