"""Rewrite text files as shards of one size, in order or shuffled.

  millstream repack 'raw/*.jsonl.gz' --out corpus
  millstream repack 'raw/*.parquet' --out corpus --shuffle 42 --metadata id,url
  millstream repack 's3://bucket/raw/*.parquet' --out s3://bucket/corpus --shuffle 0
  millstream repack notes.txt --documents block --out corpus --to jsonl

Shards have about 250 million characters. Parquet has row groups of 1024 and zstd compression, like
nanochat's files; JSONL and text are .zst files. Run the command again to continue an
interrupted run.
"""

import argparse

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine
from millstream.cli.source_options import add_source, source_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The text and the shards."""
    add_source(parser, spans=False)
    parser.add_argument("--out", required=True, metavar="DIR", help="Output directory or URL")
    parser.add_argument(
        "--to",
        choices=["parquet", "jsonl", "text"],
        default="parquet",
        help="The format of the shards; text has one document per line (default: parquet)",
    )
    parser.add_argument(
        "--shard-chars",
        type=options.positive,
        default=250_000_000,
        help="Characters of a shard, about (default: 250,000,000)",
    )
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED", help="Put all documents in a random order"
    )
    parser.add_argument(
        "--workers",
        type=options.positive,
        help="Shards written at a time (default: one for each processor)",
    )
    options.add_allow_empty(parser)


def run(arguments: argparse.Namespace) -> int:
    """Repack, and say what was written."""
    from millstream.text.repacking import repack

    with ProgressLine() as line:
        report = repack(
            source_of(arguments),
            arguments.out,
            to=arguments.to,
            shard_chars=arguments.shard_chars,
            shuffle=arguments.shuffle,
            workers=arguments.workers,
            allow_empty=arguments.allow_empty,
            progress=line,
            remote=options.target_remote(arguments),
        )
    num_files = len(report.files)
    if report.was_finished:
        print(f"{arguments.out}: already complete; nothing was written")
    print(
        f"{report.num_documents:,} documents, {report.num_characters:,} characters, in "
        f"{num_files:,} {'file' if num_files == 1 else 'files'} in {arguments.out}"
    )
    if report.skipped:
        print(f"{report.skipped:,} bad rows were skipped, the first of them:")
        for place in report.places:
            print(f"  {place}")
    return 0
