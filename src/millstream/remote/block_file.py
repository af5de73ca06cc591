"""`BlockFile`: the local file of an object, sparse, and the map of the blocks that it has.

    map       4,096 bytes   magic, version, the object's size, the data file's inode, two identities
              uint64[n]     an entry for each block of 4 KiB: bit 63 is set if it is here, 31 bits
                            count how often it was dropped, 32 bits are its CRC32C

Any number of processes use a file at once. Filling writes the block, then its entry; dropping
clears the entry, then frees the block. Both hold a lock of the system on the entry, which ends with
its holder. A block that is being fetched is claimed by a lock of its own. A kernel takes no lock to
read: it compares the entries before and after. Other code holds a shared lock on the file, which
keeps its blocks. Entries are written by system calls, not through memory: on a full disk a system
call fails, but a write to memory kills the process. A changed object gets new files; processes that
have the old ones open still read those. Files are made and removed under a lock on the directory of
the map. The map goes first and comes last, so a map that is there belongs to the file beside it.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.atomic import temporary_path
from millstream.errors import FormatError, ReadError
from millstream.remote.block_changes import claim_blocks, drop_blocks, fill_blocks
from millstream.remote.forked_locks import close_locked_files
from millstream.system.checksums import BLOCK_BYTES, BlockHasher, block_checksums, num_blocks
from millstream.system.file_map import FileMap

HEADER_BYTES = 4096
PRESENT = np.uint64(1 << 63)
_MAGIC, _VERSION = b"MILBLOCK", 1
_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u8"),
        ("size_bytes", "<u8"),
        ("inode", "<u8"),
        ("etag", "<u8"),
        ("stated", "<u8"),
        ("boot", "S40"),
    ]
)
_CRC = np.uint64((1 << 32) - 1)
_MAX_ATTEMPTS = 10

ByteRange = tuple[int, int]

os.register_at_fork(after_in_child=close_locked_files)


def identity_number(identity: str) -> int:
    """An identity of an object as kernels compare it; 0 if it is not known."""
    return (xxhash.xxh3_64_intdigest(identity.encode()) >> 1) | 1 if identity else 0


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Hold the lock under which files with maps in a directory are made and removed."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class BlockFile:
    """The local file of an object, and the map of the blocks that it has."""

    def __init__(
        self, path: Path, map_path: Path, size_bytes: int, *, etag: str = "", stated: str = ""
    ) -> None:
        """`etag` and `stated`, the checksum in a manifest, change with the object's content.

        At least one is known. Files of another object are replaced.
        """
        self.path, self.map_path, self.size_bytes = path, map_path, size_bytes
        self._etag, self._stated = identity_number(etag), identity_number(stated)
        self.expected: NDArray[np.uint32] | None = None
        """the CRC32C of every block, if the dataset has block checksums"""
        with _cache_errors(path):
            self._map = self._attach()
        entries = np.frombuffer(memoryview(self._map), np.uint64, offset=HEADER_BYTES)
        self._entries: NDArray[np.uint64] = entries

    def _attach(self) -> FileMap:
        """Map the map, made anew if there is none that fits; again if a user removes the cache."""
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                found = self._find_or_make()
                if found is not None:
                    return found
        raise ReadError(f"{self.map_path}: cannot be read back; check the disk")

    def _find_or_make(self) -> FileMap | None:
        for directory in (self.path.parent, self.map_path.parent):
            directory.mkdir(parents=True, exist_ok=True)
        with locked_directory(self.map_path.parent):
            opened = self._open_fitting()
            if opened is None:
                self._make()
                opened = self._open_fitting()
            if opened is None:
                return None
            try:
                # While it is mapped, no other file gets its inode.
                self._inode = os.fstat(opened).st_ino
                return FileMap(opened, self._map_bytes)
            finally:
                os.close(opened)

    def _open_fitting(self) -> int | None:
        """Open the map if it belongs to this object and these files; else None."""
        try:
            opened = os.open(self.map_path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        content = os.pread(opened, _HEADER.itemsize, 0)
        if len(content) == _HEADER.itemsize and os.fstat(opened).st_size == self._map_bytes:
            header: Any = np.frombuffer(content, _HEADER)[0]
            with contextlib.suppress(FileNotFoundError):
                found = self.path.stat()
                if (
                    header["magic"] == _MAGIC
                    and header["version"] == _VERSION
                    and header["size_bytes"] == self.size_bytes == found.st_size
                    and header["inode"] == found.st_ino
                    and self._is_same(header)
                ):
                    self._write_identities(opened, header)
                    if header["boot"] != _boot_id():
                        self._drop_damaged(opened)
                    return opened
        os.close(opened)
        return None

    def _is_same(self, header: Any) -> bool:
        """Whether a map belongs to this object: one identity is equal, and none differs."""
        pairs = (header["etag"], self._etag), (header["stated"], self._stated)
        known = [one == other for one, other in pairs if one and other]
        return bool(known) and all(known)

    def _write_identities(self, opened: int, header: Any) -> None:
        """Add the identities that were not known when the map was made."""
        for name, value in (("etag", self._etag), ("stated", self._stated)):
            if value and not header[name]:
                os.pwrite(opened, np.uint64(value).tobytes(), _offset(name))

    def note_etag(self, etag: str) -> None:
        """Add the ETag, which the first answer of the store has told.

        If the files have blocks of an object with another ETag, which was replaced between two
        runs, new files take their place. Then this object cannot store blocks any more.
        """
        self._etag = identity_number(etag)
        with (
            _cache_errors(self.path),
            contextlib.suppress(FileNotFoundError),  # removed; made again when they are needed
            locked_directory(self.map_path.parent),
        ):
            opened = os.open(self.map_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.fstat(opened).st_ino != self._inode:
                    return  # replaced; storing blocks fails, and they are fetched again
                noted = int.from_bytes(os.pread(opened, 8, _offset("etag")), "little")
                if noted in (0, self._etag):
                    os.pwrite(opened, np.uint64(self._etag).tobytes(), _offset("etag"))
                    return
            finally:
                os.close(opened)
            self._make()

    def _make(self) -> None:
        """Make empty files of the right sizes; the map appears last."""
        # Not beside the file: others list that directory, and remove what the store does not have.
        data, map_ = temporary_path(self.map_path), temporary_path(self.map_path)
        try:
            with data.open("xb") as file:
                os.truncate(file.fileno(), self.size_bytes)
                inode = os.fstat(file.fileno()).st_ino
            identities = self._etag, self._stated
            header = (_MAGIC, _VERSION, self.size_bytes, inode, *identities, _boot_id())
            with map_.open("xb") as file:
                file.write(np.array([header], _HEADER).tobytes())
                file.flush()
                if _is_tmpfs(self.map_path.parent):
                    # If memory is short, reading a hole of a mapped file there kills the process.
                    os.posix_fallocate(file.fileno(), 0, self._map_bytes)
                else:
                    file.truncate(self._map_bytes)
            self.map_path.unlink(missing_ok=True)
            data.rename(self.path)
            map_.rename(self.map_path)
        finally:
            data.unlink(missing_ok=True)
            map_.unlink(missing_ok=True)

    def _drop_damaged(self, opened: int) -> None:
        """Drop blocks that do not match their checksums.

        If the machine crashed, entries may have reached the disk before their blocks.
        """
        entries = np.fromfile(self.map_path, "<u8", offset=HEADER_BYTES)
        with self.path.open("rb") as file:
            for block in np.flatnonzero(entries & PRESENT).tolist():
                content = os.pread(file.fileno(), BLOCK_BYTES, block * BLOCK_BYTES)
                if not content or block_checksums(content)[0] != entries[block] & _CRC:
                    entries[block] = 0
        os.pwrite(opened, entries.tobytes(), HEADER_BYTES)
        os.fsync(opened)
        os.pwrite(opened, _boot_id().ljust(40, b"\0"), _offset("boot"))

    @property
    def inode(self) -> int:
        """Of the data file that the map belongs to; a path may lead to another one by now."""
        return int(np.frombuffer(memoryview(self._map), _HEADER, count=1)["inode"][0])

    @property
    def is_current(self) -> bool:
        """Whether the files are still there; others may have removed or replaced them."""
        with contextlib.suppress(FileNotFoundError):
            return self.map_path.stat().st_ino == self._inode and self.path.exists()
        return False

    def has(self, start: int, stop: int) -> bool:
        """Whether all bytes [start, stop) are here."""
        return bool((self._entries[start // BLOCK_BYTES : num_blocks(stop)] & PRESENT).all())

    @property
    def is_whole(self) -> bool:
        """Whether all blocks are here."""
        return self.has(0, self.size_bytes)

    def missing(self, start: int, stop: int) -> list[ByteRange]:
        """The runs of bytes that are not here, in whole blocks."""
        first = start // BLOCK_BYTES
        return self._runs(first, (self._entries[first : num_blocks(stop)] & PRESENT) == 0)

    @contextlib.contextmanager
    def claim(self, start: int, stop: int) -> Iterator[list[ByteRange]]:
        """Yield the runs of missing bytes that this caller is to fetch, as nobody else does so now.

        The claim ends with the block, or with the process.
        """
        with _cache_errors(self.map_path):
            opened = os.open(self.map_path, os.O_RDWR | os.O_CLOEXEC)
        try:
            first = start // BLOCK_BYTES
            entries = self._entries[first : num_blocks(stop)]
            is_ours = ((entries & PRESENT) == 0).astype(np.uint8)
            _check(self.map_path, claim_blocks(opened, first, is_ours))
            # Others may have stored blocks just before they gave up their claims.
            yield self._runs(first, (is_ours != 0) & ((entries & PRESENT) == 0))
        finally:
            os.close(opened)

    def _runs(self, first: int, is_wanted: NDArray[np.bool_]) -> list[ByteRange]:
        """The runs of bytes of some blocks, from block `first` on."""
        if not is_wanted.any():
            return []
        edges = np.flatnonzero(np.diff(is_wanted, prepend=False, append=False)) + first
        return [
            (begin * BLOCK_BYTES, min(end * BLOCK_BYTES, self.size_bytes))
            for begin, end in edges.reshape(-1, 2).tolist()
        ]

    def present(self, first: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """The numbers of the blocks that are here, of those from `first` to before `stop`."""
        return np.flatnonzero(self._entries[first:stop] & PRESENT) + first

    def fill(self, start: int, data: Any, head: bytes = b"") -> None:
        """Store whole blocks from byte `start` on; the object's last may be shorter.

        Their first bytes are those of `head`, if there is one.
        """
        hasher, stop = BlockHasher(), start + len(head) + len(data)
        hasher.update(head)
        hasher.update(data)
        first, checksums = start // BLOCK_BYTES, hasher.checksums()
        if (
            start % BLOCK_BYTES
            or stop > self.size_bytes
            or (stop % BLOCK_BYTES and stop < self.size_bytes)
        ):
            raise ValueError("only whole blocks of the object can be stored")
        was_expected = self.expected is not None
        self._compare(first, checksums)
        _check(self.path, fill_blocks(*self._names, head, data, first, checksums))
        if not was_expected:  # `expect` may have looked just before these blocks were here
            self._compare(first, checksums)

    def drop_all(self, blocks: NDArray[np.int64]) -> bool:
        """Free blocks, given by number, ascending; False if a process holds the file."""
        cuts = np.flatnonzero(np.diff(blocks) > 1) + 1
        runs = [(int(each[0]), int(each[-1]) + 1) for each in np.split(blocks, cuts) if each.size]
        return all(self.drop(first, stop) for first, stop in runs)

    def drop(self, first: int, stop: int) -> bool:
        """Free blocks [first, stop); False if a process holds the file (`MirroredFile.open_held`).

        Files that were removed or replaced are left alone.
        """
        error = drop_blocks(*self._names, first, stop - first)
        if error not in (errno.EWOULDBLOCK, errno.ENOENT, errno.ESTALE):
            _check(self.path, error)
        return error == 0

    def expect(self, checksums: NDArray[np.uint32]) -> None:
        """Compare all blocks with the dataset's checksums, those here and those to come."""
        self.expected = checksums
        entries = self._entries.copy()
        there = np.flatnonzero(entries & PRESENT)
        self._compare(there, (entries[there] & _CRC).astype(np.uint32))

    def _compare(self, blocks: int | NDArray[np.int64], found: NDArray[np.uint32]) -> None:
        if self.expected is None:
            return
        numbers = np.arange(found.size) + blocks if isinstance(blocks, int) else blocks
        wrong = numbers[self.expected[numbers] != found]
        if wrong.size:
            block = int(wrong[0])
            self.drop_all(wrong)
            raise FormatError(
                f"{self.path}: bytes {block * BLOCK_BYTES:,} to "
                f"{min((block + 1) * BLOCK_BYTES, self.size_bytes):,} do not match the dataset's "
                "block checksums; the object is damaged: copy or write it again"
            )

    @property
    def _map_bytes(self) -> int:
        return HEADER_BYTES + 8 * num_blocks(self.size_bytes)

    @property
    def _names(self) -> tuple[bytes, bytes, int]:
        return os.fsencode(self.path), os.fsencode(self.map_path), self._inode


