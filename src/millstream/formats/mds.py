"""MosaicML's MDS with a column of tokens: `index.json` and shards.

A shard is uint32: the number of samples n, then n + 1 offsets into the file; then JSON that repeats
the columns; then the samples. A sample starts with a uint32 size for every column without a fixed
size; then come the columns, in the order of their names.

A sample is a document. Where all samples of a shard have the same size, as with llm-foundry's
concatenated tokens, they are read in place; else, and if shards are compressed, they are decoded
once (`formats.undecoded`).
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.errors import FormatError, UsageError
from millstream.formats.decompression import decompress
from millstream.formats.files import (
    check_size,
    plain_name,
    read_head,
    read_heads,
    read_part,
    read_whole,
)
from millstream.formats.repeated_files import refuse_repeats
from millstream.formats.shard import STREAM, TOKEN, Manifest, Shard, StoredFile
from millstream.formats.undecoded import DecodedDocuments, Described, Undecoded
from millstream.remote.at_once import at_once

TOKEN_COLUMNS = ("tokens", "input_ids", "token_ids")
_ARRAY = re.compile(r"ndarray(?::(u?int(?:8|16|32|64)))?(?::([1-9]\d{0,8}))?")
_VALUE_TYPES = {
    8: "|u1",
    9: "|i1",
    16: "<u2",
    17: "<i2",
    32: "<u4",
    33: "<i4",
    64: "<u8",
    65: "<i8",
}
_SIZES = {
    "int": 8,
    **{f"{kind}{8 * size}": size for size in (1, 2, 4, 8) for kind in ("int", "uint")},
}
_SIZES |= {"float16": 2, "float32": 4, "float64": 8}
_HASHES: dict[str, Callable[[bytes], Any]] = {
    **{name: getattr(hashlib, name) for name in ("md5", "sha1", "sha256", "sha512", "blake2b")},
    **{name: getattr(xxhash, name) for name in ("xxh32", "xxh64", "xxh3_64", "xxh3_128")},
}
_MAX_BYTES = 1 << 32
_NUM_TRIED = 16


@dataclass(frozen=True, slots=True)
class Column:
    """The place of the tokens in a sample, and how they are stored."""

    dtype: np.dtype[Any] | None
    """None if each sample states it"""
    has_shape: bool
    """True if each sample states the shape of its array"""
    num_dynamic: int
    """columns without a fixed size, each with four bytes at the start of a sample"""
    dynamic_before: int
    """how many of them stand before the tokens"""
    fixed_before: int
    """bytes of columns with a fixed size before the tokens"""
    fixed_size: int | None
    """bytes of the tokens, if fixed"""
    fixed_sum: int
    """bytes of all columns with a fixed size"""
    is_alone: bool
    """True if no other column has a variable size"""


def describe(directory: Path, index: dict[str, Any], dtype: str | None = None) -> Described:
    """Check `index.json` against the shards' own tables and sizes."""
    if index.get("version") != 2:
        raise FormatError(
            f"{directory}: MDS version {index.get('version')!r}; this version of Millstream reads 2"
        )
    shards = [_check_entry(directory, entry) for entry in index["shards"]]
    if not shards:
        raise FormatError(f"{directory}: index.json lists no shards")
    refuse_repeats(directory / "index.json", (_stored(shard)["basename"] for shard in shards))
    column = _find_column(directory, shards[0], dtype)
    if any(_find_column(directory, shard, dtype) != column for shard in shards):
        raise FormatError(
            f"{directory}: its shards have different columns; open them as separate datasets"
        )
    unread = _unread(shards[0])
    if all(shard["compression"] is None for shard in shards):
        found = at_once(
            lambda shard: _in_place(directory, shard, column),
            shards,
            lambda shard: directory / _stored(shard)["basename"],
        )
        in_place = [shard for shard in found if shard is not None]
        if len(in_place) == len(shards) and len({token for token, _ in in_place}) == 1:
            fields: np.dtype[Any] = np.dtype([(TOKEN, in_place[0][0])])
            places = tuple(shard for _, shard in in_place)
            return Manifest(fields, None, {}, None, None, places, "mds", unread=unread)
    heads = read_heads([directory / _stored(shard)["basename"] for shard in shards], 4)
    identity = f"{column} " + "; ".join(head.identity for head in heads)
    return Undecoded(
        format="mds",
        source=directory,
        identity=identity,
        decode=lambda: _decode(directory, shards, column),
        unread=unread,
    )


