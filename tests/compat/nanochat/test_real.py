"""nanochat's loaders: its own batches bit for bit on every rank, resumed exactly, defects fixed."""

import hashlib
import json
import os
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import tiktoken
import torch

from millstream.compat import nanochat
from millstream.errors import MissingDataError, StateError, UsageError
from millstream.testing import assert_resumes_exactly, assert_same
from millstream.text.splitting.patterns import PATTERNS
from tests.helpers.nanochat_corpus import ROW_GROUPS, ByteTokenizer, write_corpus
from tests.helpers.nanochat_golden import CASES, EXPECTED
from tests.helpers.reading_threads import background_threads, wait_for_background_threads_to_end

ALL_FILES = tuple(range(len(ROW_GROUPS)))
HEAD, LAST_FLAT, ADVANCES_PAST_TARGETS, FIRST = EXPECTED["commits"]


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    """By which files there are: a directory as NANOCHAT_BASE_DIR names it."""
    made = {}
    for files in {tuple(case["files"]) for case in CASES}:
        made[files] = tmp_path_factory.mktemp("nanochat")
        # The older name of the directory is found as well.
        write_corpus(
            made[files] / ("base_data" if len(files) == 3 else "base_data_climbmix"), files
        )
    return made


@pytest.fixture
def place(bases, monkeypatch):
    """Be on this rank, where there are these files."""

    def go(rank=0, world=1, files=ALL_FILES):
        monkeypatch.setenv("NANOCHAT_BASE_DIR", str(bases[tuple(files)]))
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}.items():
            monkeypatch.setenv(name, str(value))

    return go


class TiktokenHolder:
    """What nanochat's own tokenizer shows: an encoding under `enc`, and lists of ids."""

    def __init__(self, pattern=PATTERNS["nanochat"].regex, specials=("<|bos|>", "<|user_start|>")):
        ranks = {bytes.fromhex(token): rank for rank, token in enumerate(EXPECTED["vocabulary"])}
        self.enc = tiktoken.Encoding(
            name="rustbpe",
            pat_str=pattern,
            mergeable_ranks=ranks,
            special_tokens={name: len(ranks) + k for k, name in enumerate(specials)},
        )
        self.num_calls = 0

    def get_bos_token_id(self):
        return self.enc.encode_single_token("<|bos|>")

    def encode(self, texts, prepend=None, num_threads=8):
        self.num_calls += 1
        found = self.enc.encode_ordinary_batch(texts, num_threads=num_threads)
        return [[prepend, *ids] for ids in found]


def tokenizer_of(name):
    return ByteTokenizer() if name == "bytes" else TiktokenHolder()


def loader_of(case):
    """Called as the script of that time called nanochat's."""
    arguments = {**case["arguments"], "device": "cpu", "resume_state_dict": case["resume"]}
    tokenizer = tokenizer_of(case["tokenizer"])
    make = getattr(nanochat, case["loader"])
    if case["commit"] in (HEAD, LAST_FLAT):
        return make(tokenizer, **arguments)
    return make(arguments.pop("B"), **arguments, tokenizer=tokenizer)


def hashed(inputs, targets):
    both = json.dumps([inputs.tolist(), targets.tolist()])
    return hashlib.sha256(both.encode()).hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['commit']}, {case['rank']}")
def test_batches_and_states_are_those_of_nanochat(case, place):
    place(case["rank"], case["world"], case["files"])
    hashes, states = [], []
    for inputs, targets, *state in islice(loader_of(case), case["batches"]):
        if not hashes:
            assert [inputs.tolist(), targets.tolist()] == case["first"]
        assert inputs.dtype == (torch.int32 if case["commit"] == FIRST else torch.int64)
        assert targets.dtype == torch.int64
        assert inputs.is_contiguous()
        assert targets.is_contiguous()
        hashes.append(hashed(inputs, targets))
        states += [[one[key] for key in ("pq_idx", "rg_idx", "epoch")] for one in state]
    assert hashes == case["hashes"]
    known = 2 if case["commit"] == ADVANCES_PAST_TARGETS else 3  # the epoch came later
    assert [state[:known] for state in states] == case["states"]


def test_the_golden_batches_hold_what_they_should():
    worlds = {(case["commit"], case["world"]) for case in CASES}
    assert {(HEAD, 1), (HEAD, 2), (HEAD, 3), (LAST_FLAT, 3), (FIRST, 2)} <= worlds
    epochs = [case["states"][-1][2] for case in CASES if case["commit"] in (HEAD, LAST_FLAT)]
    assert max(epochs) > 5
    assert any(len(set(case["first"][0][0])) > 20 for case in CASES)
    assert len({tuple(case["hashes"]) for case in CASES}) == len(CASES)


# Resuming


class Resumed:
    """A loader as `assert_resumes_exactly` takes it: its state is that of its last batch."""

    def __init__(self, make):
        self._make, self._state = make, None

    def __iter__(self):
        for inputs, targets, state in self._make(resume_state_dict=self._state):
            self._state = state
            yield inputs, targets

    def state_dict(self):
        return self._state

    def load_state_dict(self, state):
        self._state = state


