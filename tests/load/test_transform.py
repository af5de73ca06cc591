"""A transform of a view or mixture, in loaders: exact, ahead of time, and honest when it fails."""

import gc
import multiprocessing
import os
import signal
import threading
import traceback
from collections import OrderedDict, defaultdict
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import millstream
from millstream.errors import UsageError
from millstream.load.devices import PlainFeed
from millstream.testing import assert_ranks_share_exactly, assert_resumes_exactly, assert_same
from tests.helpers.programs import run_python
from tests.helpers.waiting import wait_until

EXTRAS = ("position_ids", "cu_seqlens", "document_ids")
BOTH = pytest.mark.parametrize("prefetch", [0, 6])
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """150 documents of 1 to 30 tokens, each with its number as metadata."""
    path, random = tmp_path_factory.mktemp("data") / "d", np.random.default_rng(0)
    with millstream.Writer(path, vocab_size=1000, metadata=bytes, shard_bytes=900) as writer:
        for number, length in enumerate(random.integers(1, 31, 150)):
            writer.append(random.integers(0, 1000, length), str(number).encode())
    return millstream.open(path)


def noisy(batch, positions):
    """Change a batch in place, by random numbers that the positions decide, and add to it."""
    for row, position in enumerate(positions):
        random = np.random.default_rng([7, position])
        inputs = np.asarray(batch["input_ids"])  # shares the memory of a tensor
        inputs[row] += random.integers(0, 1 << 40, inputs.shape[1])
    batch["labels"] = batch["labels"] * -1
    batch["rows"] = positions.tolist()
    if "source_ids" in batch:  # which the loader counts rows by
        batch["source_ids"][:] = 1
    return batch


def steps_of(loader):
    """Steps as lists of batches."""
    for step in loader:
        yield step if isinstance(step, list) else [step]


def positions_of(position, batches, rank, ranks):
    """The positions of the rows of each batch of a step."""
    for batch in batches:
        rows = len(batch["input_ids"])
        yield position + rank + np.arange(rows) * ranks
        position += rows * ranks


def view_of(data, kind):
    if kind == "mixture":
        one, other = data.windows(8, extras=EXTRAS), data.packed(8)
        return millstream.mix({"a": (one, 2), "b": (other, 1)}, seed=3)
    if kind == "pad_to":
        return data.documents(16, pad_to=4, overflow="split", metadata=bytes)
    return getattr(data, kind)(8, extras=EXTRAS, metadata="u1" if kind == "packed" else None)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["windows", "packed", "pad_to", "mixture"]),
    share=st.integers(1, 4).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))),
    batch_size=st.integers(1, 7),
    micro=st.sampled_from([None, 1, 3]),
    context=st.booleans(),
    start=st.integers(0, 700),
    options=st.fixed_dictionaries(
        {
            "tail": st.sampled_from(["drop", "keep"]),
            "prefetch": st.sampled_from([0, 1, 7]),
            "threads": st.sampled_from([1, 3]),
            "output": st.sampled_from(["numpy", "torch"]),
        }
    ),
)
def test_batches_are_those_of_the_plain_loader_transformed(
    data, kind, share, batch_size, micro, context, start, options
):
    (rank, ranks), view = share, view_of(data, kind)
    digests = not context
    if micro is not None:
        options = options | {"global_batch_size": batch_size * ranks * micro}
    if context and kind != "pad_to":
        parallel = millstream.Parallel(rank=rank, ranks=ranks, context_rank=1, context_ranks=2)
        options = options | {"parallel": parallel}
    else:
        options = options | {"rank": rank, "ranks": ranks}
    options = options | {"digest_tokens": digests}
    plain, loader = (
        millstream.Loader(each, batch_size, **options)
        for each in (view.with_transform(None), view.with_transform(noisy))
    )
    state = plain.state_dict() | {"position": start % len(view)}
    with plain, loader:
        for each in (plain, loader):
            each.load_state_dict(state)  # a state knows nothing of transforms
        pairs = zip(steps_of(plain), steps_of(loader), strict=True)
        for expected, found in islice(pairs, 6):
            step = plain._walk.last_step
            for batch, positions in zip(
                expected, positions_of(step.position, expected, rank, ranks), strict=True
            ):
                noisy(batch, positions)
            assert_same(found, expected, f"step at {step.position}")
            assert (loader.samples() == plain.samples()).all()
            assert loader.digest() == plain.digest()
            if digests:
                assert loader.token_digest() == plain.token_digest()
            assert loader.state_dict() == plain.state_dict()
        for name in ("batches", "rows", "tokens", "padded_share", "sources"):
            assert getattr(loader.stats, name) == getattr(plain.stats, name)


