"""Writing datasets: documents in, shards and a manifest out, safe to kill at any moment.

A file is written under a temporary name, synced, and renamed; the manifest comes last, so what
opens as a dataset is whole. Every writer holds a lock on its name for as long as it lives (the
kernel lets go of it when the process dies), which tells the leftovers of a killed writer, which
are removed, from the files of a living one, which are not touched.

Several processes write parts of one dataset at once, each with a `part` number of its own, and
`finish` joins the parts, in the order of their numbers:

    with penstock.Writer("out", vocab_size=50_257, part=rank) as writer:   # in every process
        for document in my_share(rank):
            writer.append(document)

    penstock.finish("out", parts=8)                                        # then once
"""

import contextlib
import fcntl
import json
import operator
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import xxhash
from numpy.typing import ArrayLike, DTypeLike, NDArray

from penstock.errors import DatasetExistsError, FormatError, MissingDataError, UsageError
from penstock.formats import stream
from penstock.formats.stream import Manifest, Shard, StoredFile

Encoder = Callable[[Any], bytes]
Span = tuple[int, int, Any]

_SUFFIXES = (stream.STREAM, stream.DOCUMENTS, stream.INDEX, stream.METADATA)


class Writer:
    """Append documents; the end of the `with` block finishes the dataset.

    Arguments:
        path: the directory, made if it is missing.
        fields: the record, as for `numpy.dtype`: `[("token", "<u4"), ("concept", "<u2")]`, or one
            integer type for bare tokens. Left out, tokens get the width that `vocab_size` needs.
        vocab_size: token ids must be below it.
        metadata: turns a metadata object into bytes; with it, `append` takes metadata.
        part: this process's part of the dataset, see the module's text.
        shard_bytes: a shard ends with the document that makes it this large.
        tokenizer, bos_id, eos_id: noted in the manifest, for readers.

    >>> with Writer(tmp / "out", vocab_size=50_257) as writer:
    ...     writer.append([15496, 11, 995])
    >>> penstock.open(tmp / "out").num_records
    3
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fields: DTypeLike | None = None,
        vocab_size: int | None = None,
        metadata: Encoder | None = None,
        part: int | None = None,
        shard_bytes: int = 1 << 30,
        tokenizer: Mapping[str, str] | None = None,
        bos_id: int | None = None,
        eos_id: int | None = None,
    ) -> None:
        vocab_size = _count("vocab_size", vocab_size, lowest=1)
        part = _count("part", part, below=100_000)
        self.fields = _record_type(fields, vocab_size, with_metadata=metadata is not None)
        self.num_documents = 0
        self.num_records = 0
        self._directory = Path(path).absolute()
        self._head = Manifest(
            self.fields,
            vocab_size,
            dict(tokenizer or {}),
            _count("bos_id", bos_id),
            _count("eos_id", eos_id),
            shards=(),
        )
        _check_that_it_opens(self._head)
        self._encode = metadata
        self._part = part
        self._shard_bytes = _count("shard_bytes", shard_bytes, lowest=1)
        self._shards: list[Shard] = []
        self._open_shard: _OpenShard | None = None
        self._closed = False
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise DatasetExistsError(f"{self._directory}: a file is in the way") from None
        self._lock = contextlib.ExitStack()
        somebody_died = self._lock.enter_context(_lock(self._directory, self._lock_name))
        try:
            self._refuse_to_replace()
            self._clear_the_way(somebody_died=somebody_died)
        except BaseException:
            self._close()
            raise

    def append(
        self,
        records: ArrayLike | Mapping[str, ArrayLike],
        metadata: Any = None,
        *,
        spans: Iterable[Span] = (),
    ) -> None:
        """Append one document: token ids, an array of records, or one array for each field.

        `metadata` belongs to the whole document; `spans` gives `(start, stop, metadata)` for runs
        of its records instead.
        """
        if self._closed:
            raise UsageError("this writer is finished; make another one, for another path or part")
        document = self._as_records(records)
        blobs = self._attach(document, metadata, spans)
        try:
            shard = self._shard_with_room(len(blobs))
            if blobs:
                ids = document[stream.METADATA_ID]
                ids[ids != stream.NO_METADATA] += np.uint32(shard.num_spans)
            shard.append(document, blobs)
        except BaseException:
            self.abort()
            raise
        self.num_documents += 1
        self.num_records += len(document)

    def finish(self) -> None:
        """Make what was appended a dataset, or a finished part of one."""
        if self._closed:
            return
        try:
            self._end_shard()
            manifest = _with_shards(self._head, self._shards)
            with _lock(self._directory, "finish", wait=True):
                self._refuse_to_replace()
                _publish(self._listed_in, manifest.to_json())
        except BaseException:
            self.abort()
            raise
        self._close()

    def abort(self) -> None:
        """Remove what this writer wrote; nothing that was finished before is touched."""
        if self._closed:
            return
        try:
            if self._open_shard is not None:
                self._open_shard.discard()
                self._open_shard = None
            # An interrupt may have come after the manifest was renamed: then all is finished.
            if not self._listed_in.exists():
                for path in self._own_files():
                    path.unlink()
        finally:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()

    @property
    def _prefix(self) -> str:
        return "" if self._part is None else f"{self._part:05d}-"

    @property
    def _lock_name(self) -> str:
        return "dataset" if self._part is None else f"{self._part:05d}"

    @property
    def _listed_in(self) -> Path:
        """The manifest whose existence makes this writer's shards finished."""
        if self._part is None:
            return self._directory / stream.MANIFEST_NAME
        return self._directory / f"{self._part:05d}{stream.PART_SUFFIX}"

    def _close(self) -> None:
        self._closed = True
        self._lock.close()

    def _refuse_to_replace(self) -> None:
        manifest = self._directory / stream.MANIFEST_NAME
        if manifest.exists():
            raise DatasetExistsError(
                f"{manifest}: a finished dataset is here; choose another path, and open both with "
                "penstock.open([a, b])"
            )
        parts = sorted(self._directory.glob(f"*{stream.PART_SUFFIX}"))
        if self._part is None and parts:
            raise DatasetExistsError(
                f"{parts[0]}: this directory is written in parts; give a part number, or join the "
                f"parts with penstock.finish({str(self._directory)!r})"
            )
        if self._part is not None and self._listed_in in parts:
            raise DatasetExistsError(
                f"{self._listed_in}: part {self._part} is finished; choose another number, or "
                "remove this file to write the part again"
            )

    def _clear_the_way(self, *, somebody_died: bool) -> None:
        """Remove what a killed writer of this name left; refuse to touch anybody else's files."""
        leftovers = self._own_files()
        if leftovers and not somebody_died:
            raise DatasetExistsError(
                f"{leftovers[0]}: is in the way and belongs to no dataset; remove it, or choose "
                "another path"
            )
        for path in leftovers:
            path.unlink()

    def _own_files(self) -> list[Path]:
        """Files under this writer's names, finished or temporary."""
        endings = "|".join(re.escape(suffix) for suffix in _SUFFIXES)
        temporary = r"\.[0-9a-f]{16}\.tmp"
        listed_in = re.escape(self._listed_in.name)
        ours = re.compile(
            rf"{self._prefix}\d{{5,}}({endings})({temporary})?|{listed_in}{temporary}"
        )
        return [path for path in self._directory.iterdir() if ours.fullmatch(path.name)]

    def _shard_with_room(self, num_spans: int) -> "_OpenShard":
        if self._open_shard is not None and (
            self._open_shard.num_records * self.fields.itemsize >= self._shard_bytes
            or self._open_shard.num_spans + num_spans > stream.NO_METADATA
        ):
            self._end_shard()
        if self._open_shard is None:
            name = f"{self._prefix}{len(self._shards):05d}"
            self._open_shard = _OpenShard(self._directory, name, self._encode is not None)
        return self._open_shard

    def _end_shard(self) -> None:
        if self._open_shard is not None:
            self._shards.append(self._open_shard.finish())
            self._open_shard = None

    def _as_records(self, records: ArrayLike | Mapping[str, ArrayLike]) -> NDArray[np.void]:
        """Check one document and bring it into the stored type."""
        where = f"document {self.num_documents:,}"
        names = [name for name in self.fields.names or () if name != stream.METADATA_ID]
        if self._encode is None:
            names = list(self.fields.names or ())
        try:
            columns = _columns(records, names)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        if sorted(columns) != sorted(names):
            raise UsageError(f"{where}: has the fields {sorted(columns)}, not {sorted(names)}")
        first = columns[names[0]]
        if first.ndim == 0:
            raise UsageError(f"{where}: {names[0]} is one number, not an array of them")
        document = np.empty(len(first), self.fields)
        for name, values in columns.items():
            shape = (len(first), *self.fields[name].shape)
            if values.shape != shape:
                raise UsageError(f"{where}: field {name!r} has shape {values.shape}, not {shape}")
            limit = self._head.vocab_size if name == stream.TOKEN else None
            problem = _value_problem(values, self.fields[name].base, limit) if values.size else None
            if problem:
                raise UsageError(f"{where}: field {name!r}: {problem}")
            document[name] = values
        return document

    def _attach(
        self, document: NDArray[np.void], metadata: Any, spans: Iterable[Span]
    ) -> list[bytes]:
        """Number the document's spans from 0 and encode their metadata."""
        wanted = sorted(spans, key=lambda span: span[0])
        if metadata is not None:
            if wanted:
                raise UsageError("give metadata for the whole document or spans, not both")
            wanted = [(0, len(document), metadata)]
        if self._encode is None:
            if wanted:
                raise UsageError("this writer has no encoder; pass metadata=… to Writer")
            return []
        ids = document[stream.METADATA_ID]
        ids[:] = stream.NO_METADATA
        blobs: list[bytes] = []
        end = 0
        for start, stop, value in wanted:
            if not isinstance(start, int | np.integer) or not isinstance(stop, int | np.integer):
                raise UsageError(
                    f"document {self.num_documents:,}: span [{start}, {stop}) is not of integers"
                )
            if not end <= start < stop <= len(document):
                raise UsageError(
                    f"document {self.num_documents:,}: span [{start}, {stop}) is empty, overlaps "
                    f"the one before, or leaves the document's {len(document):,} records"
                )
            ids[start:stop] = len(blobs)
            blob = self._encode(value)
            if not isinstance(blob, bytes | bytearray | memoryview):
                raise UsageError(f"the metadata encoder returned {type(blob).__name__}, not bytes")
            blobs.append(bytes(blob))
            end = stop
        return blobs


