"""Packing: from the lengths of documents to rows, once, before anything is read.

    piece    a run of records of one document: `(start, length, document)`
    row      pieces side by side; one sample of a view
    policy   how rows are made, and what happens to documents that do not fit

A policy looks at lengths alone: all at once (`best_fit`), one document after the other through a
buffer of those that wait (`bos_best_fit`, `buffer`), or one document a row (`document_rows`). Its
rows are stored beside the dataset (`rows`) and mapped into memory from then on, so a row is a
sample like any other: shuffled, shared among ranks and resumed by its number.
"""
