"""What a run reads of each source of a mixture."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceReport:
    """What a run reads of one source, on all ranks together."""

    name: str
    samples: int
    share: float
    """of all samples"""
    tokens: int
    """by the view's mean number of tokens in a row"""
    epochs: float
    """passes over the source"""
    exhausted_at: int | None = None
    """the position where the source runs out, if the run gets there"""


@dataclass(frozen=True, slots=True)
class MixtureReport:
    """What a run reads of each source; `print` shows a table."""

    positions: int
    """samples of all sources"""
    sources: tuple[SourceReport, ...]
    ends_after: int | None = None
    """where the mixture ends, if that is before the end of the run"""

    def __str__(self) -> str:
        rows = [("source", "samples", "share", "tokens", "epochs")]
        rows += [
            (
                source.name,
                f"{source.samples:,}",
                f"{source.share:.3f}",
                f"{source.tokens:,}",
                f"{source.epochs:.2f}",
            )
            for source in self.sources
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{name:<{widths[0]}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
            for name, *cells in rows
        ]
        lines += [
            f"{source.name} runs out at position {source.exhausted_at:,}"
            for source in self.sources
            if source.exhausted_at is not None
        ]
        if self.ends_after is not None:
            lines.append(f"the mixture ends after {self.ends_after:,} positions")
        return "\n".join(lines)
