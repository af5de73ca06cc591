"""Locks of the cache, in a process that is forked while threads of its parent hold some.

A lock of the system belongs to an open file, and ends when the last copy of its descriptor is
closed. A forked child has copies of all descriptors, but not the threads that would close them: the
locks would stay as long as the child lives, and other processes would wait for them. The child may
be a worker that has nothing to do with remote data, and never starts another program.
"""

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from millstream.cache import cache_directory

_DESCRIPTORS = Path("/proc/self/fd")


def close_locked_files() -> None:
    """Close the descriptors by which threads of the parent lock files of the cache.

    Those by which files are read stay open: this thread may hold some.
    """
    with contextlib.suppress(OSError):  # no home directory, or no /proc
        root = cache_directory("remote").resolve()
        for path in list(_DESCRIPTORS.iterdir()):
            with contextlib.suppress(OSError):  # that of the listing itself
                if path.readlink().is_relative_to(root) and _may_lock(int(path.name)):
                    os.close(int(path.name))


def _may_lock(descriptor: int) -> bool:
    """Whether a file of the cache is open to lock it: for reading and writing, or a directory."""
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    return mode == os.O_RDWR or stat.S_ISDIR(os.fstat(descriptor).st_mode)