def best_fit(*args, **options):
    make = nanochat.tokenizing_distributed_data_loader_with_state_bos_bestfit
    options = {"buffer_size": 20, "tokenizer_batch_size": 16, "device": "cpu"} | options
    return make(ByteTokenizer(), *args, **options)


def flat(*args, **options):
    make = nanochat.tokenizing_distributed_data_loader_with_state
    return make(ByteTokenizer(), *args, device="cpu", **options)


def oldest_flat(*args, **options):
    make = nanochat.tokenizing_distributed_data_loader_with_state
    return make(*args, device="cpu", tokenizer=ByteTokenizer(), **options)


@pytest.mark.slow
@pytest.mark.parametrize("make", [best_fit, flat, oldest_flat])
def test_a_state_of_any_batch_goes_on_exactly(make, place):
    place(rank=1, world=2)
    assert_resumes_exactly(lambda: Resumed(partial(make, 3, 500, "train")), steps=25)


@pytest.mark.slow
def test_a_state_goes_on_exactly_where_epochs_end(place):
    place(rank=1, world=3)
    assert_resumes_exactly(lambda: Resumed(partial(best_fit, 1, 700, "val")), steps=30)


def test_a_state_goes_on_exactly_with_other_threads_and_batches(place):
    place()
    made = list(islice(best_fit(2, 128, "train"), 10))
    expected = torch.cat([inputs for inputs, _, _ in made[4:]])
    again = best_fit(3, 128, "train", resume_state_dict=made[3][2], tokenizer_threads=1)
    assert torch.equal(torch.cat([inputs for inputs, _, _ in islice(again, 4)]), expected)


@pytest.mark.slow
def test_a_state_before_its_batch_gives_that_batch_again(place):
    place()
    expected = list(islice(best_fit(2, 256, "train"), 8))
    made = list(islice(best_fit(2, 256, "train", state_before=True), 8))
    for step, (inputs, targets, state) in enumerate(made):
        assert torch.equal(inputs, expected[step][0])
        again = best_fit(2, 256, "train", resume_state_dict=json.loads(json.dumps(state)))
        assert_same(next(again)[:2], (inputs, targets))


def test_a_state_before_the_first_batch_after_a_near_resume_gives_it_again(place):
    place()
    near = {"pq_idx": 1, "rg_idx": 0}
    options = {"resume_state_dict": near, "state_before": True}
    (first, _, state), (second, _, later) = islice(best_fit(2, 256, "train", **options), 2)
    assert torch.equal(next(best_fit(2, 256, "train", resume_state_dict=state))[0], first)
    assert torch.equal(next(best_fit(2, 256, "train", resume_state_dict=later))[0], second)


def states_of_two_ranks(place, steps):
    found = []
    for rank in range(2):
        place(rank, 2)
        found.append(list(islice(best_fit(2, 128, "train"), steps)))
    return found


def test_the_state_of_another_rank_is_refused_and_joined_states_are_for_all(place):
    ranks = states_of_two_ranks(place, 9)
    saved = [made[3][2] for made in ranks]
    with pytest.raises(StateError, match=r"rank 1 of 2 .*nanochat\.join_states.*without the key"):
        best_fit(2, 128, "train", resume_state_dict=saved[0])
    for wrong in ([saved[0], None], [saved[0], {"pq_idx": 0, "rg_idx": 0}], saved[0]):
        with pytest.raises(StateError, match="Pass the list of states"):
            nanochat.join_states(wrong)
    joined = json.loads(json.dumps(nanochat.join_states(saved)))
    for rank, made in enumerate(ranks):
        place(rank, 2)
        again = list(islice(best_fit(2, 128, "train", resume_state_dict=joined), 5))
        assert_same([batch[:2] for batch in again], [batch[:2] for batch in made[4:]])


def test_one_rank_goes_on_with_the_rows_of_two(place):
    ranks = states_of_two_ranks(place, 9)
    joined = nanochat.join_states([made[3][2] for made in ranks])
    place(0, 1)
    rows = torch.cat(
        [batch[0] for batch in islice(best_fit(4, 128, "train", resume_state_dict=joined), 5)]
    )
    for rank, made in enumerate(ranks):
        assert torch.equal(rows[rank::2], torch.cat([batch[0] for batch in made[4:]]))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"pq_idx": 0}, "needs pq_idx and rg_idx"),
        ([], "needs pq_idx"),
        ({"pq_idx": -1, "rg_idx": 0}, "pq_idx in resume_state_dict is -1"),
        ({"pq_idx": 0, "rg_idx": "1"}, "rg_idx in resume_state_dict is '1'"),
        ({"pq_idx": 0, "rg_idx": 0, "epoch": 0}, "epoch in resume_state_dict is 0"),
        ({"pq_idx": 3, "rg_idx": 0, "epoch": 1}, "pq_idx=3, but there are 3 files"),
        ({"pq_idx": 0, "rg_idx": 0, "millstream": {}}, "not a state of a TextLoader"),
    ],
)
def test_what_is_no_state_is_refused_at_once(state, reason, place):
    place()
    with pytest.raises(StateError, match=reason):
        best_fit(2, 128, "train", resume_state_dict=state)


