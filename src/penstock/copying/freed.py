"""Local files whose bytes were given back to the disk after they had been uploaded.

A freed file keeps its name and size, so that the job that wrote it works on as if it were there. It
is a hole: its bytes would read as zeros.
"""

import errno
import os
from ctypes import CDLL, c_int64, get_errno
from pathlib import Path

from penstock.copying.place import FileFacts, local_facts

_LIBC = CDLL(None, use_errno=True)
_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE
_ROUND_BYTES = 1 << 20
"""a hole must reach behind the last block, or that stays"""


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
            num_bytes = -(-found.st_size // _ROUND_BYTES) * _ROUND_BYTES
            mode = _PUNCH_HOLE | _KEEP_SIZE
            failed = _LIBC.fallocate(descriptor, mode, c_int64(0), c_int64(num_bytes))
            if failed and get_errno() not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(get_errno(), os.strerror(get_errno()), str(path))
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