def rows_by_position(batch, positions):
    """Rows that depend on nothing but what is in them and their positions."""
    random = [np.random.default_rng([3, position]).random() for position in positions]
    return {"input_ids": batch["input_ids"], "random": np.array(random)}


@BOTH
def test_random_rows_are_the_same_after_a_resume_and_on_any_ranks(data, prefetch):
    view = data.windows(8, transform=rows_by_position)
    make = partial(millstream.Loader, view, seed=5, output="numpy", prefetch=prefetch)
    assert_resumes_exactly(lambda: make(4, rank=1, ranks=2, tail="wrap"), steps=8)
    assert_ranks_share_exactly(
        lambda rank, ranks, batch_size: make(batch_size, rank=rank, ranks=ranks),
        splits=[(1, 12), (2, 6), (3, 4)],
    )


def test_a_transform_runs_ahead_in_reading_threads_and_without_prefetch_in_the_consumer(data):
    threads, may_go_on = [], threading.Event()

    def note(batch, positions):
        threads.append(threading.get_native_id())
        assert positions[0] == 0 or may_go_on.wait(60)
        return batch

    view = data.windows(8, transform=note)
    with millstream.Loader(view, 4, prefetch=6, threads=3) as loader:
        next(iter(loader))
        wait_until(lambda: len(threads) == 4)  # each thread has begun one, and waits in it
        assert threading.get_native_id() not in threads
        may_go_on.set()
        wait_until(lambda: loader.stats.ready == 6)
    threads.clear()
    with millstream.Loader(view, 4, prefetch=0) as loader:
        for _ in islice(loader, 3):
            pass
    assert threads == [threading.get_native_id()] * 3


class BrokenError(Exception):
    """Raised by a transform."""


@BOTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("micro", [None, 3])
def test_a_transform_that_raises_does_so_in_its_turn_and_the_position_stays(
    data, prefetch, threads, micro
):
    broken, held = {48}, []

    def fail_at(batch, positions):
        held.append((batch["input_ids"], batch["input_ids"].copy()))
        if broken & set(positions.tolist()):
            raise BrokenError("by hand")
        return positions.tolist()

    options = {"prefetch": prefetch, "threads": threads, "output": "numpy", "tail": "keep"}
    if micro:
        options["global_batch_size"] = 4 * micro
    view = data.windows(8, transform=fail_at)
    got, end = [], len(view)
    with millstream.Loader(view, 4, shuffle=False, **options) as loader:
        for _ in range(2):  # the same batch is tried again, and fails again
            with pytest.raises(BrokenError, match="by hand") as failure:
                for step in loader:
                    got += sum(step, []) if micro else step
            assert loader.position == 48
            assert got == list(range(48))
        names = [frame.name for frame in traceback.extract_tb(failure.value.__traceback__)]
        assert names[-1] == "fail_at"
        assert names[0] == "test_a_transform_that_raises_does_so_in_its_turn_and_the_position_stays"
        note = "of 4 rows, beginning with positions 48, 49, 50 (samples 48, 49, 50)"
        assert failure.value.__notes__ == [f"in the transform of a batch {note}"]
        broken.clear()
        for step in loader:
            got += sum(step, []) if micro else step
    assert got == list(range(end))
    for batch, before in held:  # also that of a batch that failed, and was read again
        assert (batch == before).all()


@BOTH
@pytest.mark.parametrize("error", [StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt])
def test_no_error_of_a_transform_is_mistaken_for_the_end_of_an_epoch(data, prefetch, error):
    def fail_at(batch, positions):
        if positions[0] == 20:
            raise error
        return batch

    num_batches = 0
    view = data.windows(8, transform=fail_at)
    with (
        millstream.Loader(view, 4, prefetch=prefetch) as loader,
        pytest.raises((error, RuntimeError)),
    ):
        for _ in loader:
            num_batches += 1
    assert num_batches == 5


