"""Metadata: the bytes attached to spans of records, found for a whole batch at once.

    metadata_id   a record's own number of the metadata it belongs to, local to its shard
    span          a run of columns of one row whose records have the same metadata
    local id      the number of a span within its row, from 0; -1 for records without metadata
    group         spans whose bytes lie end to end: one read of the index, one of the bytes

`kernels` goes from the ids that were read to spans and groups, outside the GIL; `spans` reads the
bytes and hands them to the user's decoder.
"""
