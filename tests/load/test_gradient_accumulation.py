"""Loaders with a `global_batch_size`: steps of several batches, on any number of ranks."""

import itertools
import json
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.auditing import RunShape, audit
from millstream.errors import StateError, UsageError
from millstream.load.batch_sizes import BatchSizes

NUM_SAMPLES = 61
SCHEDULE = [(0, 5), (20, 12), (70, 7), (100, 31)]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """Windows of two tokens, each of which is the window's number."""
    path = tmp_path_factory.mktemp("accumulation") / "data"
    tokens = np.repeat(np.arange(NUM_SAMPLES + 1), 2)[:-1]
    with millstream.Writer(path, vocab_size=NUM_SAMPLES + 1, metadata=bytes) as writer:
        for start in range(0, len(tokens), 10):
            writer.append(tokens[start : start + 10], b"x")
    return millstream.open(path).windows(2)


def loader_of(view, batch_size, sizes, rank=0, ranks=1, **options):
    options = {"output": "numpy", "prefetch": 0, "seed": 3} | options
    return millstream.Loader(
        view, batch_size, global_batch_size=sizes, rank=rank, ranks=ranks, **options
    )


def rows_of(step):
    """The samples of a step's batches, which are also their tokens."""
    return [int(row[0]) for batch in step for row in batch["input_ids"]]


def run_steps(view, count, position, ranks, batch_size, sizes, **options):
    """All ranks' next steps: for each, (start, end, samples of all ranks, digest, token digest)."""
    loaders = [
        loader_of(view, batch_size, sizes, rank, ranks, digest_tokens=True, **options)
        for rank in range(ranks)
    ]
    for loader in loaders:
        loader.load_state_dict(loader.state_dict() | {"position": position})
    steps = []
    for shares in zip(*(itertools.islice(loader, count) for loader in loaders), strict=True):
        assert len({len(share) for share in shares}) == 1
        for loader, share in zip(loaders, shares, strict=True):
            assert loader.samples().tolist() == rows_of(share)
            assert all(len(batch["input_ids"]) <= batch_size for batch in share)
        digests = {loader.digest() for loader in loaders}
        assert len(digests) == 1
        token_digest = millstream.sum_digests([loader.token_digest() for loader in loaders])
        rows = sorted(itertools.chain.from_iterable(map(rows_of, shares)))
        steps.append((loaders[0].position, rows, digests.pop(), token_digest))
    assert len({loader.position for loader in loaders}) == 1
    return steps


def rows_at(schedule, position):
    return BatchSizes.of(schedule).at(position)


shapes = st.tuples(st.integers(1, 4), st.integers(1, 6))  # ranks, batch_size


@settings(max_examples=60, deadline=None)
@given(
    schedule=st.lists(
        st.tuples(st.integers(1, 130), st.integers(1, 30)), max_size=4, unique_by=lambda s: s[0]
    ),
    first=st.integers(1, 30),
    tail=st.sampled_from(["drop", "keep", "wrap"]),
    endless=st.booleans(),
    changes=st.lists(st.tuples(st.integers(1, 5), shapes), min_size=2, max_size=4),
)
def test_a_run_on_changing_ranks_has_exactly_the_samples_of_each_step(
    numbered, schedule, first, tail, endless, changes
):
    sizes = [(0, first), *sorted(schedule)]
    order = loader_of(numbered, 1, 1).order
    position, previous = 0, None
    for count, (ranks, batch_size) in changes:
        options = {"tail": tail, "endless": endless}
        steps = run_steps(numbered, count, position, ranks, batch_size, sizes, **options)
        assert steps == run_steps(numbered, count, position, 1, 4, sizes, **options)
        for end, rows, _, _ in steps:
            left = NUM_SAMPLES - position % NUM_SAMPLES
            size = rows_at(sizes, position)
            if tail == "keep" and not endless:
                size = min(size, left)
            assert rows == sorted(order.samples_at(np.arange(position, position + size)).tolist())
            dropped = end - position - size
            if tail == "drop" and not endless:
                assert dropped in (0, NUM_SAMPLES - (position + size) % NUM_SAMPLES)
                assert dropped < rows_at(sizes, position + size)
            else:
                assert dropped == 0
            position = end
        assert steps != previous
        previous = steps


@settings(max_examples=40, deadline=None)
@given(
    first=st.integers(1, 40),
    later=st.lists(st.tuples(st.integers(1, 9), shapes, st.integers(1, 60)), max_size=4),
    tail=st.sampled_from(["drop", "keep", "wrap"]),
)
def test_audits_of_runs_that_change_ranks_and_sizes_agree(first, later, tail):
    schedule = [(0, first), (50, 12), (140, 40)]
    shapes_of_run = [RunShape(step=0, ranks=2, batch_size=3, global_batch_size=schedule)]
    for gap, (ranks, batch_size), size in later:
        step = shapes_of_run[-1].step + gap
        shape = RunShape(step=step, ranks=ranks, batch_size=batch_size, global_batch_size=size)
        shapes_of_run.append(shape)
    order = millstream.make_order(True, NUM_SAMPLES, seed=0)
    report = audit(order, shapes_of_run, epochs=3, tail=tail)
    single = [
        RunShape(step=shape.step, ranks=1, batch_size=1, global_batch_size=shape.global_batch_size)
        for shape in shapes_of_run
    ]
    assert audit(order, single, epochs=3, tail=tail) == report
    if tail != "drop":
        assert [epoch.served for epoch in report.epochs] == [NUM_SAMPLES] * 3


