"""Our stream format: a directory of headerless shards, and a manifest that describes them.

    penstock.json      this module's `Manifest`, written last
    00000.stream       packed little-endian records: record i at byte i * itemsize
    00000.documents    uint64[n + 1]: document k is records [d[k], d[k + 1])
    00000.index        uint64[m + 1]: metadata k is bytes [x[k], x[k + 1])    (only with metadata)
    00000.metadata     the encoded metadata, end to end                       (only with metadata)

The manifest is untrusted input: every number in it is checked against every other here, and
against the sizes of the files in `Shard.check_sizes`, before a byte of data is read.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import FormatError
from penstock.formats.files import read_whole
from penstock.formats.shard import (
    DOCUMENTS,
    INDEX,
    METADATA,
    METADATA_ID,
    STREAM,
    TOKEN,
    Manifest,
    Shard,
    StoredFile,
)

MANIFEST_NAME = "penstock.json"
PART_SUFFIX = ".part.json"
FORMAT, VERSION = "penstock-stream", 1
# Of datasets with groups: readers of version 1 would ignore the key and tear groups apart.
GROUPS_VERSION = 2

_SHARD_NAME = re.compile(r"[0-9A-Za-z_-]{1,100}")
_CHECKSUM = re.compile(r"[0-9a-f]{16}")
_MOST = (1 << 63) - 1
_MAX_MANIFEST_BYTES = 1 << 30

# NumPy's parser accepts much more than this, and divides by a zero in a time unit.
_TIME_UNIT = r"\[([1-9]\d{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]"
_SCALAR_TYPE = re.compile(rf"[<>|=]?([biufcSUV]\d{{1,9}}|[mM]8({_TIME_UNIT})?)")


def manifest_to_json(manifest: Manifest) -> str:
    """Serialize, one line per shard."""
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION if manifest.group_size == 1 else GROUPS_VERSION,
        "fields": fields_to_json(manifest.fields),
        "vocab_size": manifest.vocab_size,
        "tokenizer": manifest.tokenizer,
        "bos_id": manifest.bos_id,
        "eos_id": manifest.eos_id,
    }
    if manifest.split:
        head["split"] = manifest.split
    if manifest.group_size != 1:
        head["group_size"] = manifest.group_size
    lines = ",\n".join(f"  {json.dumps(_shard_to_json(shard))}" for shard in manifest.shards)
    head_text = json.dumps(head, indent=1)[:-2]
    return f'{head_text},\n "shards": [\n{lines}\n ]\n}}\n'


def read_manifest(directory: Path, name: str = MANIFEST_NAME) -> Manifest:
    """Read and check the manifest of `directory`."""
    path = directory / name
    text = read_whole(path, _MAX_MANIFEST_BYTES, "a manifest")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON ({error})") from None
    try:
        return parse_manifest(document, directory)
    except FormatError as mistake:
        raise FormatError(f"{path}: {mistake}") from None


def fields_from_json(value: Any) -> np.dtype[Any]:
    """Read a record type from its JSON form, `[["token", "<u2"], ["frame", "|u1", [8, 8]]]`."""
    if not isinstance(value, list) or not value:
        raise FormatError(
            f"fields: {value!r} is not a list of [name, dtype] or [name, dtype, shape]"
        )
    members: list[tuple[Any, ...]] = []
    for member in value:
        if not isinstance(member, list) or len(member) not in (2, 3):
            raise FormatError(f"fields: {member!r} is not [name, dtype] or [name, dtype, shape]")
        name, kind, *shape = member
        if not isinstance(name, str) or not name:
            raise FormatError(f"fields: {member!r}: the name must be a string")
        if not isinstance(kind, str) or not _SCALAR_TYPE.fullmatch(kind):
            raise FormatError(f"fields: {member!r}: the dtype must look like '<u2' or '|S8'")
        if shape and not (
            isinstance(shape[0], list)
            and len(shape[0]) <= 16
            and all(type(n) is int and 0 < n < 1 << 31 for n in shape[0])
        ):
            raise FormatError(f"fields: {member!r}: the shape must be a list of positive integers")
        members.append((name, kind, *(tuple(s) for s in shape)))
    try:
        fields = np.dtype(members)
    except (TypeError, ValueError, SyntaxError) as error:
        raise FormatError(f"fields: {value!r} is not a NumPy record type ({error})") from None
    problem = fields_problem(fields)
    if problem:
        raise FormatError(f"fields: {problem}")
    return fields


def fields_to_json(fields: np.dtype[Any]) -> list[list[Any]]:
    """Serialize a record type; the inverse of `fields_from_json`."""
    members: list[list[Any]] = []
    for name in fields.names or ():
        base, shape = fields[name].base, fields[name].shape
        members.append([name, base.str, list(shape)] if shape else [name, base.str])
    return members


def fields_problem(fields: np.dtype[Any]) -> str | None:
    """Why a record type cannot be stored; None if it can."""
    if not fields.names:
        return f"{fields} has no named fields"
    end = 0
    for name in fields.names:
        if fields.fields is not None and fields.fields[name][1] != end:
            return f"{fields} has padding or an overlap at {name!r}; leave out align and offsets"
        end += fields[name].itemsize
    if fields.itemsize != end:
        return f"{fields} has padding at its end; leave out align and itemsize"
    if fields.itemsize >= 1 << 31:
        return f"a record of {fields.itemsize:,} bytes is too large"
    for name in fields.names:
        base = fields[name].base
        if base.names or base.hasobject or base.kind not in "biufcSUmMV" or base.itemsize == 0:
            return f"field {name!r} of type {base} cannot be stored; use numbers or fixed bytes"
        if base.newbyteorder("<") != base:
            return f"field {name!r} is big-endian; records are little-endian, use {base.str[1:]!r}"
    if TOKEN in fields.names and {"input_ids", "labels"} & set(fields.names):
        return "'input_ids' and 'labels' are reserved for the tokens of a batch; rename the field"
    if METADATA_ID in fields.names and fields[METADATA_ID] != np.dtype("<u4"):
        return f"field {METADATA_ID!r} must be uint32, not {fields[METADATA_ID]}"
    if TOKEN in fields.names and (fields[TOKEN].kind not in "iu" or fields[TOKEN].shape):
        return f"field {TOKEN!r} must be one integer, not {fields[TOKEN]}"
    return None


def parse_manifest(document: Any, directory: Path) -> Manifest:
    """Check a manifest that was read from JSON; the shards lie in `directory`."""
    if not isinstance(document, dict):
        raise FormatError(f"{document!r:.60} is not an object")
    if document.get("format") != FORMAT:
        raise FormatError(f"format is {document.get('format')!r}, not {FORMAT!r}")
    version = document.get("version")
    if type(version) is not int or version not in (VERSION, GROUPS_VERSION):
        raise FormatError(
            f"version is {version!r}; this version of Penstock reads "
            f"versions {VERSION} and {GROUPS_VERSION}"
        )
    fields = fields_from_json(document.get("fields"))
    shards = document.get("shards")
    if not isinstance(shards, list):
        raise FormatError("shards: not a list")
    manifest = Manifest(
        fields=fields,
        vocab_size=_optional_count(document, "vocab_size"),
        tokenizer=_strings(document, "tokenizer"),
        bos_id=_optional_count(document, "bos_id"),
        eos_id=_optional_count(document, "eos_id"),
        shards=tuple(_parse_shard(shard, i, fields, directory) for i, shard in enumerate(shards)),
        split=_strings(document, "split") if "split" in document else {},
        group_size=_count(document, "group_size", "manifest") if "group_size" in document else 1,
    )
    _check_groups(manifest, version)
    if len({shard.name for shard in manifest.shards}) < len(manifest.shards):
        raise FormatError("shards: a name is listed twice")
    if sum(shard.num_records for shard in manifest.shards) > _MOST:
        raise FormatError("shards: more than 2^63 - 1 records in all")
    return manifest


def _check_groups(manifest: Manifest, version: int) -> None:
    size, num = manifest.group_size, sum(shard.num_documents for shard in manifest.shards)
    if size < 1:
        raise FormatError(f"group_size is {size}; a group has at least one document")
    if size > 1 and version < GROUPS_VERSION:
        raise FormatError(
            f"group_size is {size:,} in a manifest of version {version}; it needs version "
            f"{GROUPS_VERSION}"
        )
    if num % size:
        raise FormatError(f"{num:,} documents are not whole groups of {size:,}")


def _parse_shard(value: Any, number: int, fields: np.dtype[Any], directory: Path) -> Shard:
    where = f"shards[{number}]"
    if not isinstance(value, dict):
        raise FormatError(f"{where}: {value!r:.60} is not an object")
    name = value.get("name")
    if not isinstance(name, str) or not _SHARD_NAME.fullmatch(name):
        raise FormatError(f"{where}: name {name!r:.60} is not a plain file name")
    where = f"{where} ({name})"
    counts = [_count(value, key, where) for key in ("records", "documents", "spans")]
    listed = value.get("files")
    if not isinstance(listed, dict):
        raise FormatError(f"{where}: files is not an object")
    files: dict[str, StoredFile] = {}
    for suffix, entry in listed.items():
        if not isinstance(entry, dict):
            raise FormatError(f"{where}: files[{suffix!r}] is not an object")
        checksum = entry.get("xxh3")
        if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
            raise FormatError(
                f"{where}: files[{suffix!r}]: xxh3 {checksum!r:.60} is not 16 hex digits"
            )
        files[suffix] = StoredFile(_count(entry, "bytes", f"{where}: files[{suffix!r}]"), checksum)
    num_records, num_documents, num_spans = counts
    expected = {STREAM: num_records * fields.itemsize, DOCUMENTS: 8 * (num_documents + 1)}
    if METADATA_ID in (fields.names or ()):
        expected[INDEX] = 8 * (num_spans + 1)
        expected[METADATA] = files[METADATA].size_bytes if METADATA in files else 0
    if set(files) != set(expected):
        raise FormatError(f"{where}: lists {sorted(files)}, expected {sorted(expected)}")
    for suffix, size in expected.items():
        if files[suffix].size_bytes != size:
            raise FormatError(
                f"{where}: {suffix} has {files[suffix].size_bytes:,} bytes, but "
                f"{num_records:,} records of {fields.itemsize} bytes, {num_documents:,} documents "
                f"and {num_spans:,} spans need {size:,}"
            )
    return Shard(directory, name, num_records, num_documents, num_spans, files)


def _shard_to_json(shard: Shard) -> dict[str, Any]:
    return {
        "name": shard.name,
        "records": shard.num_records,
        "documents": shard.num_documents,
        "spans": shard.num_spans,
        "files": {
            suffix: {"bytes": file.size_bytes, "xxh3": file.xxh3}
            for suffix, file in shard.files.items()
        },
    }


def _strings(value: dict[str, Any], key: str) -> dict[str, str]:
    strings = value.get(key)
    if not isinstance(strings, dict) or not all(isinstance(v, str) for v in strings.values()):
        raise FormatError(f"{key}: {strings!r:.60} is not an object of strings")
    return strings


def _count(value: dict[str, Any], key: str, where: str) -> int:
    count = value.get(key)
    if type(count) is not int or not 0 <= count <= _MOST:
        raise FormatError(f"{where}: {key} is {count!r:.60}, not a count")
    return count


def _optional_count(value: dict[str, Any], key: str) -> int | None:
    return None if value.get(key) is None else _count(value, key, "manifest")
