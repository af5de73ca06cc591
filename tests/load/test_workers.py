"""Loaders in the workers of torch's DataLoader."""

import copy
import os
import pickle
import weakref
from itertools import islice

import pytest
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import millstream
from millstream.errors import StateError, UsageError
from tests.helpers.datasets import inputs_of, write_dataset
from tests.helpers.programs import start_python
from tests.helpers.waiting import wait_until


def make_loader(data):
    return millstream.Loader(data.windows(5), 4, seed=3)


class Wrapper(IterableDataset):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


MANY_LOADERS = """
import resource, sys
import millstream
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
view = millstream.open(sys.argv[1]).windows(5)
loaders = [millstream.Loader(view, 16, seed=k, prefetch=k % 2, output="numpy") for k in range(8)]
for batches in zip(*loaders, strict=True):
    pass
print(len(batches))
"""


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (1, "fork"), (3, "fork"), (2, "spawn"), (2, "forkserver")]
)
def test_torch_data_loader_gives_the_same_batches_in_the_same_order(data, workers, method):
    epochs = make_loader(data)
    wrapped = DataLoader(
        make_loader(data), batch_size=None, num_workers=workers, multiprocessing_context=method
    )
    for _ in range(2):  # by itself, though the loader in this process does not move
        assert inputs_of(wrapped) == inputs_of(epochs)
    assert len(wrapped) == len(epochs)


@pytest.mark.process
def test_set_epoch_reaches_the_workers_of_a_data_loader(data):
    loader = make_loader(data)
    wrapped = DataLoader(loader, batch_size=None, num_workers=2)
    first = inputs_of(wrapped)
    loader.set_epoch(5)
    sixth = inputs_of(wrapped)
    loader.set_epoch(5)
    assert inputs_of(loader) == sixth != first


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize(
    "options",
    [{}, {"tail": "keep"}, {"tail": "wrap"}, {"global_batch_size": [(0, 4), (21, 10)]}],
    ids=str,
)
def test_a_loader_knows_how_many_batches_of_its_workers_have_arrived(data, make, options):
    def states(loader, batches):
        yield loader.state_dict()
        for _ in range(2):
            for _ in batches:
                yield loader.state_dict()

    alone, loader = (millstream.Loader(data.windows(5), 4, seed=3, **options) for _ in range(2))
    wrapped = make(loader, batch_size=None, num_workers=2)
    assert list(states(loader, wrapped)) == list(states(alone, alone))


@pytest.mark.process
def test_a_state_that_was_saved_while_workers_read_continues_after_the_last_batch(data):
    loader, epoch = make_loader(data), inputs_of(make_loader(data))
    wrapped = DataLoader(loader, batch_size=None, num_workers=2)
    assert inputs_of(islice(wrapped, 5)) == epoch[:5]
    with pytest.raises(UsageError, match="last epoch was left early"):
        inputs_of(wrapped)
    with pytest.raises(StateError, match=r"load_state_dict\(loader.state_dict\(\)\)"):
        iter(loader)
    state = loader.state_dict()
    assert state["position"] == 20
    loader.load_state_dict(state)
    assert inputs_of(wrapped) == epoch[5:]
    other = make_loader(data)
    other.load_state_dict(state)
    assert inputs_of(other) == epoch[5:]


@pytest.mark.process
def test_the_position_of_workers_that_hand_out_in_any_order_is_unknown(data):
    loader = make_loader(data)
    inputs_of(islice(DataLoader(loader, batch_size=None, num_workers=2, in_order=False), 5))
    with pytest.raises(StateError, match=r"with in_order=False, .* use num_workers=0"):
        loader.state_dict()
    with pytest.raises(UsageError, match="was read by a worker"):
        loader.digest()


class Rows(Wrapper):
    """Rows instead of batches: a DataLoader's items are not the loader's steps."""

    def __iter__(self):
        for batch in self.loader:
            yield from batch["input_ids"]


@pytest.mark.process
@pytest.mark.parametrize("kind", [Wrapper, Rows])
def test_the_position_is_unknown_if_a_dataset_stands_between(data, kind):
    loader = make_loader(data)
    batches = iter(DataLoader(kind(loader), batch_size=None, num_workers=1))
    for _ in range(6):
        next(batches)
    with pytest.raises(StateError, match=r"dataset of yours around the loader, use num_workers=0"):
        loader.state_dict()
    del batches
    with pytest.raises(UsageError, match="was left early"):
        next(iter(DataLoader(kind(loader), batch_size=None, num_workers=1)))


