"""Local files whose bytes were given back to the disk after they had been uploaded.

A freed file keeps its name and size, so that the job that wrote it works on as if it were there. It
is a hole: its bytes would read as zeros.
"""

import errno
import os
from pathlib import Path

from millstream.copying.place import FileFacts, local_facts
from millstream.remote.block_changes import free_file


def free(path: Path, facts: FileFacts) -> None:
    """Give back the bytes of a file, if it is still the one that was sent.

    Some file systems have no holes; there the file stays whole.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # removed by its job
        return
    try:
        found = os.fstat(descriptor)
        # Compared through the descriptor: the job may put another file under the name at any time.
        if local_facts(found) == facts:
            error = free_file(descriptor, found.st_size)
            if error:
                raise OSError(error, os.strerror(error), str(path))
    finally:
        os.close(descriptor)


def is_freed(path: Path) -> bool:
    """True if a file has a size, but no bytes."""
    with path.open("rb") as file:
        try:
            os.lseek(file.fileno(), 0, os.SEEK_DATA)
        except OSError as error:
            return error.errno == errno.ENXIO and os.fstat(file.fileno()).st_size > 0
    return False
