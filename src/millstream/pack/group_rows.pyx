"""Groups of consecutive documents as the units that rows are planned from, outside the GIL.

Planning sees one length for each group. Once a group has a row, each of its documents becomes a
piece of that row.
"""

from libc.stdint cimport int64_t, uint8_t

from millstream.pack.document_run cimport DocumentRun, Pieces, documents_in, length_of, pieces_in
from millstream.pack.piece cimport Piece

# How groups fit into rows of `width` inputs.
cdef struct GroupRule:
    int64_t group_size  # documents in a group
    int64_t width
    bint truncates  # documents of a group that does not fit are cut; else the group is dropped

cdef struct GroupCounts:
    int64_t num_records
    int64_t num_pieces
    int64_t num_empty
    int64_t num_cut
    int64_t num_cut_off  # records
    int64_t num_dropped
    int64_t num_dropped_records


cdef class GroupRows:
    """Measures groups, and lists their documents as pieces of rows.

    A group that is longer than a row is dropped. With `truncates` each of its documents is cut to
    an equal share of the row instead, if it is longer than that.
    """

    cdef GroupRule rule
    cdef GroupCounts counts

    def __cinit__(self, int64_t group_size, int64_t width, bint truncates):
        if not 1 <= group_size <= width:
            raise ValueError("a row has room for at least one record of each document of a group")
        self.rule = GroupRule(group_size, width, truncates)

    @property
    def num_records(self):
        """Records of the documents that were counted."""
        return self.counts.num_records

    @property
    def num_pieces(self):
        """Documents that are in rows."""
        return self.counts.num_pieces

    @property
    def num_empty(self):
        """Documents without records."""
        return self.counts.num_empty

    @property
    def num_cut(self):
        """Documents that were cut."""
        return self.counts.num_cut

    @property
    def num_cut_off(self):
        """Records that were cut off."""
        return self.counts.num_cut_off

    @property
    def num_dropped(self):
        """Documents, not counting empty ones, whose groups were dropped."""
        return self.counts.num_dropped

    @property
    def num_dropped_records(self):
        """Records of those documents."""
        return self.counts.num_dropped_records

    def count(
        self,
        const int64_t[::1] offsets,
        int64_t[::1] histogram,
        const uint8_t[::1] left_out=b"",
    ):
        """Count what becomes of whole groups, and the groups of each length in a row."""
        cdef DocumentRun documents = self.groups_in(offsets, 0, left_out)
        cdef int64_t size = self.rule.group_size, group, length
        if histogram.shape[0] != self.rule.width + 1:
            raise ValueError("expected a histogram of lengths from 0 to the width of rows")
        with nogil:
            for group in range(documents.count // size):
                length = count_group(&self.rule, &documents, group * size, &self.counts)
                if length > 0:
                    histogram[length] += 1

    def measure(
        self,
        const int64_t[::1] offsets,
        int64_t[::1] lengths,
        const uint8_t[::1] left_out=b"",
    ):
        """Fill in the inputs that each group has in a row; 0 if it gets none."""
        cdef DocumentRun documents = self.groups_in(offsets, 0, left_out)
        cdef GroupCounts unused = self.counts
        cdef int64_t group, size = self.rule.group_size
        self.check_groups(lengths, &documents)
        with nogil:
            for group in range(lengths.shape[0]):
                lengths[group] = count_group(&self.rule, &documents, group * size, &unused)

    def count_pieces(
        self,
        const int64_t[::1] offsets,
        const int64_t[::1] rows,
        int64_t[::1] row_first,
        const uint8_t[::1] left_out=b"",
    ):
        """Add the pieces of groups to `row_first[row + 1]`; False if a row does not exist.

        `rows` has the row of each group, -1 for none.
        """
        cdef DocumentRun documents = self.groups_in(offsets, 0, left_out)
        cdef int64_t group, k, row, size = self.rule.group_size, num_rows = row_first.shape[0] - 1
        cdef bint fits = True
        self.check_groups(rows, &documents)
        with nogil:
            for group in range(rows.shape[0]):
                row = rows[group]
                if row >= num_rows:
                    fits = False
                    break
                for k in range(group * size, (group + 1) * size if row >= 0 else 0):
                    row_first[row + 1] += length_of(&documents, k) > 0
        return fits

    def place(
        self,
        const int64_t[::1] offsets,
        int64_t first_document,
        const int64_t[::1] rows,
        int64_t[::1] row_first,
        int64_t[:, ::1] pieces,
        const uint8_t[::1] left_out=b"",
    ):
        """List the documents of groups as the next pieces of their rows; False if one has no room.

        `row_first[row + 1]` is where the next piece of a row goes; see `number_rows`. `offsets`
        count from the start of the stream.
        """
        cdef DocumentRun documents = self.groups_in(offsets, first_document, left_out)
        cdef Pieces table = pieces_in(pieces)
        cdef bint fits
        self.check_groups(rows, &documents)
        if rows.shape[0] == 0 or row_first.shape[0] == 0:
            return rows.shape[0] == 0
        with nogil:
            fits = place_groups(
                &self.rule, &documents, &rows[0], &row_first[0], row_first.shape[0] - 1, table
            )
        return fits

    cdef DocumentRun groups_in(
        self,
        const int64_t[::1] offsets,
        int64_t first_document,
        const uint8_t[::1] left_out,
    ) except *:
        cdef DocumentRun documents = documents_in(offsets, 0, first_document, left_out)
        if documents.count % self.rule.group_size:
            raise ValueError("expected whole groups")
        return documents

    cdef int check_groups(
        self, const int64_t[::1] of_groups, const DocumentRun *documents
    ) except -1:
        if of_groups.shape[0] != documents.count // self.rule.group_size:
            raise ValueError("expected as many numbers as there are groups")
        return 0


def number_rows(int64_t[::1] row_first):
    """Turn counts of pieces in `row_first[row + 1]` into the first piece of each row there.

    `GroupRows.place` moves each on to the first piece of the next row, where it belongs. Returns
    the most pieces in a row.
    """
    cdef int64_t row, count, total = 0, most = 0
    with nogil:
        for row in range(row_first.shape[0] - 1):
            count = row_first[row + 1]
            row_first[row + 1] = total
            total += count
            most = max(most, count)
    return most


cdef inline int64_t longest_piece(
    const GroupRule *rule, const DocumentRun *documents, int64_t first
) noexcept nogil:
    """The most records that a document of the group from `first` on has in a row; 0: none."""
    cdef int64_t total = 0, k
    for k in range(first, first + rule.group_size):
        total += length_of(documents, k)
    if total <= rule.width:
        return rule.width
    return rule.width // rule.group_size if rule.truncates else 0


cdef int64_t count_group(
    const GroupRule *rule, const DocumentRun *documents, int64_t first, GroupCounts *counts
) noexcept nogil:
    """Count the documents of a group; returns its length in a row."""
    cdef int64_t limit = longest_piece(rule, documents, first), shown = 0, length, k
    for k in range(first, first + rule.group_size):
        length = length_of(documents, k)
        counts.num_records += length
        if length <= 0:
            counts.num_empty += not (documents.left_out and documents.left_out[k])
        elif limit == 0:
            counts.num_dropped += 1
            counts.num_dropped_records += length
        else:
            counts.num_pieces += 1
            counts.num_cut += length > limit
            counts.num_cut_off += max(length - limit, 0)
            shown += min(length, limit)
    return shown


cdef bint place_groups(
    const GroupRule *rule,
    const DocumentRun *documents,
    const int64_t *rows,
    int64_t *row_first,
    int64_t num_rows,
    Pieces pieces,
) noexcept nogil:
    """List the documents of groups as the next pieces of their rows; False: no room."""
    cdef int64_t size = rule.group_size, group, row, limit, length, place, k
    for group in range(documents.count // size):
        row = rows[group]
        if row < 0:
            continue
        if row >= num_rows:
            return False
        limit = longest_piece(rule, documents, group * size)
        place = row_first[row + 1]
        for k in range(group * size, (group + 1) * size):
            length = min(length_of(documents, k), limit)
            if length <= 0:
                continue
            if not 0 <= place < pieces.count:
                return False
            pieces.items[place] = Piece(
                documents.offsets[k], length, documents.first_document + k
            )
            place += 1
        row_first[row + 1] = place
    return True
