"""`Writer`, `tokenize`, `convert` and `repack` with URLs as targets, on a real server."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import obstore
import pytest

import millstream
from millstream.cache import cache_directory
from millstream.cli import main
from millstream.copying.staging import StagedOutput
from millstream.errors import DatasetExistsError, MissingDataError, ReadError, UsageError
from millstream.remote.options import Remote
from tests.helpers.uploads import contents, staged, stored
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]


def write(path, *, fails=False, **options):
    """Shards that are uploaded whole, and one that is uploaded in parts."""
    generator = np.random.default_rng(0)
    with millstream.Writer(path, vocab_size=1 << 16, shard_bytes=1, **options) as writer:
        for size in (1000, 3 << 20, 10, 8 << 20):
            writer.append(generator.integers(0, 1 << 16, size))
        if fails:
            raise ZeroDivisionError


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"document {k} {'x' * (k % 97)}\n" for k in range(20_000)))
    return path


def test_a_writer_uploads_what_it_would_write_locally(s3, bucket, s3_environment, tmp_path):
    write(tmp_path / "local")
    url = f"s3://{bucket}/data"
    write(url)
    assert stored(s3, bucket, "data") == contents(tmp_path / "local")
    assert millstream.open(url).fingerprint == millstream.open(tmp_path / "local").fingerprint
    assert staged() == []


def test_nothing_is_there_before_a_writer_finishes(s3, bucket, s3_environment):
    writer = millstream.Writer(f"s3://{bucket}/data", vocab_size=100, shard_bytes=1)
    writer.append([1, 2, 3])
    assert repr(writer).startswith(f"<Writer s3://{bucket}/data: 1 document")
    assert stored(s3, bucket) == {}
    writer.finish()
    assert "millstream.json" in stored(s3, bucket, "data")


def test_a_failed_block_leaves_nothing(s3, bucket, s3_environment):
    with pytest.raises(ZeroDivisionError):
        write(f"s3://{bucket}/data", fails=True)
    assert stored(s3, bucket) == {}
    assert staged() == []


def test_tokenize_convert_and_repack_upload_the_same_files(
    s3, bucket, s3_environment, tmp_path, text
):
    split = millstream.Split(fraction=0.1)
    for target in (tmp_path / "tokens", f"s3://{bucket}/tokens"):
        millstream.tokenize(text, "bytes", target, split=split, workers=2, shuffle=0)
    expected = contents(tmp_path / "tokens")
    found = stored(s3, bucket, "tokens")
    assert found.keys() == expected.keys()
    timed = {"report.json", "report.checksums"}
    assert all(found[name] == expected[name] for name in expected.keys() - timed)
    data = millstream.open(tmp_path / "tokens", split="train")
    millstream.convert(data, tmp_path / "megatron", "megatron")
    report = millstream.convert(data, f"s3://{bucket}/megatron", "megatron")
    assert stored(s3, bucket, "megatron") == contents(tmp_path / "megatron")
    assert sorted(map(str, report.files)) == ["00000.bin", "00000.idx"]
    millstream.repack(text, tmp_path / "packed")
    report = millstream.repack(text, f"s3://{bucket}/packed")
    assert stored(s3, bucket, "packed") == contents(tmp_path / "packed")
    assert [str(path) for path in report.files] == ["shard_00000.parquet"]
    assert staged() == []


@pytest.mark.usefixtures("s3_environment")
def test_commands_write_to_the_endpoint_that_they_are_given(
    s3, bucket, text, tmp_path, monkeypatch
):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    at, url = ["--endpoint", s3.endpoint], f"s3://{bucket}"
    copied_to = ["--target-endpoint", s3.endpoint]
    copied_from = ["--source-endpoint", s3.endpoint]
    raw = f"{url}/raw/text.txt"
    for arguments in (
        ["copy", str(text), f"{url}/raw", *copied_to],
        ["tokenize", raw, "--tokenizer", "bytes", "--out", f"{url}/tokens", *at, "--task", "0/1"],
        ["finish", f"{url}/tokens", *at],
        ["convert", f"{url}/tokens", f"{url}/flat", "--to", "flat", *at],
        ["repack", raw, "--out", f"{url}/packed", *at],
        ["copy", f"{url}/packed", str(tmp_path / "packed"), *copied_from],
    ):
        assert main(arguments) == 0
    assert "00000.bin" in stored(s3, bucket, "flat")
    assert (tmp_path / "packed" / "shard_00000.parquet").exists()


def test_a_finished_target_is_refused_before_the_work(s3, bucket, s3_environment, text):
    url = f"s3://{bucket}/data"
    write(url)
    before = stored(s3, bucket)
    data = millstream.open(url)
    for call in (
        lambda: write(url),
        lambda: millstream.tokenize(text, "bytes", url),
        lambda: millstream.convert(data, url, "flat"),
        lambda: millstream.repack(text, url),
    ):
        with pytest.raises(DatasetExistsError, match=r"data/millstream\.json: already a finished"):
            call()
    assert stored(s3, bucket) == before
    millstream.repack(text, f"s3://{bucket}/shards")
    with pytest.raises(DatasetExistsError, match=r"shards/\.finished\.json: already a finished"):
        millstream.tokenize(text, "bytes", f"s3://{bucket}/shards")
    assert staged() == []


def test_a_job_that_has_finished_is_not_run_again(s3, bucket, s3_environment, text, tmp_path):
    def url(name):
        return f"s3://{bucket}/{name}"

    write(tmp_path / "data")
    jobs = {
        "tokens": lambda **options: millstream.tokenize(
            text, "bytes", url("tokens"), split=millstream.Split(fraction=0.1), **options
        ),
        "flat": lambda **options: millstream.convert(
            millstream.open(tmp_path / "data"), url("flat"), "flat", **options
        ),
        "shards": lambda **options: millstream.repack(text, url("shards"), **options),
    }
    for name, run in jobs.items():
        first, before = run(), stored(s3, bucket)
        again = run()
        assert (first.was_finished, again.was_finished) == (False, True)
        assert replace(again, was_finished=False) == first
        different = f"^{url(name)}: holds the result of another job: shard_"
        with pytest.raises(DatasetExistsError, match=different):
            run(**{"shard_chars" if name == "shards" else "shard_bytes": 1 << 20})
        assert stored(s3, bucket) == before
    obstore.delete(s3.store(bucket), "flat/00000.bin")
    with pytest.raises(DatasetExistsError, match=r"flat/00000\.bin: missing, or changed since"):
        jobs["flat"]()
    assert staged() == []


def test_a_killed_upload_continues(s3, bucket, s3_proxy, s3_environment, text, tmp_path):
    url = f"s3://{bucket}/tokens"
    command = [sys.executable, "-m", "millstream", "tokenize", str(text), "--tokenizer", "bytes"]
    command += ["--out", url, "--workers", "1", "--shard-bytes", "60000", "--task-bytes", "10MB"]
    environment = {**os.environ, "AWS_ENDPOINT_URL": s3_proxy.endpoint}
    s3_proxy.set(latency_s=0.1)
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: s3_proxy.counts()["requests"].get("PUT", 0) >= 30)
        process.send_signal(signal.SIGKILL)
    with pytest.raises(MissingDataError, match=r"unfinished.*millstream tokenize again"):
        millstream.open(url)
    num_arrived = len(stored(s3, bucket, "tokens"))
    assert num_arrived > 10
    s3_proxy.set()
    s3_proxy.reset_counts()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    millstream.tokenize(
        text, "bytes", tmp_path / "local", workers=1, shard_bytes=60_000, task_bytes=10_000_000
    )
    expected, found = contents(tmp_path / "local"), stored(s3, bucket, "tokens")
    assert found.keys() == expected.keys()
    timed = {"report.json", "report.checksums"}
    assert all(found[name] == expected[name] for name in expected.keys() - timed)
    assert s3_proxy.counts()["requests"]["PUT"] < len(expected) - 10
    assert staged() == []


def test_an_upload_that_fails_keeps_the_work(
    s3, bucket, s3_proxy, s3_environment, tmp_path, monkeypatch
):
    url, endpoint = f"s3://{bucket}/data", s3_proxy.endpoint
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    # Shards fail, but not the mark, which is uploaded while there may be nothing to keep yet.
    s3_proxy.set(rates={"503": 1.0}, methods=["PUT", "POST"], path="/data/0")
    with pytest.raises(
        ReadError, match=r"kept in .*staging.*millstream\.copy\(.*same millstream\.Remote"
    ):
        write(url, remote=Remote(endpoint=endpoint, total_seconds=1))
    assert "data/millstream.json" not in stored(s3, bucket)
    (directory,) = [path for path in cache_directory("staging").iterdir() if path.is_dir()]
    s3_proxy.set()
    with pytest.raises(DatasetExistsError, match=f"millstream copy {directory} {url}"):
        write(url)  # the variable says the same
    millstream.copy(directory, url, remote=Remote(endpoint=endpoint))
    assert staged() == []
    write(tmp_path / "local")
    assert stored(s3, bucket, "data") == contents(tmp_path / "local")


def test_what_killed_runs_left_in_the_cache_is_removed(bucket, s3_environment, text):
    url = f"s3://{bucket}/packed"
    directory = StagedOutput(url, "repack", None).directory
    removed = directory.with_name(f"{directory.name}.{'0' * 16}.tmp")
    removed.mkdir(parents=True)
    directory.with_name(f"{directory.name}.uploading.{'0' * 16}.tmp").touch()
    millstream.repack(text, url)
    assert staged() == []
    removed.mkdir()
    assert millstream.repack(text, url).was_finished
    assert staged() == []


def test_a_repeated_job_sends_what_is_left(s3, bucket, s3_proxy, s3_environment, text):
    url = f"s3://{bucket}/packed"
    s3_proxy.set(rates={"503": 1.0}, path="shard_00000.parquet")
    remote = Remote(endpoint=s3_proxy.endpoint, total_seconds=1)
    with pytest.raises(ReadError, match="run the same command again"):
        millstream.repack(text, url, remote=remote)
    s3_proxy.set()
    assert millstream.repack(text, url, remote=remote).was_finished
    assert "shard_00000.parquet" in stored(s3, bucket, "packed")
    assert staged() == []


@pytest.mark.usefixtures("s3_environment")
def test_a_full_disk_says_where_the_output_is_staged(bucket, text, small_disk, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    url = f"s3://{bucket}/data"
    with pytest.raises(ReadError, match=r"copies/.*No space left.*set XDG_CACHE_HOME"):
        millstream.copy(text, url)
    os.truncate(filler, filler.stat().st_size - (64 << 10))
    with pytest.raises(OSError, match=r"No space left.*staged in .*/staging/.*XDG_CACHE_HOME"):
        millstream.repack(text, f"{url}-2", to="jsonl")
    with pytest.raises(OSError, match=r"No space left.*staged in .*/staging/.*XDG_CACHE_HOME"):
        write(f"{url}-3")
    writer = millstream.Writer(f"{url}-4", vocab_size=1 << 16)
    with pytest.raises(OSError, match="No space left") as failure, writer:
        for _ in range(100):  # collected until the end
            writer.append(np.zeros(1000, np.uint16))
        writer.finish()
    assert str(failure.value).count("staged in") == 1


def test_what_cannot_be_written_remotely_is_refused(bucket, s3_environment, text, monkeypatch):
    url = f"s3://{bucket}/data"
    for options in ({"executor": "ray"}, {"task": (0, 2), "shuffle": 0}):
        with pytest.raises(UsageError, match=r"shared file system.*millstream copy"):
            millstream.tokenize(text, "bytes", url, **options)
    with pytest.raises(UsageError, match="HTTP servers cannot be written to"):
        millstream.Writer("https://example.com/data", vocab_size=100)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ReadError, match=r"access denied.*AWS_SECRET_ACCESS_KEY"):
        millstream.tokenize(text, "bytes", url, remote=Remote(request_seconds=9))
    assert staged() == []
