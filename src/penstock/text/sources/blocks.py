"""The blocks of a file: what a live loader deals out to ranks, each read as a whole.

They depend on the file alone, so that every rank finds the same ones without asking another.
"""

from penstock.text.sources import parquet
from penstock.text.sources.files import TEXT_OF_COMPRESSED, TextFile
from penstock.text.sources.listing import Kind
from penstock.text.sources.rows import Columns
from penstock.text.sources.slices import Slice, cut_bytes

BLOCKS_VERSION = 1  # goes up if files are ever cut in another way: states count blocks
BLOCK_BYTES = 1 << 22  # of text: little to read again after a restart, much for one request


def file_blocks(file: TextFile, kind: Kind, columns: Columns, *, by_line: bool) -> list[Slice]:
    """All blocks of a file, in order; none if it has no text."""
    if kind == "parquet":
        return [
            Slice(files=(file.path,), start=k, stop=k + 1, size_bytes=group.text_bytes)
            for k, group in enumerate(parquet.row_groups(file, columns))
            if group.num_rows
        ]
    if not file.codec and by_line:
        return cut_bytes(file.path, file.size_bytes, BLOCK_BYTES) if file.size_bytes else []
    return whole_file(file)


def whole_file(file: TextFile) -> list[Slice]:
    """A file that is one block, unless it is empty."""
    file.check_header()
    size_bytes = file.size_bytes * (TEXT_OF_COMPRESSED if file.codec else 1)
    whole = Slice(files=(file.path,), start=0, stop=file.size_bytes, size_bytes=size_bytes)
    return [whole] if size_bytes else []
