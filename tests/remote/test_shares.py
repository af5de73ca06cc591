"""Datasets that several machines write to a store together, on a real server."""

import signal
import subprocess
import sys

import numpy as np
import obstore
import pytest

import millstream
from millstream.cache import cache_directory
from millstream.copying.freed import is_freed
from millstream.errors import DatasetExistsError, MissingDataError, UsageError
from tests.helpers.remote_data import upload
from tests.helpers.uploads import contents, staged, stored
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SHARD_BYTES, TASK_BYTES = 1 << 16, 1 << 15
TIMED = {"report.json", "report.checksums"}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{k:07d} {'x' * 499}\n" for k in range(4000)))
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that changes to another machine: one with another cache."""
    return lambda name: monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{name}"))


def tokenize(text, target, **options):
    sizes = {"shard_bytes": SHARD_BYTES, "task_bytes": TASK_BYTES, "workers": 1}
    return millstream.tokenize(text, "bytes", target, **sizes, **options)


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in expected.keys() - TIMED)


def kill_share(text, url, share):
    """Run a share of the tasks in another process, and kill it when it has freed some shards."""
    command = [sys.executable, "-m", "millstream", "tokenize", str(text), "--tokenizer", "bytes"]
    command += ["--out", url, "--workers", "1", "--task", share]
    command += ["--shard-bytes", str(SHARD_BYTES), "--task-bytes", str(TASK_BYTES)]

    def num_freed():
        return sum(map(is_freed, cache_directory("staging").glob("*/*.stream")))

    with subprocess.Popen(command) as process:
        wait_until(lambda: num_freed() >= 5)
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("split", [None, millstream.Split(fraction=0.1)])
def test_shares_of_three_machines_make_the_local_dataset(
    s3, bucket, s3_environment, tmp_path, text, machine, split
):
    url = f"s3://{bucket}/tokens"
    tokenize(text, tmp_path / "local", split=split)
    machine("a")
    if split is None:
        kill_share(text, url, "0/3")
        assert staged() != []
    assert tokenize(text, url, task=(0, 3), split=split) is None
    assert staged() == []
    machine("b")
    tokenize(text, url, task=(1, 3), split=split)
    with pytest.raises(
        MissingDataError, match=f"unfinished.*when all shares are done, run millstream finish {url}"
    ):
        millstream.open(url)
    machine("finishing")
    with pytest.raises(MissingDataError, match=f"{url}: 20 of 62 tasks have not been run"):
        millstream.finish(url)
    assert staged() == []
    machine("c")
    tokenize(text, url, task=(2, 3), split=split)
    machine("finishing")
    report = millstream.finish(url)
    assert report.tokens == sum(
        millstream.open(url, split=side).num_records
        for side in (["train", "val"] if split else [None])
    )
    check_equal(stored(s3, bucket, "tokens"), contents(tmp_path / "local"))
    assert staged() == []
    assert millstream.finish(url).was_finished
    assert tokenize(text, url, task=(0, 3), split=split) is None
    assert staged() == []


def test_a_share_that_ran_twice_is_the_same(s3, bucket, s3_environment, tmp_path, text, machine):
    url = f"s3://{bucket}/tokens"
    machine("a")
    kill_share(text, url, "0/1")  # and lost for ever
    machine("b")
    tokenize(text, url, task=(0, 1))
    machine("c")
    tokenize(text, url, task=(0, 1))  # finds all tasks done
    millstream.finish(url)
    tokenize(text, tmp_path / "local")
    check_equal(stored(s3, bucket, "tokens"), contents(tmp_path / "local"))


def test_a_shard_that_is_gone_is_written_again(s3, bucket, s3_environment, tmp_path, text, machine):
    url, store = f"s3://{bucket}/tokens", s3.store(bucket)
    machine("a")
    tokenize(text, url, task=(0, 1))
    obstore.put(store, "tokens/00003-00000.stream", b"other")
    machine("b")
    with pytest.raises(MissingDataError, match=r"00003-00000.*Remove .*/00003\.part\.json, run"):
        millstream.finish(url)
    obstore.delete(store, "tokens/00003.part.json")
    tokenize(text, url, task=(0, 1))
    millstream.finish(url)
    tokenize(text, tmp_path / "local")
    check_equal(stored(s3, bucket, "tokens"), contents(tmp_path / "local"))


def test_other_options_are_refused(bucket, s3_environment, text, machine):
    url = f"s3://{bucket}/tokens"
    machine("a")
    tokenize(text, url, task=(0, 2))
    machine("b")
    with pytest.raises(DatasetExistsError, match="add is eos there, both here"):
        tokenize(text, url, task=(1, 2), add="both")
    with pytest.raises(DatasetExistsError, match="a job of several machines"):
        tokenize(text, url)
    with pytest.raises(UsageError, match=r"task with shuffle needs.*millstream copy"):
        tokenize(text, url, task=(1, 2), shuffle=0)


def write_part(path, part, *, num_shards=3):
    generator = np.random.default_rng(part)
    with millstream.Writer(path, vocab_size=1 << 16, shard_bytes=1, part=part) as writer:
        for _ in range(num_shards):
            writer.append(generator.integers(0, 1 << 16, 1000))


def test_a_part_of_a_killed_writer_is_replaced(s3, bucket, s3_environment, tmp_path):
    url = f"s3://{bucket}/data"
    program = (
        "import time, millstream\n"
        f"writer = millstream.Writer({url!r}, vocab_size=100, shard_bytes=1, part=0)\n"
        "for k in range(9): writer.append([k])\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        wait_until(lambda: "00000-00007.checksums" in stored(s3, bucket, "data"))
        process.send_signal(signal.SIGKILL)
    write_part(url, 1)
    write_part(url, 0)
    millstream.finish(url)
    for part in range(2):
        write_part(tmp_path / "local", part)
    millstream.finish(tmp_path / "local")
    assert stored(s3, bucket, "data") == contents(tmp_path / "local")


def test_data_that_was_opened_too_early_opens_when_it_is_finished(bucket, s3_environment):
    url = f"s3://{bucket}/parts"
    write_part(url, 0)
    with pytest.raises(MissingDataError, match="unfinished"):
        millstream.open(url)
    millstream.finish(url, parts=1)
    for name in ("", "/millstream.json"):
        assert millstream.open(url + name).num_records > 0


def test_text_that_was_opened_too_early_opens_when_it_is_finished(
    s3, bucket, s3_environment, tmp_path, text
):
    millstream.repack(text, tmp_path / "shards")
    store, mark = s3.store(bucket), "shards/unfinished.json"
    obstore.put(store, mark, b"{}")
    upload(store, tmp_path / "shards", "shards/")
    with pytest.raises(MissingDataError, match="unfinished"):
        millstream.Source(f"s3://{bucket}/shards")
    obstore.delete(store, mark)
    assert millstream.Source(f"s3://{bucket}/shards/shard_00000.parquet").size_bytes > 0


def test_parts_of_writers_are_joined(s3, bucket, s3_environment, tmp_path, machine):
    url = f"s3://{bucket}/data"
    for part in range(3):
        machine(part)
        write_part(url, part)
        write_part(tmp_path / "local", part)
        assert staged() == []
    with pytest.raises(DatasetExistsError, match="part 1 is finished"):
        write_part(url, 1)
    machine("finishing")
    with pytest.raises(MissingDataError, match=f"{url}: the parts are incomplete: missing"):
        millstream.finish(url, parts=4)
    millstream.finish(url, parts=3)
    millstream.finish(tmp_path / "local")
    assert stored(s3, bucket, "data") == contents(tmp_path / "local")
    with pytest.raises(DatasetExistsError, match="finished"):
        write_part(url, 3)
