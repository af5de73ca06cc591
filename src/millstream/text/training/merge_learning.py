"""Learns merges from word counts.

The most frequent pair of neighbouring tokens becomes a token, again and again; of equally frequent
pairs, the one with the smaller ids. Pairs in a run overlap (`aaa` has two). The merges are
rustbpe's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.progress import ProgressMeter
from millstream.text.training.merge_learner import MAX_PLACES, MergeLearner
from millstream.text.training.word_counting import WordCounts

_PER_CALL = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LearnedMerges:
    """Merges, and the length of the text in their tokens."""

    merges: NDArray[np.int64]
    """left id, right id and new id, in order of merge rank"""
    num_tokens: int
    """length of the whole text in tokens"""


def learn_merges(
    words: WordCounts, num_merges: int, meter: ProgressMeter | None = None
) -> LearnedMerges:
    """Return the first `num_merges` merges, or as many as there are pairs for."""
    num_places = len(words.blob) + words.num_words + 1
    if num_places > MAX_PLACES:
        raise UsageError(
            f"the text has {words.num_words:,} distinct words of {len(words.blob):,} bytes, more "
            f"than the limit of {MAX_PLACES:,} bytes; train on less text (max_bytes)"
        )
    learner = MergeLearner(words.blob, words.starts, words.counts, num_merges)
    merges = np.empty((num_merges, 3), np.int64)
    known = wanted = 0
    while known == wanted < num_merges:
        wanted = min(known + _PER_CALL, num_merges)
        before, known = known, learner.learn(merges, wanted)
        if meter is not None:
            meter.advance(known - before)
    return LearnedMerges(merges=merges[:known], num_tokens=learner.num_tokens)
