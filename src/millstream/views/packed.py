"""`Packed`: several documents a row."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import get_args

from millstream.arguments import integer, one_of
from millstream.batches.outputs import Extra
from millstream.errors import UsageError
from millstream.pack.policy import BEST_FIT, PACKING, Policy, Recipe
from millstream.views.documents import Overflow
from millstream.views.planned import PaddedView


@dataclass(frozen=True, kw_only=True, repr=False)
class Packed(PaddedView):
    """Several documents a row, packed by a policy from the lengths of all documents.

        best_fit           the longest first, each where it leaves the least space. Documents longer
                           than a row are split, and their rests packed like documents: every token
                           is an input once, and there is little padding. With `overflow` they are
                           truncated or dropped instead.
        bos_best_fit       as nanochat packs: every row starts with the start of a document and is
                           full; where nothing fits, a document is cropped, and its rest is dropped.
        bos_best_fit_keep  the same, but the rest waits as a document of its own. Every token is an
                           input once; a row may start in the middle of a document.

    If documents of the dataset belong together in groups, best_fit packs whole groups. Groups
    longer than a row are dropped, or truncated: every document of the group is cut to
    `seq_len // group_size` tokens, if it has more.

    >>> view = data.packed(16)
    >>> view[3]["input_ids"].tolist()
    [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 0, 0, 0, 0, 0, 0]
    >>> view.report.num_rows, view.report.padding
    (10, 60)
    """

    extras: Extra | Collection[Extra] = ("position_ids", "cu_seqlens")
    policy: Policy = "best_fit"
    buffer_size: int = 1000
    """documents that the `bos_…` policies choose from"""
    overflow: Overflow | None = None
    """what best_fit does with documents longer than a row: by default it splits them, and truncates
    groups"""
    mask_ends: bool | None = None
    """ignore the last label of a document; else it is the first token of the next document. By
    default True for best_fit, False for the `bos_…` policies, where documents attend to each other
    as they do in nanochat"""

    def __post_init__(self) -> None:
        one_of("policy", self.policy, PACKING)
        if self.mask_ends is None:
            masks_ends = self.policy == "best_fit" and self._has_tokens
            object.__setattr__(self, "mask_ends", masks_ends)
        super().__post_init__()
        self._choose_overflow()
        size = integer("buffer_size", self.buffer_size, 1, 1 << 32)
        object.__setattr__(self, "buffer_size", size)

    def _choose_overflow(self) -> None:
        overflow, size = self.overflow, self.dataset.group_size
        if self.policy != "best_fit":
            if overflow is not None:
                raise UsageError(
                    f"policy {self.policy!r} already defines what happens to long "
                    "documents; leave out overflow, or use best_fit"
                )
            if size > 1:
                raise UsageError(
                    f"policy {self.policy!r} cannot keep groups of {size:,} documents together; "
                    "use best_fit"
                )
            return
        if overflow is None:
            overflow = "split" if size == 1 else "truncate"
        object.__setattr__(self, "overflow", one_of("overflow", overflow, get_args(Overflow)))
        self._check_groups(splits=overflow == "split")

    @property
    def _masks_ends(self) -> bool:
        return bool(self.mask_ends)

    @property
    def recipe(self) -> Recipe:
        """What decides the rows."""
        if self.overflow is None:
            return Recipe(self.policy, self.seq_len, self.buffer_size, selection=self._selection)
        return Recipe(
            BEST_FIT[self.overflow],
            self.seq_len,
            selection=self._selection,
            group_size=self.dataset.group_size,
        )
