"""Reading: from the records of shards to filled arrays.

    record stream   the records of all shards, end to end, as one array (`RecordStream`)
    item            an element of one kind of file: a record, an offset, a byte of metadata
    segment         (row, column, start, length): a run of records, and where in the arrays it goes
    output          an array that shows one field of the records, as some type
    fault           what a kernel leaves when it cannot read; `LocalReader.error` makes it an error

A reader knows fields and arrays, not samples or labels. `local_reader` opens files, `files` and
`segments` read them outside the GIL, `numbers` converts integers. `documents` finds where documents
start, `eos_scan` cuts files that do not say it, and `sequential` reads a whole stream once.
"""
