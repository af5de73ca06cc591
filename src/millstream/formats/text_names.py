"""What a file's name says about the text in it."""

import os
from typing import Literal

SourceKind = Literal["parquet", "jsonl", "text"]

CODECS = (".gz", ".zst")
ENDINGS: dict[str, SourceKind] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}


def kind_of(path: str) -> SourceKind | None:
    """Return the kind that a file's name implies; None if unknown."""
    return ENDINGS.get(ending_of(path))


def ending_of(path: str) -> str:
    """The ending of a file's name, in lower case, without that of its compression."""
    name = path.lower()
    for codec in CODECS:
        name = name.removesuffix(codec)
    return os.path.splitext(name)[1]  # noqa: PTH122
