"""Rereads documents that waited to be packed when a state was saved.

They may be anywhere: with nanochat's packing the longest documents wait longest, so they come from
all over the corpus. So a block is read only when one of its documents is needed, up to its last
waiting document, and only waiting documents are tokenized.
"""

import numpy as np
from numpy.typing import NDArray

from millstream.text.batch import pick
from millstream.text.live.lane_text import LaneText
from millstream.text.live.tokenizing_threads import Trained, encode
from millstream.text.tokenizers.tokenizer import Ids, Tokenizer

EncodedDocument = tuple[Ids, Trained | None]
"""ids, and which of them are to be learned; None if the text has no loss masks"""


class WaitingReader:
    """Reads documents by block and number."""

    def __init__(self, text: LaneText, tokenizer: Tokenizer) -> None:
        self._text, self._tokenizer = text, tokenizer

    def read(self, block: int, numbers: NDArray[np.int64]) -> dict[int, EncodedDocument]:
        """Return the tokens of a block's documents by number, of those that exist."""
        wanted, found = np.unique(numbers), dict[int, EncodedDocument]()
        for text in self._text.read_block(block, int(wanted[0])):
            end = text.number + text.batch.num_documents
            here = wanted[(wanted >= text.number) & (wanted < end)]
            if here.size:
                picked = pick(text.batch, here - text.number)
                ids, offsets, trained = encode(self._tokenizer, picked)
                for k, number in enumerate(here):
                    tokens = slice(offsets[k], offsets[k + 1])
                    mask = None if trained is None else trained[tokens]
                    found[int(number)] = ids[tokens], mask
            if end > wanted[-1]:
                break
        return found
