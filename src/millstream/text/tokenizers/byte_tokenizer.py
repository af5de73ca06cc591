"""`ByteTokenizer`: no vocabulary, every byte of UTF-8 is a token."""

from collections.abc import Iterable, Mapping

import numpy as np

from millstream.text.tokenizers.decoding import decode_ids
from millstream.text.tokenizers.special_tokens import SpecialTokens, join_runs
from millstream.text.tokenizers.tokenizer import Bytes, Ids, Offsets

_END_OF_TEXT = 256
_TOKENS = tuple(bytes([byte]) for byte in range(256))


class ByteTokenizer:
    """Ids 0 to 255 are the bytes; 256 is `<|endoftext|>`, which may start or end documents.

    >>> text = np.frombuffer(b"hi you", np.uint8)
    >>> ids, offsets = ByteTokenizer().encode(text, np.array([0, 2, 6]))
    >>> ids.tolist(), offsets.tolist()
    ([104, 105, 32, 121, 111, 117], [0, 2, 6])
    """

    name = engine = "bytes"
    fingerprint = "bytes"
    vocab_size = _END_OF_TEXT + 1
    specials: Mapping[str, int] = {"<|endoftext|>": _END_OF_TEXT}
    bos_id = eos_id = _END_OF_TEXT

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.vocab_size} ids>"

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`."""
        ids = data[offsets[0] : offsets[-1]].astype(np.uint32)
        return ids, offsets - offsets[0]

    def encode_with_ends(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """See `Tokenizer`."""
        ids, starts = self.encode(data, offsets)
        ends = np.arange(1, len(ids) + 1) - np.repeat(starts[:-1], np.diff(starts))
        return ids, starts, ends

    def encode_with_specials(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """See `Tokenizer`."""
        starts, numbers, first_runs = SpecialTokens(dict(self.specials)).runs(data, offsets)
        one_byte_each = np.ones(self.vocab_size, np.int32)
        runs = self.encode(data, starts)
        return join_runs(*runs, starts, numbers, first_runs, one_byte_each)

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`."""
        return decode_ids(ids, _TOKENS, self.specials, self.name)

    def cut(self, data: Bytes) -> int:
        """See `Tokenizer`; any place will do."""
        return len(data)
