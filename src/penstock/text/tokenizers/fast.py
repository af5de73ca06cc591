"""The fast engine: byte-level BPE with a known split pattern, all of it in one nogil kernel."""

from functools import cached_property

import numpy as np

from penstock.errors import FormatError
from penstock.text.merging.kernels import MAX_PIECE_BYTES, SCRATCH_WORDS_PER_BYTE, Merges
from penstock.text.splitting.unicode import classes
from penstock.text.tokenizers import kernels
from penstock.text.tokenizers.bpe import BytePairTokenizer
from penstock.text.tokenizers.buffers import IdBuffers
from penstock.text.tokenizers.kernels import Caches
from penstock.text.tokenizers.tables import merge_tables
from penstock.text.tokenizers.tokenizer import Bytes, Ids, Offsets

_USUAL_PIECE_BYTES = 1 << 14


class FastTokenizer(BytePairTokenizer):
    """Remembers pieces in caches of a fixed size, one set for every thread that is at work."""

    engine = "fast"

    @cached_property
    def _merges(self) -> Merges:
        return merge_tables(self.vocabulary)

    @cached_property
    def _idle(self) -> list[Caches]:
        return []

    @cached_property
    def _buffers(self) -> IdBuffers:
        return IdBuffers()

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`."""
        try:
            caches = self._idle.pop()
        except IndexError:
            caches = _new_caches()
        state = np.array([0, offsets[0], 0, 0])
        # Every token has a byte of text or more, and the kernel stores two at a time.
        ids = self._buffers.lend(int(offsets[-1] - offsets[0]) + 1)
        id_offsets = np.zeros(len(offsets), np.int64)
        code = self.pattern.code if self.pattern else 0
        while True:
            kernels.encode(
                data, offsets, code, classes(), self._merges, caches, state, ids, id_offsets
            )
            if not state[kernels.NEEDED]:
                break
            caches = _with_room_for(caches, int(state[kernels.NEEDED]))
        if len(caches.scratch) > _USUAL_PIECE_BYTES * SCRATCH_WORDS_PER_BYTE:
            caches = _with_room_for(caches, _USUAL_PIECE_BYTES)
        self._idle.append(caches)
        return ids[: state[kernels.NUM_IDS]], id_offsets


def _new_caches() -> Caches:
    return Caches(
        short=np.zeros(kernels.SHORT_ENTRIES * kernels.SHORT_WORDS, np.uint64),
        long=np.zeros(kernels.LONG_ENTRIES * kernels.LONG_WORDS, np.uint64),
        scratch=_scratch(_USUAL_PIECE_BYTES),
        block=np.zeros(kernels.BLOCK_PIECES * kernels.PIECE_WORDS, np.int64),
    )


def _with_room_for(caches: Caches, piece_bytes: int) -> Caches:
    if piece_bytes > MAX_PIECE_BYTES:
        raise FormatError(
            f"{piece_bytes:,} bytes that the split pattern does not cut; more than "
            f"{MAX_PIECE_BYTES:,} in one piece are not merged, as they are hardly text"
        )
    return caches._replace(scratch=_scratch(piece_bytes))


def _scratch(piece_bytes: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.empty(piece_bytes * SCRATCH_WORDS_PER_BYTE, np.uint64)
