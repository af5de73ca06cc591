"""Train a BPE tokenizer on text files.

  millstream train-tokenizer 'corpus/*.parquet' --vocab-size 32768 --out tok
  millstream train-tokenizer s3://public-bucket/web --anonymous --out tok
  millstream train-tokenizer notes.txt.zst --pattern gpt2 --special "<|endoftext|>" --out tok
  millstream train-tokenizer web.jsonl --text content --max-bytes 2000000000 --out tok

Writes tokenizer.json, tokenizer.tiktoken (the same vocabulary), tokenizer_config.json and
token_bytes.npy (the length of every token, for bits per byte) to DIR. Never replaces a tokenizer.
"""

import argparse
from typing import TYPE_CHECKING

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine
from millstream.cli.source_options import add_source, source_of

if TYPE_CHECKING:
    from millstream.text.training import TrainingReport

_NUM_LONGEST, _SHOWN_CHARACTERS = 10, 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the text, the vocabulary, and where to store it."""
    add_source(parser, metadata=False)
    parser.add_argument("--out", required=True, metavar="DIR", help="Output directory")
    parser.add_argument(
        "--vocab-size",
        type=options.positive,
        default=32768,
        metavar="TOKENS",
        help="Size of the vocabulary, special tokens included (default: 32768)",
    )
    parser.add_argument(
        "--pattern",
        default="nanochat",
        help="How text is split before merging: gpt2, gpt4, nanochat (gpt4 with numbers of 1 or 2 "
        "digits), qwen2, o200k, or a regular expression (default: nanochat)",
    )
    parser.add_argument(
        "--special",
        action="append",
        metavar="TOKEN",
        help="Special token (repeatable; default: the nine of nanochat, <|bos|> first)",
    )
    parser.add_argument(
        "--max-bytes",
        type=options.size_bytes,
        metavar="SIZE",
        help="Read only the first documents, up to this size",
    )
    parser.add_argument(
        "--allow-smaller",
        action="store_true",
        help="Store a smaller vocabulary if the text has too few pairs to merge",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, and print a summary."""
    from millstream.text.training import SPECIALS, train_tokenizer

    with ProgressLine() as line:
        training = train_tokenizer(
            source_of(arguments),
            arguments.vocab_size,
            pattern=arguments.pattern,
            specials=SPECIALS if arguments.special is None else tuple(arguments.special),
            out=arguments.out,
            max_bytes=arguments.max_bytes,
            allow_smaller=arguments.allow_smaller,
            progress=line,
        )
    _print(training, arguments.out)
    return 0


def _print(training: "TrainingReport", out: str) -> None:
    vocabulary = training.vocabulary
    num_merges = len(vocabulary.tokens) - 256
    skipped = f", {training.num_bad_rows:,} bad rows skipped" if training.num_bad_rows else ""
    print(
        f"{training.num_bytes:,} bytes in {training.num_documents:,} documents, "
        f"{training.num_words:,} distinct words{skipped}"
    )
    print(
        f"{vocabulary.vocab_size:,} tokens: 256 bytes, {num_merges:,} merges, "
        f"{len(vocabulary.specials):,} special"
    )
    if training.num_tokens:
        print(f"{training.num_bytes / training.num_tokens:.3f} bytes per token of this text")
    print(", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in training.seconds.items()))
    print("longest tokens:")
    longest = sorted(vocabulary.tokens[256:], key=len, reverse=True)[:_NUM_LONGEST]
    for token in longest:
        shown = repr(token.decode(errors="backslashreplace"))
        cut = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"
        print(f"  {len(token):>5,} bytes  {cut}")
    print(f"stored in {out}")
