"""What `penstock tokenize` shows while it works, and when it is done."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from penstock.text.tokenize.progress import Progress
    from penstock.text.tokenize.report import TokenizeReport

_DOING = {"hash": "choosing", "tokenize": "tokenizing", "shuffle": "shuffling"}
_SECONDS_BETWEEN_LINES = 10.0
_BAR_WIDTH = 30
_LEAST_SECONDS = 0.1
"""of work that say something about its speed"""
_NO_DOCUMENT = {
    "train": "  train: no document; choose a smaller --val-fraction, or --val-count",
    "val": "  val: no document; choose a larger --val-fraction, or --val-count",
}


class ProgressLine:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._stage = ""
        self._first_share, self._first_bytes = 0.0, 0
        self._bar: Any = None
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: "Progress") -> None:
        """Show how far it is."""
        now = time.monotonic()
        if progress.stage != self._stage:
            # The clock starts with the first report, after the start-up, and counts what follows.
            self._stage, self._started, self._last = progress.stage, now, now
            self._first_share, self._first_bytes = progress.share, progress.num_bytes
        text = self._text(progress, now - self._started)
        if self._is_terminal:
            self._draw(progress.share, text)
        elif now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            print(f"{progress.share:.1%}  {text}", file=sys.stderr, flush=True)

    def _text(self, progress: "Progress", seconds: float) -> str:
        parts = [f"{_DOING[progress.stage]} {progress.tasks_done:,}/{progress.tasks:,}"]
        if seconds > 0:
            rate = (progress.num_bytes - self._first_bytes) / 1e6 / seconds
            parts.append(f"{rate:,.1f} MB/s")
        if progress.tokens:
            parts.append(f"{_short(progress.tokens)} tokens")
        gained = progress.share - self._first_share
        if gained > 0:
            parts.append(f"{_clock(seconds * (1 - progress.share) / gained)} left")
        return "  ".join(parts)

    def _draw(self, share: float, text: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        if self._bar is None:
            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(text, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=share, description=text)


def print_report(report: "TokenizeReport", out: str) -> None:
    """Print what became of the text."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in _lines(report, out):
        console.print(line, markup=False)
    most = max(report.histogram, default=0)
    if most:
        console.print(f"{'tokens':>24}  {'documents':>13}", style="dim")
    for k, count in enumerate(report.histogram):
        low, high = (1 << k) // 2, max(0, (1 << k) - 1)
        lengths = f"{low:,}" if low >= high else f"{low:,} to {high:,}"
        if count or any(report.histogram[:k]):
            bar = _blocks(count / most)
            console.print(f"{lengths:>24}  {count:>13,}  {bar}", markup=False)


def _lines(report: "TokenizeReport", out: str) -> list[str]:
    working_s = report.wall_seconds - report.start_seconds
    counts = f"{report.documents:,} documents, {report.tokens:,} tokens"
    text = f"{report.text_bytes:,} bytes of text, {report.bytes_per_token:.3f} bytes a token"
    done = [f"{out}: all of it was done before; nothing was written"] if report.was_finished else []
    lines = [*done, f"{out}: {counts}, {text}"]
    lines += [
        f"  {side}: {documents:,} documents, {tokens:,} tokens" if documents else _NO_DOCUMENT[side]
        for side, (documents, tokens) in report.splits.items()
    ]
    if report.skipped:
        lines.append(f"left out: {report.skipped:,} bad rows")
        lines += [f"  {place}" for place in report.places]
    if report.lost_spans:
        lines.append(f"not kept: {report.lost_spans:,} spans that there was no token for")
    stages = ", ".join(f"{what} {seconds:,.1f} s" for what, seconds in report.seconds.items())
    resumed = (
        f", {report.resumed:,} of {report.tasks:,} tasks done before" if report.resumed else ""
    )
    start = f" after {report.start_seconds:,.1f} s of start-up" if report.start_seconds else ""
    speed = ""
    if not report.resumed and working_s >= _LEAST_SECONDS:
        speed = f", {report.text_bytes / 1e6 / working_s:,.1f} MB/s of text{start}"
    lines.append(f"{report.wall_seconds:,.1f} s{speed}{resumed}; all workers: {stages}")
    if report.checked_bytes:
        lines.append(f"compared with the reference engine: {report.checked_bytes:,} bytes, equal")
    return lines


def _blocks(share: float) -> str:
    eighths = round(8 * _BAR_WIDTH * share)
    rest = "▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else ""
    return "█" * (eighths // 8) + rest


def _short(count: int) -> str:
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return str(count)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
