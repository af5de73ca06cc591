"""Compare files with their block checksums, and add missing ones, for `verify`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.atomic import Written
from millstream.errors import MillstreamError
from millstream.formats.checksums import (
    CHECKSUMS,
    FileChecksums,
    companions_of,
    read_companion,
    write_companion,
)
from millstream.formats.files import open_regular
from millstream.system.checksums import BLOCK_BYTES, BlockHasher

_CHUNK_BYTES = 1 << 22
_MOST_PLACES = 5  # that are named for one file
_MAKE_AGAIN = "remove it and run millstream verify --add-checksums to make a new one"


class FileHashes:
    """The checksums of a file that is being read: of all of it, and of its blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._whole, self._blocks = xxhash.xxh3_64(), BlockHasher()
        self._size_bytes = 0

    def update(self, chunk: bytes) -> None:
        """Add the next bytes."""
        self._whole.update(chunk)
        self._blocks.update(chunk)
        self._size_bytes += len(chunk)

    def checksums(self) -> FileChecksums:
        """The checksums of what was read."""
        written = Written(self._size_bytes, self._whole.hexdigest())
        return FileChecksums(written, self._blocks.checksums())


class BlockChecks:
    """Compares a dataset's files with their companions, shard by shard.

    With `add`, sound files without a matching companion get a new one.
    """

    def __init__(self, *, add: bool) -> None:
        self._add = add
        self._known: dict[Path, dict[str, FileChecksums] | str] = {}
        """companions of the current shard: their contents, or why they are unusable"""
        self._checked: dict[str, FileChecksums] = {}
        """checksums of the shard's files as found"""
        self.is_sound = True
        """True if all of them could be read and have no problems"""
        self._misfits: dict[str, None] = {}
        self._seen: set[Path] = set()

    def compare(
        self, hashes: FileHashes, expected: str | None, *, is_sound: bool = True
    ) -> Iterator[str]:
        """Compare a file with its expected XXH3, if known, and locate damage."""
        path, found = hashes.path, hashes.checksums()
        companion, listed = self._listed(path)
        if expected not in (None, found.written.xxh3):
            is_sound = False
            is_of_it = listed is not None and listed.written.xxh3 == expected
            where = f"; {damage(found, listed)}" if listed is not None and is_of_it else ""
            yield f"{path}: xxh3 is {found.written.xxh3}, but the manifest says {expected}{where}"
        elif listed is not None and not _is_equal(found, listed):
            if expected is None:
                is_sound = False
                yield changed(path, companion, found, listed)
            else:
                self._misfits[f"{companion}: does not match {path.name}; {_MAKE_AGAIN}"] = None
        self.is_sound = self.is_sound and is_sound
        self._checked[path.name] = found

    def end_shard(self, companion: Path) -> Iterator[str]:
        """Report problems of the shard's companions, or write `companion` again."""
        is_complete = any(
            isinstance(listed, dict) and set(self._checked) <= set(listed)
            for listed in self._known.values()
        )
        if self._add and self.is_sound and (self._misfits or not is_complete):
            try:
                write_companion(companion, self._checked)
                self._misfits.clear()
            except OSError as error:
                yield f"{companion}: cannot be written: {error.strerror}"
        yield from self._misfits
        self._seen |= {companion, *self._known}
        self._known, self._checked, self._misfits, self.is_sound = {}, {}, {}, True

    def verify_rest(self, companion: Path) -> Iterator[str]:
        """Check the files of a companion outside of shards, such as a manifest's."""
        if companion in self._seen:
            return
        try:
            listed = read_companion(companion)
        except MillstreamError as error:
            files = [path for path in _named_after(companion) if path.is_file()]
            for path in files:
                yield from self.compare(_hash_file(path), None)
            if files:
                yield from self.end_shard(companion)
            else:
                yield f"{error}; its files are missing too: copy them again, or remove it"
            return
        for name, expected in listed.items():
            try:
                hashes = _hash_file(companion.with_name(name))
            except MillstreamError as error:
                yield (
                    f"{error}; copy it again, or, if you removed it on purpose, remove "
                    f"{companion.name}"
                )
                continue
            if not _is_equal(hashes.checksums(), expected):
                yield changed(hashes.path, companion, hashes.checksums(), expected)

    def add_missing(self, path: Path) -> Iterator[str]:
        """Write the companion of a file outside of shards, with `add`."""
        companion = path.with_name(f"{path.name.partition('.')[0]}{CHECKSUMS}")
        if self._add and path.is_file() and not companion.exists():
            yield from self.compare(_hash_file(path), None)
            yield from self.end_shard(companion)

    def _listed(self, path: Path) -> tuple[Path, FileChecksums | None]:
        """The companion that lists a file, and its entry."""
        for companion in companions_of(path):
            if companion not in self._known:
                try:
                    self._known[companion] = read_companion(companion)
                except MillstreamError as error:
                    self._known[companion] = str(error)
                    self._misfits[f"{error}; {_MAKE_AGAIN}"] = None
            known = self._known[companion]
            if isinstance(known, dict) and path.name in known:
                return companion, known[path.name]
        return path, None


def changed(path: Path, companion: Path, found: FileChecksums, listed: FileChecksums) -> str:
    """The message for a changed file that only its companion lists."""
    return (
        f"{path}: {damage(found, listed)}; copy or write it again, or, if you changed it on "
        f"purpose, remove {companion.name}"
    )


def damage(found: FileChecksums, listed: FileChecksums) -> str:
    """Where a file differs from its checksums."""
    if found.written.size_bytes != listed.written.size_bytes:
        sizes = f"{found.written.size_bytes:,} bytes, expected {listed.written.size_bytes:,}"
        return f"has {sizes}"
    ranges = _damaged_ranges(found.blocks != listed.blocks, found.written.size_bytes)
    if not ranges:
        return "its checksum does not match those of its blocks"
    named = ", ".join(f"{start:,} to {stop - 1:,}" for start, stop in ranges[:_MOST_PLACES])
    more = f" and in {len(ranges) - _MOST_PLACES:,} more places" if ranges[_MOST_PLACES:] else ""
    return f"damaged in bytes {named}{more}"


def _damaged_ranges(is_damaged: NDArray[np.bool_], size_bytes: int) -> list[tuple[int, int]]:
    """Runs of damaged blocks, as bytes."""
    edges = np.flatnonzero(np.diff(is_damaged, prepend=False, append=False))
    return [
        (start * BLOCK_BYTES, min(stop * BLOCK_BYTES, size_bytes))
        for start, stop in edges.reshape(-1, 2).tolist()
    ]


def _is_equal(found: FileChecksums, listed: FileChecksums) -> bool:
    return found.written == listed.written and np.array_equal(found.blocks, listed.blocks)


def _named_after(companion: Path) -> list[Path]:
    """The files that a damaged companion may list, judged by its name."""
    return [
        path
        for path in sorted(companion.parent.iterdir())
        if path.name.partition(".")[0] == companion.stem and path.suffix not in (CHECKSUMS, ".tmp")
    ]


def _hash_file(path: Path) -> FileHashes:
    hashes = FileHashes(path)
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            hashes.update(chunk)
    return hashes
