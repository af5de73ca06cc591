"""Callbacks and profiler ranges around the steps of a loader: they see all and change nothing."""

import ctypes
import gc
import itertools
import logging
import os
import pickle
import signal
import struct
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import millstream
from millstream.load.watched_iteration import ProfilerRange, WatchedIteration, Watching
from tests.helpers.datasets import inputs_of, write_dataset

NAMES = {
    *("tokens", "rows", "epoch", "position", "waited_share", "waited_seconds", "ready"),
    *("tokens_per_second", "padded_share", "bytes_per_second", "in_flight"),
}


@pytest.fixture(scope="module")
def make_loader(tmp_path_factory):
    """A function that makes either kind of loader of some data."""
    path = tmp_path_factory.mktemp("watching")
    data = write_dataset(path / "data", np.arange(8 * 48 + 1))
    (path / "text.txt").write_text("".join(f"line {number}\n" for number in range(60)))

    def make(kind="Loader", batch_size=2, **options):
        options = {"output": "numpy"} | options
        if kind == "TextLoader":
            return millstream.TextLoader(path / "text.txt", "bytes", batch_size, 8, **options)
        return millstream.Loader(data.windows(8), batch_size, **options)

    return make


def kinds(test):
    return pytest.mark.parametrize("kind", ["Loader", "TextLoader"])(test)


@kinds
def test_callbacks_are_called_after_every_so_many_steps_of_all_epochs(make_loader, kind):
    with make_loader(kind) as loader:
        num_steps, calls, others, expected = len(loader), [], [], []
        loader.watch(lambda step, metrics: calls.append((step, metrics)), every=5)
        loader.watch(lambda step, _: others.append(step), every=7)
        for _ in range(2):
            for _ in loader:
                stats = loader.stats
                assert len(calls) == (stats.batches - 1) // 5
                if stats.batches % 5 == 0:
                    expected.append((stats.tokens, stats.rows, loader.position, loader.epoch))
    assert [step for step, _ in calls] == list(range(5, 2 * num_steps + 1, 5))
    assert others == list(range(7, 2 * num_steps + 1, 7))
    names = ("tokens", "rows", "position", "epoch")
    assert [tuple(metrics[name] for name in names) for _, metrics in calls] == expected
    for _, metrics in calls:
        assert set(metrics) == NAMES
        assert {type(value) for value in metrics.values()} == {float}
    waited = sum(metrics["waited_seconds"] for _, metrics in calls)
    assert 0 < waited <= stats.waited_seconds


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(["Loader", "TextLoader"]),
    every=st.lists(st.integers(1, 4), max_size=2),
    annotates=st.booleans(),
    endless=st.booleans(),
    sizes=st.sampled_from([None, 4, 6]),
    ranges=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    moves=st.sampled_from(["none", "resume", "set_epoch", "close"]),
)
def test_a_watched_loader_gives_the_same_steps_and_states(
    make_loader, kind, every, annotates, endless, sizes, ranges, moves
):
    def run(loader):
        for number in ranges:
            for step in itertools.islice(loader, number):
                batches = step if sizes else [step]
                yield inputs_of(batches), loader.state_dict()
            if moves == "resume":
                loader.load_state_dict(loader.state_dict())
            elif moves == "set_epoch" and not endless:
                loader.set_epoch(loader.epoch)
            elif moves == "close":
                loader.close()

    options = {"endless": endless, "global_batch_size": sizes}
    with make_loader(kind, **options) as plain, make_loader(kind, **options) as watched:
        for each in every:
            watched.watch(lambda step, metrics: None, each)
        if annotates:
            watched.annotate()
        assert list(run(watched)) == list(run(plain))


@kinds
def test_a_step_of_several_batches_counts_once(make_loader, kind):
    calls = []
    with make_loader(kind, global_batch_size=6) as loader:
        loader.watch(lambda step, metrics: calls.append((step, metrics["rows"])), every=2)
        list(itertools.islice(loader, 5))
        stats = loader.stats
    assert calls == [(2, 12), (4, 24)]
    assert (stats.batches, stats.rows) == (15, 30)
    assert 0 <= stats.last_wait_seconds <= stats.waited_seconds


