r"""Turn text into a dataset: read, tokenize and write it, in parallel, resumable.

  millstream tokenize 'corpus/*.parquet' --tokenizer tok.json --out data/fineweb
  millstream tokenize notes.jsonl.zst --tokenizer o200k_base.tiktoken --out data/notes \
      --metadata id,url --val-fraction 0.001 --shuffle 0
  millstream tokenize 's3://bucket/raw/*.parquet' --tokenizer tok.json --out s3://bucket/fineweb
  millstream tokenize corpus --tokenizer bytes --out data/raw --bad-rows skip
  millstream tokenize chats.jsonl --messages messages --chat-template TOKENIZER_DIR \
      --loss-on assistant --out data/chats

Run the command again to continue an interrupted run. On several machines that share a directory
or a bucket, each runs a share of the tasks; when all are done, one of them finishes the job:

  millstream tokenize … --out data/fineweb --task $SLURM_ARRAY_TASK_ID/$N      (--array=0-$((N-1)))
  millstream tokenize … --out data/fineweb --task $JOB_COMPLETION_INDEX/$N     (an Indexed Job)
  millstream finish data/fineweb
"""

import argparse
from typing import TYPE_CHECKING

from millstream.cli import chat_options, options, source_options
from millstream.cli.progress_line import ProgressLine
from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.text.tokenize.split import Split


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The source, the tokenizer, the output, and how tasks are run."""
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help='A tokenizer.json, tiktoken ranks, a directory with one of them, or "bytes" (default: '
        "the directory of --chat-template)",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="Output directory or URL")
    parser.add_argument(
        "--engine",
        choices=["auto", "fast", "tiktoken", "huggingface", "bytes"],
        default="auto",
        help="What computes the tokens; auto is the fastest available (default: auto)",
    )
    parser.add_argument(
        "--add",
        choices=["eos", "bos", "both", "none"],
        help="Marks of documents (default: eos, or bos if there is no eos; none for chats)",
    )
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED", help="Put all documents in a random order"
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="Skip the comparison of a sample of tokens with the reference engine",
    )
    chat_options.add_chat(parser)
    _add_split(parser)
    _add_execution(parser)
    source_options.add_source(parser)
    parser.add_argument(
        "--span-unit",
        choices=["chars", "tokens"],
        default="chars",
        help="The unit of the spans of the source (default: chars)",
    )


def _add_split(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("split", "into DIR/train and DIR/val, by one of")
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--val-fraction",
        type=float,
        metavar="F",
        help="This fraction of documents, by hash",
    )
    one.add_argument(
        "--val-count",
        type=options.positive,
        metavar="N",
        help="This many documents, by hash",
    )
    one.add_argument(
        "--val-files",
        action="append",
        default=[],
        metavar="PATTERN",
        help="The documents of files whose name or path matches (repeatable)",
    )
    group.add_argument(
        "--split-by",
        default="text",
        metavar="text|COL",
        help="What is hashed: the text, or a column of --metadata such as an id (default: text)",
    )


def _add_execution(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("execution")
    group.add_argument(
        "--workers", type=options.positive, help="Processes (default: one for each processor)"
    )
    group.add_argument(
        "--executor",
        choices=["processes", "ray"],
        default="processes",
        help="What runs the tasks (default: processes)",
    )
    group.add_argument(
        "--task",
        type=_share,
        metavar="I/N",
        help="Run only the I-th of N shares of the tasks, from 0; then run millstream finish DIR",
    )
    group.add_argument(
        "--task-bytes",
        type=options.size_bytes,
        help="The text of one task (default: 1/256 of the files)",
    )
    group.add_argument(
        "--shard-bytes",
        type=options.size_bytes,
        default=1 << 30,
        help="A shard ends with the document that makes it this large (default: 1GiB)",
    )
    options.add_allow_empty(group)


def run(arguments: argparse.Namespace) -> int:
    """Tokenize, and print the report."""
    from millstream.cli.tokenize_report import print_report
    from millstream.text.tokenize.tokenizing import make_source, tokenize

    split = _split_of(arguments)
    with ProgressLine() as line:
        report = tokenize(
            make_source(lambda name: source_options.source_of(arguments, name), split),
            chat_options.tokenizer_of(arguments),
            arguments.out,
            engine=arguments.engine,
            add=arguments.add,
            shuffle=arguments.shuffle,
            split=split,
            span_unit=arguments.span_unit,
            chat=chat_options.chat_of(arguments),
            check=not arguments.no_check,
            workers=arguments.workers,
            executor=arguments.executor,
            task=arguments.task,
            shard_bytes=arguments.shard_bytes,
            task_bytes=arguments.task_bytes,
            allow_empty=arguments.allow_empty,
            progress=line,
            remote=options.target_remote(arguments),
        )
    if report is None:
        index, count = arguments.task
        print(f"share {index} of {count} is done; when all are: millstream finish {arguments.out}")
    else:
        print_report(report, arguments.out)
    return 0


def _split_of(arguments: argparse.Namespace) -> "Split | None":
    """The split that the options mean."""
    from millstream.text.tokenize.split import TEXT, Split

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