@pytest.mark.process
def test_a_second_iterator_does_not_hide_what_the_first_one_returns(data):
    loader = make_loader(data)
    wrapped = DataLoader(loader, batch_size=None, num_workers=1)
    first = iter(wrapped)
    inputs_of(islice(first, 2))
    second = iter(wrapped)  # whose workers refuse
    inputs_of(islice(first, 10))
    assert loader.position == 12 * 4
    with pytest.raises(UsageError, match="was left early"):
        next(second)
    inputs_of(islice(first, 1))
    assert loader.position == 13 * 4


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_the_position_of_workers_that_were_told_where_to_start_is_unknown(data):
    wrapped = StatefulDataLoader(make_loader(data), batch_size=None, num_workers=1)
    inputs_of(islice(wrapped, 5))
    loader = make_loader(data)
    resumed = StatefulDataLoader(loader, batch_size=None, num_workers=1)
    resumed.load_state_dict(wrapped.state_dict())
    inputs_of(islice(resumed, 2))
    with pytest.raises(StateError, match="With a StatefulDataLoader, save its own state"):
        loader.state_dict()


@pytest.mark.process
def test_a_data_loader_that_was_interrupted_begins_where_it_is_told(data):
    loader = make_loader(data)
    wrapped = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
    inputs_of(islice(wrapped, 5))
    loader.set_epoch(0)  # in which it is: the rest comes, as without workers
    epoch = inputs_of(make_loader(data))
    assert inputs_of(wrapped) == epoch[5:]
    loader.load_state_dict(make_loader(data).state_dict())
    assert inputs_of(wrapped) == epoch


@pytest.mark.process
def test_a_copy_of_a_loader_whose_workers_moved_is_refused(data):
    loader = make_loader(data)
    inputs_of(DataLoader(loader, batch_size=None, num_workers=1))
    with pytest.raises(StateError, match="read by the workers of a DataLoader"):
        pickle.dumps(loader)


@pytest.mark.process
def test_set_epoch_after_workers_goes_on_where_they_ended(data):
    def make():
        loader = millstream.Loader(data.windows(5), 6, tail="wrap")
        loader.load_state_dict(loader.state_dict() | {"position": 2})
        return loader

    loader, own = make(), make()
    wrapped = DataLoader(loader, batch_size=None, num_workers=1)
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert inputs_of(wrapped) == inputs_of(own)


@pytest.mark.process
def test_workers_that_live_on_notice_that_the_loader_itself_has_moved(data):
    loader = make_loader(data)
    wrapped = DataLoader(loader, batch_size=None, num_workers=1, persistent_workers=True)
    inputs_of(wrapped)
    loader.set_epoch(1)
    next(iter(loader))
    with pytest.raises(UsageError, match="the loader itself was iterated over"):
        inputs_of(wrapped)


# The default of Python 3.14, a server of forks, is the parent's: a forked child cannot use it.
FORKED = {"multiprocessing_context": "fork"}


@pytest.mark.process
def test_workers_of_a_forked_child_do_not_move_the_parents_loader(data):
    loader = make_loader(data)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            inputs_of(DataLoader(loader, batch_size=None, num_workers=1, **FORKED))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert inputs_of(loader) == inputs_of(make_loader(data))


@pytest.mark.process
def test_a_forked_child_has_epochs_of_workers_of_its_own(data):
    loader = make_loader(data)
    assert inputs_of(DataLoader(loader, batch_size=None, num_workers=1)) == inputs_of(
        make_loader(data)
    )
    loader.set_epoch(0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            expected = make_loader(data)
            wrapped = DataLoader(loader, batch_size=None, num_workers=1, **FORKED)
            status = int(any(inputs_of(wrapped) != inputs_of(expected) for _ in range(2)))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loader.position == 0


@pytest.mark.process
def test_epochs_of_workers_differ_even_if_torch_is_seeded_for_each(data):
    import torch

    wrapped = DataLoader(make_loader(data), batch_size=None, num_workers=2)
    epochs = make_loader(data)
    for _ in range(3):
        torch.manual_seed(0)
        assert inputs_of(wrapped) == inputs_of(epochs)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
def test_an_epoch_that_is_left_before_its_last_batch_is_noticed(data, make):
    loader = make_loader(data)
    wrapped = make(loader, batch_size=None, num_workers=1)
    batches = iter(wrapped)
    assert len(inputs_of(islice(batches, len(loader) - 1))) == len(loader) - 1
    wait_until(lambda: loader._board.read().is_over)  # the worker reads ahead
    del batches
    with pytest.raises(UsageError, match="was left early"):
        next(iter(wrapped))


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_epoch_that_is_left_after_its_last_batch_was_whole(data, method):
    expected, loader = make_loader(data), make_loader(data)
    wrapped = DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context=method)
    for _ in range(2):
        batches = iter(wrapped)
        assert inputs_of(islice(batches, len(loader))) == inputs_of(expected)
        wait_until(lambda: loader._board.read().is_over)


@pytest.mark.process
def test_another_data_loader_within_the_last_steps_does_no_harm(data):
    expected = make_loader(data)
    wrapped = DataLoader(make_loader(data), batch_size=None, num_workers=2)
    for _ in range(2):
        batches = iter(wrapped)
        got = inputs_of(islice(batches, len(expected) - 2))
        assert len(list(DataLoader(range(3), num_workers=1))) == 3
        assert got + inputs_of(batches) == inputs_of(expected)