def _offset(name: str) -> int:
    """Where a field of the header lies."""
    assert _HEADER.fields is not None
    return int(_HEADER.fields[name][1])


def _check(path: Path, error: int) -> None:
    """Raise the error with this number, if it is not 0."""
    if error:
        with _cache_errors(path):
            raise OSError(error, os.strerror(error))


@contextlib.contextmanager
def _cache_errors(path: Path) -> Iterator[None]:
    """Say what to do about errors of the cache's disk."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ReadError | NotADirectoryError | IsADirectoryError | FileExistsError):
            raise
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise disk_error(path, error) from None
        raise ReadError(
            errno.ENOENT,
            f"{path}: was removed from the cache while in use; start again",
        ) from None


def disk_error(path: Path, error: OSError) -> ReadError:
    """The error for a failure of the cache's disk, with what to do."""
    remedy = "set XDG_CACHE_HOME to a writable directory"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = (
            "the disk of the cache is full: free space (millstream cache clear), set a lower limit "
            "(MILLSTREAM_CACHE_BYTES or millstream.Remote(cache_bytes=…)), or set XDG_CACHE_HOME "
            "to a directory on a larger disk"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = (
            "allow more open files (ulimit -n), or set a lower millstream.Remote(max_requests=…)"
        )
    return ReadError(error.errno, f"{path}: {error.strerror}; {remedy}")


def _is_tmpfs(directory: Path) -> bool:
    """Whether a directory lies in memory."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[2] == wanted:
                return line.partition(" - ")[2].startswith("tmpfs ")
    return False


def _boot_id() -> bytes:
    """Differs after the machine was started again."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:40]
    return b"unknown"
