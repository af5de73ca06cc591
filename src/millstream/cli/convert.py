"""Convert a dataset to another format.

  millstream convert corpus.ds data/fineweb --to millstream
  millstream convert my_text_document.bin my_other.bin out --to datatrove
  millstream convert s3://theirs/text_document.bin s3://ours/fineweb --to millstream
  millstream convert data/fineweb out --to llmbatch --seq-len 513 --batch-size 32 --seed 0

No document is split between files. Run the command again to continue an interrupted conversion; a
conversion with --seed starts over. What the new format cannot hold is listed at the end.
"""

import argparse

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine
from millstream.reprs import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the source, the destination, and their formats."""
    parser.add_argument(
        "source", nargs="+", metavar="SRC", help="Files, directories, quoted patterns or URLs"
    )
    parser.add_argument("destination", metavar="DST", help="Output directory or URL")
    parser.add_argument(
        "--to",
        required=True,
        metavar="FORMAT",
        help="Output format: millstream, datatrove, megatron, llmchnk, llmbatch, llmc or flat",
    )
    options.add_format(parser)
    parser.add_argument(
        "--shard-bytes",
        type=options.size_bytes,
        default=1 << 30,
        metavar="SIZE",
        help="Start a new file after the document that reaches this size (default: 1GiB)",
    )
    parser.add_argument(
        "--workers",
        type=options.positive,
        metavar="N",
        help="Files to write at once (default: one for each processor)",
    )
    options.add_allow_empty(parser)
    rows = parser.add_argument_group("--to llmbatch")
    rows.add_argument("--seq-len", type=options.positive, metavar="TOKENS", help="Tokens in a row")
    rows.add_argument("--batch-size", type=options.positive, metavar="ROWS", help="Rows in a batch")
    rows.add_argument("--seed", type=int, help="Shuffle the rows with this seed (default: do not)")


def run(arguments: argparse.Namespace) -> int:
    """Convert, and print what was written and what was lost."""
    from millstream.converting import convert
    from millstream.opening import open

    data = open(arguments.source, **options.format_of(arguments))
    with ProgressLine() as line:
        report = convert(
            data,
            arguments.destination,
            arguments.to,
            shard_bytes=arguments.shard_bytes,
            workers=arguments.workers,
            seq_len=arguments.seq_len,
            batch_size=arguments.batch_size,
            seed=arguments.seed,
            allow_empty=arguments.allow_empty,
            progress=line,
            remote=options.target_remote(arguments),
        )
    resumed = ""
    if report.num_resumed:
        resumed = f"; {counted(report.num_resumed, 'shard')} kept from an earlier run"
    if report.was_finished:
        print(f"{arguments.destination}: already complete; nothing was written")
    print(
        f"{report.num_records:,} of {counted(data.num_records, 'record')} in "
        f"{counted(data.num_documents, 'document')}: {counted(len(report.files), 'file')}, "
        f"{report.size_bytes:,} bytes{resumed}"
    )
    for sentence in report.lost:
        print(f"not kept: {sentence}")
    return 0
