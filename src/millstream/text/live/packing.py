"""`Packing`: how documents become rows."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from millstream.arguments import integer, one_of
from millstream.batches.layout import BatchLayout
from millstream.batches.outputs import (
    Extra,
    check_extras,
    derived_outputs,
    field_outputs,
    token_dtype,
    token_outputs,
)
from millstream.batches.row_slice import RowSlice
from millstream.errors import UsageError
from millstream.formats.loss_masks import LOSS_MASK
from millstream.formats.shard import TOKEN
from millstream.text.marks import Add, choose_marks
from millstream.text.tokenizers.tokenizer import Tokenizer

LivePolicy = Literal["flat", "best_fit", "bos_best_fit", "full_best_fit"]
POLICIES = get_args(LivePolicy)
LiveOverflow = Literal["split", "truncate", "drop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """How documents become rows of a `TextLoader`.

        flat           documents end to end, cut into rows anywhere: every token is an input once.
        best_fit       rows hold whole documents, as many as fit, and padding.
        bos_best_fit   as nanochat packs: every row starts with a document and is full; where no
                       document fits, the shortest is cropped and its rest is dropped.
        full_best_fit  rows are full as well, but the rest of a cropped document waits like a
                       document: every token is an input once.

    A row starts with the document that has waited longest and continues with the longest that fits
    of the `buffer_size` documents that wait; of equals, with the first to come. A document longer
    than a row is cut into full rows when it comes, and its last piece waits like a document. Only
    bos_best_fit starts a row with the longest that fits, too, and lets long documents wait whole.

    Chats come with a loss mask: labels are ignored where the token is not to be learned. Of the
    marks, the one after a document is to be learned and the one before it is not.

    >>> Packing(policy="flat").policy
    'flat'
    """

    policy: LivePolicy = "full_best_fit"
    buffer_size: int = 1000
    """documents to choose from"""
    refill: int = 128
    """of bos_best_fit: how many documents of a block come in at a time, as nanochat's
    tokenizer_batch_size"""
    add: Add | None = None
    """the marks of every document: 'eos', 'bos', 'both' or 'none'; None for eos if the tokenizer
    has one, else bos (see `text.marks`)"""
    extras: tuple[Extra, ...] = ()
    """what comes with inputs and labels, as with stored views; `document_ids` are
    block * 2^32 + number"""
    mask_ends: bool | None = None
    """ignore the last label of a document; else it is the first token of the document after it. By
    default True for chats, and False for other text"""
    repeat_bos: bool = False
    """of best_fit and full_best_fit: start every piece of a cut document with the bos mark, so that
    all rows start with one. full_best_fit then cuts the document that has waited longest, and its
    rest starts the next row"""
    pad_id: int = 0
    """the token in columns that hold none"""
    overflow: LiveOverflow | None = None
    """what becomes of a document longer than a row: 'split' cuts it into rows and a rest,
    'truncate' keeps the first row of it, 'drop' leaves it out. None for what the policy does:
    bos_best_fit crops it as nanochat does, the others split. flat has no other way."""

    def __post_init__(self) -> None:
        if str(self.policy) == "bos_best_fit_keep":
            raise UsageError(
                "policy is 'bos_best_fit_keep', which packs stored data (data.packed); the policy "
                "for live text whose rows are full and keep every token is 'full_best_fit'"
            )
        one_of("policy", self.policy, POLICIES)
        if self.add is not None:
            one_of("add", self.add, get_args(Add))
        if self.overflow is not None:
            self._check_overflow()
        if self.repeat_bos and self.overflow not in (None, "split"):
            raise UsageError(
                f"overflow={self.overflow!r} leaves no rest of a document for repeat_bos to mark; "
                "leave one of them out"
            )
        if self.repeat_bos and self.policy not in ("best_fit", "full_best_fit"):
            raise UsageError(
                f"policy is {self.policy!r}; repeat_bos marks the pieces of cut documents, which "
                "only 'best_fit' and 'full_best_fit' have"
            )
        integer("buffer_size", self.buffer_size, 1, 1 << 20)
        integer("refill", self.refill, 1, 1 << 20)
        integer("pad_id", self.pad_id, 0, (1 << 32) - 1)
        object.__setattr__(self, "extras", check_extras(self.extras))

    def _check_overflow(self) -> None:
        one_of("overflow", self.overflow, get_args(LiveOverflow))
        if self.policy == "flat" and self.overflow != "split":
            raise UsageError(
                f"overflow={self.overflow!r} does not apply to policy='flat', whose rows are cut "
                "anywhere; use policy='best_fit' or 'full_best_fit', or leave out overflow=…"
            )
        if self.policy == "bos_best_fit" and self.overflow == "split":
            raise UsageError(
                "overflow='split' does not apply to policy='bos_best_fit', whose rows all start "
                "with a document; use policy='full_best_fit', or overflow='truncate' or 'drop'"
            )

    def marks(self, tokenizer: Tokenizer) -> tuple[int, int]:
        """The ids before and after every document, -1 for none."""
        codes = choose_marks(self.add, tokenizer).codes
        if self.repeat_bos and codes[0] < 0:
            raise UsageError(
                "repeat_bos needs a bos mark before every document; pass add='bos' or add='both'"
            )
        return codes

    @property
    def max_waiting(self) -> int:
        """How many documents may wait in a lane."""
        if self.policy == "flat":
            return 1
        return self.buffer_size + (self.refill if self.policy == "bos_best_fit" else 0)

    def layout(
        self,
        tokenizer: Tokenizer,
        seq_len: int,
        batch_size: int,
        dtype: DTypeLike | None,
        row_slice: RowSlice | None = None,
        *,
        masks_loss: bool = False,
    ) -> BatchLayout:
        """The memory of a batch, or of slices of its rows, whose tokens have type `dtype`.

        With `masks_loss` it has `loss_mask`, and labels are ignored where that is 0.
        """
        if self.repeat_bos and seq_len < 2:
            raise UsageError(
                f"seq_len is {seq_len}; with repeat_bos, a row needs at least 2 tokens: a bos mark "
                "and one of text"
            )
        if "cu_seqlens" in self.extras and batch_size * seq_len >= 1 << 31:
            raise UsageError(
                f"cu_seqlens is int32 and cannot count {batch_size:,} x {seq_len:,} tokens; use "
                "smaller batches"
            )
        chunks = () if row_slice is None else row_slice.chunks(seq_len)
        stored = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
        tokens = token_dtype(stored, max(tokenizer.vocab_size, self.pad_id + 1), dtype)
        # Apart: the arena holds tokens and masks in arrays of their own, which copy faster.
        mask = LOSS_MASK if masks_loss else None
        record = np.dtype([(TOKEN, stored), *([(LOSS_MASK, np.uint8)] if masks_loss else [])])
        return BatchLayout(
            record,
            batch_size,
            seq_len,
            token_outputs(tokens, pad_id=self.pad_id, mask=mask) + field_outputs(record),
            derived_outputs(self.extras, seq_len + 1, chunks),
            apart=mask,
            max_boundaries=seq_len + 1,
            cuts_labels=True,
            row_slice=row_slice,
        )

    def fingerprint(self, seq_len: int) -> str:
        """What of this decides the rows, for states; full_best_fit has an older name there."""
        name = "bos_best_fit_keep" if self.policy == "full_best_fit" else self.policy
        size = "" if self.policy == "flat" else f"-buffer{self.buffer_size}"
        refill = f"-refill{self.refill}" if self.policy == "bos_best_fit" else ""
        overflow = "" if self.overflow in (None, "split") else f"-{self.overflow}"
        repeat = "-repeat_bos" if self.repeat_bos else ""
        return f"{name}-v1-{seq_len}{size}{refill}{overflow}{repeat}"

    def makes_rows(self, offsets: NDArray[np.int64], num_marks: int, seq_len: int) -> bool:
        """Whether documents with ids at these offsets have tokens that are not dropped."""
        if self.overflow != "drop":
            return bool(offsets[-1] > offsets[0] or num_marks)
        lengths = np.diff(offsets) + num_marks
        columns = seq_len + (self.policy == "bos_best_fit")
        return bool(((lengths > 0) & (lengths <= columns)).any())
