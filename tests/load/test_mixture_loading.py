"""Loaders of mixtures: every row at its position, on any ranks, after any resumption."""

import gc
import itertools
import json
import os
import pickle
import shutil
import signal
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import MillstreamError, MissingDataError, UsageError
from millstream.read.files import num_reserved_places
from millstream.testing import assert_ranks_share_exactly, assert_resumes_exactly
from tests.helpers.mixtures import PAD_ID, check_batch, windows_of, write_sources
from tests.helpers.page_cache import cached_share, drop
from tests.helpers.row_slices import read_slices

SIZES = {"web": 60, "code": 25, "math": 8, "one": 1}
WEIGHTS = {"web": 5, "code": 3, "math": 2, "one": 0.5}


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    return windows_of(tmp_path_factory.mktemp("views"), SIZES)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def mixture(views):
    """Of all kinds of stages: constant, a ramp, after a source has run out."""
    sources = {name: (view, WEIGHTS[name]) for name, view in views.items()}
    sources["math"] = millstream.MixtureSource(views["math"], 2, max_epochs=2)
    mixture = millstream.mix(sources, when_exhausted="redistribute", seed=3)
    return mixture.change(70, {"web": 1, "code": 5, "one": 1}, over=40)


def new_loader(view, batch_size, **options):
    return millstream.Loader(
        view, batch_size, **{"output": "numpy", "rank": 0, "ranks": 1, "prefetch": 0} | options
    )


def expected_rows(mixture, start, stop):
    """(source, inputs) at each position, each read alone by its own view."""
    sources, samples = mixture.locate(range(start, stop))
    views = [source.view for source in mixture.named_sources.values()]
    return [
        (int(source), views[source].read([sample])["input_ids"][0].tolist())
        for source, sample in zip(sources, samples, strict=True)
    ]


def rows_of(step):
    """(source, inputs) of each row of a batch, or of several."""
    batches = step if isinstance(step, list) else [step]
    return [
        (source, row)
        for batch in batches
        for source, row in zip(
            batch["source_ids"].tolist(), batch["input_ids"].tolist(), strict=True
        )
    ]


def interleaved(shares):
    """The rows of all ranks in the order of the positions."""
    return [row for rows in itertools.zip_longest(*shares) for row in rows if row is not None]


