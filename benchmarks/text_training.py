"""Training a vocabulary of 32,768 tokens: Millstream against Hugging Face's trainer and rustbpe.

The text of `text_corpus`, read from its Parquet files as each user would: Millstream takes the
files, the others an iterator of texts. All split words by the same pattern, GPT-4's with numbers of
one or two digits, as in nanochat, and may use both cores. Target: 3x Hugging Face's.

Hugging Face's takes minutes, so there is one round. A quick run takes one file of six, where the
merges, whose number is the same, weigh more.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import text_corpus
from benchmarks.report import Section, Table, Target
from benchmarks.rounds import Contender, rates
from millstream.text.sources import Source
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.training import train_tokenizer

_VOCAB_SIZE = 32_768
_REGEX = PATTERNS["nanochat"].regex
_OURS, _HUGGING_FACE, _RUSTBPE = "millstream", "Hugging Face tokenizers", "rustbpe"


def measure(quick: bool) -> Section:
    """Train once with each."""
    paths = text_corpus.parquet_files()[: 1 if quick else None]
    size_bytes = text_corpus.size_bytes(paths)
    ways = {_OURS: _train_ours, _HUGGING_FACE: _train_hugging_face, _RUSTBPE: _train_rustbpe}
    contenders = {
        name: Contender(partial(train, paths), size_bytes) for name, train in ways.items()
    }
    measured = rates(contenders, 1)
    seconds = {name: size_bytes / rate for name, (rate,) in measured.items()}
    rows = [
        [name, f"{taken:.1f}", f"{size_bytes / taken / 1e6:.1f}", f"{taken / seconds[_OURS]:.2f}x"]
        for name, taken in seconds.items()
    ]
    return Section(
        topic="training",
        text=(
            f"{_VOCAB_SIZE:,} tokens from {size_bytes / 1e6:.0f} MB of text in {len(paths)} "
            "Parquet files in the page cache; one round."
        ),
        tables=[Table("Training", ["", "seconds", "MB of text/s", "ours is"], rows)],
        targets=[
            Target(
                what=f"training {_VOCAB_SIZE:,} tokens: millstream / Hugging Face",
                measured=seconds[_HUGGING_FACE] / seconds[_OURS],
                limit=3,
                relation="at least",
            )
        ],
        raw=measured,
    )


def _train_ours(paths: list[Path]) -> None:
    train_tokenizer(Source(paths), _VOCAB_SIZE, pattern="nanochat", specials=())


def _train_hugging_face(paths: list[Path]) -> None:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(paths), trainer)
    _check_size(tokenizer.get_vocab_size())


def _train_rustbpe(paths: list[Path]) -> None:
    import rustbpe  # type: ignore[import-untyped]

    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(_texts(paths), _VOCAB_SIZE, pattern=_REGEX)
    _check_size(tokenizer.vocab_size)


def _texts(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        yield from text_corpus.texts_of(path)


def _check_size(vocab_size: int) -> None:
    if vocab_size != _VOCAB_SIZE:
        raise RuntimeError(f"a vocabulary of {vocab_size:,} tokens, not {_VOCAB_SIZE:,}")
