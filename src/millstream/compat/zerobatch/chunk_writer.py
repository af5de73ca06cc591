"""`write_chunk_file`: records of any length behind a table of offsets, in one LLMCHNK file."""

import os
import shutil
import tempfile
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from millstream.atomic import NewFile, hold_lock, sync_directory
from millstream.errors import DatasetExistsError, UsageError
from millstream.formats.checksums import CHECKSUMS, finish_files
from millstream.formats.llmchnk import DTYPES, HEADER, MAGIC
from millstream.formats.shard import TOKEN
from millstream.new_directory import new_directory
from millstream.write.record_checks import as_records

_PIECE_BYTES = 1 << 20


def write_chunk_file(
    output_path: str | os.PathLike[str],
    records: Iterable[ArrayLike],
    dtype: DTypeLike = np.uint32,
) -> int:
    """Write records, each a sequence of tokens, in their order; returns the number of records.

    Arguments:
        records: an array of shape (records, seq_len), or any iterable of sequences. It may be
            larger than memory: tokens wait in a temporary file beside the output, since the table
            of offsets comes before them.
        dtype: of the stored tokens, uint32 or uint16.

    >>> write_chunk_file(tmp / "a.chnk", [[1, 2, 3], [4, 5]])
    2
    """
    stored = np.dtype(dtype).newbyteorder("<")
    if stored not in DTYPES:
        raise UsageError(f"dtype is {np.dtype(dtype)}; LLMCHNK stores uint32 or uint16")
    output = Path(output_path).absolute()
    with new_directory(output.parent), hold_lock(output.parent, output.name):
        if os.path.lexists(output):
            raise DatasetExistsError(f"{output}: exists already; remove it or choose another path")
        with tempfile.TemporaryFile(dir=output.parent) as tokens:
            starts = array("Q", [0])
            fields = np.dtype([(TOKEN, stored)])
            for record in records:
                try:
                    content = as_records(record, fields, [TOKEN], None)
                except UsageError as error:
                    raise UsageError(f"record {len(starts) - 1:,}: {error}") from None
                tokens.write(content.tobytes())
                starts.append(starts[-1] + len(content))
            tokens.seek(0)
            file = NewFile(output)
            try:
                code, count = DTYPES.index(stored), len(starts) - 1
                file.write(HEADER.pack(MAGIC, 1, code, count, starts[-1]))
                file.write(np.asarray(starts, "<u8"))
                shutil.copyfileobj(tokens, file, _PIECE_BYTES)
                companion = output.with_name(f"{output.name}{CHECKSUMS}")
                finish_files(companion, {output.name: file})
            except BaseException:
                file.discard()
                raise
        sync_directory(output.parent)
    return count