reading = st.fixed_dictionaries(
    {
        "prefetch": st.sampled_from([0, 1, 4]),
        "threads": st.integers(1, 2),
        "announce": st.sampled_from([0, 8]),
        "cache_files": st.sampled_from([None, False]),
    }
)
shapes = st.tuples(
    st.integers(1, 3), st.integers(1, 7), st.none() | st.sampled_from([5, [(0, 3), (40, 11)]])
)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(shapes, reading, st.integers(1, 9)), min_size=1, max_size=5))
def test_any_change_of_ranks_rows_and_prefetching_continues_the_mixture(mixture, phases):
    state = None
    for (ranks, batch_size, global_batch_size), options, num_steps in phases:
        start, states, shares = 0, [], []
        for rank in range(ranks):
            loader = new_loader(
                mixture,
                batch_size,
                rank=rank,
                ranks=ranks,
                endless=True,
                global_batch_size=global_batch_size,
                **options,
            )
            with loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                start = loader.position
                shares.append([rows_of(step) for step in islice(loader, num_steps)])
                states.append(loader.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        found = [row for step in zip(*shares, strict=True) for row in interleaved(step)]
        assert found == expected_rows(mixture, start, state["position"])


@pytest.mark.slow
@settings(max_examples=40)
@given(shapes, st.sampled_from(["drop", "keep", "wrap"]), reading, st.integers(1, 3))
def test_ranks_together_get_every_position_of_an_epoch_once(mixture, shape, tail, options, epochs):
    ranks, batch_size, _ = shape
    num_samples = len(mixture)
    shares = []
    for rank in range(ranks):
        loader = new_loader(mixture, batch_size, rank=rank, ranks=ranks, tail=tail, **options)
        with loader:
            shares.append([[rows_of(step) for step in loader] for _ in range(epochs)])
    step_size = ranks * batch_size
    if tail == "wrap":
        found = [
            row
            for epoch in zip(*shares, strict=True)
            for step in zip(*epoch, strict=True)
            for row in interleaved(step)
        ]
        whole = -(-epochs * num_samples // step_size) * step_size
        assert found == expected_rows(mixture, 0, whole)
        return
    for epoch in range(epochs):
        steps = zip(*(share[epoch] for share in shares), strict=True)
        found = [row for step in steps for row in interleaved(step)]
        start = epoch * num_samples
        count = num_samples if tail == "keep" else num_samples // step_size * step_size
        assert found == expected_rows(mixture, start, start + count)


def test_a_mixture_resumes_exactly_at_every_step(mixture):
    assert_resumes_exactly(lambda: new_loader(mixture, 7, tail="keep", prefetch=2), steps=18)
    assert_resumes_exactly(lambda: new_loader(mixture, 3, global_batch_size=20), steps=12)


def test_ranks_share_a_mixture_exactly(mixture):
    assert_ranks_share_exactly(
        lambda rank, ranks, batch_size: new_loader(mixture, batch_size, rank=rank, ranks=ranks),
        splits=[(1, 12), (2, 6), (3, 4), (12, 1)],
    )


def mixed_views(datasets):
    return {
        "windows": datasets["plain"].windows(12, extras="position_ids"),
        "packed": datasets["wide"].packed(12, pad_id=PAD_ID, mask_ends=True),
        "documents": datasets["masked"].documents(12, pad_id=PAD_ID),
        "part": datasets["scored"].windows(12, overlap=False).without(documents=[1, 5]).slice(3),
    }


@pytest.mark.parametrize("dtype", [np.int64, np.int32, None])
def test_a_loader_gives_what_the_views_of_the_rows_read(datasets, dtype):
    views = mixed_views(datasets)
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    loader = new_loader(mixture, 7, dtype=dtype, tail="keep", prefetch=3)
    start = 0
    for batch in loader:
        positions = np.arange(start, start + len(batch["source_ids"]))
        check_batch(batch, list(views.values()), *mixture.locate(positions), dtype=dtype)
        assert loader.samples().tolist() == mixture.order.samples_at(positions).tolist()
        assert loader.digest() == mixture.order.digest(start, start + len(positions))
        start += len(positions)
    assert start == len(mixture)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_context_parallel_ranks_get_slices_of_the_same_rows(datasets, layout):
    mixture = millstream.mix({name: (view, 1) for name, view in mixed_views(datasets).items()})
    steps = []
    for rank in range(4):
        parallel = millstream.Parallel(
            rank=rank // 2, ranks=2, context_rank=rank % 2, context_ranks=2, context_layout=layout
        )
        loader = millstream.Loader(mixture, 3, output="numpy", parallel=parallel, prefetch=2)
        with loader:
            steps.append(
                [
                    (loader.samples(), {name: np.copy(v) for name, v in batch.items()})
                    for batch in islice(loader, 6)
                ]
            )
    for rank, share in enumerate(steps):
        for number, (samples, batch) in enumerate(share):
            positions = 6 * number + rank // 2 + 2 * np.arange(3)
            assert samples.tolist() == mixture.order.samples_at(positions).tolist()
            cut = millstream.Parallel(
                rank=0, ranks=1, context_rank=rank % 2, context_ranks=2, context_layout=layout
            ).row_slice
            expected = read_slices(mixture, samples, cut)
            assert batch.keys() == expected.keys()
            for name, values in expected.items():
                np.testing.assert_array_equal(batch[name], values, err_msg=name)


def limited(views, **epochs):
    return {
        name: millstream.MixtureSource(view, WEIGHTS[name], max_epochs=epochs.get(name))
        for name, view in views.items()
        if name != "one"
    }


@pytest.mark.parametrize("tail", ["drop", "keep"])
@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_loader_ends_with_its_mixture_and_says_so(views, tail, prefetch):
    mixture = millstream.mix(limited(views, math=2))
    end = len(mixture)
    loader = new_loader(mixture, 7, tail=tail, prefetch=prefetch)
    found = [row for step in loader for row in rows_of(step)]
    served = end if tail == "keep" else end // 7 * 7
    assert found == expected_rows(mixture, 0, served)
    assert (loader.position, loader.remaining) == (end, 0)
    assert len(loader) == -(-served // 7)
    described = mixture.describe(served).sources
    counts = {name: source.rows for name, source in loader.stats.sources.items()}
    assert counts == {source.name: source.samples for source in described}
    for _ in range(2):
        with pytest.raises(UsageError, match=f"the mixture ends at position {end}"):
            iter(loader)
    state = loader.state_dict()
    loader.load_state_dict(state | {"position": end - 20})
    assert loader.remaining == (3 if tail == "keep" else 2)
    again = [row for step in loader for row in rows_of(step)]
    assert again == expected_rows(mixture, end - 20, end - 20 + len(again))
    loader.load_state_dict(state)
    with pytest.raises(UsageError, match="the mixture ends at"):
        next(iter(loader))


def test_a_state_at_the_end_goes_on_with_more_epochs(views):
    mixture = millstream.mix(limited(views, math=2))
    loader = new_loader(mixture, 7, tail="keep")
    for _ in loader:
        pass
    for sources, options in (
        (limited(views, math=3), {}),
        (limited(views, math=2), {"when_exhausted": "redistribute"}),
    ):
        longer = millstream.mix(sources, **options)
        resumed = new_loader(longer, 7, tail="keep")
        resumed.load_state_dict(loader.state_dict())
        end = loader.position
        assert rows_of(next(iter(resumed))) == expected_rows(longer, end, end + 7)


def test_what_goes_on_after_the_end_is_refused(views):
    mixture = millstream.mix(limited(views, math=2))
    for options in ({"endless": True}, {"tail": "wrap"}):
        with pytest.raises(UsageError, match=r"goes on after the end of the mixture, at position"):
            new_loader(mixture, 4, **options)
    all_end = millstream.mix(limited(views, web=1, code=1, math=1), when_exhausted="redistribute")
    assert len(all_end) == 93
    with pytest.raises(UsageError, match=r"goes on after the end"):
        new_loader(all_end, 4, endless=True)
    found = [row for step in new_loader(all_end, 5, tail="keep") for row in rows_of(step)]
    assert len(found) == len({(source, tuple(row)) for source, row in found}) == 93


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seed": 5}, r"a mixture has its own seed: use millstream.mix\(…, seed=5\)"),
        ({"shuffle": False}, r"a mixture has its own shuffle: use MixtureSource\("),
        ({"shuffle": millstream.BlockShuffle(4)}, r"a mixture has its own shuffle"),
    ],
)
def test_arguments_that_a_mixture_has_itself_are_refused(mixture, options, match):
    with pytest.raises(UsageError, match=match):
        new_loader(mixture, 4, **options)
    assert new_loader(mixture, 4, seed=mixture.seed).seed == mixture.seed


def test_set_epoch_moves_by_epochs_of_the_mixture(mixture):
    loader = new_loader(mixture, 5)
    loader.set_epoch(3)
    assert loader.position == 3 * len(mixture)
    assert rows_of(next(iter(loader))) == expected_rows(
        mixture, 3 * len(mixture), 3 * len(mixture) + 5
    )


def test_an_epoch_may_have_any_length(views):
    short = millstream.mix({"web": (views["web"], 1), "code": (views["code"], 1)}, num_samples=10)
    loader = new_loader(short, 4, tail="keep")
    found = [[len(batch["source_ids"]) for batch in loader] for _ in range(2)]
    assert found == [[4, 4, 2]] * 2
    assert loader.position == 20


def sums(stats):
    return sum(s.rows for s in stats.sources.values()), sum(
        s.tokens for s in stats.sources.values()
    )


@pytest.mark.parametrize("options", [{}, {"global_batch_size": 11}, {"prefetch": 3}])
def test_counts_of_the_sources_add_up(datasets, options):
    mixture = millstream.mix({name: (view, 1) for name, view in mixed_views(datasets).items()})
    loader = new_loader(mixture, 4, rank=1, ranks=2, **options)
    rows = dict.fromkeys(mixture.names, 0)
    for step in islice(loader, 9):
        for source, _ in rows_of(step):
            rows[mixture.names[source]] += 1
        stats = loader.stats
        assert sums(stats) == (stats.rows, stats.tokens)
        assert {name: source.rows for name, source in stats.sources.items()} == rows
    counts = mixture.order.counts_at(loader.position)
    for count, view, source in zip(counts, mixture.sources, stats.sources.values(), strict=True):
        assert source.epoch == count / len(view)
    loader.load_state_dict(loader.state_dict() | {"position": 0})
    assert {name: source.rows for name, source in loader.stats.sources.items()} == rows


def test_a_view_has_no_counts_of_sources(views):
    assert new_loader(views["web"], 4).stats.sources == {}


def test_a_step_that_failed_half_way_is_not_counted(views, tmp_path):
    view = windows_of(tmp_path, {"new": 40})["new"]
    mixture = millstream.mix({"web": (views["web"], 1), "new": (view, 1)})
    loader = new_loader(mixture, 2, global_batch_size=12)
    (file,) = (tmp_path / "new").glob("*.stream")
    steps = iter(loader)
    next(steps)
    before = loader.stats
    hidden = file.rename(tmp_path / "hidden")
    loader.close()
    for _ in range(2):
        with pytest.raises(MillstreamError, match=r"new/"):
            next(iter(loader))
        assert loader.stats.sources == before.sources
    hidden.rename(file)
    rows = rows_of(next(iter(loader)))
    assert rows == expected_rows(mixture, 12, 24)
    assert sums(loader.stats) == (24, loader.stats.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 3])
