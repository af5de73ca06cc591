"""The merges of a vocabulary, and its lookup tables for kernels."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from millstream.text.merging.merge_tables import MergeTables
from millstream.text.tokenizers.vocabulary import NUM_BYTES, Vocabulary


def merge_tables(vocabulary: Vocabulary) -> MergeTables:
    """Return the lookup tables of a vocabulary."""
    tables, _ = _pair_tables(vocabulary)
    tables.index_bytes()
    # If every token's bytes merge to it, looking up whole pieces gives the same ids, faster.
    if vocabulary.whole_pieces or tables.makes_every_token():
        tables.take_whole_pieces()
    return tables


def merges_of(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Return the merges of a vocabulary; derived if it has only ranks."""
    if vocabulary.merges is not None:
        return vocabulary.merges
    return _pair_tables(vocabulary)[1]


def makes_every_token(vocabulary: Vocabulary) -> bool:
    """Return whether the bytes of every token merge to that token."""
    return _pair_tables(vocabulary)[0].makes_every_token()


def _pair_tables(vocabulary: Vocabulary) -> tuple[MergeTables, NDArray[np.int64]]:
    """Return the tables, without that of whole pieces, and the merges."""
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    if vocabulary.merges is not None:
        tables = _empty_tables(vocabulary, ids, len(vocabulary.merges))
        tables.add_pairs(vocabulary.merges, np.arange(len(vocabulary.merges)))
        return tables, vocabulary.merges
    tables = _empty_tables(vocabulary, ids, len(vocabulary.tokens))
    found = tables.find_pairs()
    if len(found) == sum(len(token) > 1 for token in vocabulary.tokens):
        return tables, found
    # The bytes of some tokens do not merge to them alone; next to others they may, by other pairs.
    found = _every_pair(vocabulary.tokens, ids)
    tables = _empty_tables(vocabulary, ids, len(found))
    tables.add_pairs(found, found[:, 2].copy())
    return tables, found


def _empty_tables(vocabulary: Vocabulary, ids: Mapping[bytes, int], max_pairs: int) -> MergeTables:
    lengths = [len(token) for token in vocabulary.tokens]
    return MergeTables(
        byte_ids=np.array([ids[bytes([byte])] for byte in range(NUM_BYTES)], np.uint32),
        made=_made(vocabulary),
        token_bytes=np.frombuffer(b"".join(vocabulary.tokens), np.uint8),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        max_pairs=max_pairs,
    )


def _every_pair(tokens: Sequence[bytes], ids: Mapping[bytes, int]) -> NDArray[np.int64]:
    """Return every pair of tokens that joins to a third, ordered by the id of the third."""
    sizes = {len(token) for token in ids}
    pairs = [
        (ids[token[:size]], ids[token[size:]], number)
        for number, token in enumerate(tokens)
        for size in sorted(sizes & {len(token) - other for other in sizes if other})
        if size > 0 and token[:size] in ids and token[size:] in ids
    ]
    return np.array(pairs, np.int64).reshape(-1, 3)


def _made(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """Return the new token of each merge, by rank; without merges, ids are the ranks."""
    if vocabulary.merges is None:
        return np.arange(len(vocabulary.tokens), dtype=np.uint32)
    return vocabulary.merges[:, 2].astype(np.uint32)
