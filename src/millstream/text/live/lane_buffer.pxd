"""A lane: documents that arrive, and those that wait to be packed. See `lane_buffer.pyx`."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from millstream.pack.waiting_buffer cimport Buffer
from millstream.text.live.token_arena cimport Arena, EncodedIds
from millstream.text.marks cimport MarksParams

cpdef enum LivePolicyCode:
    FLAT
    BEST_FIT
    BOS_BEST_FIT
    FULL_BEST_FIT

cpdef enum OverflowCode:
    SPLIT  # cut into full rows and a rest; BOS_BEST_FIT lets documents wait whole and crops them
    TRUNCATE  # to the length of a row
    DROP

cpdef enum LaneOutcome:
    DONE
    NEEDS_DOCUMENTS  # the lane must be fed
    NEEDS_TOKENS  # a restored document was chosen, and its tokens are missing
    LANE_ENDED
    NO_MEMORY

cpdef enum:
    ABSENT = -1  # the `start` of a document whose tokens are not in the arena

# How documents become rows.
cdef struct Rules:
    LivePolicyCode policy
    OverflowCode overflow  # what is done with documents longer than a row
    int64_t columns  # tokens that fill a row; with BOS_BEST_FIT, including the last label
    int64_t buffer_size
    int64_t refill  # documents that enter the buffer at a time; never across a block's end
    bint repeat_bos  # the pieces of a cut document start with the bos mark, too
    MarksParams marks

# Documents that enter the buffer next.
cdef struct Feed:
    bint has_ids  # otherwise only lengths are known
    const uint32_t *ids
    const uint8_t *trained  # for each id; NULL without loss masks
    const int64_t *offsets
    int64_t num_documents
    int64_t next_document
    int64_t first_token  # how many tokens of the next document are already in the buffer
    int64_t first_id  # of the first document
    int64_t first_number  # of the first document in its block
    bint is_end  # the lane ends after these documents

# The row being packed.
cdef struct OpenRow:
    int64_t columns  # filled so far
    int64_t num_segments
    bint lacks_label  # only the last label is missing
    int64_t document_end  # the token of its document at which the last segment ends

# What of the documents is in no row.
cdef struct LossCounts:
    int64_t cropped_tokens  # at the ends of documents
    int64_t dropped_documents
    int64_t dropped_tokens  # of those documents, with their marks

cdef struct Lane:
    Buffer buffer
    Arena arena
    Feed feed
    bint in_refill  # documents must enter the buffer before the next choice
    int64_t chosen  # the chosen slot, which may lack its tokens, or NO_SLOT
    OpenRow row
    LossCounts losses


cdef bint allocate_lane(
    Lane *lane, const Rules *rules, int64_t token_bytes, bint has_masks
) noexcept nogil
cdef void free_lane(Lane *lane) noexcept nogil
cdef int64_t max_waiting(const Rules *rules) noexcept nogil
cdef int64_t num_used(const Rules *rules, int64_t length) noexcept nogil
cdef int64_t num_repeated(const Rules *rules, int64_t first) noexcept nogil
cdef LaneOutcome fill_buffer(Lane *lane, const Rules *rules) noexcept nogil
cdef bint is_piece(
    const Lane *lane, const Rules *rules, int64_t slot, int64_t num_ids
) noexcept nogil
cdef bint bring(Lane *lane, const Rules *rules, int64_t slot, EncodedIds ids) noexcept nogil
