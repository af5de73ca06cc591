"""Sources: files of text, in the kinds that people keep them in, read as text batches.

    source      files of one kind (Parquet, JSONL, plain text), or a Python iterable
    slice       a part of a source that is read on its own: row groups or bytes of a file, or
                several small files
    block       a slice as live loading deals them out: a row group, about 4 MiB of lines, or a file
    text batch  some documents of one file, as UTF-8 in one array
    bad row     what is no document: a null, broken JSON, invalid UTF-8. It is refused, or skipped
                and reported; no text is ever altered

A slice is always read as the same documents, whoever reads it, and memory does not depend on the
size of files, row groups or lines.
"""

from penstock.text.sources.listing import Paths, SourceKind
from penstock.text.sources.rows import BadRow, BadRows, Columns
from penstock.text.sources.slices import Slice
from penstock.text.sources.source import Documents, Source

__all__ = ["BadRow", "BadRows", "Columns", "Documents", "Paths", "Slice", "Source", "SourceKind"]
