r"""Make a dataset of text: read, tokenize and write it, in parallel, resumable.

  penstock tokenize 'corpus/*.parquet' --tokenizer tok.json --out data/fineweb
  penstock tokenize notes.jsonl.zst --tokenizer o200k_base.tiktoken --out data/notes \
      --metadata id,url --val-fraction 0.001 --shuffle 0
  penstock tokenize corpus --tokenizer bytes --out data/raw --bad-rows skip

A run that was killed goes on where it was: call it again. On several machines that see the same
directory, each runs a share of the tasks, and one of them finishes:

  penstock tokenize … --out data/fineweb --task $SLURM_ARRAY_TASK_ID/$N      (--array=0-$((N-1)))
  penstock tokenize … --out data/fineweb --task $JOB_COMPLETION_INDEX/$N     (an Indexed Job)
  penstock finish data/fineweb
"""

import argparse
from typing import TYPE_CHECKING

from penstock.cli import options, source_options
from penstock.cli.progress_line import ProgressLine
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.text.tokenize.split import Split


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The source, the tokenizer, where to, how and by whom."""
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="FILE",
        help='tokenizer.json, tiktoken ranks, a directory with one of them, or "bytes"',
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="the dataset, made if it is missing"
    )
    parser.add_argument(
        "--engine",
        choices=["auto", "fast", "tiktoken", "huggingface", "bytes"],
        default="auto",
        help="what computes the tokens; auto is the fastest that can (auto)",
    )
    parser.add_argument(
        "--add",
        choices=["eos", "bos", "both", "none"],
        help="tokens at the ends of documents (eos, or bos where the tokenizer has no eos)",
    )
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED", help="put all documents into a random order"
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="do not compare a sample of the fast engine's tokens with the reference engine's",
    )
    _add_split(parser)
    _add_execution(parser)
    source_options.add_source(parser)
    parser.add_argument(
        "--span-unit",
        choices=["chars", "tokens"],
        default="chars",
        help="what the spans of the source count (chars)",
    )


def _add_split(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("split", "into DIR/train and DIR/val")
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--val-fraction", type=float, metavar="F", help="so much of the documents, by their hashes"
    )
    one.add_argument(
        "--val-count", type=options.positive, metavar="N", help="so many, by their hashes"
    )
    one.add_argument(
        "--val-files",
        action="append",
        default=[],
        metavar="PATTERN",
        help="those of files whose name or path matches (repeatable)",
    )
    group.add_argument(
        "--split-by",
        default="text",
        metavar="text|COL",
        help="what is hashed: the text, or a column of --metadata such as an id (text)",
    )


def _add_execution(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("execution")
    group.add_argument(
        "--workers", type=options.positive, help="processes (one for each processor)"
    )
    group.add_argument(
        "--executor", choices=["processes", "ray"], default="processes", help="(processes)"
    )
    group.add_argument(
        "--task",
        type=_share,
        metavar="I/N",
        help="only the I-th of N shares of the tasks, from 0; then penstock finish DIR",
    )
    group.add_argument(
        "--task-bytes", type=options.size_bytes, help="of text, in one task (1/256 of the files)"
    )
    group.add_argument(
        "--shard-bytes",
        type=options.size_bytes,
        default=1 << 30,
        help="a shard ends with the document that makes it this large (1 GiB)",
    )
    options.add_allow_empty(group)


def run(arguments: argparse.Namespace) -> int:
    """Tokenize, and report."""
    from penstock.cli.tokenize_report import print_report
    from penstock.text.tokenize.tokenizing import make_source, tokenize

    split = _split_of(arguments)
    with ProgressLine() as line:
        report = tokenize(
            make_source(lambda name: source_options.source_of(arguments, name), split),
            arguments.tokenizer,
            arguments.out,
            engine=arguments.engine,
            add=arguments.add,
            shuffle=arguments.shuffle,
            split=split,
            span_unit=arguments.span_unit,
            check=not arguments.no_check,
            workers=arguments.workers,
            executor=arguments.executor,
            task=arguments.task,
            shard_bytes=arguments.shard_bytes,
            task_bytes=arguments.task_bytes,
            allow_empty=arguments.allow_empty,
            progress=line,
        )
    if report is None:
        index, count = arguments.task
        print(f"share {index} of {count} is done; when all are: penstock finish {arguments.out}")
    else:
        print_report(report, arguments.out)
    return 0


def _split_of(arguments: argparse.Namespace) -> "Split | None":
    """The split that the options mean."""
    from penstock.text.tokenize.split import TEXT, Split

    if arguments.val_fraction is None and arguments.val_count is None and not arguments.val_files:
        if arguments.split_by != TEXT:
            raise UsageError("--split-by is only for --val-fraction and --val-count")
        return None
    return Split(
        files=arguments.val_files,
        fraction=arguments.val_fraction,
        count=arguments.val_count,
        by=arguments.split_by,
    )


def _share(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not slash or not index.isdigit() or not count.isdigit() or int(index) >= int(count):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 0/8, 1/8, … 7/8")
    return int(index), int(count)
