"""Rereads documents that waited to be packed when a state was saved.

They may be anywhere: with nanochat's packing the longest documents wait longest, so they come from
all over the corpus. So a block is read only when one of its documents is needed, up to its last
waiting document, and only waiting documents are tokenized.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.text.live.lane_text import LaneText
from penstock.text.live.tokenizing_threads import encode
from penstock.text.tokenizers.tokenizer import Ids, Tokenizer


class WaitingReader:
    """Reads documents by block and number."""

    def __init__(self, text: LaneText, tokenizer: Tokenizer) -> None:
        self._text, self._tokenizer = text, tokenizer

    def read(self, block: int, numbers: NDArray[np.int64]) -> dict[int, Ids]:
        """Return the token ids of a block's documents by number, of those that exist."""
        wanted, found = np.unique(numbers), dict[int, Ids]()
        for text in self._text.read_block(block, int(wanted[0])):
            end = text.number + text.batch.num_documents
            here = wanted[(wanted >= text.number) & (wanted < end)]
            if here.size:
                begins, ends = (text.batch.offsets[here - text.number + k] for k in (0, 1))
                parts = [text.batch.data[a:b] for a, b in zip(begins, ends, strict=True)]
                offsets = np.concatenate([[0], np.cumsum(ends - begins)])
                ids, id_offsets = encode(self._tokenizer, np.concatenate(parts), offsets)
                found |= {
                    int(number): ids[id_offsets[k] : id_offsets[k + 1]]
                    for k, number in enumerate(here)
                }
            if end > wanted[-1]:
                break
        return found
