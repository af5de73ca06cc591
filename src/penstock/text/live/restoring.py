"""Reading again the documents that waited to be packed when a state was saved.

They may be anywhere: where the ends of documents are dropped, the longest wait for the longest
time, so that they come from all over the corpus. Only their blocks are read, each up to the last
document that is wanted of it, and only these documents are tokenized.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StateError
from penstock.text.live.kernels import (
    PUT_DOCUMENT,
    PUT_FIRST,
    PUT_NUM_IDS,
    PUT_SKIPPED,
    PUT_START,
)
from penstock.text.live.packer import Packer
from penstock.text.live.reading import LaneText
from penstock.text.live.state import BLOCK_BITS, LaneState, Waiting
from penstock.text.tokenizers.tokenizer import Tokenizer

_NUM_WORDS = 5


class _Reader:
    """Reads documents by block and number."""

    def __init__(self, text: LaneText, tokenizer: Tokenizer, width: int) -> None:
        self._text, self._tokenizer = text, tokenizer
        self._width = width

    def read(self, waiting: Waiting, chosen: NDArray[np.int64]) -> list[NDArray[np.uint32]]:
        """For each of the chosen, all of one block: how many ids it has, then those of its piece.

        `chosen` are sorted by number. Between the two stands how many ids were left out before.
        """
        block = int(waiting.documents[chosen[0]]) >> BLOCK_BITS
        numbers = waiting.documents[chosen] & ((1 << BLOCK_BITS) - 1)
        found: list[NDArray[np.uint32]] = []
        for text in self._text.read_block(block, int(numbers[0])):
            here = numbers[len(found) :] - text.number
            here = here[here < text.batch.num_documents]
            wanted, again = np.unique(here, return_inverse=True)
            if wanted.size:
                begins, ends = text.batch.offsets[wanted], text.batch.offsets[wanted + 1]
                data = np.concatenate(
                    [text.batch.data[a:b] for a, b in zip(begins, ends, strict=True)]
                )
                offsets = np.concatenate([[0], np.cumsum(ends - begins)])
                ids, id_offsets = self._tokenizer.encode(data, offsets)
                first_tokens = waiting.first_tokens[chosen[len(found) :]]
                found += [
                    self._piece(ids[id_offsets[k] : id_offsets[k + 1]], int(first))
                    for k, first in zip(again, first_tokens, strict=False)
                ]
            if len(found) == len(chosen):
                return found
        raise StateError(
            f"document {numbers[len(found)]:,} of block {block:,} waits to be packed in the state, "
            f"and the block has fewer; this is not the text that it was saved with"
        )

    def _piece(self, ids: NDArray[np.uint32], first: int) -> NDArray[np.uint32]:
        skipped = min(max(first - 1, 0), len(ids))
        head = np.array([len(ids), skipped], np.uint32)
        return np.concatenate([head, ids[skipped : skipped + self._width]])


def put_back_all(
    packer: Packer,
    states: list[LaneState],
    text: LaneText,
    tokenizer: Tokenizer,
    num_threads: int,
) -> None:
    """Fill the lanes' buffers as they were."""
    reader = _Reader(text, tokenizer, packer.layout.width + 2)
    with ThreadPoolExecutor(num_threads, "penstock-restore") as threads:
        for lane, state in enumerate(states):
            waiting = state.waiting
            if not waiting.documents.size:
                continue
            order = np.argsort(waiting.documents, kind="stable")
            blocks = waiting.documents[order] >> BLOCK_BITS
            groups = np.split(order, np.flatnonzero(np.diff(blocks)) + 1)
            read = threads.map(lambda group, waiting=waiting: reader.read(waiting, group), groups)
            pieces = np.zeros((len(order), _NUM_WORDS), np.int64)
            pieces[:, PUT_DOCUMENT] = waiting.documents
            pieces[:, PUT_FIRST] = waiting.first_tokens
            ids, end = list[NDArray[np.uint32]](), 0
            for group, found in zip(groups, read, strict=True):
                for k, piece in zip(group, found, strict=True):
                    pieces[k, PUT_NUM_IDS], pieces[k, PUT_SKIPPED] = piece[:2]
                    pieces[k, PUT_START] = end
                    ids.append(piece[2:])
                    end += len(piece) - 2
            packer.put_back(lane, pieces, np.concatenate(ids))
            found_tokens = packer.snapshot(lane).state().waiting.num_tokens
            if found_tokens != waiting.num_tokens:
                raise StateError(
                    f"the documents that waited to be packed had {waiting.num_tokens:,} tokens, "
                    f"and now have {found_tokens:,}: the text or the tokenizer is another one"
                )
