"""Views: how a stream of records becomes a finite sequence of samples.

    sample    one row of a batch, chosen by its number
    segment   a run of records, and the row and column where it starts
    piece     a segment of a planned row: a part of one document, or all of it

A view describes which segments make up each sample, by parameters that kernels take; it opens no
files. `Windows` cuts the stream into rows of equal length without regard to documents. `Documents`
and `Packed` have rows that are planned from the lengths of documents (`planned`), one document a
row or several. `Excerpts` are runs of records, one a row. `view` has what they share, `loss_mask`
the rule which field masks labels; `penstock.batches` reads the samples.
"""
