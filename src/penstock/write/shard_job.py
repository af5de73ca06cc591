"""Shards of one directory, written by several threads, and gone on with after a crash.

    unfinished.json    what is being made here; whoever finds it does not open this as data
    NAME.done.json     the files of a shard that has them all, under their names and synced
    .finished.json     what was made here, for whoever calls for the same again

The first two go when the last is there.
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

OpenNew = Callable[[str], NewFile]
WriteShard = Callable[[OpenNew], None]
"""writes one shard into files that it opens by what their names end in"""
StoredFiles = Mapping[str, Written]

_LOCK, _DONE = "convert", ".done.json"
_MOST_DIFFERENCES = 5
_TEMPORARY = re.compile(rf".+{TEMPORARY}")


class ShardJob:
    """What is written into `directory`. `wanted`, for JSON, is all that decides the result."""

    def __init__(
        self,
        directory: Path,
        wanted: Mapping[str, Any],
        differences: Callable[[Any, Any], Iterable[str]],
        *,
        command: str,
    ) -> None:
        self._command = command
        """of `penstock`, to go on with it"""
        self._directory, self._wanted = directory, json.loads(json.dumps(wanted))
        self._differences = differences
        """says in words how what is wanted here differs from what was wanted there"""
        self._stop = StopSignal()

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        """Be the only one at work there. Yields what was reported if all is done, else None."""
        report = self.find_report()
        if report is not None:
            yield report
            return
        mark = self._directory / UNFINISHED
        with new_directory(self._directory), hold_lock(self._directory, _LOCK):
            self._refuse_others(mark)
            for path in self._directory.iterdir():
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink()  # of a run that was killed
            publish(mark, json.dumps({"command": self._command, "wanted": self._wanted}))
            try:
                yield None
            except BaseException:
                ours = (mark.name, lock_name(_LOCK))
                if all(path.name in ours for path in self._directory.iterdir()):
                    mark.unlink()  # there is nothing to go on with
                raise

    def finish(self, report: Any) -> None:
        """Note what was made, so that the same job finds it done; then the marks go."""
        sizes = {
            path.name: path.stat().st_size
            for path in sorted(self._directory.iterdir())
            if path.is_file() and not self._is_mark(path.name) and path.suffix != CHECKSUMS
        }
        done = {"wanted": self._wanted, "files": sizes, "report": report}
        publish(self._directory / FINISHED, json.dumps(done))
        self._remove_marks()

    def _remove_marks(self) -> None:
        (self._directory / UNFINISHED).unlink(missing_ok=True)  # first: what is finished opens
        for done in self._directory.glob(f"*{_DONE}"):
            done.unlink(missing_ok=True)

    def _is_mark(self, name: str) -> bool:
        return name in (UNFINISHED, lock_name(_LOCK)) or name.endswith(_DONE)

    def find_report(self) -> Any:
        """What was reported, if this job is done; refuses to replace what another one made."""
        path = self._directory / FINISHED
        if not os.path.lexists(path):
            return None
        try:
            done = json.loads(read_whole(path))
            wanted, sizes, report = done["wanted"], dict(done["files"]), done["report"]
        except (ValueError, TypeError, KeyError):
            raise DatasetExistsError(
                f"{path}: cannot be read, and it says what was made here; remove "
                f"{self._directory} to write all of it again, or choose another path"
            ) from None
        self._refuse_difference(
            wanted, f"{self._directory}: something else was made here", "remove this one"
        )
        for name, size_bytes in sizes.items():
            file = self._directory / name
            if not file.exists() or file.stat().st_size != size_bytes:
                raise DatasetExistsError(
                    f"{file}: is missing or has changed since it was written; remove "
                    f"{self._directory} to write all of it again, or choose another path"
                )
        if any(self._is_mark(each.name) for each in self._directory.iterdir()):
            # Of a run that was killed when all was done, unless it is just about to remove them.
            with contextlib.suppress(OSError), hold_lock(self._directory, _LOCK):
                self._remove_marks()
        return report

    def _refuse_others(self, mark: Path) -> None:
        """Go on with what this job began, or begin where nothing is done yet."""
        if not mark.exists():
            for path in sorted(self._directory.iterdir()):
                is_mark = path.name.startswith(mark.name) and _TEMPORARY.fullmatch(path.name)
                if path.name != lock_name(_LOCK) and not is_mark:
                    raise DatasetExistsError(
                        f"{self._directory}: is not empty ({path.name} is there); choose another "
                        "path, or an empty directory"
                    )
            return
        try:
            wanted = json.loads(read_whole(mark))["wanted"]
        except (ValueError, TypeError, KeyError):
            wanted = None
        worthless = (mark.name, lock_name(_LOCK))
        if not all(
            path.name in worthless or _TEMPORARY.fullmatch(path.name)
            for path in self._directory.iterdir()
        ):
            self._refuse_difference(
                wanted, f"{mark}: cannot go on with what was begun here", "remove what is here"
            )

    def _refuse_difference(self, wanted: Any, what: str, remedy: str) -> None:
        """Refuse a directory where something else was wanted."""
        try:
            differences = list(self._differences(self._wanted, wanted))
        except (TypeError, KeyError, AttributeError):
            differences = ["by another command, or another version of Penstock"]
        if differences:
            more = "; …" if len(differences) > _MOST_DIFFERENCES else ""
            shown = "; ".join(differences[:_MOST_DIFFERENCES])
            raise DatasetExistsError(f"{what}: {shown}{more}; choose another path, or {remedy}")

    def check(self) -> None:
        """End a thread at work, if another one has failed."""
        if self._stop.is_set:
            raise InterruptedError("another shard has failed")

    def find_done(self, name: str) -> StoredFiles | None:
        """The files of a shard that an earlier run has written."""
        try:
            listed = json.loads(read_whole(self._directory / f"{name}{_DONE}"))
            stored = {file: Written(*values) for file, values in listed.items()}
            sizes = [(self._directory / file).stat().st_size for file in stored]
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return stored if sizes == [file.size_bytes for file in stored.values()] else None

    def run(self, shards: Mapping[str, WriteShard], workers: int) -> dict[str, StoredFiles]:
        """Write shards, by their names; their files, by theirs."""

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

        # No thread goes on writing, however impatient the user is.
        return call_in_background(write_all, "penstock-convert", self._stop, is_waited_for=True)

    def discard(self, names: Iterable[str]) -> None:
        """Remove shards that are done."""
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