@pytest.mark.parametrize(("prefetch", "use"), [(0, "next"), (6, "next"), (6, "close"), (6, "load")])
def test_a_transform_that_uses_its_own_loader_is_an_error_and_no_hang(data, prefetch, use):
    def meddle(batch, positions):
        if positions[0] == 8:
            if use == "next":
                next(iter(loader))
            elif use == "close":
                loader.close()
            else:
                loader.load_state_dict(loader.state_dict())
        return positions[0]

    loader = millstream.Loader(data.windows(8, transform=meddle), 4, prefetch=prefetch, threads=1)
    with pytest.raises(RuntimeError, match="must not use the loader that calls it"):
        list(loader)
    assert loader.position == 8
    loader.close()


THREAD_LOCAL = """
import ctypes, sys, threading
import millstream

class Value:
    def __del__(self):
        ctypes.pythonapi.PyGILState_Release(ctypes.pythonapi.PyGILState_Ensure())
        print("freed", flush=True)

variables = threading.local()

def transform(batch):
    variables.value = getattr(variables, "value", None) or Value()
    return batch

view = millstream.open(sys.argv[1]).windows(8, transform=transform)
with millstream.Loader(view, 4, threads=1) as loader:
    next(iter(loader))
print("closed")
"""


@pytest.mark.process
def test_thread_local_variables_of_a_transform_are_freed_when_its_thread_ends(data):
    """Also those that take the GIL then, as torch's do."""
    done = run_python(THREAD_LOCAL, data.shards[0].directory)
    assert (done.returncode, done.stdout) == (0, "freed\nclosed\n"), done.stderr


@BOTH
def test_an_interrupt_in_a_transform_loses_nothing(data, prefetch):
    calls = []

    def interrupt(batch, positions):
        calls.append(positions[0])
        if len(calls) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return positions.tolist()

    view = data.windows(8, transform=interrupt)
    got, num_caught = [], 0
    with millstream.Loader(view, 2, global_batch_size=6, prefetch=prefetch, threads=1) as loader:
        steps = iter(loader)
        while loader.position < 60:
            try:
                got += sum(next(steps), [])
            except KeyboardInterrupt:
                num_caught += 1
                assert loader.position == len(got)
    assert (got, num_caught) == (list(range(60)), 1)


def test_batches_stay_valid_while_the_transform_or_the_user_holds_them(data):
    held = []

    def hold(batch):
        held.append((batch["labels"], batch["labels"].copy()))
        return batch["input_ids"][1:]

    view = data.windows(8, transform=hold)
    loader = millstream.Loader(view, 3, output="numpy", prefetch=4, threads=2, endless=True)
    with loader:
        rows = [(batch, batch.copy()) for batch in islice(loader, 60)]
    del loader
    gc.collect()
    assert all((one == other).all() for one, other in rows + held)


@BOTH
def test_each_batch_goes_to_one_of_several_consumers(data, prefetch):
    view = data.windows(8, transform=lambda batch, positions: positions.tolist())
    loader, found = millstream.Loader(view, 4, tail="keep", prefetch=prefetch), []
    takers = [
        threading.Thread(target=lambda steps: found.extend(sum(steps, [])), args=[iter(loader)])
        for _ in range(4)
    ]
    with loader:
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
    assert sorted(found) == list(range(len(view)))


def test_a_transform_that_returns_nothing_does_not_skip_its_batch(data):
    loader = millstream.Loader(data.windows(8, transform=lambda batch: None), 4)
    with loader, pytest.raises(UsageError, match="returned None"):
        next(iter(loader))


def test_stages_transform_by_their_own_positions(data):
    def keep(batch, positions):
        return batch["input_ids"].shape, positions.tolist()

    stages = [
        millstream.LoaderStage(view=data.windows(4, transform=keep), batch_size=2, until=4),
        millstream.LoaderStage(
            view=millstream.mix({"a": (data.windows(8), 1)}, transform=keep), batch_size=3, until=7
        ),
    ]
    with millstream.StagedLoader(stages, output="numpy") as loader:
        assert list(loader) == [((2, 4), [0, 1]), ((2, 4), [2, 3]), ((3, 8), [0, 1, 2])]


def as_model_inputs(batch, positions):
    return {"inputs": batch["input_ids"] + 1, "at": [torch.from_numpy(positions)], "name": "x"}


