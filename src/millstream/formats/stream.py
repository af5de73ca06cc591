"""Our stream format: a directory of headerless shards, and a manifest that describes them.

    millstream.json      this module's `Manifest`, written last
    00000.stream       packed little-endian records: record i at byte i * itemsize
    00000.documents    uint64[n + 1]: document k is records [d[k], d[k + 1])
    00000.index        uint64[m + 1]: metadata k is bytes [x[k], x[k + 1])    (only with metadata)
    00000.metadata     the encoded metadata, end to end                       (only with metadata)

In a dataset of objects, records are single bytes, and metadata k belongs to document k.

The manifest is untrusted input: every number in it is checked against every other here, and
against the sizes of the files in `Shard.check_sizes`, before a byte of data is read.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from millstream.errors import FormatError
from millstream.formats.files import read_whole
from millstream.formats.record_types import fields_from_json, fields_to_json, has_nested_fields
from millstream.formats.shard import (
    DOCUMENTS,
    INDEX,
    METADATA,
    OBJECT_FIELDS,
    STREAM,
    Manifest,
    Shard,
    StoredFile,
)

MANIFEST_NAME = "millstream.json"
PART_SUFFIX = ".part.json"
FORMAT = "millstream-stream"
VERSIONS = (1, 2)
"""2 has groups, objects and nested fields, and is written only for these"""

_SHARD_NAME = re.compile(r"[0-9A-Za-z_-]{1,100}")
_CHECKSUM = re.compile(r"[0-9a-f]{16}")
_MOST = (1 << 63) - 1
_MAX_MANIFEST_BYTES = 1 << 30


def manifest_to_json(manifest: Manifest) -> str:
    """Serialize, one line per shard."""
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": 2 if _needs_version_2(manifest) else 1,
        "fields": fields_to_json(manifest.fields),
        "vocab_size": manifest.vocab_size,
        "tokenizer": manifest.tokenizer,
        "bos_id": manifest.bos_id,
        "eos_id": manifest.eos_id,
    }
    if manifest.holds_objects:
        head["objects"] = {"metadata": manifest.objects_with_metadata}
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


def parse_manifest(document: Any, directory: Path) -> Manifest:
    """Check a manifest that was read from JSON; the shards lie in `directory`."""
    if not isinstance(document, dict):
        raise FormatError(f"{document!r:.60} is not an object")
    if document.get("format") != FORMAT:
        raise FormatError(f"format is {document.get('format')!r}, not {FORMAT!r}")
    version = document.get("version")
    if type(version) is not int or version not in VERSIONS:
        raise FormatError(
            f"version is {version!r:.60}; this version of Millstream reads versions "
            f"{' and '.join(map(str, VERSIONS))}"
        )
    fields = fields_from_json(document.get("fields"))
    objects_with_metadata = _objects_with_metadata(document, fields)
    shards = document.get("shards")
    if not isinstance(shards, list):
        raise FormatError("shards: not a list")
    head = Manifest(
        fields=fields,
        vocab_size=_optional_count(document, "vocab_size"),
        tokenizer=_strings(document, "tokenizer"),
        bos_id=_optional_count(document, "bos_id"),
        eos_id=_optional_count(document, "eos_id"),
        shards=(),
        split=_strings(document, "split") if "split" in document else {},
        group_size=_count(document, "group_size", "manifest") if "group_size" in document else 1,
        objects_with_metadata=objects_with_metadata,
    )
    if version == 1 and _needs_version_2(head):
        raise FormatError("version is 1, which has no groups, objects or nested fields")
    parsed = (_parse_shard(shard, i, head, directory) for i, shard in enumerate(shards))
    manifest = replace(head, shards=tuple(parsed))
    _check_groups(manifest)
    if len({shard.name for shard in manifest.shards}) < len(manifest.shards):
        raise FormatError("shards: a name is listed twice")
    if sum(shard.num_records for shard in manifest.shards) > _MOST:
        raise FormatError("shards: more than 2^63 - 1 records in all")
    return manifest


def _check_groups(manifest: Manifest) -> None:
    size, num = manifest.group_size, sum(shard.num_documents for shard in manifest.shards)
    if size < 1:
        raise FormatError(f"group_size is {size}; a group has at least one document")
    if size > 1 and manifest.holds_objects:
        raise FormatError(f"group_size is {size:,}; objects have no groups")
    if num % size:
        raise FormatError(f"{num:,} documents are not whole groups of {size:,}")


def _parse_shard(value: Any, number: int, head: Manifest, directory: Path) -> Shard:
    fields, where = head.fields, f"shards[{number}]"
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
    if head.holds_objects and num_spans != (num_documents if head.has_metadata else 0):
        raise FormatError(
            f"{where}: {num_spans:,} spans for {num_documents:,} objects; each object has one if "
            "there is metadata, and none if not"
        )
    expected = {STREAM: num_records * fields.itemsize, DOCUMENTS: 8 * (num_documents + 1)}
    if head.has_metadata:
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


def _needs_version_2(manifest: Manifest) -> bool:
    is_plain = manifest.group_size == 1 and not manifest.holds_objects
    return not is_plain or has_nested_fields(manifest.fields)


def _objects_with_metadata(document: dict[str, Any], fields: np.dtype[Any]) -> bool | None:
    """Read whether objects have metadata; None if documents are not objects."""
    if "objects" not in document:
        return None
    value = document["objects"]
    if not isinstance(value, dict) or type(value.get("metadata")) is not bool:
        raise FormatError(f'objects: {value!r:.60} is not {{"metadata": true}} or false')
    if fields != OBJECT_FIELDS:
        raise FormatError(
            f"objects: records are {fields_to_json(fields)!s:.200}, but those of objects are "
            f"{fields_to_json(OBJECT_FIELDS)}"
        )
    with_metadata: bool = value["metadata"]
    return with_metadata


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
