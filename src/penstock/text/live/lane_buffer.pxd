"""A lane: documents that come in, and those that wait to be packed. See `lane.pyx`."""

from libc.stdint cimport int64_t, uint32_t

from penstock.pack.waiting_buffer cimport Buffer
from penstock.text.live.token_arena cimport Arena, EncodedIds
from penstock.text.marks cimport MarksParams

cpdef enum LivePolicyCode:
    FLAT
    BEST_FIT
    BOS_BEST_FIT
    FULL_BEST_FIT

cpdef enum LaneOutcome:
    DONE
    NEEDS_DOCUMENTS  # the lane is to be fed
    NEEDS_TOKENS  # of a document that was put back, and is chosen now
    LANE_ENDED
    NO_MEMORY

cpdef enum:
    ABSENT = -1  # the start of a document without tokens

# How documents become rows.
cdef struct Rules:
    LivePolicyCode policy
    int64_t columns  # tokens that fill a row; only of BOS_BEST_FIT that includes the last label
    int64_t buffer_size
    int64_t refill  # documents that come into the buffer at a time; never across a block's end
    MarksParams marks

# Documents that come into the buffer next.
cdef struct Feed:
    bint has_ids  # else only lengths are known
    const uint32_t *ids
    const int64_t *offsets
    int64_t num_documents
    int64_t next_document
    int64_t first_token  # how many tokens of the next document are in the buffer already
    int64_t first_id  # of the first document
    int64_t first_number  # of the first document in its block
    bint is_end  # whether the lane ends after them

# The row in the making.
cdef struct OpenRow:
    int64_t columns  # that are filled
    int64_t num_segments
    bint lacks_label  # whether it only lacks its last label

cdef struct Lane:
    Buffer buffer
    Arena arena
    Feed feed
    bint in_refill  # whether documents must come in before the next choice
    int64_t chosen  # a slot that was chosen and waits for its tokens, or NO_SLOT
    OpenRow row
    int64_t num_cropped


cdef bint allocate_lane(Lane *lane, const Rules *rules, int64_t token_bytes) noexcept nogil
cdef void free_lane(Lane *lane) noexcept nogil
cdef int64_t max_waiting(const Rules *rules) noexcept nogil
cdef LaneOutcome fill_buffer(Lane *lane, const Rules *rules) noexcept nogil
cdef bint is_piece(
    const Lane *lane, const Rules *rules, int64_t slot, int64_t num_ids
) noexcept nogil
cdef bint bring(Lane *lane, const Rules *rules, int64_t slot, EncodedIds ids) noexcept nogil
