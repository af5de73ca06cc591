"""The cache of remote data: its limit, its disk, and objects that change behind it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import obstore
import pytest

import millstream
from millstream.cli import main
from millstream.errors import FormatError, MillstreamError
from millstream.load.warming import warm
from millstream.read.files import FileKind
from tests.helpers.programs import run_python
from tests.helpers.remote_data import batches_of, cached_bytes, plain, upload, write_tokens
from tests.helpers.waiting import wait_until

pytestmark = [
    pytest.mark.process,
    # On a machine that is busy, a loop may wait for longer than the warning allows.
    pytest.mark.filterwarnings("ignore::millstream.WaitingWarning"),
]


@pytest.fixture
def local(tmp_path):
    """1 MB in five shards."""
    return write_tokens(tmp_path / "data", 500_000, shard_bytes=200_000)


@pytest.fixture
def url(s3, bucket, local, s3_environment):
    upload(s3.store(bucket), local.shards[0].directory, "data/")
    return f"s3://{bucket}/data"


IN_BLOCKS = millstream.BlockShuffle(128, inside=True)
"""Rows that are shuffled globally are not stored in a cache that is much smaller than the data."""


def loader(data, **options):
    return millstream.Loader(data.windows(64), 4, **{"seed": 7, "output": "numpy"} | options)


READ = """
import sys
import millstream
from tests.helpers.remote_data import batches_of
import hashlib

