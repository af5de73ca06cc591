"""Merging: from the bytes of a piece to tokens, by the tables of a vocabulary.

What the fast engine does with a piece that it has not seen, and how the merges of a vocabulary are
found where its file has only ranks.
"""
