"""`ShardJob`: the shards of one directory, written by several threads, resumable after a crash.

    unfinished.json    the mark: what is being made here; a directory with it is not opened as data
    NAME.done.json     the files of a finished shard, with their sizes and checksums
    .finished.json     what was made here, and the report, for whoever asks for the same again

The first two are removed when the last is written.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from penstock.atomic import (
    TEMPORARY,
    NewFile,
    Written,
    hold_lock,
    lock_name,
    publish,
    sync_directory,
)
from penstock.errors import DatasetExistsError
from penstock.formats.checksums import CHECKSUMS, finish_files
from penstock.formats.files import read_whole
from penstock.formats.job_marks import FINISHED, UNFINISHED
from penstock.new_directory import new_directory
from penstock.system.background_thread import StopSignal, call_in_background
from penstock.write.job_agreement import refuse_files, refuse_to_continue, refuse_to_replace

OpenNew = Callable[[str], NewFile]
WriteShard = Callable[[OpenNew], None]
"""writes one shard, into files that it opens by the endings of their names"""
StoredFiles = Mapping[str, Written]

_LOCK, _DONE = "convert", ".done.json"
_TEMPORARY = re.compile(rf".+{TEMPORARY}")


class ShardJob:
    """A job that writes into `directory`. `wanted`, for JSON, is all that decides the result."""

    def __init__(
        self,
        directory: Path,
        wanted: Mapping[str, Any],
        differences: Callable[[Any, Any], Iterable[str]],
        *,
        command: str,
    ) -> None:
        self._command = command
        """the command of `penstock` that resumes it"""
        self._directory, self._wanted = directory, json.loads(json.dumps(wanted))
        self._differences = differences
        """lists, in words, how what is wanted here differs from what was wanted there"""
        self._stop = StopSignal()

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        """Be the only writer. Yields the report if the job is done already, else None."""
        report = self.find_report()
        if report is not None:
            yield report
            return
        mark = self._directory / UNFINISHED
        with new_directory(self._directory), hold_lock(self._directory, _LOCK):
            self._check_begun(mark)
            self._remove_temporaries()  # left by a run that was killed
            publish(mark, json.dumps({"command": self._command, "wanted": self._wanted}))
            try:
                yield None
            except BaseException:
                if self._is_worthless():
                    self._remove_temporaries()
                    mark.unlink()
                raise

    def _remove_temporaries(self) -> None:
        for path in self._directory.iterdir():
            if _TEMPORARY.fullmatch(path.name):
                path.unlink()

    def store_report(self, report: Any) -> None:
        """Store what was made, so that the same job finds it done; then remove the marks."""
        sizes = {
            path.name: path.stat().st_size
            for path in sorted(self._directory.iterdir())
            if path.is_file() and not self._is_mark(path.name) and path.suffix != CHECKSUMS
        }
        done = {"wanted": self._wanted, "files": sizes, "report": report}
        publish(self._directory / FINISHED, json.dumps(done))
        self._remove_marks()

    def _remove_marks(self) -> None:
        (self._directory / UNFINISHED).unlink(missing_ok=True)  # first, so that the result opens
        for done in self._directory.glob(f"*{_DONE}"):
            done.unlink(missing_ok=True)

    def _is_mark(self, name: str) -> bool:
        return name in (UNFINISHED, lock_name(_LOCK)) or name.endswith(_DONE)

    def find_report(self) -> Any:
        """The report, if this job is done. Refuses to replace what another job made."""
        path = self._directory / FINISHED
        if not os.path.lexists(path):
            return None
        try:
            done = json.loads(read_whole(path))
            wanted, sizes, report = done["wanted"], dict(done["files"]), done["report"]
        except (ValueError, TypeError, KeyError):
            raise DatasetExistsError(
                f"{path}: cannot be read, so it is unknown what was made here; remove "
                f"{self._directory} to write all of it again, or choose another path"
            ) from None
        refuse_to_replace(self._directory, self._differences_from(wanted))
        for name, size_bytes in sizes.items():
            file = self._directory / name
            if not file.exists() or file.stat().st_size != size_bytes:
                raise DatasetExistsError(
                    f"{file}: missing, or changed since it was written; remove "
                    f"{self._directory} to write all of it again, or choose another path"
                )
        if any(self._is_mark(each.name) for each in self._directory.iterdir()):
            # A run was killed when all was done, or is just about to remove them.
            with contextlib.suppress(OSError), hold_lock(self._directory, _LOCK):
                self._remove_marks()
        return report

    def _check_begun(self, mark: Path) -> None:
        """Allow only the same job to continue, or an empty directory to begin in."""
        if not mark.exists():
            names = (path.name for path in self._directory.iterdir())
            others = (name for name in names if not self._is_left_over(name, mark.name))
            refuse_files(self._directory, others)
        elif not self._is_worthless():
            try:
                wanted = json.loads(read_whole(mark))["wanted"]
            except (ValueError, TypeError, KeyError):
                wanted = None
            refuse_to_continue(mark, self._differences_from(wanted))

    def _is_left_over(self, name: str, mark: str) -> bool:
        """True for what a run leaves that is killed before it has stored its mark."""
        is_mark = name.startswith(mark) and _TEMPORARY.fullmatch(name) is not None
        return is_mark or name == lock_name(_LOCK)

    def _is_worthless(self) -> bool:
        """True if nothing is done that the job could resume from."""
        ours = (UNFINISHED, lock_name(_LOCK))
        names = [path.name for path in self._directory.iterdir()]
        return all(name in ours or _TEMPORARY.fullmatch(name) for name in names)

    def _differences_from(self, wanted: Any) -> list[str]:
        try:
            return list(self._differences(self._wanted, wanted))
        except (TypeError, KeyError, AttributeError):
            return ["by another command, or another version of Penstock"]

    def check(self) -> None:
        """End the calling thread if another one has failed."""
        if self._stop.is_set:
            raise InterruptedError("another shard has failed")

    def find_done(self, name: str) -> StoredFiles | None:
        """The files of a shard, if an earlier run has finished it."""
        try:
            listed = json.loads(read_whole(self._directory / f"{name}{_DONE}"))
            stored = {file: Written(*values) for file, values in listed.items()}
            sizes = [(self._directory / file).stat().st_size for file in stored]
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return stored if sizes == [file.size_bytes for file in stored.values()] else None

    def run(self, shards: Mapping[str, WriteShard], workers: int) -> dict[str, StoredFiles]:
        """Write shards, given by name; returns the files of each."""

        def write_all() -> dict[str, StoredFiles]:
            with ThreadPoolExecutor(workers, "penstock-convert") as pool:
                tasks = {
                    pool.submit(self._write, name, write): name for name, write in shards.items()
                }
                try:
                    return {tasks[task]: task.result() for task in as_completed(tasks)}
                except BaseException:
                    self._stop.set()
                    pool.shutdown(cancel_futures=True)
                    raise

        # No thread continues to write after an interrupt, however often the user presses Ctrl-C.
        return call_in_background(write_all, "penstock-convert", self._stop, is_waited_for=True)

    def discard(self, names: Iterable[str]) -> None:
        """Remove finished shards."""
        for name in names:
            marks = (f"{name}{CHECKSUMS}", f"{name}{_DONE}")
            for file in (*(self.find_done(name) or ()), *marks):
                (self._directory / file).unlink(missing_ok=True)

    def _write(self, name: str, write: WriteShard) -> StoredFiles:
        files: dict[str, NewFile] = {}

        def open_new(suffix: str) -> NewFile:
            files[f"{name}{suffix}"] = file = NewFile(self._directory / f"{name}{suffix}")
            return file

        try:
            write(open_new)
            stored = finish_files(self._directory / f"{name}{CHECKSUMS}", files)
        except BaseException:
            for file in files.values():
                file.discard()
            raise
        sync_directory(self._directory)
        publish(self._directory / f"{name}{_DONE}", json.dumps(stored))
        return stored
