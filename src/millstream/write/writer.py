"""`Writer`: from documents to a dataset."""

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from millstream.arguments import integer
from millstream.atomic import hold_lock, publish
from millstream.copying.outputs import find_staged
from millstream.errors import FormatError, UsageError
from millstream.formats import stream
from millstream.formats.checksums import publish_checked
from millstream.formats.shard import (
    METADATA_ID,
    NO_METADATA,
    OBJECT_FIELDS,
    Manifest,
    Shard,
)
from millstream.new_directory import new_directory
from millstream.paths import output_path
from millstream.remote.options import Remote
from millstream.reprs import counted, one_line
from millstream.write.collected import Collected
from millstream.write.leftovers import OwnFiles
from millstream.write.metadata import Attached, MetadataEncoder, MetadataSpan
from millstream.write.objects import ObjectEncoder, check_encoder, encode_objects
from millstream.write.record_checks import Records, as_lengths, as_records, record_type
from millstream.write.shard import OpenShard

# Appending documents of 1,200 bytes on tmpfs took 1.6 us of CPU time with 512 KiB, 1.5 with 1 MiB
# and 1.4 with 2 MiB; 2.1 with 256 KiB, which the file's own buffer copies once more.
_COLLECTED_BYTES = 1 << 20
_COLLECTED_DOCUMENTS = 1 << 14


