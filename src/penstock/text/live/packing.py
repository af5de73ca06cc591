"""`Packing`: how documents become rows."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import DTypeLike

from penstock.arguments import integer, one_of
from penstock.batches.layout import BatchLayout
from penstock.batches.outputs import (
    Extra,
    check_extras,
    derived_outputs,
    token_dtype,
    token_outputs,
)
from penstock.errors import UsageError
from penstock.formats.shard import TOKEN
from penstock.text.marks import Add
from penstock.text.tokenizers.tokenizer import Tokenizer

LivePolicy = Literal["flat", "best_fit", "bos_best_fit", "bos_best_fit_keep"]
POLICIES = get_args(LivePolicy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """How documents become rows of a `TextLoader`.

        flat               documents end to end, rows cut anywhere: every token is an input once.
        best_fit           rows hold whole documents, as many as fit, and padding.
        bos_best_fit       as nanochat packs: every row starts with a document and is full; where
                           nothing fits, the shortest document is cropped, and its rest is dropped.
        bos_best_fit_keep  the same, but the rest waits as a document of its own: rows are full, and
                           every token is an input once.

    A row begins with the document that has waited longest, and goes on with the longest that fits
    of the `buffer_size` that wait, of equals the first to come. A document longer than a row is cut
    into pieces of a full row when it comes, and its last piece waits like a document. Only of
    bos_best_fit a row begins with the longest that fits, too, and long documents wait whole.

    >>> Packing(policy="flat").policy
    'flat'
    """

    policy: LivePolicy = "bos_best_fit_keep"
    buffer_size: int = 1000
    """documents to choose from"""
    refill: int = 128
    """of bos_best_fit: so many documents of a block come in at a time, nanochat's
    tokenizer_batch_size"""
    add: Add | None = None
    """marks of every document: 'bos', 'eos', 'both' or 'none'; by default bos if the tokenizer has
    one, else eos, and an error if it has neither"""
    extras: tuple[Extra, ...] = ()
    """what arrives beside inputs and labels, as of stored views; `document_ids` are
    block * 2^32 + number"""
    mask_ends: bool = False
    """ignore the last label of a document; else it is the first token of the document after it"""
    pad_id: int = 0
    """the token in columns that hold none"""

    def __post_init__(self) -> None:
        one_of("policy", self.policy, POLICIES)
        if self.add is not None:
            one_of("add", self.add, get_args(Add))
        integer("buffer_size", self.buffer_size, 1, 1 << 20)
        integer("refill", self.refill, 1, 1 << 20)
        integer("pad_id", self.pad_id, 0, (1 << 32) - 1)
        object.__setattr__(self, "extras", check_extras(self.extras))

    def marks(self, tokenizer: Tokenizer) -> tuple[int, int]:
        """The ids before and after every document, -1 for none."""
        found = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
        has = [name for name, mark in found.items() if mark is not None]
        if self.add is None and not has:
            raise UsageError(
                f"the tokenizer {tokenizer.name} has no token that starts or ends documents; say "
                "packing=Packing(add='none') to pack them without, or let it tell its own as "
                "bos_token_id or eos_token_id"
            )
        add = self.add or has[0]
        for name in ("bos", "eos"):
            if add in (name, "both") and name not in has:
                raise UsageError(
                    f"add={add!r}, but the tokenizer {tokenizer.name} has no {name} token; its "
                    f"special tokens are {', '.join(tokenizer.specials) or 'none'}"
                )
        bos, eos = (
            -1 if mark is None or add not in (name, "both") else mark
            for name, mark in found.items()
        )
        return bos, eos

    @property
    def max_waiting(self) -> int:
        """How many documents may wait in a lane."""
        if self.policy == "flat":
            return 1
        return self.buffer_size + (self.refill if self.policy == "bos_best_fit" else 0)

    def layout(
        self, tokenizer: Tokenizer, seq_len: int, batch_size: int, dtype: DTypeLike | None
    ) -> BatchLayout:
        """The memory of a batch, with tokens of type `dtype`."""
        if "cu_seqlens" in self.extras and batch_size * seq_len >= 1 << 31:
            raise UsageError(
                f"cu_seqlens is int32 and cannot count {batch_size:,} x {seq_len:,} tokens; use "
                "smaller batches"
            )
        stored = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
        tokens = token_dtype(stored, max(tokenizer.vocab_size, self.pad_id + 1), dtype)
        return BatchLayout(
            np.dtype([(TOKEN, stored)]),
            batch_size,
            seq_len,
            token_outputs(tokens, pad_id=self.pad_id),
            derived_outputs(self.extras, seq_len + 1),
        )

    def fingerprint(self, seq_len: int) -> str:
        """What of this decides which rows there are."""
        size = "" if self.policy == "flat" else f"-buffer{self.buffer_size}"
        refill = f"-refill{self.refill}" if self.policy == "bos_best_fit" else ""
        return f"{self.policy}-v1-{seq_len}{size}{refill}"
