"""Which blocks a cache that is too small drops: those that the order needs last."""

import numpy as np
import pytest

import millstream
from millstream.load.next_use import NextUse
from millstream.remote import cache_space
from millstream.remote.cache_space import CacheSpace, cached_files
from millstream.system.background_thread import StopSignal
from tests.helpers.remote_data import publish, write_tokens


@pytest.fixture
def data(tmp_path, file_server):
    """2 MB in eight shards behind a server."""
    write_tokens(tmp_path / "data", 1_000_000, shard_bytes=1 << 18)
    return millstream.open(publish(file_server, tmp_path / "data"))


def fetched_files(data):
    """The files with tokens, all of them in the cache."""
    files = [data.reader.mirrored(shard, 0) for shard in range(len(data.shards))]
    for file in files:
        file.provide()
    return files


def make_room(loader, files, position, *, share=0.5, used=None, check=lambda: None):
    """Let the cache keep a share of the files; returns when each block is needed, and who stays."""
    limit = int(share * sum(file.num_bytes for file in cached_files()))
    space = CacheSpace(limit, files, lambda: used or {}, check)
    space.next_use = NextUse(loader.view, loader.order, loader.plan, StopSignal())
    everything = [file.blocks.present() for file in files]
    needed = [space.next_use(*each, position) for each in zip(files, everything, strict=True)]
    space.make_room(position)
    stays = [
        np.isin(blocks, file.blocks.present())
        for file, blocks in zip(files, everything, strict=True)
    ]
    assert sum(file.num_bytes for file in cached_files()) <= limit
    return np.concatenate(needed), np.concatenate(stays)


VIEWS = {
    "windows": lambda data: data.windows(3000),
    "documents": lambda data: data.documents(512),
    "packed": lambda data: data.packed(2048),
    "mixture": lambda data: millstream.mix(
        {"one": (data.windows(2048), 0.7), "other": (data.packed(2048, extras=()), 0.3)}
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_blocks_that_are_needed_last_are_dropped(data, view):
    loader = millstream.Loader(VIEWS[view](data), 4, output="numpy")
    needed, stays = make_room(loader, fetched_files(data), len(loader.view) // 3)
    assert 0.4 < stays.mean() < 0.55
    assert needed[stays].max() <= needed[~stays].min()


def test_of_many_blocks_a_sample_tells_which_are_needed_last(data, monkeypatch):
    monkeypatch.setattr(cache_space, "_SAMPLED_BLOCKS", 400)  # of 490
    monkeypatch.setattr(cache_space, "_BLOCKS_AT_ONCE", 10)
    loader = millstream.Loader(data.windows(2048), 4, seed=3, output="numpy")
    needed, stays = make_room(loader, fetched_files(data), 0)
    assert 0.3 < stays.mean() < 0.6
    assert stays[needed < np.quantile(needed, 0.3)].all()
    assert not stays[needed > np.quantile(needed, 0.6)].any()


def test_blocks_of_steps_that_are_read_stay(data):
    loader = millstream.Loader(data.windows(2048), 4, seed=3, output="numpy")
    files = fetched_files(data)
    used = {files[2].path: np.array([[5000, 9000], [100_000, 100_001]])}
    make_room(loader, files, 0, share=0.1, used=used)
    assert {1, 2, 24} <= set(files[2].blocks.present().tolist())


def test_foresight_that_comes_while_room_is_made_does_no_harm(data):
    loader = millstream.Loader(data.windows(2048), 4, output="numpy")
    files = fetched_files(data)

    def in_use():
        """Asked before the sample, and again before blocks are dropped."""
        calls.append(1)
        if len(calls) == 2:
            space.next_use = NextUse(loader.view, loader.order, loader.plan, StopSignal())
        return {}

    calls, num_bytes = list[int](), sum(file.num_bytes for file in cached_files())
    space = CacheSpace(num_bytes // 2, files, in_use)
    space.make_room(0)
    assert len(calls) >= 2
    assert 0.35 < sum(file.num_bytes for file in cached_files()) / num_bytes < 0.55


def test_making_room_can_be_stopped(data):
    stop = StopSignal()
    stop.set()
    loader = millstream.Loader(data.windows(2048), 4, output="numpy")
    with pytest.raises(InterruptedError):
        make_room(loader, fetched_files(data), 0, check=stop.check)