def _check_entry(directory: Path, entry: Any) -> dict[str, Any]:
    """Check the parts of an `index.json` entry that are used."""
    where = f"{directory}: index.json"
    if not isinstance(entry, dict) or entry.get("format") != "mds":
        raise FormatError(f"{where}: {entry!r:.60} does not describe a shard")
    names, encodings, sizes = (
        entry.get(f"column_{key}") for key in ("names", "encodings", "sizes")
    )
    is_list = all(isinstance(value, list) for value in (names, encodings, sizes))
    if not is_list or not len(names) == len(encodings) == len(sizes):  # type: ignore[arg-type]
        raise FormatError(f"{where}: numbers of column names, encodings and sizes differ")
    if not all(isinstance(text, str) for text in [*names, *encodings]):  # type: ignore[misc]
        raise FormatError(f"{where}: a column's name or encoding is not a string")
    if not all(size is None or (type(size) is int and 0 < size < _MAX_BYTES) for size in sizes):  # type: ignore[union-attr]
        raise FormatError(f"{where}: {sizes!r:.60} are not column sizes")
    if type(entry.get("samples")) is not int or not 0 < entry["samples"] < _MAX_BYTES:
        raise FormatError(f"{where}: {entry.get('samples')!r:.60} is not a sample count")
    compression = entry.get("compression")
    stored = entry.get("raw_data" if compression is None else "zip_data")
    for file in (stored, entry.get("raw_data")):
        is_size = isinstance(file, dict) and type(file.get("bytes")) is int
        if not is_size or not 0 < file["bytes"] < _MAX_BYTES:  # type: ignore[index]
            raise FormatError(f"{where}: {file!r:.60} is not an object with basename and bytes")
        plain_name(directory, file.get("basename"))  # type: ignore[union-attr]
    return entry | {"compression": compression}


def _stored(shard: dict[str, Any]) -> dict[str, Any]:
    file: dict[str, Any] = shard["raw_data" if shard["compression"] is None else "zip_data"]
    return file


def _unread(shard: dict[str, Any]) -> tuple[str, ...]:
    """The columns beside the tokens, in words."""
    names, encodings = shard["column_names"], shard["column_encodings"]
    tokens = next(name for name in TOKEN_COLUMNS if name in names)
    others = [
        f"{name} ({encoding})"
        for name, encoding in zip(names, encodings, strict=True)
        if name != tokens
    ]
    return (f"the columns {', '.join(others)}",) if others else ()


def _find_column(directory: Path, shard: dict[str, Any], dtype: str | None) -> Column:
    names, sizes = shard["column_names"], shard["column_sizes"]
    wanted = [name for name in TOKEN_COLUMNS if name in names]
    if not wanted:
        raise FormatError(
            f"{directory}: columns are {', '.join(names)}; expected one named "
            f"{' or '.join(TOKEN_COLUMNS)}"
        )
    place = names.index(wanted[0])
    encoding = shard["column_encodings"][place]
    array = _ARRAY.fullmatch(encoding)
    if array is None and encoding != "bytes":
        raise FormatError(f"{directory}: column {wanted[0]} is {encoding}, not bytes or ndarray")
    token: np.dtype[Any] | None = None
    if array is None:
        token = np.dtype(dtype or "<i8")  # what llm-foundry writes
    elif array[1]:
        token = np.dtype(array[1])
        if array[2] and sizes[place] != int(array[2]) * token.itemsize:
            raise FormatError(
                f"{directory}: column {wanted[0]} is {encoding}, but has {sizes[place]} bytes"
            )
    elif dtype is not None:
        raise UsageError(f"{directory}: its tokens store their type; leave out {dtype}")
    dynamic = [k for k, size in enumerate(sizes) if size is None]
    return Column(
        dtype=token,
        has_shape=array is not None and array[2] is None,
        num_dynamic=len(dynamic),
        dynamic_before=sum(k < place for k in dynamic),
        fixed_before=sum(size or 0 for size in sizes[:place]),
        fixed_size=sizes[place],
        fixed_sum=sum(size or 0 for size in sizes),
        is_alone=all(k == place for k in dynamic),
    )


def _offsets(path: Path, content: bytes, size_bytes: int, num_samples: int) -> NDArray[np.int64]:
    """Sample boundaries in a shard, from its own table."""
    found = int.from_bytes(content[:4], "little")
    if found != num_samples or size_bytes < 4 * (num_samples + 2):
        raise FormatError(
            f"{path}: {found:,} samples in {size_bytes:,} bytes, but index.json says "
            f"{num_samples:,}"
        )
    offsets = np.frombuffer(content, "<u4", num_samples + 1, 4).astype(np.int64)
    if offsets[0] < 4 * (num_samples + 2) or np.any(offsets[1:] < offsets[:-1]):
        raise FormatError(f"{path}: sample offsets go backwards; copy or write it again")
    check_size(path, size_bytes, int(offsets[-1]), "its samples")
    return offsets


