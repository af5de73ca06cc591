"""`Stage`: tasks of one kind, as those who run them see it."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.text.tokenize.job_directory import JobDirectory


class Amount(NamedTuple):
    """What a task has done so far."""

    text_bytes: int = 0
    tokens: int = 0
    documents: int = 0


Advance = Callable[[Amount], None]


class Stage(Protocol):
    """Can be pickled: its tasks run in other processes, and on other machines."""

    @property
    def name(self) -> str:
        """What its tasks do."""

    @property
    def place(self) -> JobDirectory:
        """Where they do it."""

    def describe(self, number: int) -> str:
        """What a task is about, for people."""

    def size_bytes(self, number: int) -> int:
        """How much a task is compared with others."""

    def is_done(self, number: int) -> bool:
        """Whether a task need not be run any more."""

    def run(self, number: int, advance: Advance) -> None:
        """Run a task, and tell from time to time how far it is."""


def run_once(stage: Stage, number: int, advance: Advance, *, wait: bool) -> bool:
    """Run a task that nobody else runs; False if somebody does, and there is no time to `wait`."""
    with stage.place.hold(f"{stage.name}-{number:05d}", wait=wait) as is_ours:
        # A job without its directory is one that another runner has finished.
        if is_ours and not stage.is_done(number):
            stage.run(number, advance)
        return is_ours or not stage.place.tasks.exists()
