"""Merging: the bytes of a piece into tokens, by the merges of a vocabulary.

    pair        two neighbouring tokens
    merge       a pair that becomes one token
    merge rank  the order of merges: the lowest rank in a piece is merged first
    tables      a vocabulary as hash tables, for kernels

`merge_tables.pyx` holds the tables, and finds the merges of a vocabulary that has only ranks;
`piece_merging.pyx` merges a piece by them. The fast engine merges the pieces that its caches do not
hold.
"""
