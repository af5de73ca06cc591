"""nanochat's loaders as its documentation describes them: whole shards, dicts, correct states."""

import gzip
import json
from functools import partial
from itertools import chain, count, cycle, islice

import pyarrow as pa
import pytest
import torch

from millstream.compat.nanochat import (
    tokenizing_distributed_data_loader_bos_bestfit as plain,
)
from millstream.compat.nanochat import (
    tokenizing_distributed_data_loader_with_state_bos_bestfit as with_state,
)
from millstream.errors import MissingDataError, StateError, UsageError
from millstream.testing import assert_resumes_exactly
from tests.helpers.live_model import bos_best_fit
from tests.helpers.nanochat_corpus import (
    BOS_ID,
    ByteTokenizer,
    files,
    text,
    write_corpus,
    write_file,
)
from tests.helpers.nanochat_golden import CASES

SMALL = {"tokenizer_batch_size": 16, "buffer_size": 50}


def new_state():
    return {"shard_idx": 0, "byte_offset": 0, "tokens_consumed": 0}


@pytest.fixture(scope="module")
def parquet_shards(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("shards"), (0, 1, 2))


def lines_of(shard):
    """Documents of one line each."""
    return [text(shard * 1000 + k, 3 + (k * 37) % 211).replace("\n", "/") for k in range(120)]


@pytest.fixture(scope="module")
def zst_shards(tmp_path_factory):
    """Three shards, named as in the documentation."""
    folder = tmp_path_factory.mktemp("zst")
    paths = [folder / f"shard_{shard:03d}.zst" for shard in range(3)]
    for shard, path in enumerate(paths):
        with pa.output_stream(path, compression="zstd") as stream:
            stream.write("".join(f"{line}\n" for line in lines_of(shard)).encode())
    return paths


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_gets_the_rows_that_nanochat_makes_of_its_shards(parquet_shards, rank):
    (case,) = [case for case in CASES if tuple(case["files"]) == ((0, 2, 3), (1, 3))[rank]]
    wanted = case["arguments"]
    rows = [[*inputs, targets[-1]] for inputs, targets in zip(*case["first"], strict=True)]
    loader = plain(
        data_shards=parquet_shards,
        batch_size=wanted["B"],
        sequence_len=wanted["T"] + 1,
        tokenizer=ByteTokenizer(),
        world_size=2,
        rank=rank,
        **SMALL,
    )
    batch = next(loader)
    assert list(batch) == ["input_ids"]
    assert batch["input_ids"].dtype == torch.int64
    assert batch["input_ids"].tolist() == rows
    loader.close()


def expected_rows(shards, sequence_len, buffer_size):
    """Rows of whole shards, for ever, and after each how many documents have been taken."""
    taken = count(1)
    num_taken = [0]

    def documents():
        for line in cycle(chain.from_iterable(shards)):
            num_taken[0] = next(taken)
            yield 0, [[BOS_ID, *line.encode()]]

    for inputs, labels, _ in bos_best_fit(documents(), sequence_len - 1, buffer_size, 1):
        yield [*inputs, labels[-1]], num_taken[0]


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (0, 2), (1, 2), (2, 3)])
def test_rows_and_state_are_true_with_every_batch_of_compressed_lines(zst_shards, rank, world_size):
    check_rows_and_state(zst_shards, [lines_of(shard) for shard in range(3)], rank, world_size)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_rows_and_state_are_true_with_every_batch_of_row_groups(parquet_shards, rank):
    texts = [list(chain.from_iterable(groups)) for groups in files()[:3]]
    check_rows_and_state(parquet_shards, texts, rank, 2)


def check_rows_and_state(shards, texts, rank, world_size):
    mine = range(rank, len(shards), world_size)
    expected = expected_rows([texts[shard] for shard in mine], 200, 30)
    # Where every document of an epoch begins: its shard, and the bytes before it.
    places = [
        (shard, sum(len(line.encode()) for line in texts[shard][:k]))
        for shard in mine
        for k in range(len(texts[shard]))
    ]
    sizes = {shard: sum(len(line.encode()) for line in texts[shard]) for shard in mine}
    state, num_tokens, shards_seen = new_state(), 0, set()
    loader = with_state(
        shards,
        2,
        200,
        ByteTokenizer(),
        world_size,
        rank,
        state,
        tokenizer_batch_size=1,
        buffer_size=30,
    )
    for batch in islice(loader, 220):
        (one, _), (other, num_taken) = next(expected), next(expected)
        assert batch["input_ids"].tolist() == [one, other]
        num_tokens += batch["input_ids"].numel()
        assert state["tokens_consumed"] == num_tokens
        next_shard, next_byte = places[num_taken % len(places)]
        last_shard, _ = places[(num_taken - 1) % len(places)]
        at_the_end = last_shard, sizes[last_shard]
        found = state["shard_idx"], state["byte_offset"]
        assert found == (next_shard, next_byte) or (next_byte == 0 and found == at_the_end)
        shards_seen.add(state["shard_idx"])
    assert shards_seen == set(mine)


