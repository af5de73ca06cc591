"""Shards that are uploaded and freed while a job goes on, with kills and failing servers."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import obstore
import pytest

import millstream
from millstream.cache import cache_directory
from millstream.copying import early_upload
from millstream.copying.early_upload import EarlyUpload
from millstream.copying.freed import is_freed
from millstream.copying.local_place import LocalPlace
from millstream.copying.places import find_target
from millstream.copying.staged_shards import NUMBERED
from millstream.errors import DatasetExistsError, MissingDataError, ReadError
from millstream.remote.options import Remote
from tests.helpers.uploads import contents, staged, stored, write_shards
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SHARD_BYTES, NUM_SHARDS = 1 << 18, 60
OUTPUT_BYTES = SHARD_BYTES * NUM_SHARDS
TIMED = {"report.json", "report.checksums"}


@pytest.fixture
def small_room(monkeypatch):
    """Little space before a job waits, and quick looks for shards, as tests write fast."""
    monkeypatch.setattr(early_upload, "ROOM_BYTES", 4 * SHARD_BYTES)
    monkeypatch.setattr(early_upload, "_SECONDS_BETWEEN_LOOKS", 0.005)
    monkeypatch.setattr(early_upload, "_SHARE_OF_LOOKS", 0)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    line = f"{'x' * 499}\n"
    path.write_text("".join(f"{k:07d} {line}" for k in range(OUTPUT_BYTES // 2 // 509)))
    return path


def used_bytes():
    """What the files in the staging directories take on disk."""
    total = 0
    for directory, _, names in os.walk(cache_directory("staging")):
        for name in names:
            try:
                total += Path(directory, name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


class Peak:
    """The most that was used at any time, seen by a job's own reports of progress."""

    def __init__(self):
        self.bytes = 0

    def __call__(self, _=None):
        self.bytes = max(self.bytes, used_bytes())
        time.sleep(0.005)


def write(path, num_shards=NUM_SHARDS, **options):
    write_shards(path, num_shards, SHARD_BYTES, **options)


def test_a_writer_needs_little_disk_however_slow_the_upload(
    s3, bucket, s3_proxy, s3_environment, tmp_path, small_room
):
    write(tmp_path / "local")
    s3_proxy.set(latency_s=0.02)
    peak = Peak()
    write(f"s3://{bucket}/data", after=peak, remote=Remote(endpoint=s3_proxy.endpoint))
    assert stored(s3, bucket, "data") == contents(tmp_path / "local")
    assert peak.bytes < OUTPUT_BYTES / 4
    assert staged() == []


def tokenize(text, target, **options):
    return millstream.tokenize(
        text, "bytes", target, shard_bytes=SHARD_BYTES, task_bytes=SHARD_BYTES // 2, **options
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_tokenize_needs_little_disk(
    s3, bucket, s3_environment, tmp_path, text, small_room, workers
):
    tokenize(text, tmp_path / "local", workers=1)
    peak = Peak()
    tokenize(text, f"s3://{bucket}/tokens", workers=workers, progress=peak)
    assert 0 < peak.bytes < OUTPUT_BYTES / 3
    found, expected = stored(s3, bucket, "tokens"), contents(tmp_path / "local")
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in expected.keys() - TIMED)


def test_convert_and_repack_need_little_disk(
    s3, bucket, s3_environment, tmp_path, text, small_room
):
    tokenize(text, tmp_path / "tokens", workers=1)
    data = millstream.open(tmp_path / "tokens")
    jobs = {
        "convert": lambda out, **rest: millstream.convert(
            data, out, "megatron", shard_bytes=SHARD_BYTES, workers=2, **rest
        ),
        "repack": lambda out, **rest: millstream.repack(
            text, out, to="parquet", shard_chars=SHARD_BYTES, workers=2, **rest
        ),
    }
    for name, job in jobs.items():
        report = job(tmp_path / name)
        expected = contents(tmp_path / name)
        assert len(report.files) > 20
        peak = Peak()
        job(f"s3://{bucket}/{name}", progress=peak)
        assert stored(s3, bucket, name) == expected
        if name == "convert":  # text shards are compressed to almost nothing
            assert 0 < peak.bytes < sum(map(len, expected.values())) / 2
    assert staged() == []


def test_what_is_still_uploaded_when_a_job_is_done_is_shown(tmp_path, monkeypatch):
    write_shards(tmp_path / "staged", 1, 1 << 20)
    read, goes_on = LocalPlace.chunks, threading.Event()

    def read_when_the_job_is_done(place, name, facts):
        assert goes_on.wait(20)
        yield from read(place, name, facts)

    monkeypatch.setattr(LocalPlace, "chunks", read_when_the_job_is_done)
    target = find_target(tmp_path / "target", None)
    stages = []
    upload = EarlyUpload(tmp_path / "staged", target, lambda _: None, NUMBERED)
    wait_until(lambda: list((tmp_path / "target").glob("*")))
    assert stages == []
    threading.Timer(1.0, goes_on.set).start()
    upload.finish(lambda progress: stages.append(progress.stage))
    assert set(stages) == {"uploading"}


