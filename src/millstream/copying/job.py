"""`CopyJob`: files from one place to another; killed at any moment, the next call continues.

    unfinished.json    the mark, in every directory that gets files: written first, removed last;
                       nothing opens a directory with it
    data files         several at a time; each appears when it is whole
    manifests          after all data, those of inner directories first, never in place of others

The record in the user's cache says which files have arrived. The mark says of which dataset.
"""

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import PurePosixPath

import xxhash

from millstream.copying.listing import LAST, CopiedFile, CopiedFiles
from millstream.copying.place import CopyPlace, FileFacts, describe
from millstream.copying.record import CopyRecord
from millstream.copying.sending import FileSender, check_xxh3
from millstream.copying.staged_shards import refuse_lost
from millstream.copying.target_mark import TargetMark
from millstream.errors import DatasetExistsError, FormatError
from millstream.formats.job_marks import UNFINISHED
from millstream.progress import OnProgress, ProgressMeter
from millstream.system.background_thread import StopSignal, call_in_background

WORKERS = 8
"""files at a time; with 4 parts of 8 MiB each, at most some 350 MiB of memory"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyReport:
    """What `millstream.copy` did."""

    num_files: int
    size_bytes: int
    num_resumed: int
    """files that an earlier run had copied"""
    num_checked: int
    """files whose content was compared with the dataset's own checksums"""
    was_finished: bool = False
    """True if an earlier call had finished it"""


class CopyJob:
    """Copies files to a target."""

    def __init__(
        self,
        files: CopiedFiles,
        target: CopyPlace,
        *,
        command: str,
        workers: int,
        progress: OnProgress | None,
        token: str | None = None,
    ) -> None:
        """`command` is the one of `millstream` that continues the job.

        `token` is that of a staging directory, some of whose files are uploaded and freed.
        """
        self._files, self._target, self._workers = files, target, workers
        self._command, self._progress, self._token = command, progress, token
        self._stop = StopSignal()

    def run(self) -> CopyReport:
        """Copy what is missing, and say what was done."""
        with self._target.hold(), CopyRecord(self._target) as record:
            there = self._target.list_files()
            if self._is_finished(there, record):
                return self._report(len(self._files.data) + len(self._files.last), finished=True)
            self._begin(there)
            todo = [
                file for file in self._files.data if not record.confirms(file, there.get(file.name))
            ]
            self._refuse_lost(todo, there)
            self._copy(todo, record)
            self._check_arrived(record)
            for file in self._files.last:
                self._publish(file)
            if self._token is not None:
                self._remove_all(self._others(record))
            self._remove_all(self._inner_marks)
            self._target.remove(UNFINISHED)
            return self._report(len(self._files.data) - len(todo))

    def _report(self, num_resumed: int, *, finished: bool = False) -> CopyReport:
        files = (*self._files.data, *self._files.last)
        return CopyReport(
            num_files=len(files),
            size_bytes=self._files.size_bytes,
            num_resumed=num_resumed,
            num_checked=0 if finished else sum(file.xxh3 is not None for file in files),
            was_finished=finished,
        )

    def _is_finished(self, there: dict[str, FileFacts], record: CopyRecord) -> bool:
        """Whether the target holds these files; refuses it if it holds others."""
        if not there or UNFINISHED in there:
            return False
        for file in self._files.last:
            if file.name not in there or self._differs(file):
                raise self._occupied(there)
        for file in self._files.data:
            found = there.get(file.name)
            # An equal manifest was written after all data, so sizes are enough then.
            is_equal = found is not None and found.size_bytes == file.facts.size_bytes
            if not record.confirms(file, found) and not (self._files.last and is_equal):
                raise self._occupied(there)
        return True

    def _differs(self, file: CopiedFile) -> bool:
        return self._target.read(file.name) != self._files.contents[file.name]

    def _occupied(self, there: dict[str, FileFacts]) -> DatasetExistsError:
        finished = [name for name in there if PurePosixPath(name).name in LAST]
        what = "already a finished dataset" if finished else "already exists"
        name = min(finished or there)
        return DatasetExistsError(
            f"{self._target.show(name)}: {what}, and it is not a copy of "
            f"{self._files.place.show()}; choose another target"
        )

    def _begin(self, there: dict[str, FileFacts]) -> None:
        mark = TargetMark(
            command=self._command,
            source=self._files.place.show(),
            digest=self._files.digest,
            token=self._token,
        )
        mark.begin(self._target, there)
        missing = [name for name in self._inner_marks if name not in there]
        with ThreadPoolExecutor(self._workers, "millstream-copy") as pool:
            list(pool.map(lambda name: self._target.publish(name, mark.content), missing))

    @property
    def _inner_marks(self) -> list[str]:
        """The marks of directories in the target, which may be opened by themselves."""
        files = (*self._files.data, *self._files.last)
        directories = {file.name.rpartition("/")[0] for file in files}
        return sorted(f"{directory}/{UNFINISHED}" for directory in directories - {""})

    def _copy(self, todo: list[CopiedFile], record: CopyRecord) -> None:
        num_bytes = sum(file.facts.size_bytes for file in self._files.data)
        before = num_bytes - sum(file.facts.size_bytes for file in todo)
        meter = ProgressMeter(
            self._progress, "copying", total=num_bytes, unit="bytes", done_before=before
        )

        sender = FileSender(self._files.place, self._target, record, self._stop, meter)

        def copy_all() -> None:
            with ThreadPoolExecutor(self._workers, "millstream-copy") as pool:
                tasks = [pool.submit(sender.send, file) for file in todo]
                try:
                    for task in as_completed(tasks):
                        task.result()
                except BaseException:
                    self._stop.set()
                    pool.shutdown(cancel_futures=True)
                    raise

        # No thread continues to write after an interrupt, however often the user presses Ctrl-C.
        call_in_background(copy_all, "millstream-copy", self._stop, is_waited_for=True)

    def _check_arrived(self, record: CopyRecord) -> None:
        """Compare what the target lists with what was sent, before it opens as a dataset."""
        there = self._target.list_files()
        for file in self._files.data:
            found = there.get(file.name)
            if not record.confirms(file, found):
                self._refuse_lost([file], there)
                raise FormatError(
                    f"{self._target.show(file.name)}: {describe(found)}; it was removed or "
                    "replaced while the dataset was copied: run the command again"
                )

    def _refuse_lost(self, unconfirmed: list[CopiedFile], there: dict[str, FileFacts]) -> None:
        """Refuse to go on without files that exist neither here nor at the target any more."""
        for file in unconfirmed if self._token is not None else ():
            refuse_lost(file, self._files.place, self._target, there.get(file.name))

    def _others(self, record: CopyRecord) -> list[str]:
        """What was uploaded and does not belong to the dataset.

        Killed writers may have written more shards; jobs of several machines have plans and parts.
        """
        ours = {file.name for file in (*self._files.data, *self._files.last)}
        return [name for name in record.sent(self._target.list_files()) if name not in ours]

    def _remove_all(self, names: list[str]) -> None:
        with ThreadPoolExecutor(self._workers, "millstream-copy") as pool:
            list(pool.map(self._target.remove, names))

    def _publish(self, file: CopiedFile) -> None:
        content = self._files.contents[file.name]
        check_xxh3(self._files.place.show(file.name), xxhash.xxh3_64_hexdigest(content), file)
        self._target.publish(file.name, content)
