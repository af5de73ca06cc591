"""Chats in live rows: exactly what the assistant writes is trained on, wherever rows cut it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from tests.helpers.chat_rows import said, write_rows, write_tokenizer
from tests.helpers.chat_templates import CHATML_MARKED

CHATS = [
    said(*(f"{role} {k} " * (1 + k * n % 7) for n, role in enumerate("abcd"))) for k in range(40)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("chats")
    write_tokenizer(place / "model", CHATML_MARKED)
    write_rows(place / "chats.jsonl", CHATS)
    millstream.tokenize(
        place / "chats.jsonl", place / "model", place / "out", chat=millstream.Chat()
    )
    return place


def new_loader(place, packing, seq_len, batch_size=3, **options):
    return millstream.TextLoader(
        place / "chats.jsonl",
        place / "model",
        batch_size,
        seq_len,
        packing,
        chat=millstream.Chat(),
        **({"output": "numpy", "tail": "keep", "shuffle": False} | options),
    )


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    policy=st.sampled_from(["flat", "best_fit", "full_best_fit"]),
    seq_len=st.integers(8, 90),
    buffer_size=st.integers(1, 50),
)
def test_what_the_assistant_writes_is_a_label_and_nothing_else(place, policy, seq_len, buffer_size):
    """A label is the token after its input in the conversation, or there is none."""
    data = millstream.open(place / "out")
    tokens = {k: data.document(k) for k in range(data.num_documents)}
    packing = millstream.Packing(policy=policy, buffer_size=buffer_size, extras=("document_ids",))
    trained = 0
    with new_loader(place, packing, seq_len) as loader:
        for batch in loader:
            is_label = batch["labels"] != -100
            trained += int(is_label.sum())
            followers = {}
            for row, column in zip(*np.nonzero(is_label), strict=True):
                number = int(batch["document_ids"][row, column]) & 0xFFFFFFFF
                followers.setdefault(number, []).append(
                    (batch["input_ids"][row, column], batch["labels"][row, column])
                )
            for number, pairs in followers.items():
                ids = tokens[number]["token"].tolist()
                known = {
                    (ids[k], ids[k + 1])
                    for k in range(len(ids) - 1)
                    if tokens[number]["loss_mask"][k + 1]
                }
                assert set(pairs) <= known
    every = sum(int(each["loss_mask"][1:].sum()) for each in tokens.values())
    # Where full_best_fit cuts a piece of a long conversation again, there is no room for a label.
    assert trained == every or (policy == "full_best_fit" and 0.8 * every < trained < every)


@pytest.mark.parametrize("policy", ["best_fit", "full_best_fit", "bos_best_fit"])
def test_a_state_of_any_step_goes_on_exactly(place, policy):
    packing = millstream.Packing(
        policy=policy, buffer_size=7, add="bos" if "bos" in policy else None
    )
    with new_loader(place, packing, 40) as loader:
        states, batches = [loader.state_dict()], []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    for step, state in enumerate(states[:-1]):
        with new_loader(place, packing, 40, prefetch=1, threads=1) as resumed:
            resumed.load_state_dict(state)
            found = next(iter(resumed))
        for name in ("input_ids", "labels", "loss_mask"):
            assert np.array_equal(found[name], batches[step][name])


def test_a_state_does_not_go_on_with_another_chat(place):
    with new_loader(place, "best_fit", 40) as loader:
        next(iter(loader))
        state = loader.state_dict()
    other = millstream.TextLoader(
        place / "chats.jsonl",
        place / "model",
        3,
        40,
        "best_fit",
        chat=millstream.Chat(loss_on="last"),
        shuffle=False,
    )
    with other, pytest.raises(millstream.StateError, match="different rows: text was"):
        other.load_state_dict(state)


def test_pairs_are_refused(place):
    chat = millstream.Chat(chosen="c", rejected="r")
    with pytest.raises(millstream.UsageError, match="stay together only in stored datasets"):
        millstream.TextLoader(place / "chats.jsonl", place / "model", 1, 8, chat=chat)


def test_positions_of_a_flat_row_go_on_within_a_conversation(place):
    extras = ("document_ids", "position_ids")
    with new_loader(place, millstream.Packing(policy="flat", extras=extras), 24) as loader:
        for batch in loader:
            documents, positions = batch["document_ids"], batch["position_ids"]
            goes_on = documents[:, 1:] == documents[:, :-1]
            assert (np.diff(positions)[goes_on & (documents[:, 1:] >= 0)] == 1).all()