@kinds
def test_a_step_is_not_lost_if_a_callback_raises(make_loader, kind):
    def fail(step, metrics):
        raise LookupError(step)

    with make_loader(kind) as plain:
        expected = inputs_of(plain)
    got, failed_at = [], []
    with make_loader(kind) as loader:
        loader.watch(fail, every=3)
        batches = iter(loader)
        while True:
            try:
                got += [batch["input_ids"].tolist() for batch in [next(batches)]]
            except LookupError as error:
                failed_at += error.args
                assert loader.position == 2 * len(got)
            except StopIteration:
                break
    assert got == expected
    assert failed_at == list(range(3, len(got) + 1, 3))


def test_a_callback_that_raises_stop_iteration_does_not_end_the_loop(make_loader):
    loader = make_loader()
    loader.watch(lambda step, metrics: next(iter(())), every=1)
    with pytest.raises(RuntimeError, match="callback of watch"):
        list(loader)


@kinds
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_torchdata_saves_and_loads_a_watched_iteration(make_loader, kind):
    def watched():
        loader = make_loader(kind)
        loader.watch(lambda step, metrics: None, every=2)
        loader.annotate()
        return loader

    with watched() as loader:
        outer = StatefulDataLoader(loader, batch_size=None, num_workers=0)
        batches = iter(outer)
        list(itertools.islice(batches, 5))
        state, expected = outer.state_dict(), inputs_of(batches)
    with watched() as loader:
        outer = StatefulDataLoader(loader, batch_size=None, num_workers=0)
        outer.load_state_dict(state)
        assert inputs_of(outer) == expected != []


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_callbacks_stay_in_their_process(make_loader):
    calls = []
    loader = make_loader()
    loader.watch(lambda step, metrics: calls.append(os.getpid()), every=1)  # cannot be pickled
    loader.annotate()
    list(pickle.loads(pickle.dumps(loader)))
    assert not calls
    assert sum(1 for _ in DataLoader(loader, batch_size=None, num_workers=1)) == 24
    assert not calls


def test_a_loader_that_nothing_watches_is_iterated_directly(make_loader):
    loader = make_loader()
    plain = type(iter(loader))
    loader.watch(print)
    assert type(iter(loader)) is not plain


@kinds
def test_a_watched_loader_is_freed_with_its_iteration(make_loader, kind):
    gc.disable()
    try:
        loader = make_loader(kind)
        loader.watch(lambda step, metrics: None, every=1)
        loader.annotate()
        batches, freed = iter(loader), weakref.ref(loader)
        next(batches), next(batches)
        loader.close()
        del loader, batches
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_how_often_must_be_a_positive_number(make_loader, every):
    with pytest.raises(millstream.UsageError, match="every"):
        make_loader().watch(print, every=every)
    with pytest.raises(millstream.UsageError, match="function of a step and metrics"):
        make_loader().watch(3)


@pytest.mark.filterwarnings("ignore:unclosed file")  # Python closes one that is not in use yet
@kinds
def test_interrupts_lose_no_step_of_a_watched_loader(make_loader, kind):
    cell, got, num_caught = {}, [], 0
    loader = make_loader(kind, endless=True)
    loader.watch(lambda step, metrics: sum(range(300)), every=1)
    loader.annotate()
    batches = iter(loader)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 60))
                for cell["batch"] in batches:  # no signal handler runs before it is stored
                    break
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                num_caught += 1
            got += inputs_of([cell.pop("batch")]) if cell else []
            assert loader.position == 2 * len(got)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    loader.close()
    with make_loader(kind, endless=True) as plain:
        assert inputs_of(itertools.islice(plain, len(got))) == got
    assert num_caught > 20


