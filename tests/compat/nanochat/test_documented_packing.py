"""What the documented loader makes of documents that do not fit, and its attention masks."""

import json
import os
import random
import signal
from bisect import bisect_right
from collections import Counter
from functools import partial
from itertools import cycle, islice, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.compat.nanochat import (
    tokenizing_distributed_data_loader_bos_bestfit as plain,
)
from millstream.compat.nanochat import (
    tokenizing_distributed_data_loader_with_state_bos_bestfit as with_state,
)
from millstream.errors import StateError, UsageError
from millstream.testing import assert_resumes_exactly
from tests.helpers import live_model
from tests.helpers.nanochat_corpus import BOS_ID, ByteTokenizer
from tests.helpers.programs import start_python
from tests.helpers.waiting import wait_until

SMALL = {"tokenizer_batch_size": 1, "buffer_size": 4}
PACKINGS = ("crop", "continue", "pad")
POLICIES = {
    "crop": "bos_best_fit",
    "continue": "full_best_fit, repeat_bos",
    "pad": "best_fit, repeat_bos",
}


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def make(path, sequence_len, packing, batch_size=1, **options):
    loader = plain if "state" not in options else with_state
    options = SMALL | options
    shards = path if isinstance(path, list) else [path]
    return loader(
        shards, batch_size, sequence_len, ByteTokenizer(), 1, 0, packing=packing, **options
    )


def shown(row):
    """A row as text, with ^ for BOS and . for padding."""
    return "".join({BOS_ID: "^", 0: "."}.get(token, chr(token)) for token in row.tolist())


def test_a_document_goes_on_in_the_next_row_after_another_bos_as_the_page_shows(tmp_path):
    # The page: [<bos> doc1_tokens <bos> doc2_start], [<bos> doc2_end <bos> doc3_tokens].
    path = write_lines(tmp_path / "a.txt", ["1111", "222222", "333"])
    loader = make(path, 9, "continue", batch_size=2, buffer_size=1)
    assert [shown(row) for row in next(loader)["input_ids"]] == ["^1111^222", "^222^333^"]
    assert [shown(row) for row in next(loader)["input_ids"]] == ["^1111^222", "^222^333^"]


def test_the_end_of_a_document_is_dropped_or_padded_if_asked(tmp_path):
    path = write_lines(tmp_path / "a.txt", ["1111", "222222", "333"])
    rows = {
        packing: shown(next(make(path, 9, packing, buffer_size=1))["input_ids"][0])
        for packing in PACKINGS
    }
    assert rows == {"crop": "^1111^222", "continue": "^1111^222", "pad": "^1111...."}


lines = st.lists(st.text("abcdefgh", min_size=1, max_size=30), min_size=1, max_size=20)


def expected_rows(texts, packing, sequence_len, buffer_size):
    """The model's rows: one document after the other, for ever."""
    blocks = ((0, [[BOS_ID, *text.encode()]]) for text in cycle(texts))
    width = sequence_len - (packing == "crop")
    for inputs, labels, _ in live_model.rows(blocks, POLICIES[packing], width, buffer_size, 1):
        yield [*inputs, labels[-1]] if packing == "crop" else inputs


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(lines, st.sampled_from(PACKINGS), st.integers(2, 12), st.integers(1, 5))
def test_rows_are_those_of_the_model(tmp_path_factory, texts, packing, sequence_len, buffer_size):
    path = write_lines(tmp_path_factory.mktemp("text") / "a.txt", texts)
    loader = make(path, sequence_len, packing, buffer_size=buffer_size)
    found = [batch["input_ids"][0].tolist() for batch in islice(loader, 12)]
    expected = expected_rows(texts, packing, sequence_len, buffer_size)
    assert found == list(islice(expected, 12))


def test_less_than_one_percent_is_padding_for_lengths_as_those_of_web_pages(tmp_path):
    choose = random.Random(0)
    # Half of them are longer than 600 tokens, and one in nine is longer than a row.
    texts = ["x" * (1 + int(choose.lognormvariate(6.4, 1))) for _ in range(1500)]
    path = write_lines(tmp_path / "a.txt", texts)
    loader = plain([path], 8, 2048, ByteTokenizer(), 1, 0, packing="pad", attention_mask=True)
    masks = torch.cat([batch["attention_mask"] for batch in islice(loader, 40)])
    assert masks.shape == (320, 2048)
    padded_share = (masks == 0).float().mean().item()
    assert 0 < padded_share < 0.01


class Numbers:
    """The numbers in a text are its tokens."""

    bos_token_id = 0

    def encode(self, text):
        return [int(word) for word in text.split() if word.isdecimal()]


def pieces_of(batch):
    """The tokens of every document in every row, by the attention mask, and the padding."""
    for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        numbers = mask.unique().tolist()
        assert mask.dtype == torch.int64
        assert [n for n in numbers if n] == list(range(1, int(mask.max()) + 1))
        yield [row[mask == n].tolist() for n in numbers if n], row[mask == 0].tolist()