def test_shards_arrive_while_a_job_goes_on_and_nothing_else(
    s3, bucket, s3_environment, tmp_path, text, small_room
):
    url, seen = f"s3://{bucket}/tokens", set()

    def look(progress):
        pages = obstore.list(s3.store(bucket), "tokens")
        seen.update(each["path"].removeprefix("tokens/") for page in pages for each in page)
        if seen and progress.num_tasks_done % 20 == 0:
            with pytest.raises(MissingDataError):
                millstream.open(url)

    tokenize(text, url, workers=1, shuffle=0, progress=look)
    assert "unfinished.json" in seen
    names = sorted(seen - {"unfinished.json"})
    assert sum(name.endswith(".stream") for name in names[:-1]) > 0
    final = set(stored(s3, bucket, "tokens"))
    assert set(names) <= final
    tokenize(text, tmp_path / "local", workers=1, shuffle=0)
    assert final == contents(tmp_path / "local").keys()


def command(text, url):
    start = [sys.executable, "-m", "millstream", "tokenize", str(text), "--tokenizer", "bytes"]
    sizes = ["--shard-bytes", str(SHARD_BYTES), "--task-bytes", str(SHARD_BYTES // 8)]
    return [*start, "--out", url, "--workers", "1", *sizes]


def killed_job(text, url, endpoint):
    """Kill a job when it has uploaded some shards; returns the shards that it has freed."""
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint}
    freed = []

    def has_freed():
        paths = cache_directory("staging").glob("*/*.stream")
        freed[:] = [path for path in paths if is_freed(path)]
        return len(freed) >= 10

    with subprocess.Popen(command(text, url), env=environment) as process:
        wait_until(has_freed)
        process.send_signal(signal.SIGKILL)
    assert list(cache_directory("staging").glob("*/plan.json")), "the job was done already"
    return sorted(path.name for path in freed)


def run_again(text, url, endpoint):
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint}
    return subprocess.run(
        command(text, url), env=environment, capture_output=True, text=True, check=False
    )


def test_a_job_killed_while_it_uploads_continues(
    s3, bucket, s3_proxy, s3_environment, tmp_path, text
):
    url = f"s3://{bucket}/tokens"
    freed = killed_job(text, url, s3_proxy.endpoint)
    (directory,) = [path for path in cache_directory("staging").iterdir() if path.is_dir()]
    with pytest.raises(MissingDataError, match="unfinished"):
        millstream.open(url)
    with pytest.raises(MissingDataError, match="at the target only"):
        millstream.open(directory / freed[0])
    s3_proxy.reset_counts()
    again = run_again(text, url, s3_proxy.endpoint)
    assert again.returncode == 0, again.stderr
    millstream.tokenize(
        text,
        "bytes",
        tmp_path / "local",
        workers=1,
        shard_bytes=SHARD_BYTES,
        task_bytes=SHARD_BYTES // 8,
    )
    expected, found = contents(tmp_path / "local"), stored(s3, bucket, "tokens")
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in expected.keys() - TIMED)
    assert s3_proxy.counts()["requests"]["PUT"] <= len(expected) - len(freed)
    assert staged() == []


def test_a_shard_that_is_written_again_before_it_is_sent(s3, bucket, s3_environment, tmp_path):
    write(tmp_path / "staged", 3)
    expected = contents(tmp_path / "staged")
    streams = list((tmp_path / "staged").glob("*.stream"))

    def write_again(_):
        """What a task does that was killed before it was noted as done."""
        for path in streams:
            copy = path.with_suffix(".new")
            copy.write_bytes(path.read_bytes())
            copy.replace(path)

    target = find_target(f"s3://{bucket}/data", None)
    upload = EarlyUpload(tmp_path / "staged", target, write_again, NUMBERED)
    wait_until(lambda: upload.has_failed or all(map(is_freed, streams)))
    upload.finish()
    assert not upload.has_failed
    found = stored(s3, bucket, "data")
    assert found == {name: expected[name] for name in found}
    assert len(found) == 9


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_freed_file_that_is_gone_from_the_bucket_is_an_error(
    s3, bucket, s3_proxy, s3_environment, text, is_replaced
):
    url = f"s3://{bucket}/tokens"
    (lost, *_) = killed_job(text, url, s3_proxy.endpoint)
    store = s3.store(bucket)
    if is_replaced:
        size = obstore.head(store, f"tokens/{lost}")["size"]
        obstore.put(store, f"tokens/{lost}", bytes(size))
    else:
        obstore.delete(store, f"tokens/{lost}")
    for _ in range(2):
        again = run_again(text, url, s3_proxy.endpoint)
        assert again.returncode != 0
        assert f"{url}/{lost}: " in again.stderr
        assert f"remove {url} and " in again.stderr
        assert "kept" not in again.stderr
        assert "millstream.json" not in stored(s3, bucket, "tokens")


