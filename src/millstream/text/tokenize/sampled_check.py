"""`SampledCheck`: compares a sample of a fast engine's tokens with the reference engine's."""

from collections.abc import Iterator

import numpy as np

from millstream.errors import VerificationError
from millstream.text.batch import TextBatch
from millstream.text.tokenizers.tokenizer import Bytes, Ids, Offsets, Tokenizer

# The reference is up to a hundred times slower: with 10 KB documents this costs 2 percent.
_ONE_IN = 2000
_MOST_BYTES = 1 << 12
_MOST_CHAT_BYTES = 1 << 16
_MIXER = np.uint64(0x9E3779B97F4A7C15)
_AROUND = 6
_CONTEXT_BYTES = 60


class SampledCheck:
    """Compares the first document of a task, and one in two thousand of the others."""

    def __init__(self, tokenizer: Tokenizer, reference: Tokenizer) -> None:
        self._tokenizer, self._reference = tokenizer, reference
        self._num_documents = 0
        self.checked_bytes = 0

    def compare(self, batch: TextBatch, ids: Ids, offsets: Offsets) -> None:
        """Compare some documents, or their first bytes; raise on a difference."""
        for document in self._chosen(batch):
            text = batch.data[batch.offsets[document] : batch.offsets[document + 1]]
            if batch.trained is not None:  # a cut might go through a special token
                text = text[: 0 if len(text) > _MOST_CHAT_BYTES else None]
            elif len(text) > _MOST_BYTES:
                text = text[: self._tokenizer.cut(text[: _utf8_end(text, _MOST_BYTES)])]
            if not len(text):
                continue
            expected = self._expected(batch, text)
            found = ids[offsets[document] : offsets[document + 1]]
            is_whole = len(text) == batch.offsets[document + 1] - batch.offsets[document]
            if not is_whole:
                found = found[: len(expected)]
            if not np.array_equal(found, expected):
                raise self._error(batch, document, text, found, expected)
            self.checked_bytes += len(text)

    def _expected(self, batch: TextBatch, text: Bytes) -> Ids:
        """What the reference engine makes of a text."""
        whole = np.array([0, len(text)], np.int64)
        if batch.trained is not None:
            return self._reference.encode_with_specials(text, whole)[0]
        return self._reference.encode(text, whole)[0]

    def _chosen(self, batch: TextBatch) -> Iterator[int]:
        """One in two thousand documents, by their numbers in the task; always number 0."""
        numbers = np.arange(batch.num_documents, dtype=np.uint64) + np.uint64(self._num_documents)
        self._num_documents += batch.num_documents
        yield from np.flatnonzero(numbers * _MIXER < np.uint64((1 << 64) // _ONE_IN)).tolist()

    def _error(
        self, batch: TextBatch, document: int, text: Bytes, found: Ids, expected: Ids
    ) -> VerificationError:
        shared = min(len(found), len(expected))
        different = np.flatnonzero(found[:shared] != expected[:shared])
        token = int(different[0]) if different.size else shared
        whole = np.array([0, len(text)], np.int64)
        encode = self._reference.encode_with_ends
        if batch.trained is not None:
            encode = self._reference.encode_with_specials
        _, _, ends = encode(text, whole)
        place = int(ends[token - 1]) if token else 0
        low, high = max(0, place - _CONTEXT_BYTES), place + _CONTEXT_BYTES
        around = text[low:high].tobytes().decode(errors="replace")
        first = max(0, token - _AROUND)
        mine, other = found[first : token + _AROUND], expected[first : token + _AROUND]
        return VerificationError(
            f"{batch.place(document)}: engine {self._tokenizer.engine} and "
            f"engine {self._reference.engine} differ from token {token:,} on, at byte {place:,} of "
            f"the text: {around!r}; tokens from {first:,} on: {mine.tolist()}, expected "
            f"{other.tolist()}. Please report this, and use engine={self._reference.engine!r}"
        )


def _utf8_end(text: Bytes, limit: int) -> int:
    """The last position up to `limit` at which a character begins."""
    while limit and text[limit] & 0xC0 == 0x80:
        limit -= 1
    return limit