@pytest.mark.parametrize("annotates", [False, True])
def test_a_signal_that_arrives_when_a_step_was_taken_is_handled_after_its_return(annotates):
    watching = Watching()
    watching.watches.append(None)
    if annotates:
        watching.annotate(ProfilerRange("steps"))
    taking = map(ctypes.CDLL(None)["raise"], [signal.SIGALRM] * 9)  # which all succeed: 0
    steps, cell, num_caught = WatchedIteration(taking, watching, lambda steps: None), {}, 0
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(9):
            try:
                for cell["step"] in steps:
                    break
                os.getpid()
            except KeyboardInterrupt:
                num_caught += 1
            assert cell.pop("step") == 0
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert (num_caught, watching.steps) == (9, 9)


@pytest.mark.slow
@kinds
def test_ranges_show_in_a_profile(make_loader, kind):
    with make_loader(kind) as loader:
        loader.annotate()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            num_steps = sum(1 for _ in loader)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["millstream.next"] == num_steps + 1  # the last finds the end


def test_a_range_ends_where_reading_fails(make_loader):
    def fail(step, metrics):
        raise LookupError

    with make_loader() as loader:
        loader.annotate()
        loader.watch(fail, every=2)
        with torch.profiler.profile() as profile:
            with pytest.raises(LookupError):
                list(loader)
            torch.ones(2)
    events = {event.name: event for event in profile.events()}
    assert events["aten::ones"].cpu_parent is None


def test_metrics_are_logged_as_a_line(make_loader, caplog):
    loader = make_loader()
    loader.watch(millstream.log_to(level=logging.WARNING), every=20)
    list(loader)
    (line,) = caplog.messages
    assert line.startswith("step 20: epoch 0, 320 tokens, ")
    assert line.endswith(", 0.0 % padding")
    caplog.set_level(logging.INFO, "own")
    loader.watch(millstream.log_to(logging.getLogger("own")), every=1)
    list(itertools.islice(loader, 2))
    assert [record.name for record in caplog.records] == ["millstream", "own"]


def test_a_line_has_readable_numbers(caplog):
    caplog.set_level(logging.INFO)
    metrics = {"epoch": 1.0, "tokens": 78.6e6, "tokens_per_second": 1.21e6}
    millstream.log_to()(1_200, metrics | {"waited_share": 0.0012, "padded_share": 0.031})
    assert caplog.messages == [
        "step 1,200: epoch 1, 78.6 M tokens, 1.2 M tokens/s, waited 0.1 %, 3.1 % padding"
    ]


def scalars_in(path):
    """The (tag, step, value) of all scalars in a file of TensorBoard's: a series of TFRecords."""
    content, at = path.read_bytes(), 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + size])
        yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)
        at += 12 + size + 4


def test_tensorboard_gets_every_metric(make_loader, tmp_path):
    loader, calls = make_loader(), []
    with SummaryWriter(str(tmp_path)) as writer:
        loader.watch(millstream.log_to_tensorboard(writer), every=10)
        loader.watch(lambda step, metrics: calls.append((step, metrics)), every=10)
        list(loader)
    (file,) = tmp_path.iterdir()
    found = list(scalars_in(file))
    assert {(tag, step) for tag, step, _ in found} == {
        (f"data/{name}", step) for name in NAMES for step in (10, 20)
    }
    assert ("data/tokens", 10, 160.0) in found


def test_wandb_gets_metrics_with_what_the_user_logs_next():
    class Run:
        """Has the `log` of wandb's Run: what is not committed is joined with what follows."""

        def __init__(self):
            self.row, self.rows = {}, []

        def log(self, data, step=None, commit=None):
            self.row |= data
            if commit or (commit is None and step is None):
                self.rows.append(self.row)
                self.row = {}

    run = Run()
    millstream.log_to_wandb(run, prefix="input/")(300, {"tokens": 5.0})
    run.log({"loss": 2.5})
    assert run.rows == [{"input/tokens": 5.0, "input/step": 300, "loss": 2.5}]


def test_wandb_without_a_run_is_an_error():
    with pytest.raises(millstream.UsageError, match="wandb"):
        millstream.log_to_wandb()
