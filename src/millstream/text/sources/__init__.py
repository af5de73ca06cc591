"""Sources: text in the formats people keep it in, read as text batches.

    source      files of one kind (Parquet, JSONL, plain text), or a Python iterable
    slice       a part of a source that is read on its own: row groups or bytes of a file, or
                several small files
    block       a slice that live loading deals to one rank: a row group, about 4 MiB of lines, or a
                file
    row         a row of Parquet, a line of JSONL, or a document of plain text
    text batch  documents of one file, as UTF-8 in one array
    bad row     a row that cannot become a document: a null, broken JSON, invalid UTF-8. Bad rows
                raise, or are skipped and reported; text is never altered

A source lists its files (`listing.py`), cuts them into slices or blocks (`slices.py`, `blocks.py`),
and reads a slice with the reader of its kind (`parquet.py`, `jsonl.py`, `plain_text.py`,
`iterables.py`). A slice always gives the same documents, whoever reads it. Memory does not grow
with the size of files, row groups or lines.
"""

from millstream.formats.text_names import SourceKind
from millstream.text.sources.listing import Paths
from millstream.text.sources.read_options import BadRow, BadRows, Columns
from millstream.text.sources.slices import Slice
from millstream.text.sources.source import DocumentUnit, Source

__all__ = ["BadRow", "BadRows", "Columns", "DocumentUnit", "Paths", "Slice", "Source", "SourceKind"]