def test_a_step_is_a_list_of_batches_and_counts_as_one(numbered):
    loader = loader_of(numbered, 4, 10, tail="keep")
    assert (len(loader), loader.remaining) == (7, 7)
    steps = [[len(batch["input_ids"]) for batch in step] for step in loader]
    assert steps == [[4, 4, 2]] * 6 + [[1]]
    assert (loader.position, loader.epoch, len(loader)) == (NUM_SAMPLES, 1, 7)
    assert (loader.stats.batches, loader.stats.rows) == (19, NUM_SAMPLES)
    assert "4 rows in steps of 10 on rank 0 of 1" in repr(loader)


def test_a_step_of_one_batch_is_a_list_too(numbered):
    (batch,) = next(iter(loader_of(numbered, 4, 4)))
    assert batch["input_ids"].shape == (4, 2)
    (batch,) = next(iter(loader_of(numbered, 4, 3)))
    assert batch["input_ids"].shape == (3, 2)


def test_a_rank_without_rows_in_the_last_batch_has_an_empty_one(numbered):
    steps = [next(iter(loader_of(numbered, 2, 9, rank, 4))) for rank in range(4)]
    assert [[len(batch["input_ids"]) for batch in step] for step in steps] == [
        [2, 1],
        [2, 0],
        [2, 0],
        [2, 0],
    ]


def test_digests_of_a_schedule_stay_as_they_are(numbered):
    """Golden values: logs of a run are compared with those of the run it continues."""
    steps = run_steps(numbered, 8, 0, 2, 3, SCHEDULE, tail="wrap", endless=True)
    assert [step[0] for step in steps] == [5, 10, 15, 20, 32, 44, 56, 68]
    sums = [millstream.sum_digests([step[k] for step in steps]) for k in (2, 3)]
    assert sums == ["386b44e063ac70a0e8c8d95a8ac1f8ad", "0b7472fa8611973986b8fc88fa4f8a0b"]
    whole = loader_of(numbered, 68, 68, endless=True)
    next(iter(whole))
    assert whole.digest() == sums[0]


def test_a_state_is_that_of_a_loader_without_a_global_batch_size(numbered):
    loader, plain = loader_of(numbered, 4, SCHEDULE), loader_of(numbered, 5, None)
    next(iter(loader))
    next(iter(plain))
    assert loader.state_dict() == plain.state_dict()
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()


@pytest.mark.parametrize("sizes", [10, SCHEDULE])
@pytest.mark.parametrize("tail", ["drop", "keep", "wrap"])
def test_every_step_can_be_resumed(numbered, sizes, tail):
    millstream.testing.assert_resumes_exactly(lambda: loader_of(numbered, 4, sizes, tail=tail))


@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_ranks_and_batch_sizes_divide_steps_exactly(numbered, tail):
    millstream.testing.assert_ranks_share_exactly(
        lambda rank, ranks, batch_size: loader_of(
            numbered, batch_size, SCHEDULE, rank, ranks, tail=tail
        ),
        splits=[(1, 40), (1, 3), (2, 2), (3, 1), (4, 6)],
    )


def test_a_copy_continues_with_the_whole_step(numbered):
    loader = loader_of(numbered, 4, SCHEDULE)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.global_batch_size == loader.global_batch_size
    assert rows_of(next(iter(copy))) == rows_of(next(iter(loader)))


def interrupt_at(call):
    """A decoder that interrupts its loader once, at the n-th document that it decodes."""
    calls = itertools.count(1)

    def decode(blob):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGINT)
        return blob

    return decode


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("between", ["nothing", "iter", "close", "state"])
def test_an_interrupt_within_a_step_loses_nothing(numbered, prefetch, between):
    expected = [rows_of(step) for step in loader_of(numbered, 2, 20)]
    for call in range(1, 12):
        view = numbered.dataset.windows(2, metadata=interrupt_at(call))
        loader = loader_of(view, 2, 20, prefetch=prefetch, threads=1)
        steps, found, num_caught = iter(loader), [], 0
        while len(found) < len(expected):
            try:
                for step in steps:
                    found.append(rows_of(step))
            except KeyboardInterrupt:
                num_caught += 1
                assert loader.position == 20 * len(found)
                if between == "iter":
                    steps = iter(loader)
                elif between == "close":
                    loader.close()
                elif between == "state":
                    loader.load_state_dict(loader.state_dict())
        assert (found, num_caught) == (expected, 1)
        loader.close()


