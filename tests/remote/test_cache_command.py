"""`millstream cache`: shows, warms and clears the cache of remote data."""

import subprocess
import sys

import pytest

import millstream
from millstream.read.files import FileKind
from tests.helpers.remote_data import batches_of, cached_bytes, plain, upload, write_tokens

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
    command = [sys.executable, "-m", "millstream", "cache", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def loader(data, rank, position=0):
    found = millstream.Loader(
        data.windows(1024), 8, seed=3, rank=rank, ranks=4, output="numpy", check_ranks=False
    )
    found.load_state_dict(found.state_dict() | {"position": position})
    return found


WARM = ["--seq-len", 1024, "--batch-size", 8, "--seed", 3, "--ranks", 4]


def blocks_of(data, loaders, num_steps):
    """The blocks that steps read: pairs of shard and number."""
    found = set()
    for each in loaders:
        ranges = each.new_step_ranges()
        for _ in range(num_steps):
            for _, kind, shard, start, stop in ranges.take()[1].tolist():
                assert kind == FileKind.RECORDS
                found |= {(shard, block) for block in range(start >> 12, (stop - 1 >> 12) + 1)}
    return found


@pytest.mark.parametrize("position", [0, 320])
def test_warm_fetches_what_the_steps_of_ranks_read_and_nothing_else(local, url, position):
    text = run("warm", url, *WARM, "--rank", "1-2", "--position", position, "--steps", 3)
    data = millstream.open(url)
    wanted = blocks_of(data, [loader(data, rank, position) for rank in (1, 2)], 3)
    files = [data.reader.mirrored(shard, FileKind.RECORDS) for shard in range(len(data.shards))]
    assert wanted == {
        (shard, block) for shard, file in enumerate(files) for block in file.blocks.present()
    }
    assert f"fetched {len(wanted) * 4096 / 1e6:,.1f} MB for 3 steps of 2 ranks" in text
    for rank in (1, 2):
        batches = loader(data, rank, position)
        assert batches_of(batches, 3) == batches_of(loader(local, rank, position), 3)


@pytest.fixture
def mixture(tmp_path, url):
    """A file that mixes remote with local data."""
    lines = ["seq_len = 1024", "seed = 3", "[sources.far]", f"data = {url!r}", "weight = 0.5"]
    lines += ["[sources.near]", "data = 'data'", "weight = 0.5"]
    (tmp_path / "mixture.toml").write_text("\n".join(lines))
    return tmp_path / "mixture.toml"


def test_warm_fetches_what_the_steps_of_a_mixture_read(mixture):
    assert "for 5 steps of 1 rank" in run("warm", mixture, "--batch-size", 8, "--steps", 5)
    assert run("warm", mixture, "--batch-size", 8, "--steps", 5).startswith("fetched 0.0 MB")


def test_options_of_remote_data_hold_for_the_sources_of_a_mixture(mixture):
    text = run("warm", mixture, "--endpoint", "127.0.0.1:9", status=1)
    assert "the endpoint is '127.0.0.1:9'; it must be a URL" in text
    assert "the cache is off" in run("warm", mixture, "--cache-bytes", 0, status=1)


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
    shown = run("show", url)
    assert f"files  {url}\n" in shown
    assert "other" not in shown
    assert run("clear", url).startswith("freed 0.")
    shown = run("show")
    assert url not in shown
    assert f"s3://{bucket}/other" in shown
    assert "not in the cache" in run("clear", url, status=1)
    run("clear")
    assert cached_bytes(tmp_path / "cache") == 0


@pytest.mark.parametrize("damaged", ["mirror.json", "maps"])
def test_files_that_cannot_be_used_any_more_count_and_are_cleared(url, local, tmp_path, damaged):
    run("warm", url, *WARM, "--steps", 2)
    cache = tmp_path / "cache"
    if damaged == "maps":
        for path in cache.rglob("*.stream.blocks"):
            path.unlink()
    else:
        next(cache.rglob(damaged)).write_text("null")
    num_bytes = cached_bytes(cache)
    assert f"{num_bytes / 1e6:,.1f} MB  in all" in run()
    assert f"freed {num_bytes / 1e6:,.1f} MB" in run("clear")
    assert cached_bytes(cache) == 0
    assert batches_of(loader(millstream.open(url), 0), 3) == batches_of(loader(local, 0), 3)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 16])
def test_clear_leaves_alone_what_a_loader_will_read(local, url, cache_bytes):
    """The loader has found files of an earlier run, and learns their ETags only when it reads."""
    remote = millstream.Remote(cache_bytes=cache_bytes, ahead_bytes=1 << 16)
    data = millstream.open(url)
    data.windows(1024).read(range(0, 900, 100))
    expected, found = iter(stored_order(local)), []
    with stored_order(millstream.open(url, remote=remote)) as batches:
        for batch in batches:
            found.append(plain(batch))
            assert found[-1] == plain(next(expected))
            if len(found) == 1:
                run("clear")
    assert len(found) == len(stored_order(local))


def stored_order(data):
    return millstream.Loader(data.windows(1024), 8, shuffle=False, prefetch=1, output="numpy")


def test_local_data_cannot_be_warmed(local):
    text = run("warm", local.shards[0].directory, *WARM, status=1)
    assert "the dataset is local; only remote data is cached" in text
