"""Views: how a stream of records becomes a finite sequence of samples.

    sample    one row of a batch, chosen by its number
    segment   a run of records, and the row and column where it starts
    piece     a segment of a planned row: a part of one document, or all of it

A view describes which segments make up each sample, by parameters that kernels take; it opens no
files. `Windows` cuts the stream into rows of equal length without regard to documents. `Documents`
and `Packed` have rows that are planned from the lengths of documents (`planned`), one document a
row or several. `Objects` has documents that are not tokens, each a sample of its own. `view` has
what they share, `loss_mask` the rule which field masks labels; `millstream.batches` reads samples.

The samples of a view are all of its windows or rows, the base samples, or some of them
(`slices`, `chosen_samples`): a range, or sorted by numbers of their documents (`sample_numbers`).
The sorted order is a file in the user's cache (`stored_numbers`). Functions that judge documents
get their metadata (`document_metadata`), which is read in runs of records (`excerpts`).

Documents can be left out (`selected`), and rows are then planned from the others: by number, from a
file or by a function (`document_lists`), or for a split (`document_splits`).
"""
