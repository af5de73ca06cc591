"""`RowSlice`: the part of every row that one rank of a context-parallel group gets."""

from dataclasses import dataclass
from typing import Literal, get_args

from millstream.arguments import integer, one_of
from millstream.errors import UsageError

ContextLayout = Literal["contiguous", "zigzag"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSlice:
    """Slice `part` of the `parts` that every row is cut into.

        contiguous   a row is cut into `parts` chunks, and slice p is chunk p.
        zigzag       a row is cut into 2 * `parts` chunks, and slice p is chunk p followed by the
                     p-th from the end: under causal attention all slices are equally much work.

    >>> RowSlice(part=1, parts=2, layout="contiguous").chunks(8)
    [(4, 4)]
    >>> RowSlice(part=1, parts=2, layout="zigzag").chunks(8)
    [(2, 2), (4, 2)]
    """

    part: int
    parts: int
    layout: ContextLayout = "zigzag"

    def __post_init__(self) -> None:
        integer("parts", self.parts, 2, 1 << 20)
        integer("part", self.part, 0, self.parts - 1)
        one_of("layout", self.layout, get_args(ContextLayout))

    @property
    def num_chunks(self) -> int:
        """The number of chunks of a row that are in the slice."""
        return 2 if self.layout == "zigzag" else 1

    def chunks(self, width: int) -> list[tuple[int, int]]:
        """The first column and the length of each chunk of a row of `width` columns."""
        multiple = self.parts * self.num_chunks
        if width % multiple:
            below = width // multiple * multiple
            works = f"{below:,} or {below + multiple:,}" if below else f"{multiple:,}"
            raise UsageError(
                f"rows of {width:,} tokens cannot be cut into {multiple:,} equal chunks, for "
                f"{self.parts:,} context-parallel ranks and the {self.layout} layout; "
                f"use seq_len={works}"
            )
        length = width // multiple
        starts = (self.part, 2 * self.parts - 1 - self.part)[: self.num_chunks]
        return [(start * length, length) for start in starts]

    def columns(self, width: int) -> int:
        """The columns of the slice, of a row of `width` columns."""
        return sum(length for _, length in self.chunks(width))
