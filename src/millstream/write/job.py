"""`Job`: what one runner, or several at once, make in a directory, resumable after a crash.

    the mark       what is wanted, stored first; a directory with it is not opened as data
    tasks/         what is done so far, and the locks of runners
    unshuffled/    what is shuffled in the end
    the result     what was made, and the report, for whoever asks for the same again

When the result is stored, the rest is removed, the mark last. Whoever comes next compares what it
wants with the mark or the result: the same job continues or is done already, any other is refused
with the differences, unless nothing of what was begun is done.
"""

import contextlib
import fcntl
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from millstream.atomic import TEMPORARY, hold_lock, publish, refuse_if_held
from millstream.errors import DatasetExistsError, MissingDataError
from millstream.formats.files import read_whole
from millstream.formats.job_marks import PLAN, TASKS, UNFINISHED, UNSHUFFLED
from millstream.new_directory import new_directory

_RUNNERS = ".runners"  # all runners of a job share a lock on this
_MOST_DIFFERENCES = 5


class WantedJob(Protocol):
    """What is wanted in the directory of a job."""

    def find_report(self) -> Any:
        """The report, if this job is done. Refuses to replace what another job made."""

    def begin_mark(self) -> str:
        """The mark to begin with."""

    def continue_mark(self, begun: bytes) -> tuple[str, list[str]]:
        """The mark to continue a job with, and how that job differs, in words."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job in a directory. Its runners may be processes on several machines."""

    out: Path
    mark_name: ClassVar[str] = UNFINISHED
    unfinished: ClassVar[str] = f".+{TEMPORARY}"
    """a pattern for the names of files that a task writes before it is done"""

    @property
    def mark(self) -> Path:
        """The mark; it is there as long as the job is not finished."""
        return self.out / self.mark_name

    @property
    def tasks(self) -> Path:
        """Where tasks store what they have done."""
        return self.out / TASKS

    @property
    def unshuffled(self) -> Path:
        """Where documents are written before they are shuffled."""
        return self.out / UNSHUFFLED

    @contextlib.contextmanager
    def hold(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Hold a lock among runners. Yields False if another holds it, or if the job is gone."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(self.tasks, name, wait=wait))
            except (DatasetExistsError, FileNotFoundError):
                yield False
                return
            yield True

    @contextlib.contextmanager
    def begin(self, wanted: WantedJob) -> Iterator[str | None]:
        """Agree on the job, and keep others from replacing it while the block runs.

        Yields the mark, or None if the job is done. If the block fails before any runner has done a
        task, nothing of the job stays, so that the next call may want something else.
        """
        if wanted.find_report() is not None:
            yield None
            return
        with new_directory(self.out), contextlib.ExitStack() as runners:
            mark = self._agree(wanted, runners)
            try:
                yield mark
            except BaseException:
                runners.close()
                with self.hold("plan", wait=True) as is_ours:
                    if is_ours and self._discard_worthless():
                        shutil.rmtree(self.tasks, ignore_errors=True)
                raise

    def _agree(self, wanted: WantedJob, runners: contextlib.ExitStack) -> str | None:
        """Continue the job that is here, or store the mark of a new one."""
        self._refuse_files()
        self.tasks.mkdir(exist_ok=True)
        with self.hold("plan", wait=True) as is_ours:
            if not is_ours:
                raise MissingDataError(
                    f"{self.out}: another runner has just finished or given up; run this again"
                )
            try:
                mark = self._store_mark(wanted)
            finally:
                # A job of another kind may have begun here at the same moment.
                if not any((self.out / mark).exists() for mark in (UNFINISHED, PLAN)):
                    shutil.rmtree(self.tasks, ignore_errors=True)
            if mark is not None:
                lock = runners.enter_context((self.tasks / _RUNNERS).open("ab"))
                fcntl.flock(lock, fcntl.LOCK_SH)
            return mark

    def _store_mark(self, wanted: WantedJob) -> str | None:
        try:
            begun = read_whole(self.mark)
        except FileNotFoundError:
            if wanted.find_report() is not None:  # another runner has just finished
                return None
        else:
            mark, differences = wanted.continue_mark(begun)
            if not differences or not self._discard_worthless():
                _refuse(f"{self.mark}: another job was begun here", differences, self.out)
                if mark.encode() != begun:
                    publish(self.mark, mark)
                return mark
        self._refuse_files()
        mark = wanted.begin_mark()
        publish(self.mark, mark)
        return mark

    def _discard_worthless(self) -> bool:
        """Remove all but `tasks/` if nobody works here and no task is done; True if it did."""
        with (self.tasks / _RUNNERS).open("ab") as runners:
            try:
                fcntl.flock(runners, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for lock in self.tasks.glob(".*-*.lock"):  # tasks on other machines may outlive it
                    refuse_if_held(lock)
            except (BlockingIOError, DatasetExistsError):
                return False
            return self.discard_unfinished()

    def discard_unfinished(self) -> bool:
        """Remove the mark and what tasks have written, unless one is done; True if it did."""
        ours = {self.mark, self.tasks}
        found = [path for path in self.out.rglob("*") if not {path, *path.parents} & ours]
        directories = [path for path in found if path.is_dir() and not path.is_symlink()]
        files = [path for path in found if path not in directories]
        others = (path for path in files if not re.fullmatch(self.unfinished, path.name))
        if any(others) or self._done():
            return False
        for path in files:
            path.unlink()
        for path in sorted(directories, reverse=True):
            path.rmdir()
        self.mark.unlink()
        return True

    def _done(self) -> list[Path]:
        """What tasks have stored, without locks and temporary files."""
        return [path for path in self.tasks.glob("[!.]*.*") if path.suffix != ".tmp"]

    def _refuse_files(self) -> None:
        """Allow only a job to continue, or an empty directory to begin in."""
        # Listed first: what another runner writes, it writes after its mark.
        paths = [*self._done(), *self.out.iterdir()]
        if self.mark.exists():
            return
        names = sorted(str(path.relative_to(self.out)) for path in paths if path != self.tasks)
        for name in names:
            if not name.startswith(f"{self.mark_name}."):
                raise DatasetExistsError(
                    f"{self.out}: is not empty ({name} is there); choose another path, or an "
                    "empty directory"
                )

    def refuse_to_replace(self, differences: Iterable[str]) -> None:
        """Refuse a directory where a job that differs was finished."""
        _refuse(f"{self.out}: holds the result of another job", differences, "this one")

    def remove_temporaries(self) -> None:
        """Remove files that a runner was writing when it was killed."""
        for path in self.out.glob("*.tmp"):
            if re.fullmatch(f".+{TEMPORARY}", path.name):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything but the result."""
        for directory in (self.unshuffled, self.tasks):
            shutil.rmtree(directory, ignore_errors=True)
        self.remove_temporaries()
        self.mark.unlink(missing_ok=True)


def _refuse(what: str, differences: Iterable[str], removable: str | Path) -> None:
    found = list(differences)
    if found:
        more = "; …" if len(found) > _MOST_DIFFERENCES else ""
        shown = "; ".join(found[:_MOST_DIFFERENCES])
        raise DatasetExistsError(
            f"{what}: {shown}{more}; choose another path, or remove {removable}"
        )