def test_a_server_that_fails_ends_the_job_and_the_next_run_continues(
    s3, bucket, s3_proxy, s3_environment, tmp_path, text, small_room
):
    url = f"s3://{bucket}/tokens"
    remote = Remote(endpoint=s3_proxy.endpoint, total_seconds=0.5)

    def fail(progress):
        if progress.num_tasks_done == 30:
            s3_proxy.set(rates={"503": 1.0}, methods=["PUT", "POST"])

    with pytest.raises(ReadError, match=r"no answer after.*run the same command again"):
        tokenize(text, url, workers=1, remote=remote, progress=fail)
    num_arrived = len(stored(s3, bucket, "tokens"))
    assert num_arrived > 20
    s3_proxy.set()
    s3_proxy.reset_counts()
    tokenize(text, url, workers=1, remote=remote)
    tokenize(text, tmp_path / "local", workers=1)
    expected, found = contents(tmp_path / "local"), stored(s3, bucket, "tokens")
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in expected.keys() - TIMED)
    assert s3_proxy.counts()["requests"]["PUT"] <= len(expected) - num_arrived + 10


def test_a_failed_block_removes_what_was_uploaded(s3, bucket, s3_environment, small_room):
    def fail(k):
        if k == 20:
            wait_until(lambda: len(stored(s3, bucket)) > 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(f"s3://{bucket}/data", after=fail)
    assert stored(s3, bucket) == {}
    assert staged() == []


def killed_writer(s3, bucket, url, proxy):
    """Kill a writer of which shards have arrived; of one it does not know."""
    program = (
        "import time\n"
        "from tests.helpers.uploads import write_shards\n"
        "sleep = lambda k: time.sleep(60 if k == 20 else 0)\n"
        f"write_shards({url!r}, 60, {SHARD_BYTES}, seed=1, after=sleep)\n"
    )
    proxy.set(rates={"stall": 1.0}, path="00011.stream", methods=["PUT"])
    environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.endpoint}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        wait_until(lambda: {"00011.stream", "00019.checksums"} <= set(stored(s3, bucket, "data")))
        process.send_signal(signal.SIGKILL)
    proxy.set()


def test_a_failed_block_after_a_killed_writer_removes_what_both_uploaded(
    s3, bucket, s3_proxy, s3_environment
):
    url = f"s3://{bucket}/data"
    killed_writer(s3, bucket, url, s3_proxy)
    with pytest.raises(ZeroDivisionError):
        write(url, remote=Remote(endpoint=s3_proxy.endpoint), after=lambda k: 1 // (1 - k))
    assert stored(s3, bucket) == {}
    assert staged() == []


def test_a_writer_after_a_killed_one_leaves_none_of_its_shards(
    s3, bucket, s3_proxy, s3_environment, tmp_path
):
    url = f"s3://{bucket}/data"
    killed_writer(s3, bucket, url, s3_proxy)
    write(url, 5, remote=Remote(endpoint=s3_proxy.endpoint))
    write(tmp_path / "local", 5)
    assert stored(s3, bucket, "data") == contents(tmp_path / "local")


def test_a_job_of_another_machine_is_refused_at_the_start(
    bucket, s3_proxy, s3_environment, text, tmp_path, monkeypatch
):
    url = f"s3://{bucket}/tokens"
    killed_job(text, url, s3_proxy.endpoint)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.raises(
        DatasetExistsError, match=r"unfinished\.json: a job on .* was begun here, staged"
    ):
        tokenize(text, url, workers=1, progress=itertools.count)


def test_a_dataset_that_was_finished_meanwhile_is_not_touched(
    s3, bucket, s3_environment, tmp_path, monkeypatch, small_room
):
    url = f"s3://{bucket}/data"
    late = millstream.Writer(url, vocab_size=1 << 16, shard_bytes=1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))  # of another machine
    write(url, 3)
    expected = stored(s3, bucket, "data")
    with pytest.raises(DatasetExistsError, match=r"millstream\.json: another job has written"):
        wait_until(lambda: late.append([1]))
    late.abort()
    assert stored(s3, bucket, "data") == expected
