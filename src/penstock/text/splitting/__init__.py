"""Splitting texts into the pieces that a tokenizer's merges never cross.

A pattern is a regular expression that published tokenizers split by. Those in use are known by
name and by their spelling (`patterns.py`); compiled code (`pieces.pyx`) does the same without a
regular expression, by the classes of characters (`unicode.py`). Tokenizers and the training of them
stand on this.
"""
