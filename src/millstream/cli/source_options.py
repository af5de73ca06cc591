"""Options of commands that read text, and the `Source` they describe."""

import argparse
from typing import TYPE_CHECKING

from millstream.cli.options import add_remote, names, size_bytes
from millstream.cli.options import remote as remote_of

if TYPE_CHECKING:
    from millstream.text.sources import Source


def add_source(
    parser: argparse.ArgumentParser, *, metadata: bool = True, spans: bool = True
) -> None:
    """Add the text files, their format, and the columns to read."""
    parser.add_argument(
        "source",
        nargs="+",
        metavar="SRC",
        help="Text files, directories, quoted patterns or URLs of these: .parquet, .jsonl, .txt; "
        "the last two also as .gz or .zst",
    )
    group = parser.add_argument_group("source")
    group.add_argument(
        "--kind",
        choices=["parquet", "jsonl", "text"],
        help="File format, if the names do not tell it",
    )
    group.add_argument(
        "--split",
        metavar="NAME",
        help="Split to read, such as train, if the source has several; or all",
    )
    group.add_argument(
        "--text", default="text", metavar="COLUMN", help="Column or key of the text (default: text)"
    )
    group.add_argument(
        "--documents",
        choices=["line", "file", "block"],
        default="line",
        help="What a document is in plain text; blocks end at blank lines (default: line)",
    )
    group.add_argument(
        "--bad-rows",
        choices=["refuse", "skip"],
        default="refuse",
        help="What to do with nulls, invalid UTF-8 and broken JSON (default: refuse)",
    )
    group.add_argument(
        "--max-document-bytes",
        type=size_bytes,
        default=64 << 20,
        metavar="SIZE",
        help="Treat longer rows of Parquet and JSONL as bad rows (default: 64MiB)",
    )
    parser.set_defaults(metadata=(), spans=None)
    if metadata:
        group.add_argument(
            "--metadata",
            type=names,
            metavar="COL[,COL…]",
            help="Columns or keys to keep as metadata of the documents",
        )
    if metadata and spans:
        group.add_argument("--spans", metavar="COL", help="Column or key of span annotations")
    add_remote(parser)


def source_of(options: argparse.Namespace, split: str | None = None) -> "Source":
    """Return the source that the options describe; `split` is the default split."""
    from millstream.text.sources import Columns, Source

    return Source(
        options.source,
        kind=options.kind,
        split=options.split or split,
        columns=Columns(text=options.text, metadata=options.metadata, spans=options.spans),
        documents=options.documents,
        bad_rows=options.bad_rows,
        max_document_bytes=options.max_document_bytes,
        remote=remote_of(options),
    )
