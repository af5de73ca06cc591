"""Counts every lane's rows in an epoch, which all ranks must know to end the epoch together.

Counting needs all of the text to be tokenized, so that is done once: the length of every document
is kept in the user's cache, at eight bytes each. Counting for any epoch, number of lanes or packing
then only means packing these lengths.
"""

import io
import json
import secrets
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.cache import cache_directory, cached
from millstream.errors import FormatError
from millstream.system.background_thread import StopSignal, call_in_background
from millstream.text.live.lane_text import LaneText
from millstream.text.live.packing import Packing
from millstream.text.live.row_packer import RowPacker
from millstream.text.live.tokenizing_threads import Tokens, tokenize_text
from millstream.text.tokenizers.tokenizer import Tokenizer

_VERSION = 1
_ROWS_AT_ONCE = 4096
LARGE_BYTES = 256 << 20  # of files: counting takes seconds, or minutes on a slow machine

Lengths = list[NDArray[np.int64]]
"""for each block, the lengths of its documents"""


@dataclass(frozen=True)
class RowCounts:
    """The number of rows that each lane has in an epoch.

    >>> counts = RowCounts([2, 3])
    >>> counts.first_hole, counts.end, counts.among(range(2, 8))
    (4, 6, 3)
    """

    of_lanes: list[int]
    first_hole: int = field(init=False)
    """the first position where a lane has no more rows"""
    end: int = field(init=False)
    """the position after the last row"""

    def __post_init__(self) -> None:
        count = len(self.of_lanes)
        holes = [count * num_rows + lane for lane, num_rows in enumerate(self.of_lanes)]
        end = max((hole - count + 1 for hole in holes if hole >= count), default=0)
        object.__setattr__(self, "first_hole", min(holes))
        object.__setattr__(self, "end", end)

    def steps_from(self, position: int, step_size: int, tail: str) -> int:
        """Return the number of steps left in the epoch: full ones if `tail` is 'drop', else all."""
        if tail == "drop":
            return max(0, self.first_hole - position) // step_size
        return -(-max(0, self.end - position) // step_size)

    def among(self, positions: range) -> int:
        """Return how many of these positions have a row."""
        if positions[-1] < self.first_hole:
            return len(positions)
        count = len(self.of_lanes)
        return sum(place // count < self.of_lanes[place % count] for place in positions)

    def check(self, positions: range, num_found: int) -> None:
        """Raise if a batch's rows differ from the count: ranks could end at different steps."""
        if num_found != self.among(positions):
            self.refuse(positions, num_found)

    def refuse(self, positions: range, num_found: int) -> NoReturn:
        """Raise the error for a batch whose rows differ from the count."""
        raise FormatError(
            f"found {num_found:,} rows from position {positions[0]:,} on, expected "
            f"{self.among(positions):,} from counting: the text has changed since it was counted, "
            "or the tokenizer returns different tokens under the same fingerprint (counts are "
            f"cached in {cache_directory('lengths')})"
        )


def count_rows(
    text: LaneText,
    tokenizer: Tokenizer,
    packing: Packing,
    seq_len: int,
    epoch: int,
    num_threads: int,
) -> RowCounts:
    """Return the number of rows of each lane in an epoch."""
    lengths = document_lengths(text, tokenizer, num_threads)
    layout = packing.layout(tokenizer, seq_len, 1, np.int64)  # nothing is written into it
    counts = list[int]()
    for lane in range(text.lanes.count):
        tokens = _lengths_of_lane(text, lane, epoch, lengths)
        packer = RowPacker(packing, tokenizer, layout, 1)
        wanted = np.zeros(_ROWS_AT_ONCE, np.int64)
        rows = num_rows = _ROWS_AT_ONCE
        counts.append(0)
        while rows == num_rows:
            rows = len(packer.pack(wanted, None, lambda _, tokens=tokens: next(tokens, None)))  # type: ignore[misc]
            counts[-1] += rows
    return RowCounts(counts)


def _lengths_of_lane(text: LaneText, lane: int, epoch: int, lengths: Lengths) -> Iterator[Tokens]:
    lanes = text.lanes
    for ordinal in range(lanes.first_ordinal(lane, epoch), lanes.first_ordinal(lane, epoch + 1)):
        _, block = lanes.block_at(lane, ordinal)
        offsets = np.concatenate([[0], np.cumsum(lengths[block])])
        yield Tokens(
            ids=None,
            offsets=offsets,
            ordinal=ordinal,
            block=block,
            number=0,
            bytes_before=np.zeros_like(offsets),
        )


def document_lengths(text: LaneText, tokenizer: Tokenizer, num_threads: int) -> Lengths:
    """Return the number of token ids of every document, from the cache if already counted."""
    num_blocks = len(text.lanes.blocks)
    # With modification times: different files may have the same names and sizes.
    identity_of_text = text.source.identity()
    identity = [_VERSION, identity_of_text, tokenizer.fingerprint]
    name = f"{xxhash.xxh3_128_hexdigest(json.dumps(identity).encode())}.npy"

    def find(path: Path) -> Lengths | None:
        try:
            # Not from the file itself: NumPy would turn an interrupt into a TypeError.
            stored = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        except (FileNotFoundError, ValueError, EOFError):
            return None
        if stored.ndim != 1 or stored.dtype != np.int64 or stored.size < num_blocks:
            return None
        counts, lengths = stored[:num_blocks], stored[num_blocks:]
        is_whole = counts.min() >= 0 and counts.sum() == lengths.size
        if not is_whole or (lengths.size and lengths.min() < 0):
            return None
        return np.split(lengths, np.cumsum(counts)[:-1])

    def make(path: Path) -> None:
        _warn_if_large(identity_of_text)
        lengths = _count(text, tokenizer, num_threads)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        counts = np.array([block.size for block in lengths], np.int64)
        try:
            stored = io.BytesIO()
            np.save(stored, np.concatenate([counts, *lengths]))
            temporary.write_bytes(stored.getbuffer())
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)

    return cached("lengths", name, find, make)


def _warn_if_large(identity: dict[str, Any]) -> None:
    num_bytes = sum(file["size_bytes"] for file in identity["files"])
    if num_bytes >= LARGE_BYTES:
        warnings.warn(
            f"counting the rows of an epoch: all {num_bytes >> 20:,} MiB of files are tokenized "
            "once before the first batch, and the counts are cached. Several ranks need them to "
            "end at the same step, and so does len(loader); with endless=True a loader starts at "
            "once",
            stacklevel=2,
        )


def _count(text: LaneText, tokenizer: Tokenizer, num_threads: int) -> Lengths:
    stop = StopSignal()

    def count(block: int) -> NDArray[np.int64]:
        lengths = [np.empty(0, np.int64)]
        for part in text.read_block(block):
            stop.check()
            lengths.append(np.diff(tokenize_text(part, tokenizer).offsets))
        return np.concatenate(lengths)

    def count_all() -> Lengths:
        with ThreadPoolExecutor(num_threads, "millstream-count") as threads:
            return list(threads.map(count, range(len(text.lanes.blocks))))

    return call_in_background(count_all, "millstream-count", stop)
