"""The results of a topic: printed on a terminal, written as Markdown and JSON."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.rounds import Spread

QUIET_CORES = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A promise, and its measurement."""

    what: str
    measured: float
    limit: float
    relation: Literal["at least", "at most"]
    unit: str = "x"

    @property
    def met(self) -> bool:
        """Whether this run keeps the promise."""
        if self.relation == "at least":
            return self.measured >= self.limit
        return self.measured <= self.limit

    @property
    def cells(self) -> list[str]:
        """A row of the table of targets."""
        wanted = f"{self.relation} {self.limit:g} {self.unit}"
        verdict = "met" if self.met else "MISSED"
        return [self.what, f"{self.measured:.3g} {self.unit}", wanted, verdict]


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers under one heading; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """The results of one topic."""

    topic: str
    text: str
    """what was measured, in a few lines"""
    tables: list[Table]
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    """every round of every contender, for the JSON file"""
    bystander_cores: float = 0.0
    """how many cores others kept busy meanwhile"""

    @property
    def circumstances(self) -> str:
        """Whether other processes disturbed the run, in words."""
        verdict = ": DISTURBED, run it again" if self.bystander_cores > QUIET_CORES else ""
        return f"Others kept {self.bystander_cores:.2f} cores busy meanwhile{verdict}."


_TARGET_COLUMNS = ["target", "measured", "promised", ""]


def show(section: Section, console: Console) -> None:
    """Print a section's tables and targets."""
    console.rule(f"[bold]{section.topic}")
    for table in section.tables:
        _print(table, console)
    if section.targets:
        rows = [target.cells for target in section.targets]
        _print(Table("", _TARGET_COLUMNS, rows), console)
    console.print(section.circumstances)


def as_markdown(sections: list[Section], heading: str, machine: dict[str, str]) -> str:
    """Write all sections, the targets first."""
    parts = [f"# {heading}", "\n".join(f"- {key}: {value}" for key, value in machine.items())]
    targets = [target for section in sections for target in section.targets]
    if targets:
        num_met = sum(target.met for target in targets)
        parts.append(f"## Targets: {num_met} of {len(targets)} met")
        parts.append(_markdown_table(_TARGET_COLUMNS, [target.cells for target in targets]))
    for section in sections:
        parts += [f"## {section.topic}", f"{section.text} {section.circumstances}"]
        for table in section.tables:
            parts += [f"### {table.title}", _markdown_table(table.columns, table.rows)]
            parts += [table.note] if table.note else []
    return "\n\n".join(parts) + "\n"


def write(sections: list[Section], path: Path, heading: str, machine: dict[str, str]) -> None:
    """Write the Markdown file, and the raw numbers beside it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_markdown(sections, heading, machine))
    raw = {
        "heading": heading,
        "machine": machine,
        "targets": [
            {**asdict(target), "met": target.met}
            for section in sections
            for target in section.targets
        ],
        "bystander_cores": {section.topic: section.bystander_cores for section in sections},
        "rounds": {section.topic: section.raw for section in sections},
    }
    path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")


def with_range(spread: Spread, scale: float = 1.0, digits: int = 2) -> str:
    """Format a spread as `median (minimum to maximum)`."""
    median, low, high = (value / scale for value in (spread.median, spread.low, spread.high))
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _print(table: Table, console: Console) -> None:
    shown = RichTable(title=table.title or None, title_justify="left", caption=table.note or None)
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if number > 0 else "left", overflow="fold")
    for row in table.rows:
        style = "bold red" if row[-1] == "MISSED" else None
        shown.add_row(*row, style=style)
    console.print(shown)


def _markdown_table(columns: list[str], rows: list[list[str]]) -> str:
    marks = ["---"] + ["---:"] * (len(columns) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, marks, *rows])
