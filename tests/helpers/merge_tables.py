"""Tables of merges, and what they make of a piece."""

import numpy as np

from millstream.text.merging.merge_tables import MergeTables

BYTES = [bytes([byte]) for byte in range(256)]


def tables_of(tokens, merges=None):
    """Tables of a vocabulary whose ids are ranks, unless it has merges."""
    made = range(len(tokens)) if merges is None else [new for _, _, new in merges]
    tables = MergeTables(
        np.arange(256, dtype=np.uint32),
        np.array(made, np.uint32),
        np.frombuffer(b"".join(tokens), np.uint8),
        np.cumsum([0, *map(len, tokens)], dtype=np.int64),
        len(tokens) if merges is None else len(merges),
    )
    if merges is not None:
        tables.add_pairs(np.array(merges, np.int64).reshape(-1, 3), np.arange(len(merges)))
    return tables


def merged(tables, piece):
    return tables.merge(np.frombuffer(piece, np.uint8)).tolist()
