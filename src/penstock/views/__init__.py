"""Views: how a dataset becomes a finite sequence of samples.

    sample    one row of a batch
    segment   where its records lie in the stream, and where in the row they go
    output    what arrives in the batch under one name: a field, or something derived

A view knows nothing of files. `windows` are rows of equal length cut from the stream without regard
to documents; `packed` has those that were planned from the lengths of documents, one document a row
or several. What they have in common is in `view`; `penstock.batches` reads their samples.
"""
