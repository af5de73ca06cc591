"""Datasets: any number of shards as one stream of records."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from penstock.batches.layout import BatchLayout, Extra, Output, token_dtype
from penstock.errors import FormatError, UsageError
from penstock.formats.shard import METADATA_ID, STREAM, TOKEN, Manifest, Shard
from penstock.formats.stream import fields_to_json
from penstock.metadata.spans import Decoder, as_array, check_decoder
from penstock.pack.policy import Policy
from penstock.read.documents import document_offsets, document_table, documents_digest
from penstock.read.files import FileKind
from penstock.read.fingerprint import records_digest
from penstock.read.local_reader import Access, LocalReader
from penstock.read.segments import SEGMENT
from penstock.reprs import counted, one_line
from penstock.views.packed import Documents, Excerpts, Overflow, Packed
from penstock.views.windows import Windows

if TYPE_CHECKING:
    from penstock.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Records of all shards, end to end; made by `penstock.open`."""

    manifests: tuple[Manifest, ...]
    access: Access = "pread"

    @one_line
    def __repr__(self) -> str:
        size = f"{counted(self.num_records, 'record')}, {counted(self.num_documents, 'document')}"
        if not self.shards:
            return f"without shards: {size}"
        first = self.shards[0]
        stored = first.files[STREAM].path if STREAM in first.files else ""
        place = self.manifests[0].decoded_from or stored or first.directory
        more = f" and {len(self.manifests) - 1:,} more" if len(self.manifests) > 1 else ""
        return f"{place}{more}: {size}"

    @property
    def fields(self) -> np.dtype[Any]:
        """The record, a NumPy struct."""
        return self.manifests[0].fields

    @property
    def apart(self) -> str | None:
        """The last of the fields, if it lies in files of its own."""
        return self.manifests[0].apart

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, in the order of the stream."""
        return tuple(shard for manifest in self.manifests for shard in manifest.shards)

    @cached_property
    def num_records(self) -> int:
        """Records in all shards; for token streams, tokens."""
        return sum(shard.num_records for shard in self.shards)

    @cached_property
    def num_documents(self) -> int:
        """Documents in all shards."""
        return sum(shard.num_documents for shard in self.shards)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all files, manifests aside; one that several shards lie in counts once."""
        sizes = {
            file.path or (number, kind): file.size_bytes
            for number, shard in enumerate(self.shards)
            for kind, file in shard.files.items()
        }
        return sum(sizes.values())

    @property
    def vocab_size(self) -> int | None:
        """The largest vocabulary of the directories, if all of them name one."""
        sizes = [manifest.vocab_size for manifest in self.manifests]
        return None if None in sizes else max(size for size in sizes if size is not None)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal data in equal shards, wherever they lie; see `records_digest`."""
        content = xxhash.xxh3_64(repr(fields_to_json(self.fields)).encode())
        for shard in self.shards:
            content.update(f"{shard.num_records} {records_digest(shard)};".encode())
        return content.hexdigest()

    @cached_property
    def documents_fingerprint(self) -> str:
        """Equal for equal documents in equal shards, whatever their tokens."""
        content = xxhash.xxh3_64()
        for shard in self.shards:
            content.update(f"{shard.num_records} {documents_digest(shard)};".encode())
        return content.hexdigest()

    @cached_property
    def tokenizer(self) -> "Tokenizer | None":
        """The tokenizer that made the tokens, as `penstock tokenize` keeps it beside them.

        None if it is not there, or if directories were made with different ones; one that is not
        what the manifest names is an error.
        """
        from penstock.text.tokenizers.stored import fingerprint_in, load_stored

        noted = {fingerprint_in(manifest.tokenizer) for manifest in self.manifests}
        fingerprint = noted.pop()
        if noted or not fingerprint:
            return None
        directories = dict.fromkeys(shard.directory for shard in self.shards)
        found = (load_stored(directory, fingerprint) for directory in directories)
        return next((tokenizer for tokenizer in found if tokenizer is not None), None)

    @cached_property
    def reader(self) -> LocalReader:
        """What turns segments of this dataset into arrays."""
        apart_bytes = self.fields[self.apart].itemsize if self.apart else 0
        return LocalReader(
            self.shards, self.fields.itemsize - apart_bytes, self.access, apart_bytes
        )

    def windows(
        self,
        seq_len: int,
        *,
        overlap: bool = True,
        extras: Extra | Iterable[Extra] = (),
        static_shapes: bool = False,
        mask_ends: bool = False,
        eos_id: int | None = None,
        loss_mask: str | Literal[False] | None = None,
        metadata: Decoder | None = None,
    ) -> Windows:
        """View the stream as rows of `seq_len` inputs and labels; see `Windows` and `View`."""
        return Windows(
            dataset=self,
            seq_len=seq_len,
            overlap=overlap,
            extras=extras,  # type: ignore[arg-type]
            static_shapes=static_shapes,
            mask_ends=mask_ends,
            eos_id=eos_id,
            loss_mask=loss_mask,
            metadata=metadata,
        )

    def rows(self, **options: Any) -> Windows:
        """View rows of equal length as they are stored, as in LLMBATCH; options as for `windows`.

        The last token of a row is a label only.
        """
        lengths = {shard.row_records for shard in self.shards if shard.num_records}
        if len(lengths) != 1 or min(lengths) < 2:
            raise UsageError("the dataset has no rows of one length; use windows or documents")
        return self.windows(lengths.pop() - 1, overlap=False, **options)

    def documents(
        self,
        max_len: int,
        *,
        overflow: Overflow = "truncate",
        by_length: bool = False,
        pad_to: int | None = None,
        pad_id: int = 0,
        extras: Extra | Iterable[Extra] = (),
        attention_mask: bool = True,
        static_shapes: bool = False,
        loss_mask: str | Literal[False] | None = None,
        metadata: Decoder | None = None,
    ) -> Documents:
        """View the dataset as one document a row; see `Documents` and `View`."""
        return Documents(
            dataset=self,
            seq_len=max_len,
            overflow=overflow,
            by_length=by_length,
            pad_to=pad_to,
            pad_id=pad_id,
            extras=extras,  # type: ignore[arg-type]
            attention_mask=attention_mask,
            static_shapes=static_shapes,
            loss_mask=loss_mask,
            metadata=metadata,
        )

    def packed(
        self,
        seq_len: int,
        *,
        policy: Policy = "best_fit",
        buffer_size: int = 1000,
        pad_id: int = 0,
        extras: Extra | Iterable[Extra] = ("position_ids", "cu_seqlens"),
        static_shapes: bool = False,
        mask_ends: bool | None = None,
        loss_mask: str | Literal[False] | None = None,
        metadata: Decoder | None = None,
    ) -> Packed:
        """View the dataset as rows of several documents; see `Packed` and `View`.

        Labels at the ends of documents are ignored, except with the 'bos_…' policies, where
        documents see each other as they do in nanochat; `mask_ends` decides otherwise.
        """
        masks = policy == "best_fit" and TOKEN in (self.fields.names or ())
        return Packed(
            dataset=self,
            seq_len=seq_len,
            policy=policy,
            buffer_size=buffer_size,
            pad_id=pad_id,
            extras=extras,  # type: ignore[arg-type]
            static_shapes=static_shapes,
            mask_ends=masks if mask_ends is None else mask_ends,
            loss_mask=loss_mask,
            metadata=metadata,
        )

    def records(self, start: int, stop: int) -> NDArray[Any]:
        """Read the records [start, stop) as they are stored; bare tokens as integers."""
        start, stop, _ = slice(start, stop).indices(self.num_records)
        if self.apart is None:
            records = self._read_run(FileKind.RECORDS, self.fields, start, stop)
        else:
            records = np.empty(max(0, stop - start), self.fields)
            together = [name for name in self.fields.names or () if name != self.apart]
            stored = np.dtype([(name, self.fields[name]) for name in together])
            records[together] = self._read_run(FileKind.RECORDS, stored, start, stop)
            field = self.fields[self.apart]
            records[self.apart] = self._read_run(FileKind.FIELD_APART, field, start, stop)
        tokens: NDArray[Any] = records[TOKEN] if self.fields.names == (TOKEN,) else records
        return tokens

    def _read_run(
        self, kind: FileKind, stored: np.dtype[Any], start: int, stop: int
    ) -> NDArray[Any]:
        """Read the items [start, stop) of one kind of file: one row of raw bytes."""
        length = max(0, stop - start)
        raw = np.dtype([("record", f"V{stored.itemsize}")])
        layout = BatchLayout(raw, 1, length, (Output("", "record", raw["record"]),))
        memory = np.zeros(layout.num_bytes, np.uint8)
        self.reader.read(np.array([(0, 0, start, length, -1)], SEGMENT), layout, memory, kind)
        place = layout.places()[""]
        run: NDArray[Any] = place.of(memory, 1, layout.counts(memory))[0].view(stored)
        return run

    def document_range(self, number: int) -> range:
        """Which records of the stream are document `number`."""
        first_document = first_record = 0
        for shard in self.shards:
            if 0 <= number - first_document < shard.num_documents:
                start, stop = document_offsets(shard, number - first_document, 2).tolist()
                if not 0 <= start <= stop <= shard.num_records:
                    raise FormatError(
                        f"{document_table(shard)[0]}: document {number:,} is records {start:,} to "
                        f"{stop:,} of {shard.num_records:,}; run penstock verify"
                    )
                return range(first_record + start, first_record + stop)
            first_document += shard.num_documents
            first_record += shard.num_records
        raise IndexError(f"no document {number:,}: there are {self.num_documents:,}")

    def document(self, number: int) -> NDArray[Any]:
        """Read one document: its token ids, or records where they have other fields.

        >>> data.document(4).tolist()
        [40, 41, 42, 43, 44, 45, 46, 47, 48, 49]
        """
        found = self.document_range(number)
        records = self.records(found.start, found.stop)
        only_tokens = self.fields.names == (TOKEN, METADATA_ID)
        tokens: NDArray[Any] = records[TOKEN] if only_tokens else records
        return tokens

    def metadata(self, number: int, decode: Decoder = bytes) -> list[tuple[int, int, Any]]:
        """The metadata of one document: `(start, stop, decoded)` for each of its spans."""
        decoder = check_decoder(decode)
        if isinstance(decoder, np.dtype):
            decoder = partial(as_array, dtype=decoder)
        found = self.document_range(number)
        if METADATA_ID not in (self.fields.names or ()):
            raise UsageError("the dataset has no metadata")
        if not found:
            return []
        rows = np.array([[found.start, len(found), number]])
        view = Excerpts(
            dataset=self, seq_len=len(found), runs=rows, loss_mask=False, metadata=decoder
        )
        batch = view.read([0], dtype=None)
        ids, objects = batch["metadata_ids"][0], batch["metadata"][0]
        edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
        return [
            (start, stop, objects[ids[start]]) for start, stop in pairwise(edges) if ids[start] >= 0
        ]

    def token_dtype_out(self, wanted: DTypeLike | None) -> np.dtype[Any]:
        """The type for tokens in batches: `wanted` if all ids fit it, None for the stored one."""
        if TOKEN not in (self.fields.names or ()):
            return np.dtype(np.int64)
        return token_dtype(self.fields[TOKEN], self.vocab_size, wanted)
