"""`Documents`: one document a row."""

from dataclasses import dataclass
from typing import Literal, get_args

from millstream.arguments import integer, one_of
from millstream.batches.outputs import check_extras
from millstream.pack.policy import Recipe
from millstream.views.planned import PaddedView

Overflow = Literal["truncate", "split", "drop"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Documents(PaddedView):
    """One document a row, padded; empty documents are left out.

    Documents longer than a row are truncated, split into as many rows as they need, or dropped. If
    documents of the dataset belong together in groups, a row has a group: its documents one after
    the other. Groups longer than a row are dropped, or truncated: every document of the group is
    cut to `seq_len // group_size` tokens, if it has more.

    >>> view = data.documents(12)
    >>> view[4]["input_ids"].tolist(), view[4]["labels"].tolist()[-4:]
    ([40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 0, 0], [49, -100, -100, -100])
    """

    overflow: Overflow = "truncate"
    by_length: bool = False
    """samples from the shortest to the longest, which is what `LengthBuckets` shuffles"""
    pad_to: int | None = None
    """make a batch only as wide as its longest row, rounded up to a multiple of this"""
    attention_mask: bool = True
    """add an `attention_mask` to the extras"""

    def __post_init__(self) -> None:
        if self.attention_mask:
            extras = dict.fromkeys(("attention_mask", *check_extras(self.extras)))
            object.__setattr__(self, "extras", tuple(extras))
        super().__post_init__()
        one_of("overflow", self.overflow, get_args(Overflow))
        self._check_groups(splits=self.overflow == "split")
        if self.pad_to is not None:
            object.__setattr__(self, "pad_to", integer("pad_to", self.pad_to, 1, 1 << 40))

    @property
    def recipe(self) -> Recipe:
        """What decides the rows."""
        return Recipe(
            self.overflow,
            self.seq_len,
            by_length=self.by_length,
            selection=self._selection,
            group_size=self.dataset.group_size,
        )

    @property
    def _masks_ends(self) -> bool:
        return self._has_tokens and self.dataset.group_size > 1

    @property
    def narrow_to(self) -> int:
        """Batches are as wide as their longest row, to a multiple of this; 0: all equally wide."""
        return self.pad_to or 0