url, limit, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
data = millstream.open(url, remote=millstream.Remote(cache_bytes=limit, ahead_bytes=1 << 16))
loader = millstream.Loader(data.windows(64), 4, seed=7, output="numpy")
print(hashlib.sha256(repr(batches_of(loader, count)).encode()).hexdigest())
"""


def digest_of(data, count):
    import hashlib

    return hashlib.sha256(repr(batches_of(loader(data), count)).encode()).hexdigest()


def test_all_data_are_read_once_and_then_from_the_cache(local, url, s3_proxy):
    remote = millstream.Remote(endpoint=s3_proxy.endpoint)
    expected = batches_of(loader(local))
    assert batches_of(loader(millstream.open(url, remote=remote))) == expected
    first = s3_proxy.counts()["body_bytes"]
    assert first < 1.2 * sum(shard.files[".stream"].size_bytes for shard in local.shards)
    s3_proxy.reset_counts()
    assert batches_of(loader(millstream.open(url, remote=remote))) == expected
    assert s3_proxy.counts()["body_bytes"] < 20_000


def test_files_that_sources_of_a_mixture_share_are_copied_once(local, url, s3_proxy):
    num_bytes = sum(shard.files[".stream"].size_bytes for shard in local.shards)
    remote = millstream.Remote(endpoint=s3_proxy.endpoint, cache_bytes=int(1.3 * num_bytes))
    data = millstream.open(url, remote=remote)
    mixture = millstream.mix(
        {"one": (data.windows(64), 1), "other": (data.documents(64, extras=()), 1)}
    )
    files = [data.reader.mirrored(shard, FileKind.RECORDS) for shard in range(len(data.shards))]
    s3_proxy.reset_counts()
    with millstream.Loader(mixture, 4, output="numpy") as batches:
        next(iter(batches))
        wait_until(lambda: all(file.blocks.is_whole for file in files), 10)
    assert s3_proxy.counts()["body_bytes"] < 1.1 * num_bytes


@pytest.mark.slow
def test_the_cache_goes_back_to_its_limit(tmp_path, s3, bucket, s3_environment):
    """It is measured every half second, and exceeds its limit by what is fetched meanwhile."""
    local = write_tokens(tmp_path / "large", 3_000_000, shard_bytes=1 << 20)
    upload(s3.store(bucket), tmp_path / "large", "large/")
    remote = millstream.Remote(cache_bytes=1 << 20, ahead_bytes=1 << 16)
    data = millstream.open(f"s3://{bucket}/large", remote=remote)
    found = []
    with loader(data, shuffle=IN_BLOCKS) as batches:
        for batch in batches:
            found.append(plain(batch))
            if len(found) in (500, 1000):
                wait_until(lambda: cached_bytes(tmp_path / "cache") <= 1 << 20, 10)
            if len(found) == 1500:
                break
    assert found == batches_of(loader(local, shuffle=IN_BLOCKS), 1500)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "limit"), [("windows", 1), ("windows", 200_000), ("packed", 200_000)]
)
def test_a_step_that_arrives_slowly_is_not_dropped_before_it_is_whole(
    local, url, s3_proxy, view, limit
):
    """It takes longer than the cache takes to look for blocks to drop."""
    s3_proxy.set(latency_s=0.1)
    remote = millstream.Remote(
        endpoint=s3_proxy.endpoint, cache_bytes=limit, max_requests=2, ahead_bytes=1 << 16
    )
    data = millstream.open(url, remote=remote)

    def batches(data):
        options = {"seed": 7, "output": "numpy", "prefetch": 1, "shuffle": IN_BLOCKS}
        return batches_of(millstream.Loader(getattr(data, view)(256), 24, **options), 2)

    assert batches(data) == batches(local)


def test_without_a_cache_only_manifests_and_tables_stay(local, url, tmp_path):
    data = millstream.open(url, remote=millstream.Remote(cache_bytes=0))
    assert batches_of(loader(data)) == batches_of(loader(local))
    assert cached_bytes(tmp_path / "cache") < 50_000


@pytest.mark.parametrize(
    ("seq_len", "is_stored"), [(64, False), (2048, False), (20_000, True)], ids=str
)
def test_scattered_rows_are_stored_only_if_that_saves_bytes(
    local, url, tmp_path, s3_proxy, seq_len, is_stored
):
    """Two blocks of 4 KiB would be fetched for a row of 4 KB, and kept for one epoch in five."""
    remote = millstream.Remote(endpoint=s3_proxy.endpoint, cache_bytes=200_000, ahead_bytes=1 << 16)
    data = millstream.open(url, remote=remote)
    both = [
        millstream.Loader(each.windows(seq_len), 1, seed=7, output="numpy")
        for each in (data, local)
    ]
    s3_proxy.reset_counts()
    assert batches_of(both[0], 100) == batches_of(both[1], 100)
    assert (cached_bytes(tmp_path / "cache") > 50_000) == is_stored
    if not is_stored:
        ahead_and_tables = (1 << 16) + 30_000
        assert s3_proxy.counts()["body_bytes"] < 1.1 * 100 * 2 * seq_len + ahead_and_tables


def test_scattered_rows_that_the_cache_has_are_not_fetched(local, url, s3_proxy):
    remote = millstream.Remote(endpoint=s3_proxy.endpoint, cache_bytes=400_000, ahead_bytes=1 << 16)
    data, local = (each.windows(2048) for each in (millstream.open(url, remote=remote), local))
    remote_loader, local_loader = (
        millstream.Loader(each, 4, seed=7, output="numpy") for each in (data, local)
    )
    warm([remote_loader], 8)
    s3_proxy.reset_counts()
    assert batches_of(remote_loader, 4) == batches_of(local_loader, 4)
    assert s3_proxy.counts()["body_bytes"] < 4 * 4096  # one step's


def remove_whole(directory):
    """Remove a directory that others may write to meanwhile, as `rm -r` does when repeated."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


def test_a_cache_that_was_removed_is_made_again(local, url, tmp_path):
    data, expected = millstream.open(url), batches_of(loader(local), 600)
    found = []
    with loader(data, prefetch=1) as batches:
        for batch in batches:
            found.append(plain(batch))
            if len(found) == 20:
                remove_whole(tmp_path / "cache")
            if len(found) == 600:
                break
    assert found == expected
    remove_whole(tmp_path / "cache")
    assert batches_of(loader(data), 600) == expected
    assert plain(data.windows(64)[3]) == plain(local.windows(64)[3])