@pytest.mark.parametrize("packing", ["continue", "pad"])
def test_every_token_comes_once_a_pass_and_every_piece_starts_with_bos(tmp_path, packing):
    choose, ends = random.Random(1), [1]
    while len(ends) < 300:
        ends.append(ends[-1] + choose.choice([1, 3, 9, 40, 100]))
    texts = [" ".join(map(str, range(*pair))) for pair in pairwise(ends)]
    path = write_lines(tmp_path / "a.txt", texts)
    loader = plain(
        [path], 4, 16, Numbers(), 1, 0, packing=packing, attention_mask="documents", **SMALL
    )
    count, padding, cut_at = Counter(), 0, 0
    for batch in islice(loader, 400):
        for pieces, padded in pieces_of(batch):
            padding += len(padded)
            assert set(padded) <= {0}
            for bos, *text in pieces:
                assert bos == 0
                assert text == list(range(text[0], text[0] + len(text))) if text else True
                count.update(text)
            if packing == "continue":
                assert cut_at in (0, pieces[0][1])
                cut_at = pieces[-1][-1] + 1
                # Documents longer than a row come in pieces of 15 tokens and BOS.
                if (cut_at - ends[bisect_right(ends, cut_at) - 1]) % 15 == 0:
                    cut_at = 0
    assert (padding > 0) == (packing == "pad")
    assert set(count) == set(range(1, ends[-1]))
    assert max(count.values()) - min(count.values()) <= 1
    assert min(count.values()) >= 2


@pytest.mark.parametrize("packing", PACKINGS)
def test_masks_tell_tokens_from_padding_and_documents_apart(tmp_path, packing):
    path = write_lines(tmp_path / "a.txt", ["1111", "222222", "333", "44"])
    rows = list(islice(make(path, 9, packing), 6))
    plain_masks = list(islice(make(path, 9, packing, attention_mask=True), 6))
    numbered = list(islice(make(path, 9, packing, attention_mask="documents"), 6))
    for row, ones, numbers in zip(rows, plain_masks, numbered, strict=True):
        assert list(row) == ["input_ids"]
        assert torch.equal(row["input_ids"], ones["input_ids"])
        assert torch.equal(row["input_ids"], numbers["input_ids"])
        is_token = row["input_ids"] != 0
        assert torch.equal(ones["attention_mask"], is_token.long())
        # The texts have no BOS, so counting them is another way to number documents.
        expected = (row["input_ids"] == BOS_ID).cumsum(1) * is_token
        assert torch.equal(numbers["attention_mask"], expected)


def test_padding_is_the_token_that_was_asked_for(tmp_path):
    path = write_lines(tmp_path / "a.txt", ["1111", "222222", "333"])
    batch = next(make(path, 9, "pad", buffer_size=1, pad_id=255, attention_mask=True))
    assert batch["input_ids"][0, 5:].tolist() == [255] * 4
    assert batch["attention_mask"][0].tolist() == [1] * 5 + [0] * 4


def test_wrong_options_are_errors_at_once(tmp_path):
    path = write_lines(tmp_path / "a.txt", ["1111"])
    with pytest.raises(UsageError, match="packing is 'flat'; it must be 'crop', 'continue' or"):
        make(path, 9, "flat")
    with pytest.raises(UsageError, match="attention_mask is 'rows'; it must be True, False or"):
        make(path, 9, "crop", attention_mask="rows")


# Resuming


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    choose, folder = random.Random(2), tmp_path_factory.mktemp("shards")
    return [
        write_lines(
            folder / f"shard_{shard}.txt",
            ["".join(choose.choices("abcdefgh", k=choose.randrange(1, 400))) for _ in range(90)],
        )
        for shard in range(2)
    ]


class Resumed:
    """A loader as `assert_resumes_exactly` takes it, with the dict that it keeps."""

    def __init__(self, make):
        self._make, self._state = make, {}

    def __iter__(self):
        return self._make(state=self._state)

    def state_dict(self):
        return self._state

    def load_state_dict(self, state):
        self._state = state


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["continue", "pad"])
def test_the_state_of_any_batch_goes_on_exactly(shards, packing):
    new = partial(make, shards, 100, packing, batch_size=3, attention_mask="documents")
    assert_resumes_exactly(lambda: Resumed(new), steps=40)


def test_a_state_of_another_packing_is_refused(shards):
    state = {}
    next(make(shards, 100, "continue", state=state))
    with pytest.raises(StateError, match="packing"):
        make(shards, 100, "pad", state=state)


PROGRAM = """
import json, os, sys
from millstream.compat.nanochat import tokenizing_distributed_data_loader_with_state_bos_bestfit
from tests.helpers.nanochat_corpus import ByteTokenizer
folder, packing, *shards = sys.argv[1:]
saved = folder + "/state.json"
state = json.load(open(saved)) if os.path.exists(saved) else {}
loader = tokenizing_distributed_data_loader_with_state_bos_bestfit(
    shards, 2, 100, ByteTokenizer(), 1, 0, state, packing=packing, buffer_size=20)
for batch in loader:
    with open(folder + "/rows.jsonl", "a") as rows:
        print(json.dumps([state["tokens_consumed"], batch["input_ids"].tolist()]), file=rows)
    with open(saved + ".new", "w") as file:
        json.dump(state, file)
    os.replace(saved + ".new", saved)
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("packing", ["continue", "pad"])
def test_runs_that_are_killed_go_on_with_the_rows_of_one_that_is_not(shards, tmp_path, packing):
    written = tmp_path / "rows.jsonl"

    def num_written():
        return written.read_text().count("\n") if written.exists() else 0

    for _ in range(3):
        before = num_written()
        run = start_python(PROGRAM, tmp_path, packing, *shards)
        try:
            wait_until(lambda start=before: num_written() >= start + 30)
        finally:
            os.kill(run.pid, signal.SIGKILL)
            run.communicate()
    found = {}
    for line in written.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # the last one of a run may be torn
            num_tokens, rows = json.loads(line)
            assert found.setdefault(num_tokens, rows) == rows
    expected = islice(make(shards, 100, packing, batch_size=2, buffer_size=20), len(found))
    assert list(found) == [200 * k for k in range(1, len(found) + 1)]
    assert list(found.values()) == [batch["input_ids"].tolist() for batch in expected]
