"""The state that determines a lane's next rows, and its saved form."""

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from millstream.errors import StateError
from millstream.text.live.lane_text import START, LanePosition

BLOCK_BITS = 32  # a document's id is block << BLOCK_BITS | number
_MOST, _MOST_BLOCKS = 1 << 62, 1 << 40  # _MOST_BLOCKS times the lanes must be a valid position


def _none() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Documents that wait to be packed, in order of arrival."""

    documents: NDArray[np.int64] = field(default_factory=_none)
    """their ids: block * 2^32 + number"""
    first_tokens: NDArray[np.int64] = field(default_factory=_none)
    """how many tokens of each document came before"""
    lengths: NDArray[np.int64] = field(default_factory=_none)
    """in tokens; they allow planning rows before the documents are read again"""
    goes_on: NDArray[np.int64] = field(default_factory=_none)
    """1 if the document has more tokens after these, else 0"""

    def to_text(self) -> str:
        """Return a short text: the differences of neighbours are small, so most bytes are equal."""
        lengths = self.lengths * 2 + self.goes_on
        table = np.stack([np.diff(self.documents, prepend=0), self.first_tokens, lengths])
        planes = np.ascontiguousarray(table.astype("<i8").view(np.uint8).reshape(-1, 8).T)
        # Some users save every step: level 3 takes 0.05 ms; level 9 takes 1 ms and saves a tenth.
        return base64.b64encode(zlib.compress(planes.tobytes(), 3)).decode()

    @classmethod
    def from_text(cls, text: Any, max_documents: int) -> Self:
        """Parse the result of `to_text`, or raise a `StateError`."""
        most = 24 * (max_documents + 1)
        try:
            packed = base64.b64decode(text, validate=True)
            planes = zlib.decompressobj().decompress(packed, most)
            table = np.frombuffer(planes, np.uint8).reshape(8, -1).T.copy().view("<i8")
            differences, first_tokens, lengths = table.reshape(3, -1).astype(np.int64)
        except (ValueError, TypeError, zlib.error):
            raise StateError("the state's list of waiting documents is damaged") from None
        if len(differences) > max_documents:
            raise StateError(
                f"the state has more than {max_documents:,} waiting documents in a lane, the most "
                "that its buffer holds"
            )
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
    """A lane's state at a row boundary, when no refill is in progress."""

    place: LanePosition = START
    """the next document to read"""
    waiting: Waiting = field(default_factory=Waiting)

    def to_json(self) -> dict[str, Any]:
        """Return the saved form."""
        return {
            "ordinal": self.place.ordinal,
            "number": self.place.number,
            "first_token": self.place.first_token,
            "waiting": self.waiting.to_text(),
        }

    @classmethod
    def from_json(cls, saved: Any, max_documents: int, num_blocks: int) -> Self:
        """Parse the result of `to_json`, or raise a `StateError`."""
        names = list(cls().to_json())
        if not isinstance(saved, dict) or sorted(saved) != sorted(names):
            raise StateError(
                f"a lane of the state must have the keys {names}, but is {saved!r:.100}"
            )
        for name in names:
            value = saved[name]
            most = _MOST_BLOCKS if name == "ordinal" else _MOST
            if name != "waiting" and (type(value) is not int or not 0 <= value < most):
                raise StateError(
                    f"a lane of the state has {name}={value!r:.40}; expected an integer from 0 to "
                    f"{most - 1:,}"
                )
        waiting = Waiting.from_text(saved["waiting"], max_documents)
        blocks = waiting.documents >> BLOCK_BITS
        if blocks.size and blocks.max() >= num_blocks:
            raise StateError(
                f"the state has a waiting document of block {blocks.max():,}, but the text has "
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
    """A lane's state at a row boundary, in a raw form that is fast to copy."""

    place: LanePosition
    block: int
    """the block that the next document is read from; -1 before the first"""
    block_bytes: int
    """how much text of this block has been read"""
    slots: NDArray[np.void]
    """dtype `SLOT`"""

    def state(self) -> LaneState:
        """Return the part that is saved."""
        used = self.slots[self.slots["arrival"] >= 0]
        slots = used[np.argsort(used["arrival"])]
        waiting = Waiting(
            documents=slots["document"],
            first_tokens=slots["first_record"],
            lengths=slots["length"],
            goes_on=slots["goes_on"],
        )
        return LaneState(place=self.place, waiting=waiting)