def test_interrupts_leave_the_counts_of_the_sources_whole(mixture, prefetch):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    loader = new_loader(mixture, 2, global_batch_size=24, endless=True, prefetch=prefetch)
    before, steps = signal.signal(signal.SIGALRM, interrupt), iter(loader)
    try:
        for delay in np.random.default_rng(0).uniform(1e-5, 2e-3, 300):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, delay)
                for _ in steps:
                    pass
            stats = loader.stats
            assert sums(stats) == (stats.rows, stats.tokens)
            assert stats.rows == loader.position
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        loader.close()
    counts = mixture.order.counts_at(loader.position).tolist()
    assert [source.rows for source in loader.stats.sources.values()] == counts
    assert loader.position > 0


def test_metrics_are_given_by_source(mixture):
    seen = []
    loader = new_loader(mixture, 5)
    loader.watch(lambda step, metrics: seen.append(dict(metrics)), every=3)
    for _ in islice(loader, 7):
        pass
    assert len(seen) == 2
    for metrics in seen:
        assert sum(metrics[f"sources/{name}/rows"] for name in mixture.names) == metrics["rows"]
        assert sum(metrics[f"sources/{name}/tokens"] for name in mixture.names) == metrics["tokens"]
    assert seen[0]["sources/web/epoch"] < seen[1]["sources/web/epoch"]


