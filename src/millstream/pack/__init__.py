"""Packing: plans rows from the lengths of documents, once, before anything is read.

    piece       a run of records of one document: `(start, length, document)`
    row         pieces side by side; one sample of a view
    policy      how rows are made, and what happens to documents that do not fit
    group       consecutive documents that belong together in a row (`grouped`, `group_rows`)
    selection   the documents that rows are made of, if some are left out
    recipe      a policy with its parameters: all that decides the rows, besides the lengths

A policy looks only at lengths: at all of them together (`best_fit`), at one document after the
other through a buffer of waiting ones (`bos_best_fit`, `waiting_buffer`), or at each on its own
(`document_rows`). `window_rows` cuts rows without regard to documents. The rows are stored beside
the dataset (`rows_file`) and mapped into memory from then on, so a row is a sample like any other:
shuffled, shared among ranks, resumed by its number. `survey` reports what each policy would do,
without storing rows.
"""
