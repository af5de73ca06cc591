"""`EarlyUpload`: a thread that uploads the shards of a job while the job goes on.

Each shard is sent when it is finished, compared with its checksums on the way, and its local bytes
are freed. The rest of the output, manifests last, is left to a `CopyJob`, which finds these files
in the record. If the upload is slower than the job, the job waits.
"""

import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from millstream.atomic import hold_lock
from millstream.copying.local_place import LocalPlace
from millstream.copying.place import CopyPlace, FileFacts
from millstream.copying.record import CopyRecord
from millstream.copying.sending import FileSender
from millstream.copying.staged_shards import (
    ShardKey,
    StagedShard,
    find_shards,
    read_shard,
    refuse_lost,
)
from millstream.errors import DatasetExistsError, MillstreamError, ReadError
from millstream.progress import OnProgress, Progress, ProgressMeter
from millstream.remote.attempts import stopping_with
from millstream.system.background_thread import BackgroundThread, StopSignal

ROOM_BYTES = 4 << 30
"""how much may be finished and not uploaded before the job waits"""
SHARDS_AT_ONCE = 4
_SECONDS_BETWEEN_LOOKS = 0.2
_SHARE_OF_LOOKS = 20
"""how many times longer it waits than it looks: directories may have very many files"""
_SECONDS_AFTER_FAILURE = 10.0

BeginTarget = Callable[[Collection[str]], None]
"""writes the mark to a target, before any data; is called with the names of what is there"""
WaitForRoom = Callable[[Callable[[], None]], None]
"""`EarlyUpload.wait_for_room`, or `no_wait` for local output"""


def no_wait(check: Callable[[], None]) -> None:
    """Local output takes whatever comes."""