def test_a_state_of_another_tokenizer_is_refused(place):
    place()
    state = next(best_fit(2, 128, "train"))[2]
    make = nanochat.tokenizing_distributed_data_loader_with_state_bos_bestfit
    options = {"buffer_size": 20, "tokenizer_batch_size": 16, "device": "cpu"}
    with pytest.raises(StateError, match="tokenizer was"):
        make(TiktokenHolder(), 2, 128, "train", resume_state_dict=state, **options)


# Defects of nanochat


def test_batches_that_are_kept_do_not_change(place):
    place()
    loader = best_fit(2, 64, "train")
    kept = [next(loader) for _ in range(12)]
    values = [(inputs.clone(), targets.clone()) for inputs, targets, _ in kept]
    for _ in range(20):
        next(loader)
    for (inputs, targets, _), (first, second) in zip(kept, values, strict=True):
        assert torch.equal(inputs, first)
        assert torch.equal(targets, second)
    assert len({inputs.data_ptr() for inputs, _, _ in kept}) == len(kept)


def test_a_single_file_is_an_error_for_training_and_serves_validation(
    place, bases, monkeypatch, tmp_path
):
    place()
    write_corpus(tmp_path / "base_data", [3])
    expected = next(best_fit(2, 64, "val"))[0]
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with pytest.raises(UsageError, match=r"shard_00003\.parquet: is the only file"):
        best_fit(2, 64, "train")
    assert torch.equal(next(best_fit(2, 64, "val"))[0], expected)


@pytest.mark.parametrize("rank", range(4))
def test_more_ranks_than_row_groups_are_an_error_on_every_rank(rank, place):
    place(rank, 4)
    with pytest.raises(UsageError, match=r"4 ranks or lanes share 3 .*use fewer"):
        best_fit(2, 64, "val")


def test_missing_data_is_an_error_that_says_where(place, monkeypatch, tmp_path):
    place()
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with pytest.raises(MissingDataError, match="neither base_data_climbmix nor base_data"):
        best_fit(2, 64, "train")
    (tmp_path / "base_data").mkdir()
    with pytest.raises(MissingDataError, match=r"base_data: contains no \.parquet file"):
        best_fit(2, 64, "train")


def test_without_a_variable_the_data_is_below_the_home_directory(
    place, bases, monkeypatch, tmp_path
):
    place()
    expected = next(best_fit(2, 64, "train"))[0]
    base = Path(os.environ["NANOCHAT_BASE_DIR"])
    monkeypatch.delenv("NANOCHAT_BASE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "nanochat").symlink_to(base)
    assert torch.equal(next(best_fit(2, 64, "train"))[0], expected)


def test_wrong_arguments_are_errors_at_once(place):
    place()
    with pytest.raises(UsageError, match="split is 'test'"):
        best_fit(2, 64, "test")
    with pytest.raises(UsageError, match="B is 0"):
        best_fit(0, 64, "train")
    with pytest.raises(TypeError):
        best_fit(2, 64)
    with pytest.raises(TypeError):
        flat(2, 64, "train", buffer_size=10)


def test_the_device_may_be_a_torch_device(place):
    place()
    expected = next(best_fit(2, 64, "train"))[0]
    assert torch.equal(next(best_fit(2, 64, "train", device=torch.device("cpu")))[0], expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_an_error(place):
    place()
    make = nanochat.tokenizing_distributed_data_loader_bos_bestfit
    with pytest.raises(UsageError, match="device is 'cuda', but torch finds no GPU"):
        make(ByteTokenizer(), 2, 64, "train")


@pytest.mark.parametrize("with_state", [True, False])
def test_a_loader_that_is_let_go_ends_its_threads(place, with_state):
    wait_for_background_threads_to_end()
    place()
    make = nanochat.tokenizing_distributed_data_loader_bos_bestfit
    loader = (
        best_fit(2, 64, "train")
        if with_state
        else make(ByteTokenizer(), 2, 64, "train", device="cpu")
    )
    assert len(next(loader)) == 2 + with_state
    loader.close()
    assert not background_threads()


def test_without_state_the_batches_are_the_same(place):
    place()
    make = nanochat.tokenizing_distributed_data_loader_bos_bestfit
    expected = list(islice(best_fit(2, 64, "train"), 5))
    made = make(ByteTokenizer(), 2, 64, "train", 1, 16, "cpu", None, 20)
    assert_same(list(islice(made, 5)), [batch[:2] for batch in expected])
    made = nanochat.tokenizing_distributed_data_loader(
        ByteTokenizer(), 2, 64, "train", device="cpu"
    )
    assert_same(list(islice(made, 5)), [batch[:2] for batch in islice(flat(2, 64, "train"), 5)])