def test_a_pickled_loader_goes_on_where_it_was(mixture):
    loader = new_loader(mixture, 5, prefetch=2)
    for _ in islice(loader, 3):
        pass
    copy = pickle.loads(pickle.dumps(loader))
    assert rows_of(next(iter(copy))) == expected_rows(mixture, 15, 20)
    assert rows_of(next(iter(loader))) == expected_rows(mixture, 15, 20)


@pytest.mark.process
def test_a_forked_child_goes_on_and_counts_by_itself(mixture):
    loader = new_loader(mixture, 5, prefetch=2)
    batches = iter(loader)
    for _ in islice(batches, 2):
        pass
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rows = rows_of(next(batches))
            os.write(writer, json.dumps([rows, sums(loader.stats)]).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        rows, counted = json.loads(pipe.read())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    expected = expected_rows(mixture, 10, 15)
    assert [tuple(row) for row in rows] == expected
    assert counted[0] == 5
    assert rows_of(next(batches)) == expected
    assert sums(loader.stats)[0] == 15


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_of_torch_gives_the_same_rows(mixture, workers):
    torch = pytest.importorskip("torch")
    loader = new_loader(mixture, 5, tail="keep", output="torch")
    batches = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=workers)
    num_samples = len(mixture)
    for epoch in range(2):
        found = [row for batch in batches for row in rows_of(batch)]
        assert found == expected_rows(mixture, epoch * num_samples, (epoch + 1) * num_samples)


