"""`ShardJob`: a `Job` that writes the shards of one directory with several threads.

    unfinished.json    the mark
    tasks/NAME.json    the files of a finished shard, with their sizes and checksums
    .finished.json     the result: what was wanted, the files with their sizes, the report

The files of unfinished shards have temporary names.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from millstream.atomic import NewFile, Written, hold_lock, publish, sync_directory
from millstream.copying.early_upload import WaitForRoom
from millstream.errors import DatasetExistsError
from millstream.formats.checksums import CHECKSUMS, finish_files
from millstream.formats.files import read_whole
from millstream.formats.job_marks import FINISHED
from millstream.system.background_thread import StopSignal, call_in_background
from millstream.write.job import Job

OpenNew = Callable[[str], NewFile]
WriteShard = Callable[[OpenNew], None]
"""writes one shard, into files that it opens by the endings of their names"""
StoredFiles = Mapping[str, Written]


class ShardJob:
    """A job that writes into `directory`. `wanted`, for JSON, is all that decides the result."""

    def __init__(
        self,
        directory: Path,
        wanted: Mapping[str, Any],
        differences: Callable[[Any, Any], Iterable[str]],
        *,
        command: str,
        wait_for_room: WaitForRoom,
    ) -> None:
        self._wait_for_room = wait_for_room
        self._command = command
        """the command of `millstream` that resumes it"""
        self._directory, self._wanted = directory, json.loads(json.dumps(wanted))
        self._differences = differences
        """lists, in words, how what is wanted here differs from what was wanted there"""
        self._job = Job(directory)
        self._stop = StopSignal()

    @contextlib.contextmanager
    def begin(self) -> Iterator[Any]:
        """Be the only writer. Yields the report if the job is done already, else None."""
        with self._job.begin(self) as mark, contextlib.ExitStack() as stack:
            if mark is not None:
                stack.enter_context(hold_lock(self._job.tasks, "only-writer"))
                self._job.remove_temporaries()
            yield self.find_report()

    def begin_mark(self) -> str:
        """What is wanted, and the command that resumes it."""
        return json.dumps({"command": self._command, "job": self._wanted})

    def continue_mark(self, begun: bytes) -> tuple[str, list[str]]:
        """The same mark, and how the job differs from the one that was begun."""
        try:
            wanted = json.loads(begun)["job"]
        except (ValueError, TypeError, KeyError):
            wanted = None
        return self.begin_mark(), self._differences_from(wanted)

    def store_report(self, report: Any) -> None:
        """Store what was made, so that the same job finds it done; then remove the marks."""
        sizes = {
            path.name: path.stat().st_size
            for path in sorted(self._directory.iterdir())
            if path.is_file() and path != self._job.mark and path.suffix != CHECKSUMS
        }
        done = {"wanted": self._wanted, "files": sizes, "report": report}
        publish(self._directory / FINISHED, json.dumps(done))
        self._job.clear()

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
        self._job.refuse_to_replace(self._differences_from(wanted))
        for name, size_bytes in sizes.items():
            file = self._directory / name
            if not file.exists() or file.stat().st_size != size_bytes:
                raise DatasetExistsError(
                    f"{file}: missing, or changed since it was written; remove "
                    f"{self._directory} to write all of it again, or choose another path"
                )
        if self._job.mark.exists():  # a run was killed when all was done, or removes it now
            self._job.clear()
        return report

    def _differences_from(self, wanted: Any) -> list[str]:
        try:
            return list(self._differences(self._wanted, wanted))
        except (TypeError, KeyError, AttributeError):
            return ["by another command, or another version of Millstream"]

    def check(self) -> None:
        """End the calling thread if another one has failed."""
        if self._stop.is_set:
            raise InterruptedError("another shard has failed")

    def _done(self, name: str) -> Path:
        return self._job.tasks / f"{name}.json"

    def find_done(self, name: str) -> StoredFiles | None:
        """The files of a shard, if an earlier run has finished it."""
        try:
            listed = json.loads(read_whole(self._done(name)))
            stored = {file: Written(*values) for file, values in listed.items()}
            sizes = [(self._directory / file).stat().st_size for file in stored]
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return stored if sizes == [file.size_bytes for file in stored.values()] else None

    def run(
        self,
        shards: Mapping[str, WriteShard],
        workers: int,
        on_done: Callable[[], None] = lambda: None,
    ) -> dict[str, StoredFiles]:
        """Write shards, given by name; returns the files of each.

        `on_done` is called after each shard, always by the same thread.
        """

        def write_all() -> dict[str, StoredFiles]:
            with ThreadPoolExecutor(workers, "millstream-convert") as pool:
                tasks = {
                    pool.submit(self._write, name, write): name for name, write in shards.items()
                }
                try:
                    written = dict[str, StoredFiles]()
                    for task in as_completed(tasks):
                        written[tasks[task]] = task.result()
                        on_done()
                    return written  # noqa: TRY300 (all or none)
                except BaseException:
                    self._stop.set()
                    pool.shutdown(cancel_futures=True)
                    raise

        # No thread continues to write after an interrupt, however often the user presses Ctrl-C.
        return call_in_background(write_all, "millstream-convert", self._stop, is_waited_for=True)

    def rename(self, name: str, new_names: Mapping[str, str]) -> None:
        """Give files of a finished shard other names. Killed meanwhile, the shard is not done."""
        stored = self.find_done(name) or {}
        renamed = {new_names.get(file, file): written for file, written in stored.items()}
        publish(self._done(name), json.dumps(renamed))
        for file, new in new_names.items():
            (self._directory / file).rename(self._directory / new)
        sync_directory(self._directory)

    def discard(self, names: Iterable[str]) -> None:
        """Remove finished shards."""
        for name in names:
            for file in (*(self.find_done(name) or ()), f"{name}{CHECKSUMS}"):
                (self._directory / file).unlink(missing_ok=True)
            self._done(name).unlink(missing_ok=True)

    def _write(self, name: str, write: WriteShard) -> StoredFiles:
        files: dict[str, NewFile] = {}

        def open_new(suffix: str) -> NewFile:
            files[f"{name}{suffix}"] = file = NewFile(self._directory / f"{name}{suffix}")
            return file

        self._wait_for_room(self.check)
        # A note of an earlier run may name renamed files, and must not hold again before a new one.
        self._done(name).unlink(missing_ok=True)
        try:
            write(open_new)
            stored = finish_files(self._directory / f"{name}{CHECKSUMS}", files)
        except BaseException:
            for file in files.values():
                file.discard()
            raise
        sync_directory(self._directory)
        publish(self._done(name), json.dumps(stored))
        return stored
