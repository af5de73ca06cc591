"""Downloads files over HTTP or from object stores into a directory, several at a time.

Only complete files appear.

    target      a URL, the name of its file, and its checksum if known
    part        an incomplete file, which the next attempt or the next call continues
    record      origin, size and sha256 of a file that has been fetched
    workplace   the directory `.fetch` beside the files, for parts, locks and records

Each thread takes one target at a time and locks its name, so that other processes wait. It requests
the bytes that the part lacks, after checking that the part belongs to the file which the server has
now. A file gets its name once it is complete, checked and synced.
"""

import errno
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from millstream.arguments import integer
from millstream.errors import FetchError, UsageError
from millstream.fetching.addresses import find_targets
from millstream.fetching.download import Download, DownloadShared, StoppedError
from millstream.fetching.objects import ObjectClient
from millstream.fetching.records import DownloadRecords
from millstream.fetching.report import FetchReport
from millstream.fetching.request import Client
from millstream.new_directory import new_directory
from millstream.paths import output_path
from millstream.progress import OnProgress, Progress
from millstream.remote.options import Remote
from millstream.system.background_thread import StopSignal, call_in_background

_WORKPLACE = ".fetch"
_LOOK_S = 0.2  # between two checks of the threads
_LEAVE_S = 1.0  # for threads to stop; one that is waiting for a server is abandoned


def fetch(
    urls: str | Iterable[str],
    out: str | os.PathLike[str],
    *,
    shards: Sequence[int] | None = None,
    sha256: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    verify: bool = False,
    max_bytes: int | None = None,
    workers: int = 8,
    attempts: int = 6,
    timeout_s: float = 30.0,
    backoff_s: float = 1.0,
    progress: OnProgress | None = None,
    remote: Remote | None = None,
) -> FetchReport:
    """Download files into the directory `out`; complete files are not requested again.

    Arguments:
        urls: URLs or patterns. `{00000..00239}` is a range; `{}` and `{:05d}` are replaced by the
            numbers in `shards`. A sha256 may precede or follow each, separated by a space. In an
            object store (`s3://`, `gs://`, `az://`), `*` and `**` match names, and a prefix names
            all objects below it.
        sha256: checksums by file name; every file must have one.
        headers: sent to the host of a URL, but not to other hosts that it redirects to.
        verify: read existing files again and compare their checksums.
        max_bytes: refuse files that are larger, as soon as their size is known.
        workers: how many files to fetch at once.
        attempts: give up on a file after this many attempts in a row that got less than 1 MiB.
        timeout_s: an attempt fails after this many seconds without data.
        backoff_s: wait after the first failure; doubles up to a minute, with jitter.
        progress: called with a `Progress` a few times a second, in the calling thread.
        remote: how object stores are reached.

    If files fail, the others are fetched all the same, and then `FetchError` is raised with the
    reasons; its `report` describes the whole call. The next call continues partial files.
    """
    for name, seconds in (("timeout_s", timeout_s), ("backoff_s", backoff_s)):
        if not 0 < seconds < 1e6:
            raise UsageError(f"{name} is {seconds}; it must be a number of seconds greater than 0")
    remote = remote or Remote(request_seconds=timeout_s)
    targets = find_targets(urls, shards, sha256, remote)
    workers = min(integer("workers", workers, 1), len(targets))
    directory = output_path(out)
    workplace = directory / _WORKPLACE
    notes: deque[str] = deque()
    job = DownloadShared(
        directory=directory,
        workplace=workplace,
        client=Client(_checked(headers or {}), timeout_s),
        objects=ObjectClient(remote),
        records=DownloadRecords(workplace / "records.jsonl"),
        max_bytes=None if max_bytes is None else integer("max_bytes", max_bytes, 1),
        attempts=integer("attempts", attempts, 1),
        backoff_s=backoff_s,
        verify=verify,
        stop=threading.Event(),
        note=notes.append,
    )
    downloads = [Download(target, job) for target in targets]

    def look() -> None:
        if progress is not None:
            progress(_progress(downloads, notes))

    with new_directory(workplace):
        _run(downloads, job.stop, workers, look)
    report = _report(downloads)
    if report.failed:
        others = f" (and {len(report.failed) - 1:,} others)" if len(report.failed) > 1 else ""
        raise FetchError(f"{report.failed[0]}{others}", report)
    return report


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~\w-]+", name, re.ASCII) or not re.fullmatch(
            r"[\t\x20-\x7e\xa0-\xff]*", value
        ):
            # The value may be a secret.
            raise UsageError(
                f"the header {name!r} is invalid; write it as in 'Authorization: Bearer …'"
            )
    return headers


def _run(
    downloads: Sequence[Download], stop: threading.Event, workers: int, look: Callable[[], None]
) -> None:
    """Run the downloads in threads: daemons, so that one waiting for a server blocks nobody."""
    todo = iter(downloads)  # shared by all threads
    broken: list[BaseException] = []
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work() -> None:
        try:
            for download in todo:
                try:
                    download.run()
                except OSError as error:
                    raise _of_disk(error, download) from None
        except StoppedError:
            pass
        except BaseException as error:
            broken.append(error)
            stop.set()
        finally:
            ended.put(None)

    def start() -> None:
        for _ in range(workers):
            threading.Thread(target=work, name="millstream", daemon=True).start()

    def wait_for_one(seconds: float) -> int:
        try:
            ended.get(timeout=seconds)
        except queue.Empty:
            return 0
        return 1

    num_ended = 0
    try:
        call_in_background(start, "millstream-fetch", StopSignal())
        while num_ended < workers and not broken:
            num_ended += wait_for_one(_LOOK_S)
            look()
    finally:
        stop.set()
        end = time.monotonic() + _LEAVE_S
        while num_ended < workers and time.monotonic() < end:
            num_ended += wait_for_one(max(0.0, end - time.monotonic()))
    if broken:
        raise broken[0]


def _of_disk(error: OSError, download: Download) -> FetchError:
    what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
    return FetchError(f"{download.path}: {what}; fetched data is kept; run it again to continue")


def _progress(downloads: Sequence[Download], notes: deque[str]) -> Progress:
    new = [download for download in downloads if not download.was_there]
    totals = [each.total_bytes for each in new if each.total_bytes is not None]
    size_bytes = sum(each.size_bytes for each in new)
    expected = [each for each in new if not (each.is_done and each.total_bytes is None)]
    return Progress(
        stage="fetching",
        done=size_bytes,
        # Estimated from the files that the server was asked for.
        total=max(size_bytes, sum(totals) * len(expected) // len(totals)) if totals else None,
        unit="bytes",
        processed=sum(each.received_bytes for each in new),
        num_tasks=len(downloads),
        num_tasks_done=sum(each.is_done for each in downloads),
        notes=tuple(notes.popleft() for _ in range(len(notes))),
    )


def _report(downloads: Sequence[Download]) -> FetchReport:
    there = [each for each in downloads if each.failure is None]
    return FetchReport(
        files=tuple(each.path for each in there),
        num_fetched=sum(not each.was_there for each in there),
        num_skipped=sum(each.was_there for each in there),
        received_bytes=sum(each.received_bytes for each in downloads),
        failed=tuple(each.failure for each in downloads if each.failure is not None),
    )
