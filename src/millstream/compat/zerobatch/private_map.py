"""`map_privately`: a file as memory whose changes never reach the file."""

import io
import mmap

# A private writable map counts as memory, and fails if it is larger than the machine's memory,
# unless it is created with MAP_NORESERVE; Python names that flag from 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def map_privately(file: io.FileIO, size_bytes: int) -> mmap.mmap:
    """Map a file of this size: writing changes private copies of its pages."""
    return mmap.mmap(
        file.fileno(),
        size_bytes,
        flags=mmap.MAP_PRIVATE | _NO_RESERVE,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
    )
