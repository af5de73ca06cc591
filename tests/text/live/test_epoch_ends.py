"""The ends of epochs of live text resume as exactly as their middles."""

import json
import threading

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock import Packing, TextLoader
from penstock.errors import FormatError
from tests.helpers.live_text import POLICIES, Bytes, corpora, make_loader, rows_of, write_text

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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tail", ["drop", "keep"])
@pytest.mark.parametrize(("ranks", "lanes"), [(1, 2), (3, 3)])
def test_every_step_of_an_epoch_can_be_resumed_to_its_end(tmp_path, policy, tail, ranks, lanes):
    path = write_text(tmp_path / "text", FILES)
    options = {"seq_len": 12, "batch_size": 1, "tail": tail, "lanes": lanes}
    steps, states = steps_to_the_end(path, policy, None, ranks, **options)
    assert steps
    for number, state in enumerate(states[:-1]):
        assert steps_to_the_end(path, policy, state, ranks, **options)[0] == steps[number:]


@settings(max_examples=30, deadline=None)
@given(corpora, st.sampled_from(POLICIES), st.integers(2, 9), st.booleans(), st.data())
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
        with pytest.raises(FormatError, match=r"rows from position .* 2 were counted"):
            list(loader)


def test_rows_of_half_a_million_tokens_are_counted_too(tmp_path):
    path = write_text(tmp_path / "text", FILES)
    packing = Packing(policy="flat", extras=("cu_seqlens",))
    with TextLoader(
        path, Bytes(), 1, 1 << 19, packing, endless=False, tail="keep", output="numpy"
    ) as loader:
        (batch,) = list(loader)
    assert batch["cu_seqlens"][-1] == 1 << 19
