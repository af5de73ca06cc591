"""Metadata: bytes attached to spans of records, read for a whole batch at once.

    metadata_id   the number of a record's metadata in its shard, stored as a field
    span          a run of columns of a row whose records have the same metadata
    local id      the number of a span within its row, from 0; -1 for records without metadata
    group         spans with consecutive ids: one read of the index, one of the bytes

`groups` turns the ids of a batch into spans and groups, outside the GIL; `spans` reads the bytes
and passes them to the user's decoder.
"""