class EarlyUpload:
    """Uploads the shards of a staging directory, from its start until it ends."""

    def __init__(
        self,
        directory: Path,
        target: CopyPlace,
        begin_target: BeginTarget,
        companions: re.Pattern[str],
    ) -> None:
        self._stop = StopSignal()
        self._work = _UploadLoop(directory, target, begin_target, companions, self._stop)
        # The work does not refer to this object: with it goes the thread.
        self._thread = BackgroundThread(self._work.run, "millstream-upload", self._stop)
        self._thread.start()

    def wait_for_room(self, check: Callable[[], None]) -> None:
        """Wait until another shard may be written; raises the error of an upload that fails.

        Meanwhile `check` is called from time to time, and may raise.
        """
        while True:
            self._work.look()
            is_full = self._work.num_unsent_bytes > ROOM_BYTES
            error = self._work.error
            if error is not None and (is_full or not self._work.may_pass(error)):
                raise error
            if not is_full:
                return
            check()
            time.sleep(0.05)

    def finish(self, progress: OnProgress | None = None) -> None:
        """End when the shards that are being sent have arrived; `progress` is called meanwhile."""
        self._work.progress = progress
        self._work.orders.put(None)
        try:
            self._thread.wait()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End at once."""
        self._thread.end()

    @property
    def has_failed(self) -> bool:
        """True if the last attempt to upload a shard has failed."""
        return self._work.error is not None

    def is_error(self, error: BaseException) -> bool:
        """True for the error of an upload, which `wait_for_room` raised."""
        return error is self._work.error


class _UploadLoop:
    """What the thread does."""

    def __init__(
        self,
        directory: Path,
        target: CopyPlace,
        begin_target: BeginTarget,
        companions: re.Pattern[str],
        stop: StopSignal,
    ) -> None:
        self._directory, self._target, self._begin_target = directory, target, begin_target
        self._companions, self._stop = companions, stop
        self.orders = stop.new_queue()
        """gets a None when the work is to end"""
        self.error: Exception | None = None
        self.progress: OnProgress | None = None
        """set at the end; before, the job shows its own"""
        self._unsent = dict[ShardKey, StagedShard]()
        self._sent = set[ShardKey]()
        self._is_ending = False
        self._looking, self._next_look = threading.Lock(), 0.0

    @property
    def num_unsent_bytes(self) -> int:
        """Bytes of finished shards that have not arrived."""
        return sum(shard.size_bytes for shard in list(self._unsent.values()))

    def may_pass(self, error: Exception) -> bool:
        """True for an outage after uploads that worked: it is not a matter of settings."""
        return isinstance(error, ReadError) and bool(self._sent)

    def run(self) -> None:
        """Upload until told to end. After a failure, try again."""
        while not self._ends_within(_SECONDS_BETWEEN_LOOKS):
            try:
                self.look()
                if self._unsent:
                    with stopping_with(self._stop):
                        self._upload()
            except Exception as error:
                if self._stop.is_set:
                    return
                self.error = error
                self._ends_within(_SECONDS_AFTER_FAILURE)

    def _ends_within(self, seconds: float) -> bool:
        """Wait for the order to end."""
        if not self._is_ending:
            with contextlib.suppress(queue.Empty):
                self.orders.get(timeout=seconds)
                self._is_ending = True
        return self._is_ending

    def look(self) -> None:
        """Find shards that were finished since the last time, unless that is only a moment ago."""
        with self._looking:
            started = time.monotonic()
            if started < self._next_look:
                return
            for key in find_shards(self._directory, self._companions):
                if key not in self._sent and key not in self._unsent:
                    shard = read_shard(self._directory, key)
                    if shard is not None:
                        self._unsent[key] = shard
            now = time.monotonic()
            self._next_look = now + max(_SECONDS_BETWEEN_LOOKS, _SHARE_OF_LOOKS * (now - started))

    def _upload(self) -> None:
        """Upload shards as they come, as the only runner of the job that does so."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(self._directory.parent, self._directory.name))
            except DatasetExistsError:  # another runner uploads them
                self._unsent.clear()
                return
            there = self._target.list_files()
            self._begin_target(there)
            record = stack.enter_context(CopyRecord(self._target))
            pool = stack.enter_context(ThreadPoolExecutor(SHARDS_AT_ONCE, "millstream-upload"))
            stack.callback(pool.shutdown, cancel_futures=True)
            meter = ProgressMeter(self._report, "uploading", total=None, unit="bytes")
            send = ShardSender(self._directory, self._target, record, self._stop, there, meter).send
            tasks = dict[ShardKey, Future[None]]()
            while not self._ends_within(_SECONDS_BETWEEN_LOOKS):
                self._settle(tasks)
                self.look()
                for key, shard in list(self._unsent.items()):
                    if key not in tasks:
                        tasks[key] = pool.submit(send, shard)

    def _report(self, progress: Progress) -> None:
        if self.progress is not None:
            self.progress(progress)

    def _settle(self, tasks: dict[ShardKey, Future[None]]) -> None:
        """Note which shards have arrived; raises if one has not."""
        for key in [key for key, task in tasks.items() if task.done()]:
            task = tasks.pop(key)
            try:
                task.result()
            except (OSError, MillstreamError) as error:
                # Else the job has removed it, or writes it again: a kill can come just before a
                # task is noted as done.
                if read_shard(self._directory, key) == self._unsent[key]:
                    if not self._stop.is_set:
                        self.error = error  # now: to end the other uploads may take minutes
                    raise
            else:
                self.error = None
                self._sent.add(key)
            del self._unsent[key]


class ShardSender:
    """Sends whole shards. Threads may share it."""

    def __init__(
        self,
        directory: Path,
        target: CopyPlace,
        record: CopyRecord,
        stop: StopSignal,
        there: dict[str, FileFacts],
        meter: ProgressMeter,
    ) -> None:
        self._source, self._target, self._record = LocalPlace(directory), target, record
        self._there = there
        """what the target had at the start"""
        self._sender = FileSender(self._source, target, record, stop, meter)

    def send(self, shard: StagedShard) -> None:
        """Send the files that have not arrived, and free them."""
        todo = [
            file
            for file in shard.files
            if not self._record.confirms(file, self._there.get(file.name))
        ]
        for file in todo:
            refuse_lost(file, self._source, self._target, self._there.get(file.name))
            self._sender.send(file)
        if todo:
            self._record.sync()
        shard.free()
