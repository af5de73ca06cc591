"""`DocumentSelection`: which documents of a dataset are left out, a bit for each."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.system.cached_property import cached_property

_DOCUMENTS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class DocumentSelection:
    """The documents of a dataset without those that are left out.

    >>> one = leave_out([np.array([1, 8])], 10)
    >>> one.left_out(0, 10).tolist(), one.num_kept
    ([0, 1, 0, 0, 0, 0, 0, 0, 1, 0], 8)
    >>> one.without(leave_out([np.array([2])], 10)).left_out(0, 4).tolist()
    [0, 1, 1, 0]
    """

    bits: NDArray[np.uint8]
    """bit k % 8 of byte k // 8 is set if document k is left out"""
    num_documents: int
    """in the dataset"""

    @cached_property
    def num_kept(self) -> int:
        """The number of documents that are not left out."""
        return self.num_documents - int(np.bitwise_count(self.bits).sum(dtype=np.int64))

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal selections."""
        return xxhash.xxh3_64_hexdigest(self.bits.data)

    def left_out(self, first: int, count: int) -> NDArray[np.uint8]:
        """1 for each of `count` documents that is left out, else 0."""
        if first + count > self.num_documents:
            raise UsageError(
                f"documents were left out of a dataset of {self.num_documents:,}; this one has "
                "more, so leave them out again"
            )
        whole = np.unpackbits(self.bits[first // 8 : (first + count + 7) // 8], bitorder="little")
        return whole[first % 8 :][:count]

    def torn_group(self, group_size: int) -> int | None:
        """The first group that is left out in part; None if groups are kept or left out whole."""
        step = max(1, _DOCUMENTS_AT_ONCE // group_size) * group_size
        for first in range(0, self.num_documents, step):
            count = min(step, self.num_documents - first)
            flags = self.left_out(first, count).reshape(-1, group_size)
            torn = np.flatnonzero(flags.min(axis=1) != flags.max(axis=1))
            if torn.size:
                return first // group_size + int(torn[0])
        return None

    def without(self, other: "DocumentSelection") -> "DocumentSelection":
        """Leave out what either leaves out."""
        return DocumentSelection(self.bits | other.bits, self.num_documents)

    def within(self, other: "DocumentSelection") -> "DocumentSelection":
        """Keep only what this keeps and the other leaves out."""
        unused = np.zeros_like(self.bits)
        if self.num_documents % 8:
            unused[-1] = 0xFF << self.num_documents % 8 & 0xFF  # bits of no document
        return DocumentSelection((self.bits | ~other.bits) & ~unused, self.num_documents)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DocumentSelection):
            return NotImplemented
        return self.num_documents == other.num_documents and np.array_equal(self.bits, other.bits)

    def __hash__(self) -> int:
        return hash((self.fingerprint, self.num_documents))


def leave_out(
    numbers: Iterable[NDArray[np.integer]], num_documents: int, where: str = "documents"
) -> DocumentSelection:
    """Leave out the documents of these numbers, which may repeat; `where` is for errors."""
    bits = np.zeros(-(-num_documents // 8), np.uint8)
    for some in numbers:
        wrong = np.flatnonzero((some < 0) | (some >= num_documents))
        if wrong.size:
            raise UsageError(
                f"{where}: no document {some[wrong[0]]:,}; the dataset has {num_documents:,}, "
                "numbered from 0"
            )
        known = some.astype(np.int64)
        np.bitwise_or.at(bits, known >> 3, (1 << (known & 7)).astype(np.uint8))
    return DocumentSelection(bits, num_documents)
