"""When blocks are needed next, against all steps to come, listed one by one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.atomic import hold_lock
from millstream.load.next_use import NEVER, NextUse
from millstream.load.ranks import num_local_ranks
from millstream.read.files import FileKind
from millstream.system.background_thread import StopSignal
from millstream.system.checksums import BLOCK_BYTES
from millstream.views import stored_numbers
from tests.helpers.datasets import write_random_documents

SHUFFLES = [True, False, millstream.BlockShuffle(5, inside=True), millstream.BlockShuffle(7)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of 1 to 2,999 tokens: 100 KB in four shards."""
    path = tmp_path_factory.mktemp("next-use")
    return write_random_documents(path / "data", 33, longest=1200, shard_bytes=30_000)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    path = tmp_path_factory.mktemp("next-use") / "pairs"
    with millstream.Writer(path, vocab_size=1 << 16, group_size=2, shard_bytes=10_000) as writer:
        for length in np.random.default_rng(1).integers(1, 1500, 24).tolist():
            writer.append(np.arange(length) % 100)
    return millstream.open(path)


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    path = tmp_path_factory.mktemp("next-use") / "objects"
    with millstream.Writer(path, encode=bytes, shard_bytes=20_000) as writer:
        writer.extend([bytes(k * 97 % 5000) for k in range(30)])
    return millstream.open(path)


@pytest.fixture(scope="module")
def in_blocks(tmp_path_factory):
    """Files in which items lie in blocks with padding between them."""
    path = tmp_path_factory.mktemp("next-use")
    with millstream.Writer(path / "data", vocab_size=1 << 16) as writer:
        writer.append(np.arange(40_000) % 60_000)
    data = millstream.open(path / "data")
    millstream.convert(data, path / "batches", to="llmbatch", batch_size=3, seq_len=500)
    found = millstream.open(path / "batches")
    assert any(shard.files[".stream"].block_items for shard in found.shards)
    return found


def views_of(data):
    """Every kind of view, also sliced and sorted."""
    yield data.windows(300)
    yield data.windows(777, overlap=False).slice(3, -2)
    yield data.windows(300, mask_ends=True).sorted_by("length").slice(2, -1)
    yield data.windows(250).without(documents=range(5, 20))
    for policy in ("best_fit", "bos_best_fit", "bos_best_fit_keep"):
        yield data.packed(1000, policy=policy, buffer_size=5)
    yield data.packed(1000, overflow="truncate").slice(1)
    yield data.packed(2000, overflow="drop").sorted_by("length")
    for overflow in ("truncate", "split", "drop"):
        yield data.documents(900, overflow=overflow)
        yield data.documents(900, overflow=overflow, by_length=True)
    yield data.documents(900).sorted_by("length").take(20)


def local_ranks(loader):
    """The ranks of the same machine."""
    num_local = min(num_local_ranks(), loader.ranks)
    first = loader.rank // num_local * num_local
    return range(first, first + num_local)


def listed_uses(loaders, horizon):
    """Where each block of each file is needed before `horizon`, from the bytes of each step."""
    first = {}
    for loader in loaders:
        readers = [view.dataset.reader for view in loader.view.sources]
        ranges = loader.new_step_ranges()
        while ranges.position < horizon:
            position, spans = ranges.take()
            at = position + loader.rank
            for source, kind, shard, start, stop in spans.tolist() if at < horizon else ():
                path, _ = readers[source].file(shard, FileKind(kind))
                for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
                    first[path, block] = min(first.get((path, block), NEVER), at)
    return first