class Writer:
    """Append documents; the end of the `with` block finishes the dataset.

    Arguments:
        path: the directory; created if it is missing.
        fields: the record, as for `numpy.dtype`: `[("token", "<u4"), ("concept", "<u2")]`, or one
            integer type for bare tokens. Left out, tokens get the width that `vocab_size` needs.
        vocab_size: token ids must be below it.
        metadata: a function from a metadata object to bytes; required if documents have metadata.
        encode: a function from an object to bytes, for documents without tokens: see
            `docs/objects.md`. `fields`, `vocab_size` and the like are then left out.
        part: this process's part of the dataset (see `millstream.write`).
        shard_bytes: a shard ends with the document that makes it this large.
        tokenizer, bos_id, eos_id, split: stored in the manifest.
        group_size: every so many consecutive documents belong together, such as 2 for the pairs of
            preference training; views keep them in one row. Threads that share a writer must
            then append whole groups, with `extend`.
        remote: how `path` is reached, if it is a URL. Shards are then written to the user's cache,
            uploaded when they are full, and freed there.

    >>> with Writer(tmp / "out", vocab_size=50_257) as writer:
    ...     writer.append([15496, 11, 995])
    >>> millstream.open(tmp / "out").num_records
    3
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fields: DTypeLike | None = None,
        vocab_size: int | None = None,
        metadata: MetadataEncoder | None = None,
        encode: ObjectEncoder | None = None,
        part: int | None = None,
        shard_bytes: int = 1 << 30,
        tokenizer: Mapping[str, str] | None = None,
        bos_id: int | None = None,
        eos_id: int | None = None,
        split: Mapping[str, str] | None = None,
        group_size: int = 1,
        remote: Remote | None = None,
    ) -> None:
        if tokenizer is not None and not isinstance(tokenizer, Mapping):
            raise UsageError(
                f"tokenizer is {tokenizer!r:.80}; it must be a dict of strings, such as "
                "{'name': 'gpt2'}"
            )
        if not os.fspath(path):
            raise UsageError(
                "nowhere to write: the path is empty; use '.' for the current directory"
            )
        vocab_size = _optional("vocab_size", vocab_size, 1)
        highest_id = (vocab_size or 1 << 63) - 1
        part = _optional("part", part, 0, 99_999)
        if encode is None:
            self.fields = record_type(fields, vocab_size, with_metadata=metadata is not None)
        else:
            self.fields = OBJECT_FIELDS
            of_tokens = {"fields": fields, "vocab_size": vocab_size, "tokenizer": tokenizer}
            check_encoder(encode, {**of_tokens, "bos_id": bos_id, "eos_id": eos_id})
        self._num_extended_documents = self._num_extended_records = 0
        self._staged = find_staged(path, "", remote, part=part)
        self._directory = self._staged.directory if self._staged else output_path(path)
        self._head = Manifest(
            self.fields,
            vocab_size,
            dict(tokenizer or {}),
            _optional("bos_id", bos_id, 0, highest_id),
            _optional("eos_id", eos_id, 0, highest_id),
            shards=(),
            split=dict(split or {}),
            group_size=integer("group_size", group_size, 1),
            objects_with_metadata=None if encode is None else metadata is not None,
        )
        _check_that_it_opens(self._head)
        if metadata is not None and not callable(metadata):
            raise UsageError(f"metadata is {metadata!r}; it must be a function that returns bytes")
        self._encode, self._encode_object = metadata, encode
        self._part = part
        self._own_files = OwnFiles(self._directory, part)
        shard_bytes = integer("shard_bytes", shard_bytes, 1)
        self._max_records = -(-shard_bytes // self.fields.itemsize)
        """a shard ends when it has this many"""
        self._shards: list[Shard] = []
        self._open_shard: OpenShard | None = None
        self._goes_on = self._closed = False
        self._collected = Collected(
            self.fields,
            vocab_size,
            max_bytes=_COLLECTED_BYTES,
            max_documents=_COLLECTED_DOCUMENTS,
            of_objects=encode is not None,
        )
        self._one_at_a_time = threading.RLock()
        self._group_thread = 0
        """the thread that appended the latest document, if documents belong to groups"""
        self._lock = contextlib.ExitStack()
        if self._staged is not None:
            self._staged.prepare()
            self._staged.refuse_staged()
        try:
            self._lock.enter_context(new_directory(self._directory))
            is_left_by_killed = self._lock.enter_context(
                hold_lock(self._directory, self._own_files.lock_name)
            )
            self._own_files.refuse_to_replace()
            self._own_files.remove_leftovers(is_left_by_killed=is_left_by_killed)
            self._upload = self._staged.begin_upload() if self._staged else None
        except BaseException:
            self._close()
            raise

    @one_line
    def __repr__(self) -> str:
        part = "" if self._part is None else f", part {self._part}"
        documents, records = counted(self.num_documents, "document"), self.num_records
        state = "closed" if self._closed else "open"
        where = self._staged.url if self._staged else self._directory
        return f"{where}{part}: {documents}, {counted(records, 'record')}, {state}"

    @property
    def num_documents(self) -> int:
        """The number of documents appended."""
        return self._num_extended_documents + self._collected.num_documents

    @property
    def num_records(self) -> int:
        """The number of records appended."""
        return self._num_extended_records + self._collected.num_records

    def append(
        self,
        records: Records | Any,
        metadata: Any = None,
        *,
        spans: Iterable[MetadataSpan] = (),
    ) -> None:
        """Append one document: token ids, an array of records, or one array for each field.

        With `encode`, it is an object that `encode` takes.

        `metadata` belongs to the whole document; `spans` gives `(start, stop, metadata)` for runs
        of its records instead.
        """
        of_document = list(spans)
        if self._encode_object is not None:
            of_object = None if metadata is None else [metadata]
            self._extend_objects([records], of_object, has_spans=bool(of_document))
            return
        # The fast path. `_extend` handles all other documents, and all errors.
        is_plain = metadata is None and not of_document
        if is_plain and self._head.group_size == 1 and self._collected.add(records):
            return
        whole = [metadata] if metadata is not None else None
        with self._one_at_a_time:
            self._stay_in_thread()
            if is_plain and self._collected.add(records):
                return
            self._extend(records, None, whole, [of_document] if of_document else None)

    def extend(
        self,
        records: Records | Any,
        lengths: ArrayLike | None = None,
        metadata: Sequence[Any] | None = None,
        *,
        spans: Sequence[Iterable[MetadataSpan]] | None = None,
        continues: bool = False,
    ) -> None:
        """Append many documents: their records, end to end, and the length of each.

        With `encode`, they are objects that `encode` takes, without lengths.

        `metadata` has an object or None per document; `spans` has the spans of each document,
        counted from its first record. With `continues`, the last document continues as the first
        of the next call, and a document never has to be in memory as a whole; metadata then belongs
        to the piece it is passed with.

        >>> with Writer(tmp / "many", vocab_size=50_257) as writer:
        ...     writer.extend([1, 2, 3, 4, 5], [2, 0, 3])
        >>> millstream.open(tmp / "many").document(2).tolist()
        [3, 4, 5]
        """
        if self._encode_object is not None:
            if lengths is not None or continues:
                raise UsageError(
                    "objects are appended whole; leave out lengths and continues, and pass "
                    "metadata=… by its name"
                )
            self._extend_objects(records, metadata, has_spans=spans is not None)
            return
        if lengths is None:
            raise UsageError("extend needs the length of each document; append takes one document")
        with self._one_at_a_time:
            self._stay_in_thread()
            self._extend(records, lengths, metadata, spans, continues=continues)

    def _stay_in_thread(self) -> None:
        """Refuse a document of another thread within a group; called under the lock."""
        if self._head.group_size == 1:
            return
        thread = threading.get_ident()
        is_open = self._goes_on or self.num_documents % self._head.group_size
        if is_open and thread != self._group_thread:
            raise UsageError(
                f"document {self.num_documents:,} would continue a group that another thread has "
                "begun; if threads share a writer with group_size, append all documents of a "
                "group with one call of extend"
            )
        self._group_thread = thread

    def _extend_objects(
        self, objects: Any, metadata: Sequence[Any] | None, *, has_spans: bool
    ) -> None:
        """Append objects; they are encoded before others have to wait."""
        if has_spans:
            raise UsageError("objects take no spans; use metadata")
        assert self._encode_object is not None
        encoded = encode_objects(
            objects,
            metadata,
            encode=self._encode_object,
            encode_value=self._encode,
            first_document=self.num_documents,
        )
        is_alone = encoded.lengths.size == 1 and not encoded.blobs
        if is_alone and self._collected.add(encoded.records.view(np.uint8)):
            return
        with self._one_at_a_time:
            self._refuse_if_closed()
            self._append(*encoded, continues=False)

    def _extend(
        self,
        records: Records,
        lengths: ArrayLike | None,
        metadata: Sequence[Any] | None,
        spans: Sequence[Iterable[MetadataSpan]] | None,
        *,
        continues: bool = False,
    ) -> None:
        self._refuse_if_closed()
        documents = self._as_records(records)
        counts = as_lengths([len(documents)] if lengths is None else lengths, len(documents))
        if continues and not counts.size:
            raise UsageError("continues=True needs at least one document")
        blobs, num_spans = self._attach(documents, counts, metadata, spans)
        self._append(documents, counts, blobs, num_spans, continues=continues)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise UsageError("this writer is finished; create another, with another path or part")

    def _append(
        self,
        documents: NDArray[np.void],
        lengths: NDArray[np.int64],
        blobs: list[bytes],
        num_spans: NDArray[np.int64],
        *,
        continues: bool,
    ) -> None:
        """Write checked documents, and count them."""
        try:
            self._write(documents, lengths, blobs, num_spans, continues=continues)
            self._num_extended_documents += lengths.size - continues
            self._num_extended_records += len(documents)
        except BaseException:
            self.abort()
            raise

    def _attach(
        self,
        documents: NDArray[np.void],
        lengths: NDArray[np.int64],
        metadata: Sequence[Any] | None,
        spans: Sequence[Iterable[MetadataSpan]] | None,
    ) -> tuple[list[bytes], NDArray[np.int64]]:
        """Encode metadata, number it from 0, and count the spans of each document."""
        attached = Attached(self.num_documents)
        if metadata is not None and spans is not None:
            raise UsageError("give metadata or spans, not both")
        if metadata is not None:
            attached.add_documents(lengths, metadata)
        elif spans is not None:
            attached.add_spans(lengths, spans)
        if self._encode is None:
            if attached.values:
                raise UsageError("this writer has no metadata encoder; pass metadata=… to Writer")
            return [], np.zeros(len(lengths), np.int64)
        blobs = attached.encode(self._encode)
        documents[METADATA_ID] = attached.number(len(documents))
        return blobs, attached.counts if blobs else np.zeros(len(lengths), np.int64)

    def _write(
        self,
        documents: NDArray[np.void],
        lengths: NDArray[np.int64],
        blobs: list[bytes],
        num_spans: NDArray[np.int64],
        *,
        continues: bool,
    ) -> None:
        """Fill shards with whole documents; a document that continues stays in its shard."""
        self._write_collected()
        ends, span_ends = np.cumsum(lengths), np.cumsum(num_spans)
        first = start = first_span = 0
        while first < lengths.size:
            shard = self._shard_with_room(int(num_spans[first]))
            if self._goes_on:
                last = first + 1
            else:
                room = self._max_records - shard.num_records
                last = min(int(np.searchsorted(ends, start + room)), lengths.size - 1) + 1
                span_room = first_span + NO_METADATA - shard.num_spans
                last = min(
                    last, max(int(np.searchsorted(span_ends, span_room, "right")), first + 1)
                )
            stop, last_span = int(ends[last - 1]), int(span_ends[last - 1])
            records = documents[start:stop]
            if blobs and self._encode_object is None:
                ids = records[METADATA_ID]
                ids[ids != NO_METADATA] += np.uint32((shard.num_spans - first_span) % (1 << 32))
            goes_on = continues and last == lengths.size
            of_these = blobs[first_span:last_span]
            shard.extend(records, lengths[first:last], of_these, continues=goes_on)
            self._goes_on = goes_on
            first, start, first_span = last, stop, last_span
        if self._open_shard is not None and not self._goes_on:
            self._collected.begin(self._max_records - self._open_shard.num_records)

    def _write_collected(self) -> None:
        """Write what `append` has collected, all of which belongs to the open shard."""
        records, lengths = self._collected.take()
        if self._open_shard is not None and lengths.size:
            self._open_shard.extend(records, lengths, [])

    def finish(self) -> None:
        """Publish what was appended as a dataset, or as a finished part of one."""
        with self._one_at_a_time:
            if self._closed:
                return
            if self._goes_on:
                self.abort()
                raise UsageError(
                    "the last document is incomplete; call extend with its last piece before finish"
                )
            if self.num_documents % self._head.group_size:
                size, num = self._head.group_size, self.num_documents
                self.abort()
                raise UsageError(
                    f"{self._directory}: {num:,} documents were appended, which are not whole "
                    f"groups of {size:,}; append every document of a group, an empty one if need be"
                )
            try:
                self._write_collected()
                self._end_shard()
                manifest = replace(self._head, shards=tuple(self._shards))
                with hold_lock(self._directory, "finish", wait=True):
                    self._own_files.refuse_to_replace()
                    announce = publish_checked if self._part is None else publish
                    announce(self._own_files.listed_in, stream.manifest_to_json(manifest))
            except BaseException as error:
                self.abort()
                self._explain(error)
                raise
            self._close()
            if self._staged is not None and self._upload is not None:
                self._staged.finish(self._upload)

    def abort(self) -> None:
        """Remove what this writer wrote; finished datasets and parts are not touched."""
        with self._one_at_a_time:
            if self._closed:
                return
            try:
                if self._open_shard is not None:
                    self._open_shard.discard()
                    self._open_shard = None
                self._own_files.remove_unfinished()
            except BaseException:
                self._own_files.remove_unfinished()  # leave nothing that blocks the next writer
                raise
            finally:
                self._close()
                if self._staged is not None and self._upload is not None:
                    self._staged.abandon(self._upload)

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
            self._explain(error)

    def _explain(self, error: BaseException | None) -> None:
        if self._staged is not None and error is not None:
            self._staged.explain(error)

    def _close(self) -> None:
        self._collected.take()  # nothing is collected after this
        self._closed = True
        self._lock.close()

    def _shard_with_room(self, num_spans: int) -> OpenShard:
        shard = self._open_shard
        if shard is not None and not self._goes_on:
            is_full = shard.num_records >= self._max_records
            if is_full or shard.num_spans + num_spans > NO_METADATA:
                self._end_shard()
        if self._open_shard is None:
            if self._upload is not None:
                self._upload.wait_for_room(lambda: None)
            name = self._own_files.shard_name(len(self._shards))
            self._open_shard = OpenShard(self._directory, name, self._encode is not None)
        return self._open_shard

    def _end_shard(self) -> None:
        if self._open_shard is not None:
            self._shards.append(self._open_shard.finish())
            self._open_shard = None

    def _as_records(self, records: Records) -> NDArray[np.void]:
        names = list(self.fields.names or ())
        if self._encode is not None:
            names.remove(METADATA_ID)
        try:
            return as_records(records, self.fields, names, self._head.vocab_size)
        except UsageError as error:
            raise UsageError(f"document {self.num_documents:,}: {error}") from None


def _optional(name: str, value: Any, lowest: int = 0, highest: int = (1 << 63) - 1) -> int | None:
    return None if value is None else integer(name, value, lowest, highest)


def _check_that_it_opens(head: Manifest) -> None:
    """Refuse settings that would give an unreadable manifest."""
    try:
        accepted = stream.parse_manifest(json.loads(stream.manifest_to_json(head)), Path())
    except (FormatError, TypeError) as error:
        raise UsageError(str(error)) from None
    if accepted != head:
        raise UsageError(f"these settings would be read back differently: {head} as {accepted}")