@pytest.mark.slow
def test_a_full_disk_is_told_with_what_to_do(local, url, small_disk, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    done = run_python(READ, url, 1 << 30, 1500)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    for part in ("No space left", "disk of the cache is full", "MILLSTREAM_CACHE_BYTES", url):
        assert part in last, last
    assert main(["cache", "clear"]) == 0
    done = run_python(READ, url, 0, 300)
    assert done.stdout.strip() == digest_of(local, 300), done.stderr


@pytest.mark.slow
def test_a_limit_below_the_size_of_the_disk_keeps_it_from_filling(
    local, url, small_disk, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    done = run_python(READ, url, 0, 1500)
    assert done.stdout.strip() == digest_of(local, 1500), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="runs a program as another user")
def test_a_read_only_cache_is_told_with_what_to_do(url, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o555)
    program = "import os, sys; os.setuid(65534); import millstream; millstream.open(sys.argv[1])"
    done = run_python(program, url)
    if "ModuleNotFoundError" in done.stderr or "can't open" in done.stderr:
        pytest.skip("another user cannot read this checkout")
    assert "Permission denied; set XDG_CACHE_HOME to a writable directory" in done.stderr


def damage(path):
    """Flip a byte in every block, and keep the size."""
    content = bytearray(path.read_bytes())
    for at in range(7, len(content), 4096):
        content[at] ^= 1
    return bytes(content)


def test_a_damaged_object_is_found_by_the_block_checksums(local, url, s3, bucket):
    shard = local.shards[1].path(".stream")
    obstore.put(s3.store(bucket), f"data/{shard.name}", damage(shard))
    with pytest.raises(FormatError, match="block checksums; the object is damaged") as failure:
        batches_of(loader(millstream.open(url)))
    assert f"{url}/{shard.name}" in str(failure.value)


def test_an_object_that_was_damaged_between_two_runs_is_found(local, url, s3, bucket):
    """Some blocks are in the cache; those of both objects must not be mixed."""
    run_python(READ, url, 1 << 30, 1)
    shard = local.shards[2].path(".stream")
    obstore.put(s3.store(bucket), f"data/{shard.name}", damage(shard))
    data = millstream.open(url)
    expected = [plain(each) for each in loader(local)]
    found = []
    try:
        with loader(data) as batches:
            found = [plain(each) for each in batches]
    except FormatError as error:
        assert "block checksums" in str(error)  # noqa: PT017
    else:  # all of it was in the cache, as it was at first
        assert found == expected


@pytest.mark.slow
def test_an_object_that_changed_between_two_runs_is_read_anew(file_server, tmp_path):
    generator = np.random.default_rng(1)
    path = file_server.directory / "x.bin"
    for _ in range(3):
        (tmp_path / "new").write_bytes(generator.bytes(600_000))
        (tmp_path / "new").replace(path)
        local = millstream.open(path, format="flat:uint16")
        for count in (5, None):  # in part, then all
            data = millstream.open(f"{file_server.endpoint}/x.bin", format="flat:uint16")
            assert batches_of(loader(data), count) == batches_of(loader(local), count)


def test_a_dataset_that_was_written_again_is_read_anew(local, url, s3, bucket, tmp_path):
    assert batches_of(loader(millstream.open(url))) == batches_of(loader(local))
    other = write_tokens(tmp_path / "other", 500_000, shard_bytes=200_000, seed=1)
    upload(s3.store(bucket), tmp_path / "other", "data/")
    assert batches_of(loader(millstream.open(url))) == batches_of(loader(other))


def test_a_dataset_that_is_written_again_before_it_is_read_is_told(
    local, url, s3, bucket, tmp_path
):
    """Its shards have the same sizes, and no ETags were seen."""
    data = millstream.open(url)
    write_tokens(tmp_path / "other", 500_000, shard_bytes=200_000, seed=1)
    upload(s3.store(bucket), tmp_path / "other", "data/")
    with pytest.raises(FormatError, match=r"\.stream: .* the dataset has changed: open it again"):
        batches_of(loader(data))


def test_the_manifest_that_was_read_last_counts(local, url, s3, bucket, tmp_path):
    """A dataset of the one before must not fetch under its name what is there now."""
    view = millstream.open(url).windows(64)
    assert plain(view[0]) == plain(local.windows(64)[0])
    other = write_tokens(tmp_path / "other", 500_000, shard_bytes=200_000, seed=1)
    upload(s3.store(bucket), tmp_path / "other", "data/")
    assert plain(millstream.open(url).windows(64)[0]) == plain(other.windows(64)[0])
    remove_whole(tmp_path / "cache")
    with pytest.raises(FormatError, match=r"\.stream: has changed since it was opened"):
        view[0]


def test_a_damaged_block_of_the_cache_is_fetched_again_after_a_reboot(local, url, tmp_path):
    expected = digest_of(local, 900)
    assert run_python(READ, url, 1 << 30, 900).stdout.strip() == expected
    for map_path in (tmp_path / "cache").rglob("maps/**/*.stream.blocks"):
        content = bytearray(map_path.read_bytes())
        content[48:88] = b"another boot".ljust(40, b"\0")
        map_path.write_bytes(bytes(content))
    for path in (tmp_path / "cache").rglob("files/**/*.stream"):
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(b"\0" * 3000)
    assert run_python(READ, url, 1 << 30, 900).stdout.strip() == expected


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_two_services_with_buckets_of_one_name_have_caches_of_their_own(
    local, url, s3, s3_proxy, tmp_path, monkeypatch, variable
):
    """A mirror that another process made with another endpoint stays what it is."""
    monkeypatch.setenv(variable, s3_proxy.endpoint)
    expected = digest_of(local, 50)
    assert run_python(READ, url, 1 << 30, 50).stdout.strip() == expected
    size = cached_bytes(tmp_path / "cache")
    monkeypatch.setenv(variable, s3.endpoint)
    from millstream.remote.cache_space import cached_files

    assert sum(file.num_bytes for file in cached_files()) == size
    assert run_python(READ, url, 1 << 30, 50).stdout.strip() == expected
    assert len(list((tmp_path / "cache").rglob("mirror.json"))) == 2


@pytest.mark.slow
def test_a_small_cache_drops_files_that_nobody_uses(local, url, tmp_path, s3, bucket):
    write_tokens(tmp_path / "old", 300_000)
    upload(s3.store(bucket), tmp_path / "old", "old/")
    run_python(READ, f"s3://{bucket}/old", 1 << 30, 1000)
    old = list((tmp_path / "cache").rglob("maps/old/*.blocks"))
    assert old
    for path in old:
        os.utime(path, (0, 0))
    before = cached_bytes(tmp_path / "cache")
    assert before > 500_000
    data = millstream.open(
        url, remote=millstream.Remote(cache_bytes=before // 2, ahead_bytes=1 << 16)
    )
    batches = [batches_of(loader(each, shuffle=IN_BLOCKS), 1500) for each in (data, local)]
    assert batches[0] == batches[1]
    names = {Path(path).name for path in (tmp_path / "cache").rglob("maps/old/*.stream.blocks")}
    assert not names


def test_an_object_that_is_also_a_prefix_is_told(s3, bucket, s3_environment):
    store = s3.store(bucket)
    obstore.put(store, "a/x.bin/part.bin", bytes(10_000))
    millstream.open(f"s3://{bucket}/a/x.bin/part.bin", format="flat:uint16")
    try:
        obstore.put(store, "a/x.bin", bytes(10_000))
    except Exception:
        pytest.skip("this server has no such objects")
    with pytest.raises(MillstreamError, match="is both an object and a prefix"):
        millstream.open(f"s3://{bucket}/a/x.bin", format="flat:uint16")


def test_damage_is_found_by_verify(local, url, s3, bucket):
    shard = local.shards[0].path(".stream")
    obstore.put(s3.store(bucket), f"data/{shard.name}", damage(shard))
    command = [sys.executable, "-m", "millstream", "verify", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert f"data/{shard.name}: xxh3 is" in done.stdout


@pytest.mark.slow
def test_bench_caches_what_its_steps_read_and_not_a_large_dataset(local, url, monkeypatch):
    from millstream.cli import bench_remote, main

    limits, measure = [], bench_remote._measure

    def noted(arguments, order, cache_bytes):
        limits.append(cache_bytes)
        return measure(arguments, order, cache_bytes=cache_bytes)

    monkeypatch.setattr(bench_remote, "_measure", noted)
    options = ["--batches", "5", "--seq-len", "64", "--batch-size", "4"]
    assert main(["bench", url, *options]) == 0
    assert 0 < max(limits) < 1 << 30