@pytest.mark.process
@pytest.mark.slow
def test_workers_of_a_data_loader_do_not_go_on_after_the_end(views):
    torch = pytest.importorskip("torch")
    mixture = millstream.mix(limited(views, math=2))
    loader = new_loader(mixture, 5, tail="keep", output="torch")
    batches = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2)
    found = [row for batch in batches for row in rows_of(batch)]
    assert found == expected_rows(mixture, 0, len(mixture))
    with pytest.raises(UsageError, match="the mixture ends at"):
        next(iter(batches))
    loader.set_epoch(0)
    assert [row for batch in batches for row in rows_of(batch)] == found


def test_a_missing_file_of_one_source_is_named_and_reading_can_be_tried_again(tmp_path):
    views = windows_of(tmp_path, {"web": 40, "code": 40})
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    (file,) = (tmp_path / "code").glob("*.stream")
    hidden = tmp_path / "hidden"
    for prefetch in (0, 3):
        loader = new_loader(mixture, 4, prefetch=prefetch)
        file.rename(hidden)
        for _ in range(2):
            with pytest.raises(MissingDataError, match=str(file)):
                next(iter(loader))
            assert loader.position == 0
        shutil.copy(hidden, file)
        os.truncate(file, file.stat().st_size - 6)
        with pytest.raises(MillstreamError, match=rf"{file}.* bytes"):
            next(iter(loader))
        hidden.rename(file)
        assert rows_of(next(iter(loader))) == expected_rows(mixture, 0, 4)
        loader.close()


def test_mapped_files_and_others_are_read_together(tmp_path):
    views = windows_of(tmp_path, {"web": 200, "code": 200})
    mapped = millstream.open(tmp_path / "code", access="mmap").windows(4)
    mixture = millstream.mix({"web": (views["web"], 1), "code": (mapped, 1)})
    loader = new_loader(mixture, 50, prefetch=3)
    found = [row for batch in loader for row in rows_of(batch)]
    assert found == expected_rows(mixture, 0, 400)


@pytest.mark.parametrize("cache_files", [None, True, False])
@pytest.mark.parametrize("access", ["pread", "mmap"])
def test_files_that_are_not_cached_are_read_all_the_same(tmp_path, cache_files, access):
    windows_of(tmp_path, {"web": 3000, "code": 3000})
    views = {n: millstream.open(tmp_path / n, access=access).windows(4) for n in ("web", "code")}
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    files = [file for name in views for file in (tmp_path / name).glob("*.stream")]
    if not min(map(drop, files)):
        pytest.skip("this file system keeps pages in memory")
    loader = new_loader(mixture, 20, prefetch=4, cache_files=cache_files)
    batches = [rows_of(batch) for batch in islice(loader, 30)]
    loader.close()
    if cache_files:
        assert [cached_share(file) for file in files] == [1, 1]
    found = [row for batch in batches for row in batch]
    assert found == expected_rows(mixture, 0, 600)


def test_a_digest_of_tokens_is_the_same_on_any_ranks(mixture):
    def digests(ranks):
        loaders = [
            new_loader(mixture, 12 // ranks, rank=rank, ranks=ranks, digest_tokens=True)
            for rank in range(ranks)
        ]
        steps = zip(*(islice(loader, 5) for loader in loaders), strict=True)
        return [
            millstream.sum_digests([loader.token_digest() for loader in loaders]) for _ in steps
        ]

    assert digests(1) == digests(3)
    assert len(set(digests(1))) == 5


def test_readers_of_mixtures_leave_nothing_behind(views):
    gc.collect()
    before = num_reserved_places()
    sources = {name: (view, 1) for name, view in views.items()}
    for _ in range(3):
        mixture = millstream.mix(sources, check_tokenizers=False)
        mixture.read(range(4))
        with millstream.Loader(mixture, 2, output="numpy") as loader:
            next(iter(loader))
        del loader, mixture
    gc.collect()
    assert num_reserved_places() <= before
