"""Rows that were planned from the lengths of documents: one document each, or several."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from penstock.arguments import integer, one_of
from penstock.batches.batch_filling import ViewKind, ViewState
from penstock.batches.outputs import check_extras
from penstock.pack.policy import PACKING, PackReport, Policy, Recipe
from penstock.pack.rows_file import PlannedRows, find_rows
from penstock.reprs import counted
from penstock.views.view import View

Overflow = Literal["truncate", "split"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Excerpts(View):
    """Runs of records that somebody asks for, one a row."""

    runs: NDArray[np.int64]
    """start, length and document of each; all are `seq_len` long"""

    _pads: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def fingerprint(self) -> str:
        """Nothing saves a position in excerpts."""
        return f"{len(self)} excerpts of {self.dataset.fingerprint}"

    @property
    def max_segments(self) -> int:
        """A row is one run."""
        return 1

    def for_kernels(self) -> ViewState:
        """Describe this to kernels."""
        return self._state(ViewKind.ROWS, pieces=self.runs)


@dataclass(frozen=True, kw_only=True, repr=False)
class _StoredRows(View):
    """The rows were planned, and are stored."""

    @property
    @abstractmethod
    def recipe(self) -> Recipe:
        """What decides the rows."""

    def _in_words(self) -> str:
        is_known = "rows" in self.__dict__  # else the lengths of all documents would be read
        samples = counted(len(self), "sample") if is_known else "samples not counted yet"
        return f"of {self.seq_len:,} tokens ({self.recipe.policy}): {samples}"

    @cached_property
    def rows(self) -> PlannedRows:
        """The rows; the first use of a recipe on a dataset makes and stores them."""
        return find_rows(self.dataset, self.recipe)

    @property
    def report(self) -> PackReport:
        """Padding, split documents, cropped and lost tokens."""
        return self.rows.report

    @property
    def stored_in(self) -> Path | None:
        """The file that says what the rows are."""
        return self.rows.path

    def __len__(self) -> int:
        return self.rows.report.num_rows

    @property
    def fingerprint(self) -> str:
        """What a saved position depends on: the recipe, the documents, and the data under them."""
        data = self.dataset
        # The version of what policies make of documents, not that of the file.
        rows = f"{self.recipe.name}-v1 of {data.documents_fingerprint}"
        return f"{rows} in {data.fingerprint}"

    @property
    def max_segments(self) -> int:
        """How many segments a row has at most."""
        return max(1, self.rows.report.max_pieces)

    def for_kernels(self) -> ViewState:
        """Describe this to kernels."""
        rows = self.rows
        return self._state(
            ViewKind.ROWS, pieces=rows.pieces, row_first=rows.row_first, blocks=rows.blocks
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Packed(_StoredRows):
    """Several documents a row, by a policy that is applied once to the lengths of all documents.

        best_fit           the longest first, each where it leaves the least space. Documents longer
                           than a row are split, and their rests packed like documents: every token
                           is an input once, and there is little padding.
        bos_best_fit       as nanochat packs: every row starts with the start of a document and is
                           full; where nothing fits, a document is cropped, and its rest is dropped.
        bos_best_fit_keep  the same, but the rest waits as a document of its own. Every token is an
                           input once; a row may start in the middle of a document.

    >>> view = data.packed(16)
    >>> view[3]["input_ids"].tolist()
    [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 0, 0, 0, 0, 0, 0]
    >>> view.report.num_rows, view.report.padding
    (10, 60)
    """

    policy: Policy = "best_fit"
    buffer_size: int = 1000
    """documents that bos_best_fit chooses from"""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("policy", self.policy, PACKING)
        size = integer("buffer_size", self.buffer_size, 1, 1 << 32)
        object.__setattr__(self, "buffer_size", size)

    @property
    def recipe(self) -> Recipe:
        """What decides the rows."""
        buffer_size = 0 if self.policy == "best_fit" else self.buffer_size
        return Recipe(self.policy, self.seq_len, buffer_size)


@dataclass(frozen=True, kw_only=True, repr=False)
class Documents(_StoredRows):
    """One document a row, padded; empty documents have none.

    Documents longer than a row are truncated, or split into as many rows as they need. Batches have
    an `attention_mask` whatever the extras are.

    >>> view = data.documents(12)
    >>> view[4]["input_ids"].tolist(), view[4]["labels"].tolist()[-4:]
    ([40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 0, 0], [49, -100, -100, -100])
    """

    _length_name: ClassVar[str] = "max_len"
    overflow: Overflow = "truncate"
    by_length: bool = False
    """samples from the shortest to the longest, which is what `LengthBuckets` shuffles"""
    pad_to: int | None = None
    """make a batch as wide as its longest row, rounded up to a multiple of this, and not wider"""
    attention_mask: bool = True
    """False leaves the mask out, unless it is among the extras"""

    def __post_init__(self) -> None:
        if self.attention_mask:
            extras = check_extras(self.extras)
            with_mask = dict.fromkeys(("attention_mask", *extras))
            object.__setattr__(self, "extras", tuple(with_mask))
        super().__post_init__()
        one_of("overflow", self.overflow, get_args(Overflow))
        if self.pad_to is not None:
            object.__setattr__(self, "pad_to", integer("pad_to", self.pad_to, 1, 1 << 40))

    @property
    def recipe(self) -> Recipe:
        """What decides the rows."""
        return Recipe(self.overflow, self.seq_len, by_length=self.by_length)

    @property
    def narrow_to(self) -> int:
        """0, or batches are only as wide as their longest row, rounded up to a multiple of this."""
        return self.pad_to or 0
