"""Run topics, print their tables, and write the results to benchmarks/results/."""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import (
    append,
    cold,
    cold_epoch,
    conversion,
    datatrove,
    gil,
    grid,
    live_memory,
    live_packing,
    live_restore,
    live_speed,
    live_step,
    llmbatch,
    machine,
    memory,
    metadata,
    next_cost,
    order,
    packed,
    packing,
    report,
    scale,
    startup,
    text_memory,
    text_tokenize,
    text_training,
    throughput,
)
from benchmarks.report import Section

TOPICS: dict[str, Callable[[bool], Section]] = {
    "startup": startup.measure,
    "throughput": throughput.measure,
    "grid": grid.measure,
    "next": next_cost.measure,
    "gil": gil.measure,
    "scale": scale.measure,
    "cold": cold.measure,
    "cold-epoch": cold_epoch.measure,
    "memory": memory.measure,
    "order": order.measure,
    "packed": packed.measure,
    "metadata": metadata.measure,
    "packing": packing.measure,
    "llmbatch": llmbatch.measure,
    "datatrove": datatrove.measure,
    "append": append.measure,
    "convert": conversion.measure,
    "tokenize": text_tokenize.measure,
    "training": text_training.measure,
    "text-memory": text_memory.measure,
    "live": live_speed.measure,
    "live-packing": live_packing.measure,
    "live-step": live_step.measure,
    "live-restore": live_restore.measure,
    "live-memory": live_memory.measure,
}
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Time Penstock against what it promises."
    )
    parser.add_argument(
        "topics", nargs="*", metavar="name", help=f"which topics: {', '.join(TOPICS)}; default all"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for under a minute")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the Markdown file; a .json goes beside it"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.topics) - set(TOPICS))
    if unknown:
        parser.error(f"no such topic: {', '.join(unknown)}; there are {', '.join(TOPICS)}")
    _run(arguments.topics or list(TOPICS), arguments.quick, arguments.out)


def _run(topics: list[str], quick: bool, out: Path | None) -> None:
    # A pipe has no width, and wrapped columns are unreadable.
    console = Console() if Console().is_terminal else Console(width=140)
    described = machine.describe()
    sections = []
    for topic in topics:
        start, bystanders = time.perf_counter(), machine.Bystanders()
        section = TOPICS[topic](quick)
        sections.append(replace(section, bystander_cores=bystanders.cores()))
        report.show(sections[-1], console)
        console.print(f"{topic}: {time.perf_counter() - start:.0f} s", style="dim")
    today = datetime.now(UTC).date().isoformat()
    path = out or _default_path(topics, quick, today)
    kind = "Quick benchmarks" if quick else "Benchmarks"
    report.write(sections, path, f"{kind}, {today}", described)
    console.print(f"written: {path}")


def _default_path(topics: list[str], quick: bool, today: str) -> Path:
    """Return a path that keeps partial and quick runs from replacing the day's full results."""
    parts = [today, machine.short_name()]
    parts += ["quick"] if quick else []
    parts += topics if topics != list(TOPICS) else []
    return _RESULTS / f"{'-'.join(parts)}.md"


if __name__ == "__main__":
    main()
