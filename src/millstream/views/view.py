"""`View`: what all views share: samples by number, and the outputs of a batch."""

from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from millstream.arguments import integer
from millstream.batches.batch_transform import BatchTransform, Transform, transformed
from millstream.batches.layout import BatchLayout
from millstream.batches.object_decoding import ObjectCoding
from millstream.batches.outputs import (
    DerivedOutput,
    Extra,
    Output,
    check_extras,
    derived_outputs,
    field_outputs,
    token_dtype,
    token_outputs,
)
from millstream.batches.row_slice import RowSlice
from millstream.batches.sample_reader import SampleReader, read_batch
from millstream.batches.view_state import ViewKind, ViewState
from millstream.errors import UsageError
from millstream.formats.shard import TOKEN
from millstream.metadata.span_decoding import Decoder, check_decoder
from millstream.pack.selection import DocumentSelection
from millstream.read.record_stream import RecordStream
from millstream.reprs import counted, listed, one_line
from millstream.system.checksums import CheckedBlocks
from millstream.views.chosen_samples import ChosenSamples
from millstream.views.loss_mask import find_loss_mask
from millstream.views.selected import SelectedView

Batch = dict[str, Any]

_WITH_METADATA = ("metadata", "metadata_ids", "metadata_offsets", "metadata_rows")


