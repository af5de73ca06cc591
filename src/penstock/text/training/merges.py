"""Learning merges from counted words.

The pair of neighbouring tokens that is there most often becomes a token, again and again; of
equally frequent ones the pair with the smaller ids. Pairs in a run overlap (`aaa` has two), as in
rustbpe, whose merges these are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.text.training.words import Words

_MAX_PLACES = (1 << 31) // 3  # each makes up to three entries, which are numbered in 31 bits
_PER_CALL = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Learned:
    """Merges, and what they make of the text."""

    merges: NDArray[np.int64]
    """left id, right id and new id, in the order in which they were learned"""
    num_tokens: int
    """of the whole text"""


def learn_merges(
    words: Words, num_merges: int, progress: Callable[[int], None] | None = None
) -> Learned:
    """The first `num_merges` merges, or as many as there are pairs for.

    `progress` is told how many are known.
    """
    from penstock.text.training import kernels

    num_places = len(words.blob) + words.num_words + 1
    if num_places > _MAX_PLACES:
        raise UsageError(
            f"{words.num_words:,} distinct words of {len(words.blob):,} bytes are more than merges "
            f"can be learned from ({_MAX_PLACES:,} bytes); count less text (max_bytes)"
        )
    places = np.empty((num_places, 3), np.int32)
    # Every byte begins at most one pair, and every merge makes a token less and at most two pairs.
    made = np.empty((3 * num_places, 2), np.int32)
    pairs = np.empty((1 << 17, 4), np.int64)
    heap = np.empty((len(pairs), 3), np.int64)
    state = np.zeros(kernels.MERGING_STATE, np.int64)
    by_bytes = np.full(1 << 16, -1, np.int32)
    kernels.lay_out(
        words.blob, words.starts, words.counts, places, made, pairs, heap, by_bytes, state
    )
    num_ids = kernels.NUM_BYTE_TOKENS + num_merges
    by_token = np.full((num_ids, 2), -1, np.int32)
    lengths = np.ones(num_ids, np.int32)
    merges = np.empty((num_merges, 3), np.int64)
    known = 0
    while known < num_merges:
        wanted = min(known + _PER_CALL, num_merges)
        kernels.learn(
            wanted, words.counts, places, made, pairs, heap, by_token, lengths, merges, state
        )
        known = int(state[kernels.NUM_MERGES])
        if progress is not None:
            progress(known)
        if known < wanted:
            if state[kernels.HEAP_SIZE] == 0:
                break
            pairs = np.concatenate([pairs, np.empty_like(pairs)])
            heap = np.concatenate([heap, np.empty_like(heap)])
    return Learned(merges=merges[:known], num_tokens=int(state[kernels.NUM_LEFT]))
