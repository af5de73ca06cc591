"""`SharedOutput`: one machine's share of a dataset that several machines write to a store.

Each machine uploads its shards as they are finished. When its share is done, it adds the small
files that a shared directory would hold, and a receipt, which has the identity of its shards:

    unfinished.json        the mark, the same for all machines
    plan.json, tasks/      of `tokenize`: what all machines agree on, and what tasks have counted
    NNNNN.part.json        the shards of a part, uploaded after them
    tasks/*.receipt        names, sizes, checksums and ETags of shards

Whoever finishes the dataset fetches these (`JoinedOutput`). Two machines that run the same task
write the same bytes, so no locks are needed.
"""

import json
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from millstream.atomic import hold_lock, publish, temporary_path
from millstream.copying.early_upload import EarlyUpload, ShardSender
from millstream.copying.job import WORKERS
from millstream.copying.place import CopyPlace, FileFacts
from millstream.copying.record import CopyRecord
from millstream.copying.staged_shards import NUMBERED, StagedShard, find_shards, read_shard
from millstream.copying.staging import StagedOutput
from millstream.copying.target_mark import TargetMark
from millstream.error_texts import append
from millstream.errors import DatasetExistsError, MillstreamError
from millstream.formats.job_marks import PLAN, TASKS, UNFINISHED
from millstream.formats.stream import PART_SUFFIX
from millstream.progress import OnProgress, ProgressMeter
from millstream.remote.attempts import stopping_with
from millstream.remote.options import Remote
from millstream.system.background_thread import StopSignal, call_in_background

SHARES = "shares"
"""the token of targets that several machines write to"""
RECEIPT = ".receipt"
_READS_AT_ONCE = 32


class SharedOutput(StagedOutput):
    """The staging directory of a share: one of the tasks' shares, or a part of a `Writer`."""

    def __init__(self, url: str, share: str, remote: Remote | None, part: int | None) -> None:
        super().__init__(url, "finish", remote)
        self.directory = self.directory.with_name(f"{self.directory.name}-{share}")
        self._share, self._part = share, part

    def prepare(self) -> None:
        """Refuse a finished target; fetch what other machines have done."""
        self._remove_leftovers()
        there = self._target.list_files()
        if there and UNFINISHED not in there:
            raise self._occupied(there)
        if UNFINISHED in there:
            self._mark(SHARES).refuse_others(self._target)
        if self._part is None:
            if PLAN in there and not self.directory.exists():
                fetch(self._target, filter(is_small, there), self.directory)
            return
        name = f"{self._part:05d}{PART_SUFFIX}"
        if name in there:
            raise DatasetExistsError(
                f"{self._target.show(name)}: part {self._part} is finished; choose another "
                "number, or remove that file to write the part again"
            )

    def _mark(self, token: str | None) -> TargetMark:
        return TargetMark(command=self._command, source=self.url, token=token, host="")

    def _begin_target(self, there: Iterable[str]) -> None:
        """Write the mark and the plan, before any data."""
        self._mark(SHARES).begin(self._target, set(there))
        plan = self.directory / PLAN
        if plan.exists():
            self._target.publish(PLAN, plan.read_bytes())

    def refuse_staged(self) -> None:
        """Remove a part that was written here, but not uploaded: its writer starts over."""
        if self.directory.exists():
            with hold_lock(self.directory.parent, self.directory.name):
                if any(self.directory.glob(f"*{PART_SUFFIX}")):
                    shutil.rmtree(self.directory)

    def abandon(self, upload: EarlyUpload) -> None:
        """End the upload of a share that has failed; another attempt continues or replaces it."""
        upload.end()

    def finish(self, upload: EarlyUpload, progress: OnProgress | None = None) -> None:
        """Upload what is left of the share: shards, then the receipt, then the small files."""
        upload.finish(progress)
        meter = ProgressMeter(progress, "uploading", total=None, unit="bytes")
        try:
            with hold_lock(self.directory.parent, self.directory.name, wait=True):
                with CopyRecord(self._target) as record:
                    stop = StopSignal()
                    # No thread continues to write after an interrupt.
                    call_in_background(
                        lambda: self._send(record, stop, meter),
                        "millstream-upload",
                        stop,
                        is_waited_for=True,
                    )
                removed = temporary_path(self.directory)
                self.directory.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)
        except MillstreamError as error:
            append(error, f"; the share is kept in {self.directory}: run the same command again")
            raise

    def _send(self, record: CopyRecord, stop: StopSignal, meter: ProgressMeter) -> None:
        with stopping_with(stop):
            self._send_all(record, stop, meter)

    def _send_all(self, record: CopyRecord, stop: StopSignal, meter: ProgressMeter) -> None:
        there = self._target.list_files()
        self._begin_target(there)
        found = [read_shard(self.directory, key) for key in find_shards(self.directory, NUMBERED)]
        shards = [shard for shard in found if shard is not None]
        sender = ShardSender(self.directory, self._target, record, stop, there, meter)
        with ThreadPoolExecutor(WORKERS, "millstream-upload") as pool:
            list(pool.map(sender.send, shards))
            self._remove_stale(there, shards, record)
            names = [file.name for shard in shards for file in shard.files]
            receipt = f"{TASKS}/{self._share}.{os.urandom(4).hex()}{RECEIPT}"
            _write(self._target, receipt, json.dumps(record.entries(names)).encode())
            small = [
                name
                for path in sorted(self.directory.rglob("*"))
                if path.is_file()
                and is_small(name := str(path.relative_to(self.directory)))
                and name not in there
            ]
            parts = [name for name in small if name.endswith(PART_SUFFIX)]
            for some in ([name for name in small if name not in set(parts)], parts):
                list(pool.map(partial(self._send_small, stop), some))

    def _send_small(self, stop: StopSignal, name: str) -> None:
        if name == PLAN:  # which is there since the start
            return
        with stopping_with(stop):
            _write(self._target, name, (self.directory / name).read_bytes())

    def _remove_stale(
        self, there: dict[str, FileFacts], shards: list[StagedShard], record: CopyRecord
    ) -> None:
        """Remove shards of a killed writer of this part which the part does not have any more."""
        ours = {file.name for shard in shards for file in shard.files}
        for name in record.sent(there) if self._part is not None else ():
            if name.startswith(f"{self._part:05d}-") and name not in ours:
                self._target.remove(name)


def is_small(name: str) -> bool:
    """True for the files that are fetched to run or to finish a share: no data, no receipts."""
    is_of_tasks = name.startswith(f"{TASKS}/") and not name.endswith((RECEIPT, ".lock", ".tmp"))
    is_hidden = name.rpartition("/")[-1].startswith(".")
    return (name == PLAN or is_of_tasks or name.endswith(PART_SUFFIX)) and not is_hidden


def fetch(target: CopyPlace, names: Iterable[str], directory: Path) -> None:
    """Make a directory with small files of a target; it appears when it is whole."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    new = temporary_path(directory)

    def fetch_one(name: str) -> None:
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, target.read(name), lasting=False)

    try:
        new.mkdir()
        with ThreadPoolExecutor(_READS_AT_ONCE, "millstream-fetch") as pool:
            list(pool.map(fetch_one, names))
        new.rename(directory)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _write(target: CopyPlace, name: str, content: bytes) -> None:
    target.write(name, len(content), lambda: [content])
