"""`train_tokenizer`: learns a vocabulary from a source."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING

from millstream.errors import UsageError
from millstream.paths import output_path
from millstream.progress import OnProgress, ProgressMeter
from millstream.suggestions import did_you_mean
from millstream.text.sources import Paths, Source
from millstream.text.splitting.patterns import PATTERNS, find_pattern
from millstream.text.tokenizers.vocabulary import NUM_BYTES, Vocabulary
from millstream.text.training.training_text import TrainingText
from millstream.text.training.vocabulary_directory import refuse_existing, save_vocabulary

if TYPE_CHECKING:
    from millstream.text.training.merge_learning import LearnedMerges

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


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingReport:
    """A trained vocabulary, and statistics of the text it was learned from."""

    vocabulary: Vocabulary
    num_documents: int
    """documents read"""
    num_bytes: int
    """bytes of text read"""
    num_tokens: int
    """length of that text in tokens of the vocabulary"""
    num_words: int
    """distinct words"""
    num_bad_rows: int
    """bad rows skipped"""
    seconds: dict[str, float]
    """time by stage"""


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
    """Learn a vocabulary of `vocab_size` tokens: bytes, then merges, then special tokens.

    Arguments:
        source: files, directories or patterns; or a `Source`, which has more options.
        vocab_size: number of tokens, including the 256 bytes and the special tokens.
        pattern: the name of a known split pattern (gpt2, gpt4, nanochat, qwen2, o200k), or any
            regular expression.
        specials: the special tokens; by default nanochat's.
        out: a directory to save the vocabulary in, for `load_tokenizer`.
        max_bytes: read documents only until they add up to this much text.
        allow_smaller: return a smaller vocabulary, instead of raising, if the text has too few
            pairs.
        progress: called with a `Progress` of `reading`, in bytes, then of `merging`.

    >>> source = millstream.Source.from_documents(["the cat sat on the mat"] * 9)
    >>> train_tokenizer(source, 260, specials=["<|bos|>"]).vocabulary.tokens[256:]
    (b'at', b'he', b'the')
    """
    from millstream.text.training.merge_learning import learn_merges
    from millstream.text.training.word_counting import count_words

    num_merges = _check_arguments(vocab_size, pattern, specials)
    directory = None if out is None else output_path(out)
    if directory is not None:
        refuse_existing(directory)
    source = source if isinstance(source, Source) else Source(source)
    source.check_columns()
    started = perf_counter()
    text = TrainingText(source, max_bytes, progress)
    words = count_words(text.batches(), pattern)
    counted = perf_counter()
    if num_merges and not allow_smaller:
        _refuse_empty(text)
    meter = ProgressMeter(progress, "merging", total=num_merges, unit="merges")
    learned = learn_merges(words, num_merges, meter)
    if len(learned.merges) < num_merges and not allow_smaller:
        num_tokens = NUM_BYTES + len(learned.merges) + len(specials)
        raise _too_little_text(text, num_tokens, vocab_size)
    vocabulary = _vocabulary(learned, pattern, specials)
    merged = perf_counter()
    if directory is not None:
        save_vocabulary(vocabulary, directory)
    return TrainingReport(
        vocabulary=vocabulary,
        num_documents=text.num_documents,
        num_bytes=text.num_bytes,
        num_tokens=learned.num_tokens,
        num_words=words.num_words,
        num_bad_rows=text.num_bad_rows,
        seconds={"reading": counted - started, "merging": merged - counted},
    )


def _check_arguments(vocab_size: int, pattern: str, specials: Sequence[str]) -> int:
    """Return the number of merges to learn; raise if the arguments do not fit together."""
    num_merges = vocab_size - NUM_BYTES - len(specials)
    if num_merges < 0:
        raise UsageError(
            f"vocab_size is {vocab_size:,}, too small for {NUM_BYTES} bytes and {len(specials)} "
            f"special tokens; it must be at least {NUM_BYTES + len(specials):,}"
        )
    if len(set(specials)) != len(specials) or not all(specials):
        raise UsageError(f"special tokens must be distinct and not empty; found {list(specials)}")
    if pattern.isalnum() and find_pattern(pattern) is None:
        raise UsageError(
            f"unknown pattern {pattern!r}; known are {', '.join(PATTERNS)}, or give a regular "
            f"expression{did_you_mean(pattern, PATTERNS)}"
        )
    return num_merges


def _refuse_empty(text: TrainingText) -> None:
    if not text.num_bytes:
        why = f": all {text.num_bad_rows:,} rows are bad" if text.num_bad_rows else ""
        raise UsageError(f"the source has no text to learn merges from{why}")


def _too_little_text(text: TrainingText, num_tokens: int, vocab_size: int) -> UsageError:
    more = "raise max_bytes" if text.is_cut else "give more text"
    return UsageError(
        f"{text.num_bytes:,} bytes of text have pairs for only {num_tokens:,} of {vocab_size:,} "
        f"tokens (special tokens included); {more}, or allow a smaller vocabulary "
        "(allow_smaller=True, --allow-smaller)"
    )


def _vocabulary(learned: "LearnedMerges", pattern: str, specials: Sequence[str]) -> Vocabulary:
    tokens = [bytes([byte]) for byte in range(NUM_BYTES)]
    for left, right, _ in learned.merges.tolist():
        tokens.append(tokens[left] + tokens[right])
    known = find_pattern(pattern)
    return Vocabulary(
        tokens=tuple(tokens),
        merges=learned.merges,
        pattern=known.regex if known else pattern,
        specials={special: len(tokens) + i for i, special in enumerate(specials)},
        whole_pieces=True,  # the bytes of every token merge to it: the same ids, faster
    )
