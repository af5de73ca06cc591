"""Learning merges from counted words.

The pair of neighbouring tokens that is there most often becomes a token, again and again; of
equally frequent ones the pair with the smaller ids. Pairs in a run overlap (`aaa` has two), as in
rustbpe, whose merges these are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.progress import ProgressMeter
from penstock.text.training.merge_learner import MAX_PLACES, MergeLearner
from penstock.text.training.word_counting import WordCounts

_PER_CALL = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Learned:
    """Merges, and what they make of the text."""

    merges: NDArray[np.int64]
    """left id, right id and new id, in the order in which they were learned"""
    num_tokens: int
    """of the whole text"""


def learn_merges(words: WordCounts, num_merges: int, meter: ProgressMeter | None = None) -> Learned:
    """The first `num_merges` merges, or as many as there are pairs for."""
    num_places = len(words.blob) + words.num_words + 1
    if num_places > MAX_PLACES:
        raise UsageError(
            f"{words.num_words:,} distinct words of {len(words.blob):,} bytes are more than merges "
            f"can be learned from ({MAX_PLACES:,} bytes); count less text (max_bytes)"
        )
    learner = MergeLearner(words.blob, words.starts, words.counts, num_merges)
    merges = np.empty((num_merges, 3), np.int64)
    known = wanted = 0
    while known == wanted < num_merges:
        wanted = min(known + _PER_CALL, num_merges)
        before, known = known, learner.learn(merges, wanted)
        if meter is not None:
            meter.advance(known - before)
    return Learned(merges=merges[:known], num_tokens=learner.num_tokens)