def finish(path: str | os.PathLike[str], *, parts: int | None = None) -> None:
    """Join the finished parts of a dataset, in the order of their numbers.

    With `parts`, exactly the parts 0 to `parts - 1` must be there; without, those that are there
    must be numbered without a gap.
    """
    directory = Path(path).absolute()
    if not directory.is_dir():
        raise MissingDataError(f"{directory}: no such directory")
    with _lock(directory, "finish", wait=True):
        for leftover in directory.glob(f"{stream.MANIFEST_NAME}.*.tmp"):
            leftover.unlink()
        if (directory / stream.MANIFEST_NAME).exists():
            raise DatasetExistsError(f"{directory / stream.MANIFEST_NAME}: finished already")
        for lock in sorted(directory.glob(".*.lock")):
            if lock.name != _lock_name("finish"):
                _refuse_if_held(lock)
        found = sorted(directory.glob(f"*{stream.PART_SUFFIX}"))
        expected = [
            directory / f"{part:05d}{stream.PART_SUFFIX}"
            for part in range(len(found) if parts is None else parts)
        ]
        if found != expected or not found:
            missing = [path.name for path in expected if path not in found] or ["00000.part.json"]
            surplus = [path.name for path in found if path not in expected]
            raise MissingDataError(
                f"{directory}: the parts are not complete: missing {missing[:5]}, "
                f"not expected {surplus[:5]}; write the missing parts, then finish again"
            )
        manifests = [stream.read_manifest(directory, part.name) for part in found]
        head = _with_shards(manifests[0], [])
        for part, manifest in zip(found, manifests, strict=True):
            if _with_shards(manifest, []) != head:
                raise FormatError(
                    f"{part}: fields, vocab_size, tokenizer, bos_id or eos_id differ from those of "
                    f"{found[0].name}; all parts of a dataset share them"
                )
        shards = [shard for manifest in manifests for shard in manifest.shards]
        _publish(directory / stream.MANIFEST_NAME, _with_shards(head, shards).to_json())
        for part in found:
            part.unlink()


