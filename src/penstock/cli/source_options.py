"""Arguments of commands that read text, and how they become a source."""

import argparse
from typing import TYPE_CHECKING

from penstock.cli.options import names, size_bytes

if TYPE_CHECKING:
    from penstock.text.sources import Source


def add_source(
    parser: argparse.ArgumentParser, *, metadata: bool = True, spans: bool = True
) -> None:
    """The files of text, what they are, and what is taken of them."""
    parser.add_argument(
        "source",
        nargs="+",
        metavar="SRC",
        help="files, directories or patterns: .parquet, .jsonl, .txt; the last two also .gz, .zst",
    )
    group = parser.add_argument_group("source")
    group.add_argument(
        "--kind", choices=["parquet", "jsonl", "text"], help="of the files, if their names hide it"
    )
    group.add_argument(
        "--split",
        metavar="NAME",
        help="which of several splits to read, such as train; or all",
    )
    group.add_argument(
        "--text", default="text", metavar="COLUMN", help="the column or key of the text (text)"
    )
    group.add_argument(
        "--documents",
        choices=["line", "file", "block"],
        default="line",
        help="what a document is in plain text; blocks end at blank lines (line)",
    )
    group.add_argument(
        "--bad-rows",
        choices=["refuse", "skip"],
        default="refuse",
        help="what to do with rows that are no text: nulls, invalid UTF-8, broken JSON (refuse)",
    )
    group.add_argument(
        "--max-document-bytes",
        type=size_bytes,
        default=64 << 20,
        help="a longer row of Parquet or JSONL is a bad row (64 MiB)",
    )
    parser.set_defaults(metadata=(), spans=None)
    if metadata:
        group.add_argument(
            "--metadata",
            type=names,
            metavar="COL[,COL…]",
            help="columns or keys that documents keep as metadata",
        )
    if metadata and spans:
        group.add_argument("--spans", metavar="COL", help="the column or key of span annotations")


def source_of(options: argparse.Namespace, split: str | None = None) -> "Source":
    """The source that the options mean; `split` is for when they choose none."""
    from penstock.text.sources import Columns, Source

    return Source(
        options.source,
        kind=options.kind,
        split=options.split or split,
        columns=Columns(text=options.text, metadata=options.metadata, spans=options.spans),
        documents=options.documents,
        bad_rows=options.bad_rows,
        max_document_bytes=options.max_document_bytes,
    )
