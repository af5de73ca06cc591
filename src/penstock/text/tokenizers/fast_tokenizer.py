"""The fast engine: byte-level BPE with a known split pattern, in one kernel without the GIL."""

from functools import cached_property

import numpy as np

from penstock.text.merging.merge_tables import MergeTables
from penstock.text.splitting.character_classes import character_classes
from penstock.text.tokenizers.bpe import BytePairTokenizer
from penstock.text.tokenizers.encoding import Encoder, max_ids
from penstock.text.tokenizers.id_buffers import IdBuffers
from penstock.text.tokenizers.tokenizer import Bytes, Ids, Offsets
from penstock.text.tokenizers.vocabulary_merges import merge_tables


class FastTokenizer(BytePairTokenizer):
    """Computed by our kernel, with caches of a fixed size for every thread at work."""

    engine = "fast"

    @cached_property
    def _tables(self) -> MergeTables:
        return merge_tables(self.vocabulary)

    @cached_property
    def _idle(self) -> list[Encoder]:
        return []

    @cached_property
    def _buffers(self) -> IdBuffers:
        return IdBuffers()

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`."""
        try:
            encoder = self._idle.pop()
        except IndexError:
            encoder = Encoder(
                self._tables, self.pattern.code if self.pattern else 0, character_classes()
            )
        ids = self._buffers.lend(max_ids(int(offsets[-1] - offsets[0])))
        id_offsets = np.zeros(len(offsets), np.int64)
        num_ids = encoder.encode(data, offsets, ids, id_offsets)
        self._idle.append(encoder)
        return ids[:num_ids], id_offsets
