"""The blocks of a file: what a live loader deals out to ranks, each read as a whole.

They depend on the file alone, so that every rank finds the same ones without asking another.
"""

from collections.abc import Iterator

from penstock.text.sources import parquet
from penstock.text.sources.files import TEXT_OF_COMPRESSED, TextFile
from penstock.text.sources.frames import find_frames
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
    file.check_header()
    if file.codec == ".zst" and by_line:
        return list(_runs_of_frames(file))
    size_bytes = file.size_bytes * (TEXT_OF_COMPRESSED if file.codec else 1)
    whole = Slice(files=(file.path,), start=0, stop=file.size_bytes, size_bytes=size_bytes)
    return [whole] if size_bytes else []


def _runs_of_frames(file: TextFile) -> Iterator[Slice]:
    """Each frame, or small ones together; those without text go with the one before."""
    start = size = 0
    for frame in find_frames(file):
        if size and frame.text_bytes and size + frame.text_bytes / 2 > BLOCK_BYTES:
            yield Slice(files=(file.path,), start=start, stop=frame.start, size_bytes=size)
            start, size = frame.start, 0
        size += frame.text_bytes
    if size:
        yield Slice(files=(file.path,), start=start, stop=file.size_bytes, size_bytes=size)
