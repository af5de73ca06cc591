"""`TokenizeReport`: what a tokenize job wrote, and how long it took."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from millstream.formats.files import read_whole
from millstream.text.tokenize.document_counts import DocumentCounts
from millstream.text.tokenize.plan import TokenizePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeReport:
    """What `millstream.tokenize` wrote; stored as `report.json`."""

    documents: int
    tokens: int
    """of all documents, with the marks at their starts and ends"""
    text_bytes: int
    bytes_per_token: float
    """of the text, without marks"""
    histogram: tuple[int, ...]
    """documents of 0, 1, 2 to 3, 4 to 7, … tokens"""
    splits: dict[str, tuple[int, int]]
    """documents and tokens of train and val; empty without a split"""
    skipped: int
    """bad rows that were left out"""
    places: tuple[str, ...]
    """where the first bad rows are, and what is wrong with them"""
    lost_spans: int
    """spans, and metadata of empty documents, that got no token"""
    checked_bytes: int
    """bytes of text that the reference engine tokenized too, with the same result"""
    seconds: dict[str, float]
    """of all workers together, by activity: reading, tokenizing, checking, writing"""
    wall_seconds: float
    """of the run that finished it"""
    tasks: int
    resumed: int
    """tasks that were done before that run"""
    plan: str
    """a hash of the source and the options"""
    trained: int | None = None
    """of chats: tokens to train on"""
    untrained_documents: int = 0
    """of chats: conversations without any"""
    start_seconds: float = 0.0
    """the part of `wall_seconds` before the first task: loading the tokenizer, planning"""
    options: dict[str, Any] = field(default_factory=dict)
    """the options that `plan` is a hash of, with a hash of the list of files"""
    was_finished: bool = field(default=False, compare=False)
    """True if an earlier call had finished the job"""

    @classmethod
    def of(
        cls,
        sums: DocumentCounts,
        plan: TokenizePlan,
        *,
        wall_seconds: float,
        start_seconds: float,
        resumed: int,
    ) -> Self:
        """The report on all tasks together."""
        used = len(sums.histogram) - next((k for k, n in enumerate(sums.histogram[::-1]) if n), 64)
        return cls(
            documents=sums.documents,
            tokens=sums.tokens,
            text_bytes=sums.text_bytes,
            bytes_per_token=sums.text_bytes / max(1, sums.tokens - sums.marks),
            histogram=tuple(sums.histogram[:used]),
            splits={side: _pair(sums.sides.get(side, [0, 0])) for side in plan.sides if side},
            skipped=sums.skipped,
            places=tuple(sums.places),
            lost_spans=sums.lost_spans,
            trained=sums.trained if plan.masks_loss else None,
            untrained_documents=sums.untrained_documents,
            checked_bytes=sums.checked_bytes,
            seconds={what: round(seconds, 3) for what, seconds in sums.seconds.items()},
            wall_seconds=round(wall_seconds, 3),
            start_seconds=round(start_seconds, 3),
            tasks=len(plan.tasks),
            resumed=resumed,
            plan=plan.identity,
            options=plan.options,
        )

    def to_json(self) -> str:
        """The content of `report.json`."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Read `report.json`; None if there is none, or if it is not ours."""
        try:
            return replace(cls.load(path), was_finished=True)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read `report.json`."""
        values = json.loads(read_whole(path))
        for name in ("histogram", "places"):
            values[name] = tuple(values[name])
        values["splits"] = {side: tuple(counts) for side, counts in values["splits"].items()}
        return cls(**values)


def _pair(counts: list[int]) -> tuple[int, int]:
    documents, tokens = counts
    return documents, tokens