class Resumed:
    """A loader as `assert_resumes_exactly` takes it, with the dict that it keeps."""

    def __init__(self, make):
        self._make, self._state = make, new_state()

    def __iter__(self):
        return self._make(state=self._state)

    def state_dict(self):
        return self._state

    def load_state_dict(self, state):
        self._state = state


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zst", "parquet"])
def test_the_state_of_any_batch_goes_on_exactly(kind, zst_shards, parquet_shards):
    shards = {"zst": zst_shards, "parquet": parquet_shards}[kind]
    make = partial(with_state, shards, 2, 700, ByteTokenizer(), 2, 1, **SMALL)
    assert_resumes_exactly(lambda: Resumed(make), steps=30)


def test_the_same_dict_can_be_passed_again(zst_shards):
    make = partial(with_state, zst_shards, 2, 100, ByteTokenizer(), 1, 0)
    expected = [batch["input_ids"] for batch in islice(make(), 6)]
    state = new_state()
    first = [batch["input_ids"] for batch in islice(make(state=state), 3)]
    later = [batch["input_ids"] for batch in islice(make(state=state), 3)]
    assert torch.equal(torch.cat(first + later), torch.cat(expected))
    assert state["tokens_consumed"] == 6 * 2 * 100


def test_the_state_of_another_rank_is_refused(zst_shards):
    state = new_state()
    next(with_state(zst_shards, 2, 100, ByteTokenizer(), 2, 0, state))
    with pytest.raises(StateError, match="rank 1 of 2 needs"):
        with_state(zst_shards, 2, 100, ByteTokenizer(), 2, 1, state)


def test_a_state_that_says_too_little_is_refused(zst_shards):
    make = partial(with_state, zst_shards, 2, 100, ByteTokenizer(), 1, 0)
    with pytest.raises(StateError, match="no key 'millstream'"):
        make(state=new_state() | {"shard_idx": 1})
    with pytest.raises(StateError, match="byte_offset in the state is -1"):
        make(state=new_state() | {"byte_offset": -1})
    with pytest.raises(StateError, match="must be a dict"):
        make(state=[1])
    assert next(make(state={}))["input_ids"].shape == (2, 100)


def test_shards_that_cannot_be_shared_out_by_number_are_refused(
    zst_shards, parquet_shards, tmp_path
):
    make = partial(plain, batch_size=2, sequence_len=100, tokenizer=ByteTokenizer())
    with pytest.raises(UsageError, match=r"sorted\(data_shards\)"):
        make(zst_shards[::-1], world_size=1, rank=0)
    with pytest.raises(UsageError, match="4 paths, which are not 3 distinct files"):
        make([*zst_shards, zst_shards[0]], world_size=1, rank=0)
    with pytest.raises(UsageError, match="several kinds"):
        make([*zst_shards, *parquet_shards], world_size=1, rank=0)
    with pytest.raises(TypeError, match="data_shards"):
        make(world_size=1, rank=0)
    with pytest.raises(MissingDataError, match="data_shards is empty"):
        make([], world_size=1, rank=0)
    for rank in range(4):
        with pytest.raises(UsageError, match="4 ranks or lanes share 3 files"):
            make(zst_shards, world_size=4, rank=rank)
    empty = write_file(tmp_path / "a.parquet", [[]])
    full = write_file(tmp_path / "b.parquet", [["text"]])
    with pytest.raises(UsageError, match=r"a\.parquet: has no text"):
        make([empty, full], world_size=1, rank=0)


def test_shards_may_be_plain_or_gzipped_or_jsonl(tmp_path, zst_shards):
    lines = lines_of(0)
    expected = next(plain(zst_shards[:1], 2, 100, ByteTokenizer(), 1, 0))["input_ids"]
    content = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.gz").write_bytes(gzip.compress(content))
    rows = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    (tmp_path / "c.jsonl").write_text(rows)
    for name in ("a.txt", "b.gz", "c.jsonl"):
        found = next(plain([tmp_path / name], 2, 100, ByteTokenizer(), 1, 0))["input_ids"]
        assert torch.equal(found, expected)


def test_rank_and_world_come_from_the_environment_where_they_are_not_given(zst_shards, monkeypatch):
    expected = next(plain(zst_shards, 2, 100, ByteTokenizer(), 3, 2))["input_ids"]
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert torch.equal(next(plain(zst_shards, 2, 100, ByteTokenizer()))["input_ids"], expected)