def check(view, position, *, ranks=1, rank=0, num_positions=None, **options):
    """Compare what is said of all blocks with what the steps to come read."""
    options |= {"output": "numpy", "ranks": ranks}
    loader = millstream.Loader(view, 1, rank=rank, **options)
    position = loader.plan.settle(position)
    loaders = [millstream.Loader(view, 1, rank=each, **options) for each in local_ranks(loader)]
    for each in (loader, *loaders):
        each.load_state_dict({**each.state_dict(), "position": position})
    # This epoch and the next one are looked at.
    horizon = (position // len(view) + 2) * len(view)
    if num_positions is not None:
        horizon = position + num_positions
    listed = listed_uses(loaders, horizon)
    next_use = NextUse(view, loader.order, loader.plan, StopSignal())
    readers = [source.dataset.reader for source in view.sources]
    for path, items in (each for reader in readers for each in reader.stored_items()):
        blocks = np.arange(-(-items.file.size_bytes // BLOCK_BYTES))
        found = next_use(SimpleNamespace(path=path), blocks, position)
        found[found >= horizon] = NEVER
        assert found.tolist() == [listed.get((path, block), NEVER) for block in blocks.tolist()]
    assert listed


@pytest.mark.slow
def test_the_samples_that_read_each_record_are_found(data):
    size, shards = data.fields.itemsize, data.shards
    first_records = np.cumsum([0, *(shard.num_records for shard in shards)]).tolist()
    generator = np.random.default_rng(0)
    for view in views_of(data):
        readers = [set() for _ in range(data.num_records)]
        loader = millstream.Loader(view, 1, shuffle=False, output="numpy")
        ranges = loader.new_step_ranges()
        while ranges.position < len(view):
            sample, spans = ranges.take()
            for _, _, shard, start, stop in spans.tolist():
                for record in range(start // size, stop // size):
                    readers[first_records[shard] + record].add(sample)
        search, every = view.record_search(), np.arange(data.num_records)
        for length in (1, int(generator.integers(2, 3000))):
            last = np.minimum(every + length, data.num_records) - 1
            found = [set() for _ in every]
            for which, sample in zip(*search(every, last), strict=True):
                found[which].add(int(sample))
            some = generator.choice(data.num_records, 500) if length > 1 else every
            for k in some.tolist():
                assert found[k] == set().union(*readers[k : last[k] + 1]), (view, k)


def test_every_view_knows_when_its_blocks_are_needed(data):
    for view in views_of(data):
        for shuffle in SHUFFLES:
            for position in (0, len(view) // 2, 3 * len(view) - 1):
                check(view, position, shuffle=shuffle)


def test_a_packed_view_knows_when_its_blocks_are_needed(data):
    check(data.packed(1000), 7)


def test_groups_objects_and_items_in_blocks(grouped, objects, in_blocks):
    views = [grouped.packed(2000), grouped.documents(3000)]
    views += [grouped.documents(2000).sorted_by("length")]
    views += [objects.objects(), objects.objects(by_size=True), in_blocks.windows(700)]
    for view in views:
        check(view, 5)


def test_a_field_in_a_file_of_its_own(tmp_path):
    """As datatrove's loss masks, which take another number of bytes per record."""
    tokens = np.arange(30_000) % 5000
    tokens.astype("<u2").tofile(tmp_path / "data.ds")
    (tokens % 3 > 0).astype("u1").tofile(tmp_path / "data.ds.loss")
    np.array([10_000, 30_000], "<u8").tofile(tmp_path / "data.ds.index")
    view = millstream.open(tmp_path / "data.ds").windows(700)
    assert {Path(path).suffix for path, _ in view.dataset.reader.stored_items()} == {".ds", ".loss"}
    check(view, 5)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 300),
    st.sampled_from(["keep", "wrap"]),
)
def test_only_the_ranks_of_this_machine_count(data, num_machines, num_local, position, tail):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", str(num_local))
        for rank in range(num_machines * num_local):
            check(data.windows(300), position, tail=tail, rank=rank, ranks=num_machines * num_local)


def test_mixtures_know_when_blocks_of_their_sources_are_needed(data, grouped):
    """Epochs of sources, sources that end or come later, and one dataset in two sources."""
    sources = {
        "windows": millstream.MixtureSource(data.windows(800), 5, max_epochs=2),
        "packed": millstream.MixtureSource(data.packed(800, extras=()), 2),
        "pairs": millstream.MixtureSource(grouped.packed(800, extras=()), 3),
    }
    mixture = millstream.mix(sources, seed=1, when_exhausted="redistribute")
    mixture = mixture.change(at=60, weights={"windows": 3, "pairs": 1})
    for position in (0, 50, 100, 350):
        check(mixture, position, num_positions=400)


def test_pieces_that_are_sorted_part_by_part_are_sorted(data, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stored_numbers, "_SORTED_AT_ONCE", 5)
    check(data.packed(1000), 7)
    (made,) = (tmp_path / "millstream/sorted").iterdir()
    pieces = np.fromfile(made, np.int64)[:-1]
    assert np.all(np.diff(data.packed(1000).rows.pieces[pieces, 0]) >= 0)


TABLES = pytest.mark.parametrize(
    ("new_view", "table"),
    [
        (lambda data: data.packed(1000), "*.order"),
        (lambda data: data.windows(1000, mask_ends=True).sorted_by("length"), "*.places"),
    ],
    ids=["packed", "sorted"],
)


def new_next_use(view, stop):
    loader = millstream.Loader(view, 1, output="numpy")
    return NextUse(loader.view, loader.order, loader.plan, stop)


@TABLES
def test_tables_are_made_at_once_or_not_at_all(data, new_view, table, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    view, stop = new_view(data), StopSignal()
    stop.set()
    with pytest.raises(InterruptedError):
        new_next_use(view, stop)
    assert not list(tmp_path.glob(f"millstream/sorted/{table}"))
    new_next_use(view, StopSignal())
    assert list(tmp_path.glob(f"millstream/sorted/{table}"))


@TABLES
def test_waiting_for_another_process_that_makes_a_table_can_be_stopped(
    data, new_view, table, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    view, stop = new_view(data), StopSignal()
    new_next_use(view, StopSignal())
    (made,) = tmp_path.glob(f"millstream/sorted/{table}")
    made.unlink()
    with ThreadPoolExecutor() as pool, hold_lock(made.parent, made.name):
        waiting = pool.submit(new_next_use, view, stop)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        stop.set()
        with pytest.raises(InterruptedError):
            waiting.result(10)
