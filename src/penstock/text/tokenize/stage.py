"""`Stage`: tasks of one kind, as those who run them see it."""

from typing import Protocol

from penstock.progress import OnProgress, Progress
from penstock.text.tokenize.job_directory import JobDirectory


class Stage(Protocol):
    """Can be pickled: its tasks run in other processes, and on other machines."""

    @property
    def name(self) -> str:
        """A verb, for the names of files: hash, tokenize or shuffle."""

    @property
    def activity(self) -> str:
        """What its tasks do, for people, as in "tokenizing"."""

    @property
    def place(self) -> JobDirectory:
        """Where they do it."""

    def describe(self, number: int) -> str:
        """What a task is about, for people."""

    def size_bytes(self, number: int) -> int:
        """How much a task is compared with others."""

    def is_done(self, number: int) -> bool:
        """Whether a task need not be run any more."""

    def run(self, number: int, report: OnProgress) -> None:
        """Run a task, and tell from time to time how far it is."""


def run_once(stage: Stage, number: int, report: OnProgress, *, wait: bool) -> bool:
    """Run a task that nobody else runs; False if somebody does, and there is no time to `wait`."""
    with stage.place.hold(f"{stage.name}-{number:05d}", wait=wait) as is_ours:
        # A job without its directory is one that another runner has finished.
        if is_ours and not stage.is_done(number):
            stage.run(number, report)
        return is_ours or not stage.place.tasks.exists()


def task_progress(stage: Stage, num_bytes: int, num_tokens: int = 0) -> Progress:
    """What a task reports: bytes that it has read or shuffled, and tokens that it has written."""
    return Progress(
        stage=stage.activity,
        done=num_bytes,
        total=None,
        unit="bytes",
        processed=num_bytes,
        num_tokens=num_tokens,
    )