def test_results_are_moved_to_a_device_with_all_their_tensors(data, monkeypatch):
    """`meta` is a device that every torch has; its tensors have shapes, and no content."""
    meta = torch.device("meta")
    monkeypatch.setattr("millstream.load.base_loader.find_device", lambda *_, **__: meta)
    with millstream.Loader(data.windows(8, transform=as_model_inputs), 4, device="meta") as loader:
        batch = next(iter(loader))
        assert (batch["inputs"].device, batch["at"][0].device) == (meta, meta)
        assert (batch["inputs"].shape, batch["at"][0].shape, batch["name"]) == ((4, 8), (4,), "x")
        assert loader.stats.uploaded_bytes == 4 * 8 * 8 + 4 * 8


def test_named_tuples_and_whatever_has_no_device_are_moved_as_they_are():
    feed = PlainFeed(None, torch.device("meta"))
    pair = torch.ones(2, 3).max(dim=1)  # a named tuple of torch has no _fields
    moved = feed.move((1, [None, "a"], {"x": np.zeros(2)}, pair))
    assert moved[:2] == (1, [None, "a"])
    assert isinstance(moved[2]["x"], np.ndarray)
    assert [each.device.type for each in moved[3]] == ["meta", "meta"]


class Named(dict):
    def __init__(self, name):
        super().__init__()
        self.name = name


class Numbered(list):
    def __init__(self, first, count):
        super().__init__(range(first, first + count))


class Version(tuple):
    def __new__(cls, text):
        return super().__new__(cls, map(int, text.split(".")))


def test_containers_of_other_classes_are_moved_and_stay_what_they_are():
    meta = torch.device("meta")
    feed, tensor = PlainFeed(None, meta), torch.ones(2)
    packed = torch.nn.utils.rnn.pack_sequence([tensor])
    assert feed.move(packed).data.device == meta
    named, numbered, ordered = Named("x"), Numbered(3, 2), OrderedDict(a=tensor)
    named["t"], numbered[1], version = tensor, tensor, Version("1.2")
    lists = defaultdict(list, a=[tensor])
    moved = feed.move([named, numbered, ordered, lists, version])
    assert [type(each) for each in moved] == [Named, Numbered, OrderedDict, defaultdict, Version]
    found = [moved[0]["t"], moved[1][1], moved[2]["a"], moved[3]["a"][0]]
    assert [each.device for each in found] == [meta] * 4
    assert (moved[0].name, moved[1][0], moved[3]["none"], moved[4]) == ("x", 3, [], (1, 2))
    assert named["t"] is numbered[1] is ordered["a"] is lists["a"][0] is tensor


def test_outputs_of_transformers_are_moved_and_stay_what_they_are():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    tensor = torch.ones(2)
    moved = PlainFeed(None, torch.device("meta")).move(outputs.BaseModelOutput(tensor))
    assert type(moved) is outputs.BaseModelOutput
    assert (
        moved.last_hidden_state.device == moved["last_hidden_state"].device == torch.device("meta")
    )
    assert tensor.device.type == "cpu"


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_transform(data, method):
    loader = millstream.Loader(data.windows(8, transform=as_model_inputs), 4)
    expected = list(loader)
    loader.load_state_dict(loader.state_dict() | {"position": 0})
    wrapped = DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context=method)
    found = list(wrapped)
    assert [batch.pop("name") for batch in found] == [batch.pop("name") for batch in expected]
    assert_same(found, expected)
    loader.close()


@pytest.mark.process
def test_what_cannot_be_sent_to_a_spawned_process_is_named(data):
    loader = millstream.Loader(data.windows(8, transform=lambda batch: batch), 4)
    process = multiprocessing.get_context("spawn").Process(target=list, args=(loader,))
    with pytest.raises(UsageError, match=r"transform=<lambda> cannot be sent .* top level of a"):
        process.start()


def test_a_forked_child_transforms_on_its_own(data):
    view = data.windows(8, transform=rows_by_position)
    with millstream.Loader(view, 4, output="numpy") as loader:
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            ok = False
            try:
                expected = rows_by_position(
                    view.with_transform(None).read(loader.order.samples_at(np.arange(4, 8))),
                    np.arange(4, 8),
                )
                assert_same(next(batches), expected)
                ok = True
            finally:
                os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert next(batches)["input_ids"].shape == (4, 8)


def test_a_slow_transform_is_named_in_the_warning(data, monkeypatch):
    advice = millstream.Loader(data.windows(8, transform=len), 4)._source._advice(is_uncached=False)
    assert advice.startswith("The transform runs with the GIL")
