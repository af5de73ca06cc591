"""`penstock cache`: shows, warms and clears the cache of remote data."""

import re
import subprocess
import sys

import pytest

import penstock
from tests.helpers.remote_data import batches_of, cached_bytes, upload, write_tokens

pytestmark = pytest.mark.process


@pytest.fixture
def local(tmp_path):
    """2 MB in two shards."""
    return write_tokens(tmp_path / "data", 1_000_000)


@pytest.fixture
def url(s3, bucket, local, s3_environment, s3_proxy, monkeypatch):
    upload(s3.store(bucket), local.shards[0].directory, "data/")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.endpoint)
    return f"s3://{bucket}/data"


def run(*words, status=0):
    command = [sys.executable, "-m", "penstock", "cache", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def loader(data, rank, position=0):
    found = penstock.Loader(
        data.windows(1024), 8, seed=3, rank=rank, ranks=4, output="numpy", check_ranks=False
    )
    found.load_state_dict(found.state_dict() | {"position": position})
    return found


WARM = ["--seq-len", 1024, "--batch-size", 8, "--seed", 3, "--ranks", 4]


@pytest.mark.parametrize("position", [0, 320])
def test_warm_fetches_what_the_steps_of_ranks_read_and_nothing_else(
    local, url, s3_proxy, tmp_path, position
):
    text = run("warm", url, *WARM, "--rank", "1-2", "--position", position, "--steps", 3)
    told = float(re.search(r"fetched ([\d.]+) MB for 3 steps of 2 ranks", text)[1])
    rows = 2 * 3 * 8
    assert rows * 2050 <= told * 1e6 + 5e4 <= rows * 2 * 4096 + 1e5  # a row lies in 1 or 2 blocks
    assert cached_bytes(tmp_path / "cache") < told * 1e6 + 1e5
    s3_proxy.reset_counts()
    # A limit too small for all files: nothing is fetched but what steps need.
    data = penstock.open(url, remote=penstock.Remote(cache_bytes=1 << 20, ahead_bytes=1 << 16))
    opening = s3_proxy.counts()["body_bytes"]
    for rank in (1, 2):
        batches = loader(data, rank, position)
        assert batches_of(batches, 3) == batches_of(loader(local, rank, position), 3)
    fetched_later = s3_proxy.counts()["body_bytes"] - opening
    s3_proxy.reset_counts()
    cold = loader(data, 3, position)
    assert batches_of(cold, 3) == batches_of(loader(local, 3, position), 3)
    assert s3_proxy.counts()["body_bytes"] > 3 * 8 * 2050
    # Checksums, and steps after the third, which a loader requests ahead.
    assert fetched_later < 2 * (1 << 16) + 2 * 8 * 1024


def test_warming_more_than_the_cache_holds_is_told_with_what_fits(url, tmp_path):
    limit = 300_000
    text = run("warm", url, *WARM, "--steps", 100, "--cache-bytes", limit, status=1)
    assert "the cache is full after 0 of 100 steps of rank 0 of 4" in text
    assert "--cache-bytes" in text
    assert cached_bytes(tmp_path / "cache") <= limit


def test_clear_removes_what_is_named_and_show_lists_the_rest(url, s3, bucket, local, tmp_path):
    upload(s3.store(bucket), local.shards[0].directory, "other/")
    for each in (url, f"s3://{bucket}/other"):
        run("warm", each, *WARM, "--steps", 2)
    shown = run()
    assert f"files  {url}\n" in shown
    assert f"files  s3://{bucket}/other\n" in shown
    assert "in all, of at most" in shown
    assert run("clear", url).startswith("freed 0.")
    shown = run("show")
    assert url not in shown
    assert f"s3://{bucket}/other" in shown
    assert "not in the cache" in run("clear", url, status=1)
    run("clear")
    assert cached_bytes(tmp_path / "cache") == 0


def test_local_data_cannot_be_warmed(local):
    text = run("warm", local.shards[0].directory, *WARM, status=1)
    assert "the dataset is local; only remote data is cached" in text