class _OpenShard:
    """The shard that is being written: its files under temporary names, and their counts."""

    def __init__(self, directory: Path, name: str, with_metadata: bool) -> None:
        self.num_records = 0
        self.num_documents = 0
        self.num_spans = 0
        self._directory, self._name = directory, name
        self._metadata_bytes = 0
        self._files: dict[str, _OpenFile] = {}
        try:
            for suffix in _SUFFIXES if with_metadata else _SUFFIXES[:2]:
                self._files[suffix] = _OpenFile(directory / f"{name}{suffix}")
                if suffix in (stream.DOCUMENTS, stream.INDEX):
                    self._files[suffix].write(bytes(8))
        except BaseException:
            self.discard()
            raise

    def append(self, document: NDArray[np.void], blobs: list[bytes]) -> None:
        self._files[stream.STREAM].write(document.tobytes())
        self.num_records += len(document)
        self.num_documents += 1
        self._files[stream.DOCUMENTS].write(self.num_records.to_bytes(8, "little"))
        for blob in blobs:
            self._files[stream.METADATA].write(blob)
            self._metadata_bytes += len(blob)
            self._files[stream.INDEX].write(self._metadata_bytes.to_bytes(8, "little"))
        self.num_spans += len(blobs)

    def finish(self) -> Shard:
        files = {suffix: file.finish() for suffix, file in self._files.items()}
        _sync_directory(self._directory)
        return Shard(
            self._directory,
            self._name,
            self.num_records,
            self.num_documents,
            self.num_spans,
            files,
        )

    def discard(self) -> None:
        for file in self._files.values():
            file.discard()


