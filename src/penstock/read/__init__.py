"""Readers: segments to filled arrays.

    segment   (row, column, start, length): a run of records and where in the batch it goes
    layout    where in the memory of a batch each field of the records goes, and as what type
    fault     what a kernel leaves behind when it could not read

A reader knows nothing of samples. `local` reads files; everything it does to a batch happens in
one call outside the GIL, in `kernels`.
"""
