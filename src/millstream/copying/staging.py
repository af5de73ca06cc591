"""`StagedOutput`: a local directory for the output of a job whose target is in a store.

A job writes there as it writes anywhere, with its own locks, marks and resuming. Its shards are
uploaded as they are finished, and their local bytes freed (`EarlyUpload`). When the job is done,
the rest is copied to the store, and the directory is removed. A job that was killed finds it again.

    NAME              the staging directory
    NAME.uploading    its token, which the mark at the target has too
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millstream.atomic import hold_lock, publish, temporary_path
from millstream.cache import cache_directory
from millstream.copying.early_upload import EarlyUpload
from millstream.copying.job import WORKERS, CopyJob
from millstream.copying.listing import find_files
from millstream.copying.place import CopyPlace
from millstream.copying.places import find_target, place_id
from millstream.copying.record import CopyRecord
from millstream.copying.staged_shards import NUMBERED, LostFileError
from millstream.copying.target_mark import TargetMark
from millstream.error_texts import append, rewording_errors
from millstream.errors import DatasetExistsError, MillstreamError
from millstream.formats.job_marks import FINISHED, PLAN, REPORT, UNFINISHED, UPLOADING
from millstream.formats.stream import MANIFEST_NAME
from millstream.progress import OnProgress
from millstream.remote.options import Remote

_RESULTS = {MANIFEST_NAME, FINISHED, REPORT}
"""files that are there when a job has finished"""


class StagedOutput:
    """The staging directory of a URL."""

    def __init__(self, url: str, command: str, remote: Remote | None) -> None:
        """`command` is the one of `millstream` that continues the job; "" for none."""
        self._target, self._command, self._remote = find_target(url, remote), command, remote
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

    def prepare(self) -> None:
        """Refuse a target that is not empty, before any work is done."""
        self._remove_leftovers()
        there = self._target.list_files()
        if UNFINISHED in there:
            self._mark(find_token(self.directory)).refuse_others(self._target)
        elif there and not self.is_finished:
            raise self._occupied(there)
        # Of a copy that was killed at its very end, `finish` finds all files there.

    def _occupied(self, there: Collection[str]) -> DatasetExistsError:
        finished = [name for name in (MANIFEST_NAME, FINISHED) if name in there]
        name = next(iter(finished), min(there))
        what = "already a finished dataset" if finished else "already exists"
        return DatasetExistsError(f"{self._target.show(name)}: {what}; choose another target")

    @contextlib.contextmanager
    def finished_target(self, result: str) -> Iterator[Path | None]:
        """A directory that stands for a finished target, for a job to compare itself with it.

        It has the file `result` of the job that finished there; other files have their sizes, but
        no bytes. None if no job has finished there, or its upload may not have.
        """
        self._remove_leftovers()
        there = self._target.list_files()
        if result not in there or UNFINISHED in there or self.is_finished:
            yield None
            return
        directory = temporary_path(self.directory)
        try:
            for name, facts in there.items():
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    if name == result:
                        file.write(self._target.read(name))
                    else:
                        file.truncate(facts.size_bytes)
            with rewording_errors(lambda text: text.replace(str(directory), self.url)):
                yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def begin_upload(self, companions: re.Pattern[str] = NUMBERED) -> EarlyUpload:
        """Start to upload shards as they are finished, by the names of their companions."""
        return EarlyUpload(self.directory, self._target, self._begin_target, companions)

    def _begin_target(self, there: Collection[str]) -> None:
        self._mark(self._make_token()).begin(self._target, there)

    def _mark(self, token: str | None) -> TargetMark:
        return TargetMark(command=self._command, source=str(self.directory), token=token)

    def _make_token(self) -> str:
        """The token, which is stored before the target gets it."""
        token = find_token(self.directory)
        if token is None:
            token = os.urandom(8).hex()
            publish(token_path(self.directory), token)
        return token

    def abandon(self, upload: EarlyUpload) -> None:
        """End the upload of a job that has failed; if the job kept nothing, nothing stays there."""
        upload.end()
        with contextlib.suppress(OSError):  # it is not empty, or not there any more
            self.directory.rmdir()  # of a writer that was killed
        token = find_token(self.directory)
        if token is None or self.directory.exists() or upload.has_failed:
            return
        with (
            contextlib.suppress(MillstreamError),
            hold_lock(self.directory.parent, self.directory.name),
            CopyRecord(self._target) as record,
        ):
            there = self._target.list_files()
            if UNFINISHED in there:
                self._mark(token).refuse_others(self._target)
            with ThreadPoolExecutor(WORKERS, "millstream-upload") as pool:
                list(pool.map(self._target.remove, record.sent(there)))
            self._target.remove(UNFINISHED)
            token_path(self.directory).unlink(missing_ok=True)

    def explain(self, error: BaseException) -> None:
        """Say once where the output is if the disk was full; errors of ours say what to do."""
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = (
            f"; the output is staged in {self.directory} until it is uploaded: free space there, "
            "or start over with XDG_CACHE_HOME on a larger disk"
        )
        if is_full and not isinstance(error, MillstreamError) and where not in str(error):
            append(error, where)

    def finish(self, upload: EarlyUpload, progress: OnProgress | None = None) -> None:
        """Copy what is left of a finished job to the store, and remove it here."""
        upload.finish(progress)
        self.send(progress)

    def send(self, progress: OnProgress | None) -> None:
        """Copy what is not there yet, and remove it here."""
        with hold_lock(self.directory.parent, self.directory.name, wait=True):
            self._remove_leftovers()
            for leftover in self.directory.parent.glob(f"{self.directory.name}{UPLOADING}.*.tmp"):
                leftover.unlink(missing_ok=True)  # of a run that was killed in `_make_token`
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
                    token=self._make_token(),
                ).run()
            except (LostFileError, DatasetExistsError):  # running it again would not help
                raise
            except MillstreamError as error:
                kept = f"; the job is done, and the rest is kept in {self.directory}: {self._how}"
                append(error, kept)
                raise
            _remove(self.directory)

    def _remove_leftovers(self) -> None:
        """Remove directories of runs that were killed when they removed the staging directory."""
        for leftover in self.directory.parent.glob(f"{self.directory.name}.*.tmp"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)

    @property
    def _how(self) -> str:
        if self._command:
            return "run the same command again to upload it"
        if self._remote is not None and self._remote.access:
            call = f"millstream.copy({str(self.directory)!r}, {self.url!r}, remote=…)"
            return f"upload it with {call}, and the same millstream.Remote"
        return f"upload it with millstream copy {self.directory} {self.url}"

    def refuse_staged(self) -> None:
        """Refuse to write again what was finished here, but not uploaded."""
        if self.is_finished and (self.directory / MANIFEST_NAME).exists():
            raise DatasetExistsError(
                f"{self.url}: an earlier run finished this dataset, and may not have uploaded all "
                f"of it; it is in {self.directory}: {self._how}, or remove that directory"
            )


def remove_if_staged(directory: Path, target: CopyPlace) -> None:
    """Remove a directory that was copied to a target, if it is the staging directory of that."""
    if directory == cache_directory("staging") / place_id(target):
        _remove(directory)


def _remove(directory: Path) -> None:
    removed = temporary_path(directory)  # never half of it under its name
    directory.rename(removed)
    token_path(directory).unlink(missing_ok=True)
    shutil.rmtree(removed, ignore_errors=True)


def find_token(directory: Path) -> str | None:
    """The token of a staging directory, some of whose files are uploaded; None for any other."""
    try:
        return token_path(directory).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def token_path(directory: Path) -> Path:
    """Where the token of a staging directory is stored."""
    return directory.with_name(f"{directory.name}{UPLOADING}")
