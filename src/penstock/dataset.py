"""Datasets: any number of shards as one stream of records."""

from collections.abc import Iterable
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.batches.outputs import Extra
from penstock.errors import UsageError
from penstock.formats.shard import METADATA_ID, TOKEN
from penstock.metadata.spans import Decoder, as_array, check_decoder
from penstock.pack.policy import Policy
from penstock.read.record_stream import RecordStream
from penstock.views.packed import Documents, Excerpts, Overflow, Packed
from penstock.views.windows import Windows

if TYPE_CHECKING:
    from penstock.text.tokenizers.tokenizer import Tokenizer


class Dataset(RecordStream):
    """Records of all shards, end to end, and the views of them; made by `penstock.open`."""

    @cached_property
    def tokenizer(self) -> "Tokenizer | None":
        """The tokenizer that made the tokens, as `penstock tokenize` keeps it beside them.

        None if it is not there, or if directories were made with different ones; one that is not
        what the manifest names is an error.
        """
        from penstock.text.tokenizers.dataset_tokenizer import fingerprint_in, load_stored

        noted = {fingerprint_in(manifest.tokenizer) for manifest in self.manifests}
        fingerprint = noted.pop()
        if noted or not fingerprint:
            return None
        directories = dict.fromkeys(shard.directory for shard in self.shards)
        found = (load_stored(directory, fingerprint) for directory in directories)
        return next((tokenizer for tokenizer in found if tokenizer is not None), None)

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
