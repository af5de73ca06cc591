"""The command of a set of topics: runs them, prints their tables, and writes the results."""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import machine, report
from benchmarks.report import Section

_RESULTS = Path(__file__).parent / "results"

Topics = Mapping[str, Callable[[bool], Section]]


def run(prog: str, every: Topics, facts: Mapping[str, str] | None = None, name: str = "") -> None:
    """Parse the command line and run topics.

    `facts` describe the machine further; `name` names it in the names of result files.
    """
    parser = argparse.ArgumentParser(
        prog=prog, description="Time Millstream against what it promises."
    )
    parser.add_argument(
        "topics", nargs="*", metavar="name", help=f"which topics: {', '.join(every)}; default all"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for under a minute")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the Markdown file; a .json goes beside it"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.topics) - set(every))
    if unknown:
        parser.error(f"no such topic: {', '.join(unknown)}; there are {', '.join(every)}")
    chosen = {topic: every[topic] for topic in arguments.topics or every}
    described = machine.describe() | dict(facts or {})
    # A pipe has no width, and wrapped columns are unreadable.
    console = Console() if Console().is_terminal else Console(width=140)
    sections = [_measure(topic, chosen[topic], arguments.quick, console) for topic in chosen]
    today = datetime.now(UTC).date().isoformat()
    parts = [today, machine.short_name(), *([name] if name else [])]
    parts += ["quick"] if arguments.quick else []  # they must not replace the day's full results
    parts += chosen if len(chosen) < len(every) else []
    path = arguments.out or _RESULTS / f"{'-'.join(parts)}.md"
    kind = "Quick benchmarks" if arguments.quick else "Benchmarks"
    report.write(sections, path, f"{kind}, {today}", described)
    console.print(f"written: {path}")


def _measure(
    topic: str, measure: Callable[[bool], Section], quick: bool, console: Console
) -> Section:
    start, bystanders = time.perf_counter(), machine.Bystanders()
    section = replace(measure(quick), bystander_cores=bystanders.cores())
    report.show(section, console)
    console.print(f"{topic}: {time.perf_counter() - start:.0f} s", style="dim")
    return section
