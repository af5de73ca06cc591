"""Training vocabularies of byte-level BPE, by streaming over a source.

Words are counted (`words.py`), merges are learned from the counts (`merges.py`), and the vocabulary
is stored (`saved.py`). The same text gives the same vocabulary, that of rustbpe.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from time import perf_counter

import numpy as np

from penstock.errors import UsageError
from penstock.progress import OnProgress, ProgressMeter
from penstock.suggestions import did_you_mean
from penstock.text.batch import TextBatch
from penstock.text.sources import BadRow, Paths, Source
from penstock.text.splitting.patterns import PATTERNS, find_pattern
from penstock.text.tokenizers.vocabulary import NUM_BYTES, Vocabulary
from penstock.text.training.vocabulary_directory import refuse_existing, save_vocabulary

SPECIALS = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
"""the special tokens of nanochat"""

_SLICE_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingReport:
    """A vocabulary, and what it was made from."""

    vocabulary: Vocabulary
    """what was learned"""
    num_documents: int
    """that were read"""
    num_bytes: int
    """of their text"""
    num_tokens: int
    """that the vocabulary makes of it"""
    num_words: int
    """that are different from each other"""
    num_bad_rows: int
    """that were skipped"""
    seconds: dict[str, float]
    """by stage"""


def train_tokenizer(
    source: Source | Paths,
    vocab_size: int,
    *,
    pattern: str = "nanochat",
    specials: Sequence[str] = SPECIALS,
    out: str | PathLike[str] | None = None,
    max_bytes: int | None = None,
    allow_smaller: bool = False,
    progress: OnProgress | None = None,
) -> TrainingReport:
    """Learn a vocabulary of `vocab_size` tokens: bytes, merges, and at the end the special ones.

    Arguments:
        source: files, directories or patterns; or a `Source`, which says more about them.
        vocab_size: with the 256 bytes and the special tokens.
        pattern: a known split pattern's name (gpt2, gpt4, nanochat, qwen2, o200k), or any regular
            expression.
        specials: tokens that no text has; by default nanochat's.
        out: a directory to store the vocabulary in, for `load_tokenizer`.
        max_bytes: read only the first documents, until they are so long.
        allow_smaller: take what there is if the text has too few pairs.
        progress: is called with a `Progress`: of `reading`, in bytes, then of `merging`.

    >>> source = penstock.Source.from_documents(["the cat sat on the mat"] * 9)
    >>> train_tokenizer(source, 260, specials=["<|bos|>"]).vocabulary.tokens[256:]
    (b'at', b'he', b'the')
    """
    from penstock.text.training.merge_learning import learn_merges
    from penstock.text.training.word_counting import count_words

    num_merges = vocab_size - NUM_BYTES - len(specials)
    if num_merges < 0:
        raise UsageError(
            f"a vocabulary of {vocab_size:,} has no room for the {NUM_BYTES} bytes and "
            f"{len(specials)} special tokens; make it {NUM_BYTES + len(specials):,} or more"
        )
    if len(set(specials)) != len(specials) or not all(specials):
        raise UsageError(f"the special tokens {list(specials)} are not all different, or one is ''")
    if pattern.isalnum() and find_pattern(pattern) is None:
        raise UsageError(
            f"pattern {pattern!r}; there are {', '.join(PATTERNS)}, or give a regex"
            f"{did_you_mean(pattern, PATTERNS)}"
        )
    if out is not None:
        refuse_existing(Path(out))
    source = source if isinstance(source, Source) else Source(source)
    source.check_columns()
    started = perf_counter()
    reading = _TrainingText(source, max_bytes, progress)
    words = count_words(reading.batches(), pattern)
    counted = perf_counter()
    if not reading.num_bytes and num_merges and not allow_smaller:
        skipped = f": all {reading.num_bad_rows:,} rows are bad" if reading.num_bad_rows else ""
        raise UsageError(f"there is no text to learn merges from{skipped}")
    meter = ProgressMeter(progress, "merging", total=num_merges, unit="merges")
    learned = learn_merges(words, num_merges, meter)
    if len(learned.merges) < num_merges and not allow_smaller:
        found = NUM_BYTES + len(learned.merges) + len(specials)
        more = "raise max_bytes" if reading.is_cut else "give more text"
        raise UsageError(
            f"{reading.num_bytes:,} bytes of text have pairs for {found:,} tokens, special ones "
            f"included, not for {vocab_size:,}; {more}, or allow a smaller vocabulary "
            "(allow_smaller=True, --allow-smaller)"
        )
    tokens = [bytes([byte]) for byte in range(NUM_BYTES)]
    for left, right, _ in learned.merges.tolist():
        tokens.append(tokens[left] + tokens[right])
    known = find_pattern(pattern)
    vocabulary = Vocabulary(
        tokens=tuple(tokens),
        merges=learned.merges,
        pattern=known.regex if known else pattern,
        specials={special: len(tokens) + i for i, special in enumerate(specials)},
        whole_pieces=True,  # the bytes of every token merge to it, so this only saves time
    )
    merged = perf_counter()
    if out is not None:
        save_vocabulary(vocabulary, Path(out))
    return TrainingReport(
        vocabulary=vocabulary,
        num_documents=reading.num_documents,
        num_bytes=reading.num_bytes,
        num_tokens=learned.num_tokens,
        num_words=words.num_words,
        num_bad_rows=reading.num_bad_rows,
        seconds={"reading": counted - started, "merging": merged - counted},
    )


class _TrainingText:
    """The text of a source, and how much of it there was."""

    def __init__(self, source: Source, max_bytes: int | None, progress: OnProgress | None) -> None:
        self._source, self._max_bytes, self._progress = source, max_bytes, progress
        self.num_documents = self.num_bytes = self.num_bad_rows = 0
        self.is_cut = False
        """whether `max_bytes` ended it"""

    def batches(self) -> Iterator[TextBatch]:
        """All text, or the first documents."""
        slices = self._source.slices(_SLICE_BYTES)
        total = sum(piece.size_bytes for piece in slices)
        if self._max_bytes is not None:
            total = min(total, self._max_bytes)
        meter = ProgressMeter(self._progress, "reading", total=total, unit="bytes")
        for piece in slices:
            for batch in self._source.read(piece, self._note):
                batch = self._within(batch)
                yield batch
                meter.advance(int(batch.offsets[-1] - batch.offsets[0]))
                if self._max_bytes is not None and self.num_bytes >= self._max_bytes:
                    self.is_cut = True
                    return

    def _within(self, batch: TextBatch) -> TextBatch:
        """The batch up to the document with which there is enough text."""
        offsets = batch.offsets
        if self._max_bytes is not None:
            enough = offsets[0] + self._max_bytes - self.num_bytes
            num_documents = int(np.searchsorted(offsets, enough))
            if num_documents < batch.num_documents:
                offsets = offsets[: num_documents + 1]
                batch = replace(
                    batch, offsets=offsets, rows=batch.rows[:num_documents], continues=False
                )
        self.num_documents += batch.num_documents - batch.continues
        self.num_bytes += int(offsets[-1] - offsets[0])
        return batch

    def _note(self, row: BadRow) -> None:
        self.num_bad_rows += 1
