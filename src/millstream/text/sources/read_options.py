"""What to read of a row, and what to do with bad rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from millstream.errors import UsageError
from millstream.text.chats.rendering import ChatRenderer

BadRows = Literal["refuse", "skip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The columns of a table, or keys of a JSON object, to read."""

    text: str = "text"
    """the document"""
    metadata: tuple[str, ...] = ()
    """become the document's metadata, under the same names"""
    spans: str | None = None
    """lists of [start, end, payload], or of objects with `start`, `end` and the payload"""

    def __post_init__(self) -> None:
        given: Any = self.metadata
        names = (given,) if isinstance(given, str) else tuple(given)
        object.__setattr__(self, "metadata", names)
        for name in (self.text, *names, *(() if self.spans is None else (self.spans,))):
            if not isinstance(name, str):
                raise UsageError(f"column names must be strings; found {name!r:.80}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A row that cannot become a document."""

    file: str
    """its path"""
    row: int
    """its number, as in `TextBatch.rows`"""
    place: str
    """where to find it: "row 17" (from 0), "line 18" (from 1), "line at byte 12,345" """
    reason: str
    """what is wrong with it"""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.place, self.reason) if part)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """How to read a slice."""

    columns: Columns
    """what to read of a row"""
    max_document_bytes: int
    """limit for rows that must be in memory whole"""
    batch_bytes: int
    """target size of a batch's text"""
    report: Callable[[BadRow], None]
    """called with every bad row; raises if bad rows are refused"""
    renderer: ChatRenderer | None = None
    """makes texts of conversations; None if rows have texts"""
