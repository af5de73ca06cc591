"""Reading uncached files: whole files, or only the rows of batches."""

import itertools
import os
import time
from pathlib import Path

import numpy as np
import pytest

import millstream
from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.load.file_caching import is_worth_caching
from tests.helpers.datasets import write_dataset
from tests.helpers.page_cache import cached_share, drop

NUM_SHARDS, SHARD_TOKENS, SEQ_LEN = 4, 1 << 21, 512


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """16 MiB of tokens in four shards."""
    tokens = np.random.default_rng(0).integers(0, 1 << 16, NUM_SHARDS * SHARD_TOKENS, np.uint16)
    cuts = [SHARD_TOKENS * k for k in range(1, NUM_SHARDS)]
    data = write_dataset(tmp_path_factory.mktemp("cold") / "set", tokens, cuts=cuts)
    assert len(data.shards) == NUM_SHARDS
    return data


@pytest.fixture
def cold(corpus):
    """The path of the corpus, none of which is in the page cache."""
    if not all(drop(path) for path in stream_files(corpus)):
        pytest.skip("this file system does not let go of cached pages")
    return corpus.shards[0].path(".stream").parent


def stream_files(data):
    return [shard.path(".stream") for shard in data.shards]


def share_in_memory(directory):
    return float(np.mean([cached_share(path) for path in directory.glob("*.stream")]))


def caches_all(loader, directory, num_batches=100):
    """Whether all files are in memory after a small part of an epoch."""
    with loader:
        for _ in itertools.islice(loader, num_batches):
            if share_in_memory(directory) == 1:
                return True
            time.sleep(0.01)  # one thread reads files, while others could make all these batches
    return False


def make_loader(directory, *, access="pread", batch_size=8, **options):
    view = millstream.open(directory, access=access).windows(SEQ_LEN)
    return millstream.Loader(view, batch_size, output="numpy", **options)


def read(loader, num_batches=None):
    """Batches of a loader that is closed then, so that nothing is read in the background."""
    with loader:
        return [batch["input_ids"].copy() for batch in itertools.islice(loader, num_batches)]


@pytest.mark.slow
@pytest.mark.parametrize("cache_files", [True, False, None])
@pytest.mark.parametrize("shuffle", [True, False, millstream.BlockShuffle(64)])
@pytest.mark.parametrize(("access", "prefetch"), [("pread", 0), ("pread", 8), ("mmap", 8)])
def test_batches_are_the_same_whatever_is_cached(cold, access, prefetch, shuffle, cache_files):
    loader = make_loader(
        cold, access=access, prefetch=prefetch, shuffle=shuffle, cache_files=cache_files
    )
    batches = read(loader, 60)
    samples = loader.order.samples_at(np.arange(60 * 8)).reshape(60, 8)
    view = millstream.open(cold).windows(SEQ_LEN)
    expected = [view.read(rows)["input_ids"] for rows in samples]
    assert np.array_equal(batches, expected)


@pytest.mark.parametrize("access", ["pread", "mmap"])
@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_part_of_an_epoch_brings_whole_files_into_memory(cold, access, prefetch):
    loader = make_loader(cold, access=access, prefetch=prefetch, cache_files=True)
    assert caches_all(loader, cold)


def test_files_that_fit_into_memory_are_cached_unasked(cold):
    assert caches_all(make_loader(cold), cold)


def test_rows_alone_leave_the_rest_of_the_files_on_the_disk(cold):
    read(make_loader(cold, cache_files=False), 40)
    assert 0 < share_in_memory(cold) < 0.3


def test_without_announcing_nothing_but_the_rows_is_read(cold):
    read(make_loader(cold, announce=0), 40)
    assert 0 < share_in_memory(cold) < 0.3


def test_a_machine_that_reads_a_small_share_reads_rows_alone(cold, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    read(make_loader(cold, rank=3, ranks=8), 40)
    assert share_in_memory(cold) < 0.3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert caches_all(make_loader(cold, rank=3, ranks=8, seed=1), cold)


def test_files_are_read_once_even_if_they_do_not_stay_in_memory(cold):
    with make_loader(cold, cache_files=True, endless=True) as loader:
        batches = iter(loader)
        while share_in_memory(cold) < 1:
            next(batches)
        for path in cold.glob("*.stream"):
            drop(path)
        for _ in range(40):
            next(batches)
    assert share_in_memory(cold) < 0.5


def test_a_loader_closes_while_files_are_still_being_read(cold):
    loader = make_loader(cold, cache_files=True, prefetch=8, threads=4)
    next(iter(loader))
    loader.close()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not any(path.startswith(str(cold)) for path in opened)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (Path.unlink, MissingDataError, "missing"),
        (lambda path: os.truncate(path, 1000), FormatError, "1,000 bytes, expected"),
    ],
)
def test_a_damaged_file_is_an_error_only_where_its_rows_are_read(tmp_path, damage, error, message):
    tokens = np.arange(40_000, dtype=np.uint16)
    data = write_dataset(tmp_path / "set", tokens, cuts=[20_000])
    loader = make_loader(tmp_path / "set", batch_size=4, shuffle=False, cache_files=True)
    drop(stream_files(data)[0])
    damage(stream_files(data)[1])
    num_batches = 20_000 // SEQ_LEN // 4
    with loader:
        batches = [batch["input_ids"] for batch in itertools.islice(loader, num_batches)]
        assert np.concatenate(batches).ravel().tolist() == list(range(num_batches * 4 * SEQ_LEN))
        with pytest.raises(error, match=message):
            next(iter(loader))


def test_what_cannot_be_meant_is_refused(cold):
    with pytest.raises(UsageError, match="cache_files is 1"):
        make_loader(cold, cache_files=1)
    with pytest.raises(UsageError, match="announce=0"):
        make_loader(cold, cache_files=True, announce=0)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("file_bytes", "epoch_bytes", "share", "free_bytes", "expected"),
    [
        (8 * GIB, 8 * GIB, 1.0, 16 * GIB, True),
        (8 * GIB + 1, 8 * GIB, 1.0, 16 * GIB, False),  # more than half of the memory
        (8 * GIB, 2 * GIB, 1.0, 64 * GIB, True),
        (8 * GIB, 2 * GIB - 1, 1.0, 64 * GIB, False),  # a view of little of it
        (8 * GIB, 8 * GIB, 1 / 4, 64 * GIB, True),
        (8 * GIB, 8 * GIB, 1 / 8, 64 * GIB, False),  # one of eight machines
        (8 * GIB, 8 * GIB, 1.0, None, False),
    ],
)
def test_files_are_cached_where_they_fit_and_are_wanted(
    file_bytes, epoch_bytes, share, free_bytes, expected
):
    assert expected == is_worth_caching(
        file_bytes=file_bytes, epoch_bytes=epoch_bytes, share=share, free_bytes=free_bytes
    )
