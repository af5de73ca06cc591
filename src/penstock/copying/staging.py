"""`StagedOutput`: a local directory for the output of a job whose target is in a store.

A job writes there as it writes anywhere, with its own locks, marks and resuming. What it has
finished is copied to the store, and the directory is removed. A job that was killed finds it again.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.atomic import hold_lock, temporary_path
from penstock.cache import cache_directory
from penstock.copying.job import WORKERS, CopyJob
from penstock.copying.listing import find_files
from penstock.copying.places import find_target, place_id
from penstock.errors import DatasetExistsError, PenstockError, UsageError
from penstock.formats.job_marks import FINISHED, PLAN, UNFINISHED
from penstock.formats.stream import MANIFEST_NAME
from penstock.progress import OnProgress
from penstock.remote.options import Remote
from penstock.remote.urls import is_remote

_RESULTS = {MANIFEST_NAME, FINISHED, "report.json"}
"""files that are there when a job has finished"""


class StagedOutput:
    """The staging directory of a URL."""

    def __init__(self, url: str, command: str, remote: Remote | None) -> None:
        """`command` is the one of `penstock` that continues the job; "" for none."""
        self._target, self._command = find_target(url, remote), command
        self.directory = cache_directory("staging") / place_id(self._target)

    @property
    def url(self) -> str:
        """Where the output belongs."""
        return self._target.show()

    @property
    def is_finished(self) -> bool:
        """Whether a job has finished here, but its output was not copied, or not all of it."""
        names = {path.name for path in self.directory.glob("*")}
        return bool(names & _RESULTS) and not names & {UNFINISHED, PLAN}

    def refuse_finished(self) -> None:
        """Refuse a target that is not empty, before any work is done."""
        there = self._target.list_files()
        if not there or UNFINISHED in there or self.is_finished:
            return  # of a copy that was killed at its very end, `send` finds all files there
        name = MANIFEST_NAME if MANIFEST_NAME in there else min(there)
        what = "already a finished dataset" if name == MANIFEST_NAME else "already exists"
        raise DatasetExistsError(f"{self._target.show(name)}: {what}; choose another target")

    def send(self, progress: OnProgress | None = None) -> None:
        """Copy the output to the store, and remove it here."""
        with hold_lock(self.directory.parent, self.directory.name, wait=True):
            for leftover in self.directory.parent.glob(f"{self.directory.name}.*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)  # of a run that was killed below
            if not self.directory.exists():  # another runner of the job has just sent it
                return
            try:
                files = find_files(self.directory)
                CopyJob(
                    files,
                    self._target,
                    command=self._command,
                    workers=WORKERS,
                    progress=progress,
                ).run()
            except PenstockError as error:
                kept = f"; the output is complete, and kept in {self.directory}: {self._how}"
                _append(error, kept)
                raise
            removed = temporary_path(self.directory)  # never half of it under its name
            self.directory.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)

    @property
    def _how(self) -> str:
        if self._command:
            return "run the same command again to upload it"
        return f"upload it with penstock copy {self.directory} {self.url}"

    def refuse_staged(self) -> None:
        """Refuse to write again what was finished here, but not uploaded."""
        if self.is_finished and (self.directory / MANIFEST_NAME).exists():
            raise DatasetExistsError(
                f"{self.url}: an earlier run finished this dataset, and may not have uploaded all "
                f"of it; it is in {self.directory}: {self._how}, or remove that directory"
            )


def find_staged(
    path: str | os.PathLike[str], command: str, remote: Remote | None
) -> StagedOutput | None:
    """The staging directory of an output path; None if the path is local."""
    return StagedOutput(os.fspath(path), command, remote) if is_remote(path) else None


@contextlib.contextmanager
def output_directory(
    path: str | os.PathLike[str],
    command: str,
    *,
    remote: Remote | None = None,
    progress: OnProgress | None = None,
) -> Iterator[Path]:
    """The directory that a job writes to; for a URL, what is there in the end is copied.

    A target that is not empty is refused first.
    """
    staged = find_staged(path, command, remote)
    if staged is None:
        yield Path(path).absolute()
        return
    staged.refuse_finished()
    yield staged.directory
    staged.send(progress)


def relative_to(path: str | os.PathLike[str], directory: Path) -> Callable[[Path], Path]:
    """A function for paths of a report: those of a URL are relative, others stay as they are."""
    return (lambda file: file.relative_to(directory)) if is_remote(path) else (lambda file: file)


def refuse_several_machines(path: str | os.PathLike[str], what: str) -> None:
    """Refuse a URL for jobs that share a directory."""
    if is_remote(path):
        raise UsageError(
            f"{os.fspath(path)}: {what} need a directory that all machines share, which a store is "
            "not; write to a shared file system, and upload the finished dataset with penstock copy"
        )


def _append(error: PenstockError, sentence: str) -> None:
    """Add to the message of an error."""
    if isinstance(error, OSError) and error.strerror is not None:
        error.strerror += sentence
    else:
        error.args = (f"{error}{sentence}",)
