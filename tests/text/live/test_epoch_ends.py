"""The ends of epochs of live text resume as exactly as their middles."""

import json
import threading

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millstream import Packing, TextLoader
from millstream.errors import FormatError, UsageError
from tests.helpers.live_text import PACKINGS, Bytes, corpora, make_loader, rows_of, write_text

FILES = [[["abc" * k for k in range(1, 12)], ["d" * 5] * 3, ["e", "", "f" * 40]]]


def steps_to_the_end(path, policy, state, ranks, **options):
    """The rows of every step of all ranks up to the end of an epoch, and a state before each."""
    loaders = [
        make_loader(path, policy, rank=rank, ranks=ranks, endless=False, **options)
        for rank in range(ranks)
    ]
    steps, states = [], []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    iterators = [iter(loader) for loader in loaders]
    while True:
        states.append(
            json.loads(json.dumps(TextLoader.join_states([it.state_dict() for it in loaders])))
        )
        batches = [next(iterator, None) for iterator in iterators]
        if None in batches:
            assert batches == [None] * ranks
            break
        steps.append([rows_of([batch]) for batch in batches])
    for loader in loaders:
        loader.close()
    return steps, states


@pytest.mark.slow
@pytest.mark.parametrize("policy", PACKINGS)
@pytest.mark.parametrize("tail", ["drop", "keep"])
@pytest.mark.parametrize(("ranks", "lanes"), [(1, 2), (3, 3)])
def test_every_step_of_an_epoch_can_be_resumed_to_its_end(tmp_path, policy, tail, ranks, lanes):
    path = write_text(tmp_path / "text", FILES)
    options = {"seq_len": 12, "batch_size": 1, "tail": tail, "lanes": lanes}
    steps, states = steps_to_the_end(path, policy, None, ranks, **options)
    assert steps
    for number, state in enumerate(states[:-1]):
        assert steps_to_the_end(path, policy, state, ranks, **options)[0] == steps[number:]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(corpora, st.sampled_from(PACKINGS), st.integers(2, 9), st.booleans(), st.data())
