"""Hostile states and tokenizers: kernels check no bounds, so none of this may reach them."""

import itertools
import json

import numpy as np
import pytest

from millstream import Packing, TextLoader
from millstream.errors import FormatError, StateError
from millstream.text.live.lane_state import Waiting
from tests.helpers.live_text import PACKINGS, Bytes, make_loader, rows_of, write_text

FILES = [[["abc" * k for k in range(1, 60)], ["d" * 50] * 300, ["e", "", "f" * 40_000]]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"), FILES)


def damaged(corpus, policy, **changes):
    """A state after three steps, whose only lane is changed."""
    with make_loader(corpus, policy, 8, refill=40) as loader:
        list(itertools.islice(loader, 3))
        state = json.loads(json.dumps(loader.state_dict()))
    state["lane_states"]["0"] |= changes
    return state


def load(corpus, policy, state):
    with make_loader(corpus, policy, 8, refill=40) as loader:
        loader.load_state_dict(state)
        return rows_of(itertools.islice(loader, 500))


@pytest.mark.parametrize("policy", PACKINGS)
@pytest.mark.parametrize("first_token", [28, 1000, 100_000, 1 << 61])
def test_a_state_that_begins_behind_the_end_of_a_document_is_refused(corpus, policy, first_token):
    state = damaged(corpus, policy, number=8, first_token=first_token)
    with pytest.raises(StateError, match="tokens of document 8"):
        load(corpus, policy, state)


def test_a_state_that_begins_inside_of_a_document_that_is_gone_is_refused(corpus):
    state = damaged(corpus, "flat", ordinal=0, number=59, first_token=3)
    with pytest.raises(StateError, match="tokens of document 59"):
        load(corpus, "flat", state)


def test_text_that_was_cut_under_a_state_in_the_middle_of_a_document_is_noticed(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"text": "x" * 500}) + "\n" + json.dumps({"text": "y"}) + "\n")
    state = damaged(path, "flat")
    assert state["lane_states"]["0"]["first_token"] > 20
    padding = " " * 490
    path.write_text(f'{{"text": "{"x" * 10}"{padding}}}\n' + json.dumps({"text": "y"}) + "\n")
    state["lane_states"]["0"]["waiting"] = Waiting().to_text()
    with pytest.raises(StateError, match="text or the tokenizer has changed"):
        load(path, "flat", state)


class Lying(Bytes):
    """A tokenizer whose answers are changed."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def encode(self, data, offsets):
        return self._change(*super().encode(data, offsets))


LIES = {
    "ids beyond the vocabulary": lambda ids, offsets: (ids + 70_000, offsets),
    "negative ids": lambda ids, offsets: (ids.astype(np.int64) - 200, offsets),
    "no whole numbers": lambda ids, offsets: (ids.astype(np.float32), offsets),
    "too few offsets": lambda ids, offsets: (ids, offsets[:-1]),
    "offsets that go beyond": lambda ids, offsets: (ids, offsets + (1 << 40) * (offsets > 0)),
    "offsets that go back": lambda ids, offsets: (ids, np.append(offsets[-2::-1], len(ids))),
    "offsets before the ids": lambda ids, offsets: (ids, offsets - (1 << 40) * (offsets == 0)),
    "more ids": lambda ids, offsets: (np.append(ids, ids), offsets),
    "a table": lambda ids, offsets: (ids[:, None], offsets),
    "one id": lambda ids, offsets: (ids[0], offsets),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_tokenizer_that_gives_what_cannot_be_is_refused(corpus, lie):
    with (
        TextLoader(corpus, Lying(LIES[lie]), 2, 8, output="numpy") as loader,
        pytest.raises(FormatError, match="tokenizer bytes-bos returned"),
    ):
        next(iter(loader))


def test_a_tokenizer_may_give_ids_and_offsets_of_any_integer_type(corpus):
    def widened(ids, offsets):
        return np.repeat(ids, 2).astype(np.int64)[::2], offsets.astype(np.int32)

    packing, found = Packing(extras=("document_ids",)), []
    for tokenizer in (Bytes(), Lying(widened)):
        with TextLoader(corpus, tokenizer, 2, 8, packing, output="numpy") as loader:
            found.append(rows_of(itertools.islice(loader, 50)))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_lane_without_a_token_is_an_error_and_not_a_wait(tmp_path, ranks):
    path = write_text(tmp_path / "text", [[["", "a", "", "bc"], [""], ["", "def"], ["", ""]]])
    packing = Packing(policy="best_fit", add="none")
    options = {"rank": ranks - 1, "ranks": ranks, "lanes": 2, "output": "numpy"}
    with (
        TextLoader(path, Bytes(), 2, 3, packing, shuffle=False, endless=True, **options) as loader,
        pytest.raises(FormatError, match=r"lane 1: .* no token"),
    ):
        next(iter(loader))