class _OpenFile:
    """A file under a temporary name, hashed as it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        self._file = self._temporary.open("xb", buffering=1 << 20)
        self._hash = xxhash.xxh3_64()
        self._size_bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._size_bytes += len(data)

    def finish(self) -> StoredFile:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.rename(self._path)
        return StoredFile(self._size_bytes, self._hash.hexdigest())

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # a full disk refuses the flush; the data go anyway
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def _columns(
    records: ArrayLike | Mapping[str, ArrayLike], names: list[str]
) -> dict[str, NDArray[Any]]:
    """One array for each field, from any of the forms that `append` takes."""
    if isinstance(records, Mapping):
        return {name: np.asarray(values) for name, values in records.items()}
    array = np.asarray(records)
    if array.dtype.names:
        return {name: array[name] for name in array.dtype.names}
    if names == [stream.TOKEN]:
        return {stream.TOKEN: array}
    raise UsageError(f"a bare array; this dataset has the fields {names}")


def _value_problem(
    values: NDArray[Any], stored: np.dtype[Any], vocab_size: int | None
) -> str | None:
    """Say why values would not come back as they went in, if so."""
    if stored.kind in "iu" and values.dtype.kind in "iub":
        lowest, limit = int(np.iinfo(stored).min), int(np.iinfo(stored).max) + 1
        if vocab_size is not None:
            lowest, limit = 0, vocab_size
        for value in (int(values.min()), int(values.max())):
            if not lowest <= value < limit:
                what = "vocabulary" if vocab_size is not None else f"range of {stored}"
                return f"{value:,} is outside of the {what}, [{lowest:,}, {limit:,})"
        return None
    if stored.kind in "fc" and values.dtype.kind in ("iufbc" if stored.kind == "c" else "iufb"):
        with np.errstate(over="ignore"):
            lost = np.isfinite(values) & ~np.isfinite(values.astype(stored))
        return f"{values[lost][0]} is too large for {stored}" if lost.any() else None
    if stored.kind == values.dtype.kind and np.can_cast(values.dtype, stored, "safe"):
        return None
    return f"{values.dtype} cannot be kept as {stored}"


def _count(name: str, value: int | None, *, lowest: int = 0, below: int = 1 << 63) -> Any:
    """Take any integer, NumPy's too, and refuse what no manifest can say."""
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r}; it must be an integer") from None
    if not lowest <= count < below:
        raise UsageError(f"{name} is {count}; it must be from {lowest} to {below - 1:,}")
    return count


