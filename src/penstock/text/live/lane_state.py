"""What the rows to come of a lane depend on, and how that is saved."""

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StateError
from penstock.text.live.lane_text import START, LanePosition

BLOCK_BITS = 32  # a document's id is its block, and its number in so many bits
_MOST, _MOST_BLOCKS = 1 << 62, 1 << 40  # the latter times lanes still is a position


def _none() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Documents that wait to be packed, the first to come first."""

    documents: NDArray[np.int64] = field(default_factory=_none)
    """their ids: block * 2^32 + number"""
    first_tokens: NDArray[np.int64] = field(default_factory=_none)
    """how many tokens of each came before"""
    lengths: NDArray[np.int64] = field(default_factory=_none)
    """in tokens: with them rows can be planned before the documents are read again"""
    goes_on: NDArray[np.int64] = field(default_factory=_none)
    """1 where there is more of the document, else 0"""

    def to_text(self) -> str:
        """A short text: neighbours differ by little, and most of the bytes of that are equal."""
        lengths = self.lengths * 2 + self.goes_on
        table = np.stack([np.diff(self.documents, prepend=0), self.first_tokens, lengths])
        planes = np.ascontiguousarray(table.astype("<i8").view(np.uint8).reshape(-1, 8).T)
        # Level 3 takes 0.05 ms and level 9 a whole one, for a tenth less: some save every step.
        return base64.b64encode(zlib.compress(planes.tobytes(), 3)).decode()

    @classmethod
    def from_text(cls, text: Any, max_documents: int) -> Self:
        """What `to_text` gave, if it can be."""
        most = 24 * (max_documents + 1)
        try:
            packed = base64.b64decode(text, validate=True)
            planes = zlib.decompressobj().decompress(packed, most)
            table = np.frombuffer(planes, np.uint8).reshape(8, -1).T.copy().view("<i8")
            differences, first_tokens, lengths = table.reshape(3, -1).astype(np.int64)
        except (ValueError, TypeError, zlib.error):
            raise StateError("the documents that wait in a lane of the state are damaged") from None
        if len(differences) > max_documents:
            raise StateError(f"more than {max_documents:,} documents wait in a lane of the state")
        documents = np.cumsum(differences, dtype=np.int64)
        values = np.concatenate([documents, first_tokens, lengths - 2])
        if values.size and not 0 <= values.min() <= values.max() < _MOST:
            raise StateError("the saved buffer contains impossible document ids or lengths")
        return cls(
            documents=documents,
            first_tokens=first_tokens,
            lengths=lengths >> 1,
            goes_on=lengths & 1,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneState:
    """A lane between two rows, where no refill is under way: one ends before a choice is made."""

    place: LanePosition = START
    """which document comes next"""
    waiting: Waiting = field(default_factory=Waiting)

    def to_json(self) -> dict[str, Any]:
        """The saved form."""
        return {
            "ordinal": self.place.ordinal,
            "number": self.place.number,
            "first_token": self.place.first_token,
            "waiting": self.waiting.to_text(),
        }

    @classmethod
    def from_json(cls, saved: Any, max_documents: int, num_blocks: int) -> Self:
        """What `to_json` gave, if it can be."""
        names = list(cls().to_json())
        if not isinstance(saved, dict) or sorted(saved) != sorted(names):
            raise StateError(f"a lane of the state has to have {names}, and is {saved!r:.100}")
        for name in names:
            value = saved[name]
            most = _MOST_BLOCKS if name == "ordinal" else _MOST
            if name != "waiting" and (type(value) is not int or not 0 <= value < most):
                raise StateError(f"a lane of the state has {name} {value!r:.40}, no count")
        waiting = Waiting.from_text(saved["waiting"], max_documents)
        blocks = waiting.documents >> BLOCK_BITS
        if blocks.size and blocks.max() >= num_blocks:
            raise StateError(
                f"a document of block {blocks.max():,} waits in a lane of the state, and there are "
                f"{num_blocks:,} blocks"
            )
        return cls(
            place=LanePosition(
                ordinal=saved["ordinal"], number=saved["number"], first_token=saved["first_token"]
            ),
            waiting=waiting,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A lane between two rows, as raw as it is fast to copy."""

    place: LanePosition
    block: int
    """that the next document is read from; -1 before the first"""
    block_bytes: int
    """of text of that block that came in"""
    slots: NDArray[np.void]
    """of type `SLOT`"""

    def state(self) -> LaneState:
        """What is worth saving of it."""
        used = self.slots[self.slots["arrival"] >= 0]
        slots = used[np.argsort(used["arrival"])]
        waiting = Waiting(
            documents=slots["document"],
            first_tokens=slots["first_record"],
            lengths=slots["length"],
            goes_on=slots["goes_on"],
        )
        return LaneState(place=self.place, waiting=waiting)
