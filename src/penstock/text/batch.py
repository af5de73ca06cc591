"""`TextBatch`: some documents of a source."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int, Any]
"""the first character (or token), the one after the last, and what is said of them"""

Counted = Literal["row", "line", "byte"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextBatch:
    """Documents as UTF-8, end to end; document k is `data[offsets[k]:offsets[k + 1]]`.

    The text is valid UTF-8: sources see to that. `offsets[0]` need not be 0.
    """

    data: NDArray[np.uint8]
    """the bytes, perhaps with others around them"""
    offsets: NDArray[np.int64]
    """one more than documents"""
    rows: NDArray[np.int64]
    """each document's number in its file, from 0: its row, its line, its block; or see `counted`"""
    metadata: list[dict[str, Any]] | None = None
    """what was chosen of each document's row"""
    spans: list[list[Span]] | None = None
    """each document's annotations"""
    continues: bool = False
    """whether the last document goes on as the first of the next batch; only of plain text"""
    file: str = ""
    """where they come from"""
    counted: Counted = "row"
    """what `rows` are: numbers, or where lines begin, if nobody has counted those before"""

    unpacked_from: int = 0
    """where in a compressed file the text begins whose bytes are counted"""

    @property
    def num_documents(self) -> int:
        """How many documents these are."""
        return len(self.offsets) - 1

    def place(self, document: int) -> str:
        """Where a person finds a document."""
        number = int(self.rows[document])
        of = {
            "row": f"row {number:,}",
            "line": f"line {number + 1:,}",
            "byte": line_at(number, self.unpacked_from),
        }
        return ": ".join(part for part in (self.file, of[self.counted]) if part)

    def text(self, document: int) -> bytes:
        """One document's UTF-8."""
        return self.data[self.offsets[document] : self.offsets[document + 1]].tobytes()


def line_at(byte: int, unpacked_from: int = 0) -> str:
    """Where a person finds a line if nobody has counted those before it."""
    return f"line at byte {byte:,}" + (
        f" of what is unpacked from byte {unpacked_from:,} on" if unpacked_from else ""
    )
