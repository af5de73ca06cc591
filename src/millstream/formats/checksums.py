"""Block checksums: a companion beside files that cannot hold them.

    NAME.checksums
        a line of JSON    format, version, bytes of a block; size and XXH3 of every file, by name
        uint32[blocks]    the CRC32C of every block, file after file
        8 bytes           the XXH3 of all before

One companion serves all files of a shard, and one the manifest. It is bound to them by sizes and
XXH3. It is optional: a dataset without it is valid. With it, damage is located to the block, and a
reader that fetches ranges can check them.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.atomic import NewFile, Written, publish
from millstream.errors import FormatError
from millstream.formats.files import MOST, open_regular, plain_name
from millstream.system.checksums import BLOCK_BYTES, block_checksums, num_blocks

CHECKSUMS = ".checksums"
FORMAT, VERSION = "millstream-checksums", 1
MAX_LINE_BYTES = 1 << 20
_END_BYTES = 8
_XXH3 = re.compile(r"[0-9a-f]{16}")


class FileChecksums(NamedTuple):
    """What a companion lists for one file."""

    written: Written
    blocks: NDArray[np.uint32]


def write_companion(path: Path, files: Mapping[str, FileChecksums]) -> None:
    """Write a companion atomically; the directory is not synced."""
    line = {
        "format": FORMAT,
        "version": VERSION,
        "block_bytes": BLOCK_BYTES,
        "files": {
            name: {"bytes": file.written.size_bytes, "xxh3": file.written.xxh3}
            for name, file in files.items()
        },
    }
    content = json.dumps(line).encode() + b"\n"
    content += b"".join(file.blocks.astype("<u4").tobytes() for file in files.values())
    publish(path, content + xxhash.xxh3_64_digest(content), lasting=False)


def finish_files(companion: Path, files: Mapping[str, NewFile]) -> dict[str, Written]:
    """Give files their final names and write their companion; the directory is not synced."""
    written = {name: file.finish() for name, file in files.items()}
    write_companion(
        companion, {name: FileChecksums(written[name], files[name].blocks) for name in files}
    )
    return written


def publish_checked(path: Path, text: str) -> None:
    """Write a small file, such as a manifest, atomically, after its companion."""
    content = text.encode()
    written = Written(len(content), xxhash.xxh3_64_hexdigest(content))
    checksums = FileChecksums(written, block_checksums(content))
    write_companion(path.with_suffix(CHECKSUMS), {path.name: checksums})
    publish(path, content)


def companions_of(path: Path) -> Iterator[Path]:
    """Existing companions that may list a file; a shard's is named up to one of the dots."""
    ends = [dot.start() for dot in re.finditer(r"\.", path.name)]
    for end in (*ends, len(path.name)):
        companion = path.with_name(f"{path.name[:end]}{CHECKSUMS}")
        if os.path.lexists(companion):
            yield companion


def read_companion(path: Path) -> dict[str, FileChecksums]:
    """Read and check a companion: checksums by file name."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        start = os.pread(file.fileno(), MAX_LINE_BYTES, 0)
        line = start[: max(start.find(b"\n"), 0)]
        files = parse_listed(path, line)
        counts = [num_blocks(written.size_bytes) for written in files.values()]
        end = len(line) + 1 + 4 * sum(counts)
        if size_bytes != end + _END_BYTES:
            raise FormatError(
                f"{path}: {size_bytes:,} bytes, but the files that it lists need "
                f"{end + _END_BYTES:,}; it is truncated or damaged; copy it again"
            )
        content = file.read()
    if len(content) != size_bytes or xxhash.xxh3_64_digest(content[:end]) != content[end:]:
        raise FormatError(
            f"{path}: is damaged: its content does not match the checksum at its end; "
            "remove or copy it again"
        )
    blocks = np.frombuffer(content, "<u4", sum(counts), len(line) + 1).astype(np.uint32)
    each = np.split(blocks, np.cumsum(counts)[:-1])
    return {
        name: FileChecksums(written, some)
        for (name, written), some in zip(files.items(), each, strict=True)
    }


def parse_listed(path: Path, line: bytes) -> dict[str, Written]:
    """Parse the first line of a companion: sizes and checksums by file name."""
    try:
        head: Any = json.loads(line)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise FormatError(
            f"{path}: does not start with a JSON line that describes checksums; remove or "
            "copy it again"
        )
    if type(head.get("version")) is not int or head["version"] != VERSION:
        raise FormatError(
            f"{path}: version is {head.get('version')!r:.60}; this version of Millstream "
            f"reads {VERSION}"
        )
    if type(head.get("block_bytes")) is not int or head["block_bytes"] != BLOCK_BYTES:
        raise FormatError(
            f"{path}: block_bytes is {head.get('block_bytes')!r:.60}; this version of Millstream "
            f"reads {BLOCK_BYTES:,}"
        )
    listed = head.get("files")
    if not isinstance(listed, dict) or not listed:
        raise FormatError(f"{path}: lists no files")
    return {plain_name(path, name): _written(path, name, entry) for name, entry in listed.items()}


def _written(path: Path, name: str, entry: Any) -> Written:
    size, xxh3 = (entry.get("bytes"), entry.get("xxh3")) if isinstance(entry, dict) else (0, 0)
    if type(size) is not int or not 0 <= size <= MOST:
        raise FormatError(f"{path}: {name}: bytes is {size!r:.60}, not a size")
    if not isinstance(xxh3, str) or not _XXH3.fullmatch(xxh3):
        raise FormatError(f"{path}: {name}: xxh3 is {xxh3!r:.60}, not 16 hex digits")
    return Written(size, xxh3)