@dataclass(frozen=True, kw_only=True, repr=False)
class View(SelectedView):
    """A finite sequence of samples of `seq_len` inputs each.

    Labels are already shifted: a label is the token that follows its input in the same document,
    even where the row ends before it. Where there is none it is -100, which torch's cross entropy
    ignores.
    """

    dataset: RecordStream = field(kw_only=False)
    seq_len: int = field(kw_only=False)
    """inputs in a row"""
    extras: Extra | Collection[Extra] = ()
    """more outputs, all derived from the segments: `position_ids` (from 0 in every document),
    `cu_seqlens` (where documents start in the flattened batch, with `max_seqlen`), `document_ids`
    (-1 for padding), `attention_mask`"""
    static_shapes: bool = False
    """pad `cu_seqlens` to one length, with empty documents at the end, for compiled models"""
    loss_mask: str | Literal[False] | None = None
    """the field that is zero for tokens that are not to be trained on, as labels; by default
    `loss_mask`, if the records have such a field of integers. False masks nothing"""

    metadata: Decoder | None = None
    """decodes metadata: a function of bytes, or a NumPy type"""
    transform: Transform | None = None
    """a function of each batch, which returns what is handed out instead: `transform(batch)`, or
    `transform(batch, positions)` with the position of each row. Loaders call it ahead of time, in a
    reading thread, with the GIL"""
    _chosen: ChosenSamples | None = None
    """the windows or rows that are samples; None for all"""
    _selection: DocumentSelection | None = None
    """the documents that rows are made of; None for all"""

    @one_line
    def __repr__(self) -> str:
        return f"{self._in_words()}; {self.dataset!r}"

    def _in_words(self) -> str:
        """The kind of rows, and their number if it is known."""
        return f"of {self.seq_len:,} tokens: {counted(len(self), 'sample')}"

    def __post_init__(self) -> None:
        if self.dataset.holds_objects:
            raise UsageError(
                "the dataset holds objects, which have no tokens to make rows of; use "
                "data.objects(decode)"
            )
        seq_len = integer("seq_len", self.seq_len, 1, (1 << 40) - 1)
        object.__setattr__(self, "seq_len", seq_len)
        extras = check_extras(self.extras)
        object.__setattr__(self, "extras", extras)
        fields = self.dataset.fields
        if seq_len >= 1 << 31 and (extras or self.metadata is not None):
            raise UsageError(f"rows of {seq_len:,} are too long for extras and metadata")
        names = {*extras, *(_WITH_METADATA if self.metadata is not None else ())}
        names |= {"max_seqlen"} if "cu_seqlens" in extras else set()
        for name in fields.names or ():
            if name in names:
                raise UsageError(f"{name!r} is both an output and a field of the records")
        object.__setattr__(self, "loss_mask", find_loss_mask(self.loss_mask, fields))
        if not self._has_tokens and (self._masks_ends or self.loss_mask):
            raise UsageError(f"labels need a field {TOKEN!r} in the records")
        if self.metadata is not None:
            if not self.dataset.has_metadata:
                raise UsageError("the dataset has no metadata; leave out metadata=…")
            check_decoder(self.metadata)
        self._check_transform()

    def _check_transform(self) -> None:
        if self.transform is not None:
            BatchTransform(self.transform)

    @property
    def _has_tokens(self) -> bool:
        return TOKEN in (self.dataset.fields.names or ())

    @property
    def _masks_ends(self) -> bool:
        """Whether the last label of a document is ignored."""
        return False

    @property
    def _padding(self) -> int | None:
        """The token that rows are padded with; None if rows are always full."""
        return None

    @property
    @abstractmethod
    def max_segments(self) -> int:
        """The most segments that a row has."""

    @abstractmethod
    def for_kernels(self) -> ViewState:
        """The view as kernels take it."""

    def why_empty(self) -> str:
        """Say why there are no samples, for errors."""
        data = self.dataset
        if self._chosen is not None and self.num_base_samples:
            return f"slices left none of {counted(self.num_base_samples, 'sample')}"
        if self._selection is not None and not self._selection.num_kept:
            return f"without() or split() left none of {counted(data.num_documents, 'document')}"
        return f"the dataset has {data.num_records:,} records, for rows of {self.seq_len:,}"

    @property
    def sources(self) -> "tuple[View, ...]":
        """The views that samples come from: itself; a mixture has several."""
        return (self,)

    @property
    def coding(self) -> ObjectCoding | None:
        """How documents become objects; None if rows are records."""
        return None

    @property
    def records_per_row(self) -> Fraction:
        """The mean number of records that are read for a row."""
        return Fraction(self.seq_len + 1)

    @property
    def mean_tokens(self) -> Fraction:
        """The mean number of tokens in a row, without padding."""
        return Fraction(self.seq_len)

    @property
    def cuts_by_document(self) -> bool:
        """Whether kernels look up where documents end."""
        return False

    @property
    def stored_in(self) -> Path | None:
        """The file that the rows are stored in, if there is one."""
        return None

    @property
    def narrow_to(self) -> int:
        """Batches are as wide as their longest row, to a multiple of this; 0: all equally wide."""
        return 0

    def _state(
        self,
        kind: ViewKind,
        *,
        stride: int = 0,
        eos_id: int = -1,
        is_plain: bool = False,
        pieces: NDArray[np.int64] | None = None,
        row_first: NDArray[np.int64] | None = None,
        blocks: CheckedBlocks | None = None,
        whole_documents: bool = False,
    ) -> ViewState:
        """What all views tell kernels, with what is particular to one."""
        chosen = self._chosen
        order = chosen.order if chosen is not None else None
        return ViewState(
            kind,
            num_samples=len(self),
            num_base_samples=self.num_base_samples,
            first_sample=chosen.first if chosen is not None else 0,
            table=order.table if order is not None else None,
            num_records=self.dataset.num_records,
            width=self.seq_len,
            stride=stride,
            eos_id=eos_id,
            mask_ends=self._masks_ends,
            narrow_to=self.narrow_to,
            pad_boundaries=self.static_shapes,
            is_plain=is_plain,
            pieces=np.empty((0, 3), np.int64) if pieces is None else pieces,
            row_first=np.empty(0, np.int64) if row_first is None else row_first,
            blocks=blocks,
            whole_documents=whole_documents,
        )

    def layout(
        self, rows: int, dtype: DTypeLike | None, row_slice: RowSlice | None = None
    ) -> BatchLayout:
        """The memory of a batch of `rows` rows, or slices of them, with tokens of type `dtype`."""
        if "cu_seqlens" in self.extras and rows * self.seq_len >= 1 << 31:
            raise UsageError(
                f"cu_seqlens is int32 and cannot count {rows:,} x {self.seq_len:,} tokens; use "
                "smaller batches"
            )
        return BatchLayout(
            self.dataset.fields,
            rows,
            self.seq_len,
            self._outputs(dtype),
            self._derived(row_slice),
            narrows=self.narrow_to > 0,
            apart=self.dataset.apart,
            max_boundaries=self._max_boundaries,
            cuts_labels=self._padding is not None or self._masks_ends,
            row_slice=row_slice,
        )

    def _outputs(self, dtype: DTypeLike | None) -> tuple[Output, ...]:
        fields = self.dataset.fields
        others = field_outputs(fields, with_metadata=self.metadata is not None)
        if not self._has_tokens:
            return others
        tokens = token_dtype(fields[TOKEN], self.dataset.vocab_size, dtype)
        if self._padding is not None:
            integer("pad_id", self._padding, 0, int(np.iinfo(tokens).max))
        inputs_and_labels = token_outputs(
            tokens,
            pad_id=self._padding,
            mask=self.loss_mask or None,
            mask_ends=self._masks_ends,
        )
        return inputs_and_labels + others

    def _derived(self, row_slice: RowSlice | None) -> tuple[DerivedOutput, ...]:
        chunks = () if row_slice is None else row_slice.chunks(self.seq_len)
        outputs = derived_outputs(self.extras, self._max_boundaries, chunks)
        fields = self.dataset.fields.names or ()
        if row_slice is not None and self.seq_len >= 1 << 31:
            raise UsageError(f"rows of {self.seq_len:,} are too long to be sliced")
        # Records may have position ids of their own.
        return tuple(
            output
            for output in outputs
            if not (output.content == "column_ids" and output.name in fields)
        )

    @property
    def _max_boundaries(self) -> int:
        return self.max_segments + (self._padding is not None)

    def __getitem__(self, index: Any) -> Any:
        """Read one sample, or the samples of a slice as one batch.

        With a `transform`, a sample is what that returns for a batch of one row.
        """
        if isinstance(index, slice):
            return self.read(np.arange(*index.indices(len(self))))
        try:
            position = range(len(self))[index]
        except IndexError:
            raise IndexError(f"no sample {index:,}: there are {len(self):,}") from None
        return self._sample(position) if self.transform is None else self.read([position])

    def _sample(self, position: int) -> Batch:
        batch = self.read([position])
        in_rows = set(self.layout(1, np.int64).places()) - {"cu_seqlens"}
        if self.metadata is not None:
            batch.pop("metadata_rows", None)
            in_rows |= {"metadata"} if "metadata_offsets" not in batch else set()
        return {name: values[0] if name in in_rows else values for name, values in batch.items()}

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def read(self, indices: ArrayLike, *, dtype: DTypeLike | None = np.int64) -> Batch:
        """Read the samples `indices` as one NumPy batch; `dtype=None` keeps the stored type.

        A `transform` gets the sample numbers as positions.
        """
        samples = self._check(indices)
        layout = self.layout(samples.size, dtype)
        batch = read_batch(SampleReader(self, layout), layout, samples)
        read: Batch = transformed(
            self.transform, batch, samples, lambda shown: f"samples {listed(shown)}"
        )
        return read

    def with_transform(self, transform: Transform | None) -> Self:
        """Return the same view with another transform, or with none.

        >>> view = data.windows(4).with_transform(lambda batch: batch["input_ids"].sum())
        >>> int(view[1]), len(view.with_transform(None)[1])
        (22, 2)
        """
        return replace(self, transform=transform)

    def _check(self, indices: ArrayLike) -> NDArray[np.int64]:
        wanted = np.asarray(indices)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise TypeError(f"sample numbers must be integers, not {wanted.dtype}")
        samples = np.array(wanted, np.int64).reshape(-1)
        if samples.size and not 0 <= samples.min() <= samples.max() < len(self):
            bad = samples.min() if samples.min() < 0 else samples.max()
            raise IndexError(f"no sample {bad:,}: there are {len(self):,}")
        return samples
