"""Marks of live documents: before, after, both or none, wherever rows are cut."""

import itertools

import pytest

import millstream
from millstream import Packing
from millstream.errors import UsageError
from tests.helpers import live_model
from tests.helpers.live_text import BOS, PACKINGS, Bytes, rows_of, write_text

EOS = 257
GROUPS = [["", "a", "bc" * 9, "d" * 7], ["e" * 40, "", "fg"]]
MARKS = {"bos": ([BOS], []), "eos": ([], [EOS]), "both": ([BOS], [EOS]), "none": ([], [])}


class Marked(Bytes):
    """With both marks."""

    def __init__(self):
        super().__init__()
        self.vocab_size, self.eos_id = 258, EOS


class Unmarked(Bytes):
    """With neither."""

    def __init__(self):
        super().__init__()
        self.bos_id = None


CASES = [
    (policy, add, seq_len)
    for policy, add, seq_len in itertools.product(PACKINGS, MARKS, [1, 2, 7, 8, 9])
    if "repeat_bos" not in policy or (MARKS[add][0] and seq_len > 1)
]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "add", "seq_len"), CASES)
def test_rows_have_the_marks_that_were_asked_for(tmp_path, policy, add, seq_len):
    path = write_text(tmp_path / "text", [GROUPS])
    before, after = MARKS[add]
    documents = [[[*before, *text.encode(), *after] for text in group] for group in GROUPS]
    blocks = ((n, documents[n]) for n in live_model.lane_blocks(2, 0, 1))
    expected = live_model.rows(blocks, policy, seq_len, buffer_size=3, refill=2)
    policy, _, repeat_bos = policy.partition(", ")
    packing = Packing(
        policy=policy,
        buffer_size=3,
        refill=2,
        add=add,
        repeat_bos=bool(repeat_bos),
        extras="document_ids",
    )

    def make():
        return millstream.TextLoader(
            path, Marked(), 2, seq_len, packing, shuffle=False, endless=True, output="numpy"
        )

    with make() as loader:
        rows, states = [], []
        for batch in itertools.islice(loader, 12):
            rows += rows_of([batch])
            states.append(loader.state_dict())
    assert rows == list(itertools.islice(expected, 24))
    for step in (0, 5, 10):
        with make() as loader:
            loader.load_state_dict(states[step])
            assert rows_of(itertools.islice(loader, 1)) == rows[2 * step + 2 : 2 * step + 4]


def test_repeating_a_mark_needs_one_and_documents_that_are_cut():
    for policy in ("flat", "bos_best_fit"):
        with pytest.raises(UsageError, match=f"policy is '{policy}'; repeat_bos marks the pieces"):
            Packing(policy=policy, repeat_bos=True)
    for packing in (Packing(repeat_bos=True), Packing(repeat_bos=True, add="eos")):
        with pytest.raises(UsageError, match="repeat_bos needs a bos mark"):
            packing.marks(Marked())
    with pytest.raises(UsageError, match="seq_len is 1; with repeat_bos"):
        Packing(repeat_bos=True, add="bos").layout(Marked(), 1, 1, None)


def test_documents_are_marked_by_default_or_it_is_said_that_they_cannot_be():
    assert Packing().marks(Marked()) == (-1, EOS)
    assert Packing().marks(Bytes()) == (BOS, -1)
    with pytest.raises(UsageError, match=r"no token that starts or ends .*add='none'"):
        Packing().marks(Unmarked())
    assert Packing(add="none").marks(Unmarked()) == (-1, -1)
    ended = Unmarked()
    ended.eos_id = EOS
    assert Packing().marks(ended) == (-1, EOS)
