"""Splitting (pre-tokenization): texts into pieces, which merges never cross.

    pattern          the regular expression by which a published tokenizer splits
    piece            a match of the pattern: the unit that is merged into tokens
    character class  what a pattern tests of a character: letter, number, space, upper, lower
    pattern code     a known pattern as one number, for kernels

`patterns.py` knows the patterns in use, by name and by regular expression. `pieces.pyx` splits by
them without a regular expression, with the classes of `character_classes.py`. Tokenizers and
training build on this package.
"""