def _in_place(
    directory: Path, shard: dict[str, Any], column: Column
) -> tuple[np.dtype[Any], Shard] | None:
    """The shard, if all samples have equally many tokens at equal distances; otherwise None."""
    path, num_samples = directory / shard["raw_data"]["basename"], shard["samples"]
    head = read_head(path, 4)
    check_size(path, head.size_bytes, shard["raw_data"]["bytes"], "what index.json lists")
    if num_samples > head.size_bytes // 4 - 2:
        raise FormatError(f"{path}: {num_samples:,} samples do not fit {head.size_bytes:,} bytes")
    content = read_part(path, 0, 4 * (num_samples + 2))
    offsets = _offsets(path, content, head.size_bytes, num_samples)
    pitch = int(offsets[1] - offsets[0])
    if column.dtype is None or not column.is_alone or np.any(np.diff(offsets) != pitch):
        return None
    # Samples of equal size, type and dimensions have equal headers; check a few.
    starts = offsets[np.linspace(0, num_samples - 1, min(num_samples, _NUM_TRIED)).astype(int)]
    places = {_find_tokens(path, read_part(path, int(start), pitch), column) for start in starts}
    if len(places) != 1:
        return None
    within, count, token = places.pop()
    if not count:
        return None
    file = StoredFile(
        head.size_bytes,
        path=str(path),
        first_byte=int(offsets[0]) + within,
        block_items=count,
        block_bytes=pitch,
    )
    total = num_samples * count
    return token, Shard(directory, path.name, total, num_samples, 0, {STREAM: file}, count)


def _find_tokens(path: Path, sample: bytes, column: Column) -> tuple[int, int, np.dtype[Any]]:
    """First byte, number and type of a sample's tokens."""
    sizes = np.frombuffer(sample, "<u4", min(column.num_dynamic, len(sample) // 4))
    size = 4 * column.num_dynamic + column.fixed_sum + int(sizes.sum(dtype=np.int64))
    if size != len(sample):
        raise FormatError(
            f"{path}: a sample has {len(sample):,} bytes, but its columns need {size:,}"
        )
    start = 4 * column.num_dynamic + column.fixed_before
    try:
        start += int(sizes[: column.dynamic_before].sum())
        stop = start + int(column.fixed_size or sizes[column.dynamic_before])
        token = column.dtype
        if token is None:
            token = np.dtype(_VALUE_TYPES[sample[start]])
            start += 1
        if column.has_shape:
            num_dimensions, width = sample[start] >> 2, 1 << (sample[start] & 3)
            shape = int.from_bytes(sample[start + 1 : start + 1 + width], "little")
            start += 1 + width
            if num_dimensions != 1:
                raise FormatError(f"{path}: a sample's tokens have {num_dimensions} dimensions")
            if stop - start != shape * token.itemsize:
                raise FormatError(f"{path}: a sample claims {shape:,} tokens, but its size differs")
    except (IndexError, KeyError):
        raise FormatError(f"{path}: a sample is too short, or its type is unknown") from None
    if stop > len(sample) or (stop - start) % token.itemsize or stop < start:
        raise FormatError(f"{path}: a sample's tokens end within a token ({stop - start:,} bytes)")
    return start, (stop - start) // token.itemsize, token


def _decode(
    directory: Path, shards: list[dict[str, Any]], column: Column
) -> Iterator[DecodedDocuments]:
    types = set[np.dtype[Any]]()
    for shard in shards:
        path = directory / _stored(shard)["basename"]
        content = _decompress(path, shard)
        offsets = _offsets(path, content, len(content), shard["samples"])
        lengths, parts = np.empty(len(offsets) - 1, np.int64), list[NDArray[Any]]()
        for k, (start, stop) in enumerate(pairwise(offsets.tolist())):
            sample = content[start:stop]
            within, lengths[k], token = _find_tokens(path, sample, column)
            parts.append(np.frombuffer(sample, token, lengths[k], within))
        types |= {part.dtype for part in parts}
        if len(types) > 1:
            raise FormatError(f"{path}: its samples have different token types; write it with one")
        yield DecodedDocuments(np.concatenate(parts), lengths)


def _decompress(path: Path, shard: dict[str, Any]) -> bytes:
    stored, size, compression = _stored(shard), shard["raw_data"]["bytes"], shard["compression"]
    check_size(path, read_head(path, 1).size_bytes, stored["bytes"], "what index.json lists")
    content = read_whole(path)
    hashes = stored.get("hashes")
    for name, said in hashes.items() if isinstance(hashes, dict) else ():
        if name in _HASHES and (found := _HASHES[name](content).hexdigest()) != said:
            raise FormatError(
                f"{path}: {name} is {found}, but index.json says {said!r:.60}; copy it again"
            )
    if compression is None:
        return content
    return decompress(path, content, str(compression).partition(":")[0], size)
