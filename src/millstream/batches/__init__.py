"""Batches: from the samples of a view to the memory of a batch.

    output         one array of a batch: a field of the records, or derived from the segments
    extra          a derived output that the user asks for, such as `position_ids`
    label          the token that follows an input; -100 where there is none to learn
    layout         where the outputs are in the memory of a batch
    counts         what kernels say about a batch, in a header of that memory
    slice          the part of every row that a context-parallel rank gets: one or two chunks

For each row, `batch_filling` has `row_segments` list the segments of its sample (`document_search`
cuts windows where documents end), `millstream.read` read them, and `labels_and_positions` derive
the rest: all in one call outside the GIL. `batch_width` is that of the longest row. `outputs` says
what each output is, and `layout` where it goes; `view_state` and `layout_table` have the view and
the layout as kernels take them. `SampleReader` holds the files of one thread, and `BatchReader`
what kernels need of them; the sources of a mixture each have one, and share memory.

Rows of objects have no columns: `batch_filling` lists their documents in an `ObjectTable`, and then
reads them into an `ObjectMemory` of the size that they need. `object_decoding` passes them to the
user's functions.

`row_slice` says which chunks a slice has, and `row_chunks` clips a row's segments to a chunk, which
is then filled as a row of its own. `batch_transform` calls the user's function of a finished batch.
"""