def test_an_epoch_on_changing_ranks_has_every_row_once(
    tmp_path_factory, files, policy, seq_len, shuffle, data
):
    assume(any(len(text) > seq_len for groups in files for group in groups for text in group))
    path = write_text(tmp_path_factory.mktemp("text"), files)
    lanes = data.draw(st.integers(1, sum(map(len, files))))
    works = [ranks for ranks in range(1, lanes + 1) if lanes % ranks == 0]
    options = {"seq_len": seq_len, "tail": "keep", "lanes": lanes, "shuffle": shuffle}
    whole, states = steps_to_the_end(path, policy, None, 1, batch_size=lanes, **options)
    expected = sorted(row for step in whole for share in step for row in share)
    middle = data.draw(st.integers(0, len(whole) - 1))
    ranks, batch_size = data.draw(st.sampled_from(works)), data.draw(st.integers(1, 4))
    rest, _ = steps_to_the_end(
        path, policy, states[middle], ranks, batch_size=batch_size, **options
    )
    found = [row for step in whole[:middle] + rest for share in step for row in share]
    assert sorted(found) == expected


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    files=corpora,
    policy=st.sampled_from(PACKINGS),
    seq_len=st.integers(2, 9),
    batch_size=st.integers(1, 4),
    lanes=st.integers(1, 5),
    tails=st.tuples(*[st.sampled_from(["drop", "keep"])] * 2),
    shuffle=st.booleans(),
    step=st.integers(0, 30),
)
def test_an_epoch_that_is_not_counted_has_the_rows_states_and_end_of_one_that_is(
    tmp_path_factory, files, policy, seq_len, batch_size, lanes, tails, shuffle, step
):
    path = write_text(tmp_path_factory.mktemp("text"), files)
    options = {"lanes": min(lanes, sum(map(len, files))), "shuffle": shuffle, "endless": False}

    def walk(state, tail, *, is_counted):
        """Three iterations, the first of which may have little left, or a message."""
        found = []
        with make_loader(path, policy, seq_len, batch_size, tail=tail, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            try:
                for _ in range(3):
                    if is_counted:
                        assert loader.remaining
                    found += [(rows_of([batch]), loader.state_dict()) for batch in loader]
                    found.append((loader.epoch, loader.position))
            except UsageError as error:
                found.append(str(error))
        return found

    whole = walk(None, tails[0], is_counted=False)
    assert whole == walk(None, tails[0], is_counted=True)
    state = json.loads(json.dumps(whole[step % len(whole)][1]))
    if isinstance(state, dict):  # of a batch; loaders of another tail continue it too
        assert walk(state, tails[1], is_counted=False) == walk(state, tails[1], is_counted=True)


def test_one_rank_iterates_without_counting_and_several_count(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_text(tmp_path / "text", FILES)
    counted = tmp_path / "cache" / "millstream" / "lengths"
    with make_loader(path, "flat", 8, endless=False) as loader:
        num_steps = sum(1 for _ in loader)
        assert not counted.exists()
        assert len(loader) == num_steps
    assert len(list(counted.iterdir())) == 1
    (path_of_counts,) = counted.iterdir()
    path_of_counts.unlink()
    with make_loader(path, "flat", 8, endless=False, rank=0, ranks=2) as loader:
        next(iter(loader))
    assert len(list(counted.iterdir())) == 1


def test_counting_much_text_is_announced_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("millstream.text.live.row_counts.LARGE_BYTES", 100)
    path = write_text(tmp_path / "text", FILES)
    with (
        make_loader(path, "flat", 8, endless=False) as loader,
        pytest.warns(UserWarning, match=r"tokenized once .* endless=True a loader starts at once"),
    ):
        num_steps = len(loader)
    with make_loader(path, "flat", 8, endless=False) as loader:
        assert len(loader) == num_steps  # cached: a warning would be an error


def test_set_epoch_begins_an_epoch_and_stays_in_the_one_of_a_state(tmp_path):
    path = write_text(tmp_path / "text", FILES)
    options = {"endless": False, "shuffle": True, "tail": "keep", "lanes": 2}
    with make_loader(path, "flat", 8, **options) as loader:
        epochs, states = [], []
        for _ in range(3):
            epochs.append([])
            for batch in loader:
                epochs[-1].append(rows_of([batch]))
                states.append(loader.state_dict())
        assert epochs[0] != epochs[1]
        loader.set_epoch(1)
        next(iter(loader))
        loader.set_epoch(1)  # already there
        assert [rows_of([batch]) for batch in loader] == epochs[1][1:]
        loader.set_epoch(1)  # read to its end: once more
        assert [rows_of([batch]) for batch in loader] == epochs[1]
        loader.load_state_dict(states[1])
        loader.set_epoch(0)
        assert [rows_of([batch]) for batch in loader] == epochs[0][2:]
        loader.load_state_dict(states[len(epochs[0]) - 1])
        loader.set_epoch(0)
        assert list(iter(loader)) == []
        loader.load_state_dict(states[len(epochs[0]) - 1])
        assert [rows_of([batch]) for batch in loader] == epochs[1]
    with pytest.raises(UsageError, match="an endless TextLoader has no epochs to set"):
        make_loader(path, "flat", 8).set_epoch(1)


def test_threads_that_share_a_loader_share_an_epoch(tmp_path):
    path = write_text(tmp_path / "text", FILES)
    for _ in range(20):
        with make_loader(path, "flat", 8, batch_size=1, endless=False, tail="keep") as loader:
            num_steps, found = len(loader), []
            iterators = [iter(loader) for _ in range(3)]
            found += [next(iterator) for iterator in iterators]
            threads = [threading.Thread(target=found.extend, args=(it,)) for it in iterators]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [len(batch["labels"]) for batch in found] == [1] * num_steps


class Ones:
    """Its fingerprint is what it makes of some texts, which says little of others."""

    bos_token_id = 0

    def __init__(self, num_ids):
        self._num_ids = num_ids

    def encode(self, text):
        return [1] * (self._num_ids if text.startswith("abc") else 1)


def test_an_epoch_with_other_rows_than_were_counted_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_text(tmp_path / "text", FILES)
    options = {"endless": False, "output": "numpy"}
    with TextLoader(path, Ones(9), 2, 8, "flat", **options) as loader:
        num_steps = len(list(loader))
    with TextLoader(path, Ones(2), 2, 8, "flat", **options) as loader:
        assert len(loader) == num_steps  # wrong, and nobody can know
        with pytest.raises(FormatError, match=r"rows from position .* expected 2 from counting"):
            list(loader)


def test_rows_of_half_a_million_tokens_are_counted_too(tmp_path):
    path = write_text(tmp_path / "text", FILES)
    packing = Packing(policy="flat", extras=("cu_seqlens",))
    with TextLoader(
        path, Bytes(), 1, 1 << 19, packing, endless=False, tail="keep", output="numpy"
    ) as loader:
        (batch,) = list(loader)
    assert batch["cu_seqlens"][-1] == 1 << 19


def test_closing_does_not_wait_for_batches_that_are_held_back(tmp_path):
    for number in range(4):
        lines = 400 if number == 3 else 2
        (tmp_path / f"{number}.txt").write_text(("abcdefgh" * 4 + "\n") * lines)
    options = {"lanes": 4, "tail": "keep", "shuffle": False, "output": "numpy"}
    for taken in (41, 42, 43, 44):  # the lanes before the last have ended, and give empty batches
        loader = TextLoader(str(tmp_path / "*.txt"), "bytes", 1, 8, "flat", **options)
        for _ in zip(range(taken), loader, strict=False):
            pass
        loader.close()
        assert len(list(loader)) > 100
