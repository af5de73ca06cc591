"""torch's DataLoader and torchdata's StatefulDataLoader around a loader resume exactly."""

import json
import warnings
from functools import partial
from itertools import islice

import pytest

import millstream
from millstream.errors import StateError
from tests.helpers.datasets import inputs_of
from tests.helpers.trainer_data import ROWS, STEPS, make, make_text
from tests.helpers.trainer_runs import check_killed_and_resumed
from tests.helpers.trainers import with_torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:(This DataLoader will|'set_vital')")


def epochs_of(view, count, **options):
    loader = make(view, **options)
    return [inputs_of(loader) for _ in range(count)]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("program", [with_torch.train, with_torch.train_stateful])
def test_a_killed_run_resumes_exactly(tmp_path, program, ranks, num_workers):
    check_killed_and_resumed(partial(program, num_workers=num_workers), tmp_path, ranks)


@pytest.mark.process
@pytest.mark.parametrize(("workers", "tail"), [(0, "drop"), (1, "keep"), (2, "drop"), (3, "wrap")])
def test_a_stateful_data_loader_resumes_exactly_at_any_step(view, workers, tail):
    expected = epochs_of(view, 3, tail=tail)

    def wrap():
        return StatefulDataLoader(make(view, tail=tail), batch_size=None, num_workers=workers)

    for stop in (0, 1, 20, STEPS - 2, STEPS - 1, STEPS):
        wrapped = wrap()
        batches = iter(wrapped)
        assert inputs_of(islice(batches, stop)) == expected[0][:stop]
        state = json.loads(json.dumps(wrapped.state_dict()))
        del batches, wrapped
        resumed = wrap()
        resumed.load_state_dict(state)
        assert inputs_of(resumed) == expected[0][stop:]
        assert inputs_of(resumed) == expected[1]


def test_a_text_loader_in_a_stateful_data_loader_resumes_exactly(text):
    loader = make_text(text)
    expected = [inputs_of(loader), inputs_of(loader)]

    def wrap():
        return StatefulDataLoader(make_text(text), batch_size=None)

    for stop in (0, 20, STEPS - 1, STEPS):
        wrapped = wrap()
        assert inputs_of(islice(wrapped, stop)) == expected[0][:stop]
        resumed = wrap()
        resumed.load_state_dict(wrapped.state_dict())
        assert inputs_of(resumed) == expected[0][stop:]
        assert inputs_of(resumed) == expected[1]


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_after_a_whole_epoch_begins_the_next(view, workers):
    expected = epochs_of(view, 3)
    wrapped = StatefulDataLoader(make(view), batch_size=None, num_workers=workers)
    assert [inputs_of(wrapped), inputs_of(wrapped)] == expected[:2]
    state = wrapped.state_dict()
    resumed = StatefulDataLoader(make(view), batch_size=None, num_workers=workers)
    resumed.load_state_dict(state)
    assert inputs_of(resumed) == expected[2]


@pytest.mark.process
def test_an_endless_loader_in_a_stateful_data_loader_goes_on(view):
    expected = inputs_of(islice(make(view, endless=True), 60))

    def wrap():
        return StatefulDataLoader(make(view, endless=True), batch_size=None, num_workers=2)

    wrapped = wrap()
    assert inputs_of(islice(wrapped, 50)) == expected[:50]
    state = wrapped.state_dict()
    resumed = wrap()
    resumed.load_state_dict(state)
    assert inputs_of(islice(resumed, 10)) == expected[50:]


@pytest.mark.process
def test_the_state_of_workers_refuses_another_size_of_steps(view):
    # One worker: torch waits 5 s for each after an error.
    wrapped = StatefulDataLoader(make(view), batch_size=None, num_workers=1)
    inputs_of(islice(wrapped, 5))
    loader = millstream.Loader(view, ROWS, seed=3, rank=0, ranks=2)
    resumed = StatefulDataLoader(loader, batch_size=None, num_workers=1)
    resumed.load_state_dict(wrapped.state_dict())
    with pytest.raises(StateError, match=r"step_size was 4 and is 8;.*num_workers=0"):
        next(iter(resumed))
