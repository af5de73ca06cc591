"""Views: how a dataset becomes a finite sequence of samples.

    sample    one row of a batch
    segment   where its records lie in the stream, and where in the row they go
    output    which columns of which field arrive in the batch, and under what name

A view knows nothing of files. There is one so far: `windows`, rows of equal length cut from the
stream without regard to documents.
"""