def test_after_an_interrupt_the_batches_of_a_step_that_were_read_are_not_read_again(numbered):
    decoded = []
    interrupt = interrupt_at(14)

    def decode(blob):
        decoded.append(blob)
        return interrupt(blob)

    loader = loader_of(numbered.dataset.windows(2, metadata=decode), 2, 20)
    steps = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert (loader.position, loader.stats.rows) == (0, 0)
    num_decoded = len(decoded)
    next(steps)
    assert (loader.position, loader.stats.rows) == (20, 20)
    assert num_decoded >= 10
    assert len(decoded) < 20 + num_decoded // 2


class BadBlobError(Exception):
    """Raised by a decoder."""


@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_a_failure_within_a_step_the_step_is_read_again(numbered, prefetch):
    expected = [rows_of(step) for step in loader_of(numbered, 2, 20)]
    calls = itertools.count(1)

    def decode(blob):
        if next(calls) in (5, 23):
            raise BadBlobError
        return blob

    view = numbered.dataset.windows(2, metadata=decode)
    loader, found, num_failed = loader_of(view, 2, 20, prefetch=prefetch, threads=1), [], 0
    steps = iter(loader)
    while len(found) < len(expected):
        try:
            found.append(rows_of(next(steps)))
        except BadBlobError:
            num_failed += 1
            assert (loader.position, loader.stats.batches) == (20 * len(found), 10 * len(found))
    assert (found, num_failed) == (expected, 2)
    loader.close()


@pytest.mark.parametrize("prefetch", [0, 4])
def test_each_step_goes_to_one_of_several_threads_and_is_whole(numbered, prefetch):
    loader = loader_of(numbered, 1, SCHEDULE, tail="keep", prefetch=prefetch, threads=2)
    expected = [rows_of(step) for step in loader_of(numbered, 1, SCHEDULE, tail="keep")]
    found = []

    def take(steps):
        found.extend(rows_of(step) for step in steps)

    takers = [threading.Thread(target=take, args=[iter(loader)]) for _ in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(found) == sorted(expected)
    assert loader.position == NUM_SAMPLES
    loader.close()


def test_a_forked_child_reads_a_step_that_its_parent_has_begun_from_its_start(numbered):
    view = numbered.dataset.windows(2, metadata=interrupt_at(5))
    loader = loader_of(view, 2, 20)
    steps = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    expected = rows_of(next(iter(loader_of(numbered, 2, 20))))
    child = os.fork()
    if child == 0:
        os._exit(0 if rows_of(next(steps)) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rows_of(next(steps)) == expected


@pytest.mark.process
@pytest.mark.parametrize("tail", ["drop", "wrap"])
def test_workers_of_a_data_loader_take_whole_steps(numbered, tail):
    from torch.utils.data import DataLoader

    options = {"tail": tail, "output": "torch"}
    plain = loader_of(numbered, 3, SCHEDULE, **options)
    expected = [rows_of(step) for _ in range(2) for step in plain]
    loader = loader_of(numbered, 3, SCHEDULE, **options)
    around = DataLoader(loader, batch_size=None, num_workers=2)
    assert [rows_of(step) for _ in range(2) for step in around] == expected


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_workers_continue_a_schedule_where_it_was_saved_and_no_other(numbered):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make(sizes=SCHEDULE):
        loader = loader_of(numbered, 3, sizes, output="torch")
        return StatefulDataLoader(loader, batch_size=None, num_workers=2)

    expected = [rows_of(step) for step in loader_of(numbered, 3, SCHEDULE)]
    saving = make()
    steps = iter(saving)
    taken = [rows_of(next(steps)) for _ in range(3)]
    state = saving.state_dict()
    resumed, other = make(), make([(0, 5), (20, 11)])
    resumed.load_state_dict(state)
    assert taken + [rows_of(step) for step in resumed] == expected
    other.load_state_dict(state)
    with pytest.raises(StateError, match="the same number of rows"):
        next(iter(other))


def test_a_size_that_no_epoch_fills_is_refused(numbered):
    with pytest.raises(UsageError, match="less than one step of 62 rows"):
        loader_of(numbered, 4, NUM_SAMPLES + 1)
    assert len(loader_of(numbered, 4, NUM_SAMPLES + 1, tail="keep")) == 1


@pytest.mark.parametrize("prefetch", [0, 3])
def test_steps_arrive_on_a_device_as_they_are(numbered, prefetch):
    expected = [rows_of(step) for step in loader_of(numbered, 3, SCHEDULE)]
    options = {"output": "torch", "device": "cpu", "prefetch": prefetch, "threads": 1}
    with loader_of(numbered, 3, SCHEDULE, **options) as loader:
        assert [rows_of(step) for step in loader] == expected


def test_batches_of_a_step_cannot_share_their_addresses(numbered):
    with pytest.raises(UsageError, match="has several batches at once; leave out one of them"):
        loader_of(numbered, 3, 6, output="torch", static_addresses=True)


def test_a_step_of_too_many_batches_is_refused(data):
    for size in (10**10, 1 << 48):
        with pytest.raises(UsageError, match="use a larger batch_size"):
            millstream.Loader(data.windows(4), 1, global_batch_size=size, tail="wrap")
    with pytest.raises(UsageError, match="integer from 0 to"):
        millstream.Loader(data.windows(4), 1, global_batch_size=[(0, 2), (1 << 63, 4)])
