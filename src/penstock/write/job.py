"""Shards of one directory, written by several threads, and gone on with after a crash.

    unfinished.json    what is being made here; whoever finds it does not open this as data
    NAME.done.json     the files of a shard that has them all, under their names and synced

Both go when the manifest is there.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from penstock.atomic import (
    TEMPORARY,
    OpenFile,
    Written,
    hold_lock,
    lock_name,
    publish,
    sync_directory,
)
from penstock.errors import DatasetExistsError
from penstock.formats.detection import UNFINISHED
from penstock.machine.background_thread import StopSignal, call_in_background

OpenNew = Callable[[str], OpenFile]
WriteShard = Callable[[OpenNew], None]
"""writes one shard into files that it opens by what their names end in"""
Stored = Mapping[str, Written]

_LOCK, _DONE = "convert", ".done.json"
_TEMPORARY = re.compile(rf".+{TEMPORARY}")


class Job:
    """What is written into `directory`; another `identity` there is refused."""

    def __init__(self, directory: Path, identity: str) -> None:
        self._directory, self._identity = directory, identity
        self._stop = StopSignal()

    @contextlib.contextmanager
    def begin(self) -> Iterator[None]:
        """Be the only one at work there; when the block ends well, the marks go."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise DatasetExistsError(f"{self._directory}: a file is in the way") from None
        mark = self._directory / UNFINISHED
        with hold_lock(self._directory, _LOCK):
            self._refuse_others(mark)
            for path in self._directory.iterdir():
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink()  # of a run that was killed
            publish(mark, json.dumps({"identity": self._identity}))
            try:
                yield
            except BaseException:
                ours = (mark.name, lock_name(_LOCK))
                if all(path.name in ours for path in self._directory.iterdir()):
                    mark.unlink()  # there is nothing to go on with
                raise
            mark.unlink()  # first: what is finished opens, whatever marks are left
            for done in self._directory.glob(f"*{_DONE}"):
                done.unlink()

    def _refuse_others(self, mark: Path) -> None:
        """Go on with what this job began, or begin in an empty directory."""
        if not mark.exists():
            for path in sorted(self._directory.iterdir()):
                is_mark = path.name.startswith(mark.name) and _TEMPORARY.fullmatch(path.name)
                if path.name != lock_name(_LOCK) and not is_mark:
                    raise DatasetExistsError(
                        f"{path}: is in the way, as is all that is here; choose another path, or "
                        "an empty directory"
                    )
            return
        try:
            identity = json.loads(mark.read_bytes())["identity"]
        except (ValueError, TypeError, KeyError):
            identity = None
        if identity != self._identity:
            raise DatasetExistsError(
                f"{mark}: of another conversion, with other options, or of a source that has "
                "changed since; choose another path, or remove what is here"
            )

    def check(self) -> None:
        """End a thread at work, if another one has failed."""
        if self._stop.is_set:
            raise InterruptedError("another shard has failed")

    def find_done(self, name: str) -> Stored | None:
        """The files of a shard that an earlier run has written."""
        try:
            listed = json.loads((self._directory / f"{name}{_DONE}").read_bytes())
            stored = {file: Written(*values) for file, values in listed.items()}
            sizes = [(self._directory / file).stat().st_size for file in stored]
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return stored if sizes == [file.size_bytes for file in stored.values()] else None

    def run(self, shards: Mapping[str, WriteShard], workers: int) -> dict[str, Stored]:
        """Write shards, by their names; their files, by theirs."""

        def write_all() -> dict[str, Stored]:
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

    def _write(self, name: str, write: WriteShard) -> Stored:
        files: dict[str, OpenFile] = {}

        def open_new(suffix: str) -> OpenFile:
            files[f"{name}{suffix}"] = file = OpenFile(self._directory / f"{name}{suffix}")
            return file

        try:
            write(open_new)
            stored = {each: file.finish() for each, file in files.items()}
        except BaseException:
            for file in files.values():
                file.discard()
            raise
        sync_directory(self._directory)
        publish(self._directory / f"{name}{_DONE}", json.dumps(stored))
        return stored
