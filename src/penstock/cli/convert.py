"""Write a dataset in another format.

  penstock convert corpus.ds data/fineweb --to penstock
  penstock convert my_text_document.bin my_other.bin out --to datatrove
  penstock convert data/fineweb out --to llmbatch --seq-len 513 --batch-size 32 --seed 0

Whole documents go into every file. A run that was killed goes on where it was: call it again (with
--seed it starts anew); if all is done, it says so. What the new format cannot hold is said.
"""

import argparse

from penstock.cli import options
from penstock.cli.progress_line import ProgressLine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where from, where to, and in which shape."""
    parser.add_argument("source", nargs="+", metavar="SRC", help="files, directories or patterns")
    parser.add_argument("destination", metavar="DST", help="a directory, made if it is missing")
    parser.add_argument(
        "--to",
        required=True,
        metavar="FORMAT",
        help="penstock, datatrove, megatron, llmchnk, llmbatch, llmc or flat",
    )
    options.add_format(parser)
    parser.add_argument(
        "--shard-bytes",
        type=options.size_bytes,
        default=1 << 30,
        help="a file ends with the document that makes its tokens this large (1 GiB)",
    )
    parser.add_argument(
        "--workers", type=options.positive, help="files written at once (one for each processor)"
    )
    options.add_allow_empty(parser)
    rows = parser.add_argument_group("LLMBATCH")
    rows.add_argument("--seq-len", type=options.positive, help="tokens of a row")
    rows.add_argument("--batch-size", type=options.positive, help="rows of a batch")
    rows.add_argument("--seed", type=int, help="shuffle rows; without it they keep their order")


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what was written and what was lost."""
    from penstock.converting import convert
    from penstock.opening import open

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
        )
    resumed = (
        f", {report.num_resumed:,} shards of an earlier run kept" if report.num_resumed else ""
    )
    num_files = len(report.files)
    if report.was_finished:
        print(f"{arguments.destination}: all of it was done before; nothing was written")
    print(
        f"{report.num_records:,} of {data.num_records:,} records, {data.num_documents:,} "
        f"documents, in {num_files:,} {'file' if num_files == 1 else 'files'} of "
        f"{report.size_bytes:,} bytes{resumed}"
    )
    for sentence in report.lost:
        print(f"not kept: {sentence}")
    return 0
