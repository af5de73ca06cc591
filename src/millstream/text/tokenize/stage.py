"""`Stage`: tasks of one kind, as executors see them."""

from typing import Protocol

from millstream.progress import OnProgress, Progress
from millstream.text.tokenize.job_directory import JobDirectory


class Stage(Protocol):
    """Tasks of one kind. It can be pickled: tasks run in other processes and on other machines."""

    @property
    def name(self) -> str:
        """A verb, for the names of files: hash, tokenize or shuffle."""

    @property
    def activity(self) -> str:
        """What its tasks do, for people, as in "tokenizing"."""

    @property
    def directory(self) -> JobDirectory:
        """The output directory."""

    def describe(self, number: int) -> str:
        """What a task reads or writes, for messages."""

    def size_bytes(self, number: int) -> int:
        """The size of a task, relative to others."""

    def is_done(self, number: int) -> bool:
        """True if a task is done."""

    def run(self, number: int, report: OnProgress) -> None:
        """Run a task, and report its progress from time to time."""


def run_once(stage: Stage, number: int, report: OnProgress, *, wait: bool) -> bool:
    """Run a task under its lock; False if another runner holds it and `wait` is False."""
    with stage.directory.hold(f"{stage.name}-{number:05d}", wait=wait) as is_ours:
        # If the directory is gone, another runner has finished the job.
        if is_ours and not stage.is_done(number):
            stage.run(number, report)
        return is_ours or not stage.directory.tasks.exists()


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
