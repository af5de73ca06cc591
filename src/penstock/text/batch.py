"""`TextBatch`: some documents of a source."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int, Any]
"""the first and the last but one character (or token), and what is said of them"""


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
    """each document's number in its file, from 0: its row, its line, its block"""
    metadata: list[dict[str, Any]] | None = None
    """what was chosen of each document's row"""
    spans: list[list[Span]] | None = None
    """each document's annotations"""
    continues: bool = False
    """whether the last document goes on as the first of the next batch; only of plain text"""
    file: str = ""
    """where they come from"""

    @property
    def num_documents(self) -> int:
        """How many documents these are."""
        return len(self.offsets) - 1

    def text(self, document: int) -> bytes:
        """One document's UTF-8."""
        return self.data[self.offsets[document] : self.offsets[document + 1]].tobytes()
