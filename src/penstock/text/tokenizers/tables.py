"""A vocabulary as the tables that kernels look things up in."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.text.merging.kernels import (
    NOTHING,
    SCRATCH_WORDS_PER_BYTE,
    Merges,
    every_token_is_made,
    fill_pairs,
    fill_whole,
    pairs_from_ranks,
)
from penstock.text.tokenizers.vocabulary import NUM_BYTES, Vocabulary


def merge_tables(vocabulary: Vocabulary) -> Merges:
    """The tables of a vocabulary."""
    merges, _ = _pair_tables(vocabulary)
    # Where all tokens are made of their bytes, to look for a whole piece first only saves time.
    if vocabulary.whole_pieces or _makes_every_token(merges):
        whole = np.full(_table_size(len(vocabulary.tokens)), -1, np.int32)
        fill_whole(merges.tokens, merges.offsets, whole)
        merges = merges._replace(whole=whole)
    return merges


def merges_of(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Its merges: which two tokens make which; found out where it has only ranks."""
    if vocabulary.merges is not None:
        return vocabulary.merges
    return _pair_tables(vocabulary)[1]


def makes_every_token(vocabulary: Vocabulary) -> bool:
    """Whether the bytes of every token are merged to it."""
    return _makes_every_token(_pair_tables(vocabulary)[0])


def _makes_every_token(merges: Merges) -> bool:
    return bool(every_token_is_made(merges, _scratch(merges)))


def _scratch(merges: Merges) -> NDArray[np.uint64]:
    longest = int(np.diff(merges.offsets).max())
    return np.empty(longest * SCRATCH_WORDS_PER_BYTE, np.uint64)


def _pair_tables(vocabulary: Vocabulary) -> tuple[Merges, NDArray[np.int64]]:
    """The tables without that of whole pieces, and the merges."""
    lengths = np.array([len(token) for token in vocabulary.tokens], np.int64)
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    num_merges = len(lengths) if vocabulary.merges is None else len(vocabulary.merges)
    merges = Merges(
        byte_ids=np.array([ids[bytes([byte])] for byte in range(NUM_BYTES)], np.uint32),
        pairs=np.full(_table_size(num_merges), NOTHING, np.uint64),
        made=_made(vocabulary),
        tokens=np.frombuffer(b"".join(vocabulary.tokens), np.uint8).copy(),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        whole=np.full(1, -1, np.int32),
    )
    if vocabulary.merges is not None:
        fill_pairs(vocabulary.merges, np.arange(num_merges), merges.pairs)
        return merges, vocabulary.merges
    found = np.empty((num_merges, 3), np.int64)
    num_found = pairs_from_ranks(merges, _scratch(merges), found)
    if num_found == (lengths > 1).sum():
        return merges, found[:num_found]
    # Some tokens do not come to be from their bytes alone: perhaps beside others, by other pairs.
    found = _every_pair(vocabulary.tokens, ids)
    merges = merges._replace(pairs=np.full(_table_size(len(found)), NOTHING, np.uint64))
    fill_pairs(found, found[:, 2].copy(), merges.pairs)
    return merges, found


def _every_pair(tokens: Sequence[bytes], ids: Mapping[bytes, int]) -> NDArray[np.int64]:
    """All ways to join two tokens to a third, by the id of that."""
    sizes = {len(token) for token in ids}
    pairs = [
        (ids[token[:size]], ids[token[size:]], number)
        for number, token in enumerate(tokens)
        for size in sorted(sizes & {len(token) - other for other in sizes if other})
        if size > 0 and token[:size] in ids and token[size:] in ids
    ]
    return np.array(pairs, np.int64).reshape(-1, 3)


def _made(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """By rank, what a merge makes; where there are only ids, they are the ranks."""
    if vocabulary.merges is None:
        return np.arange(len(vocabulary.tokens), dtype=np.uint32)
    return vocabulary.merges[:, 2].astype(np.uint32)


def _table_size(num_entries: int) -> int:
    """A power of two, of which at most half is used."""
    return 1 << max(4, (2 * num_entries - 1).bit_length())
