"""`TextBatch`: some documents of a source."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

TextSpan = tuple[int, int, Any]
"""the first character (or token), the one after the last, and the annotation"""

Counted = Literal["row", "line", "byte"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextBatch:
    """Documents as UTF-8, end to end; document k is `data[offsets[k]:offsets[k + 1]]`.

    Sources make sure that the text is valid UTF-8. `offsets[0]` need not be 0.
    """

    data: NDArray[np.uint8]
    """the bytes of all documents; there may be others around them"""
    offsets: NDArray[np.int64]
    """one more than there are documents"""
    rows: NDArray[np.int64]
    """each document's number in its file, from 0: its row, line or block; see `counted`"""
    metadata: list[dict[str, Any]] | None = None
    """the metadata columns of each document"""
    spans: list[list[TextSpan]] | None = None
    """each document's annotations"""
    trained: NDArray[np.int64] | None = None
    """of chats: ranges of `data` whose tokens are trained on, ascending, one a row"""
    continues: bool = False
    """True if the last document continues as the first of the next batch; only in plain text"""
    file: str = ""
    """the path of their file, for messages"""
    counted: Counted = "row"
    """what `rows` are: numbers, or the bytes at which lines begin, if lines are not counted"""

    unpacked_from: int = 0
    """if bytes are counted: where in a compressed file the unpacked text begins"""

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self.offsets) - 1

    def place(self, document: int) -> str:
        """Where a document is, for messages."""
        number = int(self.rows[document])
        of = {
            "row": f"row {number:,}",
            "line": f"line {number + 1:,}",
            "byte": line_at(number, self.unpacked_from),
        }
        return ": ".join(part for part in (self.file, of[self.counted]) if part)

    def text(self, document: int) -> bytes:
        """The UTF-8 of one document."""
        return self.data[self.offsets[document] : self.offsets[document + 1]].tobytes()


def pick(batch: TextBatch, documents: NDArray[np.int64]) -> TextBatch:
    """Return some documents of a batch, by their numbers in it, in ascending order."""
    begins, ends = batch.offsets[documents], batch.offsets[documents + 1]
    offsets = np.concatenate([[0], np.cumsum(ends - begins)])
    texts = [batch.data[start:stop] for start, stop in zip(begins, ends, strict=True)]
    trained = batch.trained
    if trained is not None:
        owner = np.searchsorted(batch.offsets, trained[:, 0], "right") - 1
        place = np.searchsorted(documents, owner)
        is_kept = (place < len(documents)) & (documents[place % max(1, len(documents))] == owner)
        place = place[is_kept]
        trained = trained[is_kept] + (offsets[place] - begins[place])[:, None]
    return replace(
        batch,
        data=np.concatenate([*texts, np.empty(0, np.uint8)]),
        offsets=offsets,
        rows=batch.rows[documents],
        metadata=batch.metadata and [batch.metadata[k] for k in documents.tolist()],
        spans=batch.spans and [batch.spans[k] for k in documents.tolist()],
        trained=trained,
    )


def line_at(byte: int, unpacked_from: int = 0) -> str:
    """Where a line is, for messages, if the lines before it are not counted."""
    return f"line at byte {byte:,}" + (
        f" of the text unpacked from byte {unpacked_from:,} on" if unpacked_from else ""
    )