def _check_that_it_opens(head: Manifest) -> None:
    """Refuse settings that would make a manifest that no reader accepts."""
    try:
        accepted = stream.parse_manifest(json.loads(head.to_json()), Path())
    except (FormatError, TypeError) as error:
        raise UsageError(str(error)) from None
    if accepted != head:
        raise UsageError(f"{head} would be read back as {accepted}")


def _record_type(
    fields: DTypeLike | None, vocab_size: int | None, *, with_metadata: bool
) -> np.dtype[Any]:
    if fields is None:
        if vocab_size is None:
            raise UsageError("give vocab_size, or the record's fields, to choose a token width")
        fields = "<u2" if vocab_size <= 1 << 16 else "<u4" if vocab_size <= 1 << 32 else "<u8"
    try:
        record: np.dtype[Any] = np.dtype(fields)
    except (TypeError, ValueError, SyntaxError) as error:
        raise UsageError(f"fields: {fields!r} is no NumPy record ({error})") from None
    if not record.names:
        record = np.dtype([(stream.TOKEN, record)])
    if with_metadata and stream.METADATA_ID not in (record.names or ()):
        members = [(name, record[name]) for name in record.names or ()]
        record = np.dtype([*members, (stream.METADATA_ID, "<u4")])
    problem = stream.fields_problem(record)
    if problem is None and with_metadata and record[stream.METADATA_ID] != np.dtype("<u4"):
        problem = f"field {stream.METADATA_ID!r} must be uint32"
    if problem is None and record.names == (stream.METADATA_ID,):
        problem = f"there is nothing beside {stream.METADATA_ID!r}"
    if problem is None and not with_metadata and stream.METADATA_ID in (record.names or ()):
        problem = f"field {stream.METADATA_ID!r} is the writer's own; pass metadata=… instead"
    if problem is None and vocab_size is not None and stream.TOKEN in (record.names or ()):
        limit = int(np.iinfo(record[stream.TOKEN]).max) + 1
        if vocab_size > limit:
            problem = f"{record[stream.TOKEN]} holds {limit:,} ids, vocab_size is {vocab_size:,}"
    if problem:
        raise UsageError(f"fields: {problem}")
    return record


def _with_shards(head: Manifest, shards: list[Shard]) -> Manifest:
    return Manifest(
        head.fields, head.vocab_size, head.tokenizer, head.bos_id, head.eos_id, tuple(shards)
    )


def _publish(path: Path, text: str) -> None:
    file = _OpenFile(path)
    try:
        file.write(text.encode())
        file.finish()
    except BaseException:
        file.discard()
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_name(name: str) -> str:
    return f".{name}.lock"


@contextlib.contextmanager
def _lock(directory: Path, name: str, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of one name, and say whether somebody died while holding it."""
    path = directory / _lock_name(name)
    while True:
        was_there = path.exists()
        with path.open("ab") as file:
            if wait:
                fcntl.flock(file, fcntl.LOCK_EX)
            else:
                _take(file, path)
            if _is_still(path, file.fileno()):
                try:
                    yield was_there
                finally:
                    path.unlink(missing_ok=True)
                return


def _take(file: IO[bytes], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DatasetExistsError(
            f"{path}: another writer is at work under this name; wait for it to end, or give "
            "every process a part number of its own"
        ) from None


def _refuse_if_held(path: Path) -> None:
    """Leave the file of a writer that died where it is: the next one of that name needs it."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        _take(file, path)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether `path` names the open file: who held its lock before may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