@pytest.mark.process
def test_a_loader_that_workers_have_read_is_garbage_when_it_is_dropped(data):
    loader = make_loader(data)
    list(DataLoader(loader, batch_size=None, num_workers=1))
    dropped = weakref.ref(loader)
    del loader
    assert dropped() is None


@pytest.mark.process
def test_workers_may_read_a_loader_inside_of_another_dataset(data):
    expected = make_loader(data)
    wrapped = DataLoader(Wrapper(make_loader(data)), batch_size=None, num_workers=2)
    for _ in range(2):
        assert inputs_of(wrapped) == inputs_of(expected)


@pytest.mark.process
def test_a_copied_loader_goes_its_own_way(data):
    first = make_loader(data)
    second = copy.copy(first)
    epoch = inputs_of(make_loader(data))
    for loader in (second, first):
        assert inputs_of(DataLoader(loader, batch_size=None, num_workers=1)) == epoch
    assert "read by workers" in repr(first)


@pytest.mark.process
def test_a_forked_child_knows_its_position_while_workers_move_the_parents_loader(data):
    loader = make_loader(data)
    inputs_of(islice(loader, 3))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(loader.position)
    loader.set_epoch(1)
    inputs_of(DataLoader(loader, batch_size=None, num_workers=1))
    os.write(writer, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 12
    os.close(reader)
    os.close(writer)


@pytest.mark.process
def test_set_epoch_after_the_last_batch_of_it_was_saved_leaves_nothing_of_it(data):
    loader = make_loader(data)
    epochs = [inputs_of(loader), inputs_of(loader)]
    loader.set_epoch(0)
    batches = iter(loader)
    inputs_of(islice(batches, len(loader)))
    state = loader.state_dict()
    restored = make_loader(data)
    restored.load_state_dict(state)
    for expected in ([], epochs[1]):
        restored.set_epoch(0 if not expected else 1)
        assert inputs_of(restored) == expected
    restored.load_state_dict(state)
    restored.set_epoch(0)
    with pytest.raises(UsageError, match=r"saved at the end of its epoch.*set_epoch\(1\)"):
        next(iter(DataLoader(restored, batch_size=None, num_workers=1)))


def test_set_epoch_needs_epochs_of_a_step(data):
    loader = millstream.Loader(data.windows(5), len(data.windows(5)) + 1, tail="wrap")
    with pytest.raises(UsageError, match="leave out set_epoch"):
        loader.set_epoch(1)


@pytest.mark.process
def test_batches_of_batches_are_refused(data):
    for workers in (0, 1):
        with pytest.raises(UsageError, match=r"DataLoader\(loader, batch_size=None\)"):
            next(iter(DataLoader(make_loader(data), num_workers=workers)))


@pytest.mark.parametrize("tail", ["drop", "wrap"])
def test_set_epoch_goes_where_iterating_would_have_gone(data, tail):
    loader = millstream.Loader(data.windows(5), 7, tail=tail)
    third = [inputs_of(loader), inputs_of(loader), inputs_of(loader)][2]
    loader.set_epoch(2)
    assert inputs_of(loader) == third


@pytest.mark.process
def test_a_broken_epoch_of_persistent_workers_is_an_error_and_loses_nothing_silently(data):
    wrapped = DataLoader(make_loader(data), batch_size=None, num_workers=2, persistent_workers=True)
    inputs_of(islice(wrapped, 5))
    with pytest.raises(UsageError, match="last epoch was left early"):
        inputs_of(wrapped)


@pytest.mark.process
def test_an_endless_share_of_persistent_workers_is_not_begun_twice(data):
    loader = millstream.Loader(data.windows(5), 4, endless=True)
    wrapped = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
    inputs_of(islice(wrapped, 5))
    with pytest.raises(UsageError, match="last epoch was left early"):
        inputs_of(islice(wrapped, 5))


@pytest.mark.process
def test_loaders_share_few_descriptors_among_many_shards(tmp_path):
    write_dataset(tmp_path / "d", range(2000), cuts=range(5, 2000, 5))
    process = start_python(MANY_LOADERS, tmp_path / "d")
    printed, errors = process.communicate(timeout=100)
    assert (printed, errors) == ("8\n", "")


def test_numpy_batches_pass_through_torch_data_loader(data):
    loader = millstream.Loader(data.windows(5), 4, seed=3, output="numpy")
    assert inputs_of(DataLoader(loader, batch_size=None)) == inputs_of(make_loader(data))


@pytest.mark.process
def test_persistent_workers_go_on_with_the_epoch_that_they_are_told(data):
    loader = millstream.Loader(data.windows(5), 7, tail="wrap")
    own = [inputs_of(loader), inputs_of(loader), inputs_of(loader)]
    wrapped = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert inputs_of(wrapped) == own[epoch]
    with pytest.raises(UsageError, match=r"call loader.set_epoch\(…\) before every epoch"):
        next(iter(wrapped))
    loader.close()
