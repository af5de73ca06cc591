"""`Progress`: how far a call is, for whoever waits for it.

Every function with an argument `progress` calls it with a `Progress`, from time to time, and always
after the last piece of work:

>>> def show(progress: Progress) -> None:
...     print(f"{progress.stage}: {progress.done} of {progress.total} {progress.unit}")
>>> meter = ProgressMeter(show, "reading", total=8, unit="bytes")
>>> meter.advance(3)
reading: 3 of 8 bytes
>>> meter.advance(5)
reading: 8 of 8 bytes
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a call is."""

    stage: str
    """what it is doing, as in "tokenizing"; a call may go through several stages"""
    done: int
    """so much of `total`, including what an earlier call had done"""
    total: int | None
    """an estimate if the exact number is not known; None if there is no estimate yet"""
    unit: str
    """what `done`, `total` and `processed` count, in the plural, as in "bytes" """
    processed: int
    """what this call has done itself: divide it by the time to get the speed"""
    num_tasks: int = 0
    """tasks of `tokenize`, files of `fetch`; 0 if the work is not divided"""
    num_tasks_done: int = 0
    num_tokens: int = 0
    """written by this call of `tokenize`"""
    notes: tuple[str, ...] = ()
    """sentences about what has happened since the last report, such as a failed download"""

    @property
    def share(self) -> float:
        """The share of the stage that is done, from 0 to 1; 0 if `total` is not known."""
        return min(1.0, self.done / max(1, self.total)) if self.total is not None else 0.0


OnProgress = Callable[[Progress], None]
"""what is called with the progress"""


class ProgressMeter:
    """Adds up one stage's work and reports it. Threads may share it: reports come one at a time."""

    def __init__(
        self,
        report: OnProgress | None,
        stage: str,
        *,
        total: int | None,
        unit: str,
        done_before: int = 0,
        every: int = 1,
    ) -> None:
        self._report, self._stage, self._total, self._unit = report, stage, total, unit
        self._done = self._done_before = self._reported = done_before
        self._every = every
        """how much is done between two reports, at least"""
        from threading import Lock  # which opening a dataset does without: 1 ms

        self._lock = Lock()

    def advance(self, amount: int) -> None:
        """Report that `amount` more is done."""
        if self._report is None:
            return
        with self._lock:
            self._done += amount
            if self._done - self._reported < self._every and self._done != self._total:
                return
            self._reported = self._done
            self._report(self._progress())

    def finish(self) -> None:
        """Report that all is done, where `total` was only an estimate."""
        if self._report is not None and self._done != self._total:
            self._total = self._done
            self._report(self._progress())

    def _progress(self) -> Progress:
        return Progress(
            stage=self._stage,
            done=self._done,
            total=self._total,
            unit=self._unit,
            processed=self._done - self._done_before,
        )
