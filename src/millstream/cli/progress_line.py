"""`ProgressLine`: what a command shows on stderr while it works."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from millstream.progress import Progress

_SECONDS_BETWEEN_LINES = 10.0


class ProgressLine:
    """A bar on a terminal; elsewhere a line every ten seconds. To be called with a `Progress`."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._stage = ""
        self._first_share, self._first_processed = 0.0, 0
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
        """Show how far the command is."""
        now = time.monotonic()
        if progress.stage != self._stage:
            # The clock starts with the first report, after the start-up, and counts what follows.
            self._stage, self._started, self._last = progress.stage, now, now
            self._first_share, self._first_processed = progress.share, progress.processed
        if self._is_terminal:
            self._draw(progress, self._text(progress, now - self._started))
            return
        for note in progress.notes:
            print(note, file=sys.stderr, flush=True)
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            share = f"{progress.share:.1%}  " if progress.total is not None else ""
            text = self._text(progress, now - self._started)
            print(f"{share}{text}", file=sys.stderr, flush=True)

    def _text(self, progress: "Progress", seconds: float) -> str:
        parts = [progress.stage]
        if progress.num_tasks:
            parts[0] += f" {progress.num_tasks_done:,}/{progress.num_tasks:,}"
        parts.append(_amount(progress))
        if seconds > 0 and progress.unit == "bytes":
            rate = (progress.processed - self._first_processed) / 1e6 / seconds
            parts.append(f"{rate:,.1f} MB/s")
        if progress.num_tokens:
            parts.append(f"{_short(progress.num_tokens)} tokens")
        gained = progress.share - self._first_share
        if gained > 0:
            parts.append(f"{_clock(seconds * (1 - progress.share) / gained)} left")
        return "  ".join(parts)

    def _draw(self, progress: "Progress", text: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        if self._bar is None:
            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(text, total=None)
            self._bar.start()
        for note in progress.notes:
            self._bar.console.print(note, markup=False, highlight=False)
        total = None if progress.total is None else 1.0
        self._bar.update(
            self._bar.task_ids[0], completed=progress.share, total=total, description=text
        )


def _amount(progress: "Progress") -> str:
    """How much is done, and of how much."""
    if progress.unit == "bytes":
        total = "" if progress.total is None else f" of {size(progress.total)}"
        return f"{size(progress.done)}{total}"
    total = "" if progress.total is None else f" of {progress.total:,}"
    return f"{progress.done:,}{total} {progress.unit}"


def size(num_bytes: float) -> str:
    """Bytes in the unit that makes them short.

    >>> size(1_234_567)
    '1.2 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.{0 if unit == 'bytes' else 1}f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"


def _short(count: int) -> str:
    for unit, least in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= least:
            return f"{count / least:.2f} {unit}"
    return str(count)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
