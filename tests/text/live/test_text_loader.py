"""What a TextLoader promises beside its rows: refusals, threads, processes, statistics."""

import itertools
import json
import os
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream
from millstream import Packing, TextLoader
from millstream.errors import FormatError, StateError, UsageError
from millstream.testing import assert_resumes_exactly
from tests.helpers.live_text import POLICIES, Bytes, make_loader, rows_of, write_text
from tests.helpers.reading_threads import background_threads, wait_for_background_threads_to_end

DOCUMENTS = [["abc" * k for k in range(1, 40)], ["d" * 50] * 7, ["e", "", "f" * 400]]


@pytest.fixture
def corpus(tmp_path):
    return write_text(tmp_path / "text", [DOCUMENTS, DOCUMENTS[::-1]])


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3}, {"endless": False}])
def test_every_step_can_be_resumed(corpus, policy, options):
    assert_resumes_exactly(
        lambda: make_loader(
            corpus,
            policy,
            16,
            shuffle=options.get("shuffle", False),
            seed=options.get("seed", 0),
            endless=options.get("endless", True),
        ),
        steps=12,
    )


def test_a_state_holds_no_more_than_names_whatever_waits(tmp_path):
    texts = ["x" * 3000 + str(k) for k in range(3000)]
    path = write_text(tmp_path / "text", [[texts[:1000], texts[1000:]]])
    with TextLoader(path, Bytes(), 4, 2048, "bos_best_fit", endless=True, output="numpy") as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert len(json.dumps(state)) < 4096


FIRST_RELEASE = {
    "version": 1,
    "position": 6,
    "epoch": 0,
    "lanes": 1,
    "tokenizer": "b bos 256 eos -1",
    "packing": "bos_best_fit_keep-v1-16-buffer5",
    "endless": True,
    "lane_states": {
        "0": {
            "ordinal": 0,
            "number": 9,
            "first_token": 0,
            "waiting": "eF5jZmFkYBJgEBATUpRgoAEAADAOAIw=",
        }
    },
}


def test_a_state_of_version_1_goes_on_and_version_2_says_the_same(corpus):
    with make_loader(corpus, "full_best_fit", 16) as loader:
        rows = rows_of(itertools.islice(loader, 5))
    with make_loader(corpus, "full_best_fit", 16) as loader:
        state = FIRST_RELEASE | {"text": loader.state_dict()["text"]}
        assert list(itertools.islice(loader, 3))
        found = loader.state_dict()
        # Another version of zlib may compress in another way.
        found["lane_states"]["0"]["waiting"] = state["lane_states"]["0"]["waiting"]
        assert found == state | {"version": 2, "millstream": millstream.__version__}
    with make_loader(corpus, "full_best_fit", 16) as loader:
        loader.load_state_dict(state)
        assert rows_of(itertools.islice(loader, 2)) == rows[6:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 2, "rank": 2}, "rank"),
        ({"ranks": 7, "rank": 0}, "7 ranks or lanes share 6 blocks"),
        ({"ranks": 2, "rank": 0, "lanes": 5}, "numbers of ranks that work are 1, 5"),
        ({"ranks": 2, "rank": 0, "lanes": (1 << 31) - 1}, "lanes share 6 blocks"),
        ({"prefetch": 0}, "prefetch"),
        ({"tail": "wrap"}, "'drop' or 'keep'"),
        ({"output": "jax"}, "'torch' or 'numpy'"),
        ({"dtype": np.uint8}, "cannot hold token ids"),
    ],
)
def test_options_that_cannot_work_are_refused_at_the_start(corpus, options, message):
    with pytest.raises(UsageError, match=message):
        TextLoader(corpus, Bytes(), 2, 8, **({"output": "numpy"} | options))


def test_more_ranks_than_blocks_are_refused_on_every_rank_alike(corpus):
    messages = set()
    for rank in range(7):
        with pytest.raises(UsageError) as refusal:
            TextLoader(corpus, Bytes(), 2, 8, output="numpy", rank=rank, ranks=7)
        messages.add(str(refusal.value))
    assert len(messages) == 1


def test_text_of_too_few_blocks_is_repacked_as_the_message_says(corpus, tmp_path):
    with pytest.raises(UsageError, match=r"repack, with --shard-chars below 1/7 of the characters"):
        TextLoader(corpus, Bytes(), 2, 8, output="numpy", rank=0, ranks=7)
    num_chars = 2 * sum(len(text) for texts in DOCUMENTS for text in texts)
    millstream.repack(corpus, tmp_path / "smaller", shard_chars=num_chars // 8)
    TextLoader(tmp_path / "smaller", Bytes(), 2, 8, output="numpy", rank=0, ranks=7).close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "nothing"}, "policy is"),
        ({"policy": "bos_best_fit_keep"}, "packs stored data .* is 'full_best_fit'"),
        ({"add": "eos"}, "has no eos token"),
        ({"extras": ("colour",)}, "an extra is"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"refill": 0}, "refill"),
    ],
)
def test_ways_to_pack_that_there_are_not_are_refused(corpus, options, message):
    with pytest.raises(UsageError, match=message):
        TextLoader(corpus, Bytes(), 2, 8, Packing(**options), output="numpy")


def saved(corpus, steps=2, **options):
    with make_loader(corpus, "full_best_fit", 16, **options) as loader:
        for _ in itertools.islice(loader, steps):
            pass
        return loader.state_dict()


def test_a_state_of_other_text_tokens_or_rows_is_refused(corpus, tmp_path):
    state = saved(corpus)
    other = write_text(tmp_path / "other", [DOCUMENTS])
    with pytest.raises(StateError, match="saved by a loader of different rows: text was"):
        make_loader(other, "full_best_fit", 16).load_state_dict(state)
    with pytest.raises(StateError, match="packing was 'bos_best_fit_keep-v1-16-buffer5' and is"):
        make_loader(corpus, "full_best_fit", 17).load_state_dict(state)
    with pytest.raises(
        StateError, match=r"text was .* sequential' and is .*; .* with shuffle=False$"
    ):
        make_loader(corpus, "full_best_fit", 16, shuffle=True).load_state_dict(state)
    with make_loader(corpus, "full_best_fit", 16, seed=1) as loader:
        loader.load_state_dict(state)  # where nothing is shuffled, the seed decides nothing


def test_a_state_of_earlier_defaults_names_the_arguments_that_continue_it(corpus):
    tokenizer = Bytes()
    tokenizer.vocab_size, tokenizer.eos_id = 258, 257

    def make(**options):
        return TextLoader(corpus, tokenizer, 2, 16, output="numpy", **options)

    with make(packing=Packing(add="bos"), shuffle=False, endless=True) as loader:
        next(iter(loader))
        state = loader.state_dict()
        expected = [batch["input_ids"].tolist() for batch in itertools.islice(loader, 3)]
    with pytest.raises(StateError) as caught:
        make().load_state_dict(state)
    arguments = str(caught.value).rpartition("create the loader with ")[2]
    assert arguments == "shuffle=False, packing=Packing(add='bos'), endless=True"
    with make(shuffle=False, packing=Packing(add="bos"), endless=True) as loader:
        loader.load_state_dict(state)
        assert [batch["input_ids"].tolist() for batch in itertools.islice(loader, 3)] == expected


def test_a_state_says_which_numbers_of_ranks_work(corpus):
    state = saved(corpus, rank=0, ranks=6)
    with pytest.raises(StateError, match="ranks that work are 1, 2, 3, 6"):
        make_loader(corpus, "full_best_fit", 16, rank=0, ranks=4).load_state_dict(state)


def test_a_rank_takes_its_own_state_or_that_of_all(corpus):
    states = [saved(corpus, rank=rank, ranks=2) for rank in range(2)]
    with pytest.raises(StateError, match="rank 1 of 2 needs lanes"):
        make_loader(corpus, "full_best_fit", 16, rank=1, ranks=2).load_state_dict(states[0])
    with pytest.raises(StateError, match=r"lanes \[1\] are missing"):
        TextLoader.join_states(states[:1])
    with pytest.raises(StateError, match="not from one step: position"):
        TextLoader.join_states([states[0], saved(corpus, steps=3, rank=1, ranks=2)])
    joined = TextLoader.join_states(states)
    with make_loader(corpus, "full_best_fit", 16, rank=0, ranks=1) as loader:
        loader.load_state_dict(joined)
        assert loader.lanes.count == 2


def test_a_state_from_before_the_first_batch_is_that_of_every_rank(corpus):
    with make_loader(corpus, "flat", 16, rank=0, ranks=2) as loader:
        state = loader.state_dict()
    with make_loader(corpus, "flat", 16, rank=1, ranks=2) as loader:
        expected = rows_of(itertools.islice(loader, 2))
    with make_loader(corpus, "flat", 16, rank=1, ranks=2) as loader:
        loader.load_state_dict(state)
        assert rows_of(itertools.islice(loader, 2)) == expected


DAMAGE = [
    (["version"], 3, "version 3"),
    (["position"], -1, "position"),
    (["position"], "6", "position"),
    (["epoch"], 1 << 61, "epoch"),
    (["lanes"], 0, "lanes is 0"),
    (["lanes"], 1 << 60, "1,152,921,504,606,846,976 lanes"),
    (["lane_states"], [], "must be a dict"),
    (["lane_states"], {}, "needs lanes"),
    (["lane_states", "0"], None, "a lane of the state"),
    (["lane_states", "0", "ordinal"], -1, "ordinal"),
    (["lane_states", "0", "ordinal"], 1 << 61, "ordinal"),
    (["lane_states", "0", "number"], 1.5, "number"),
    (["lane_states", "0", "waiting"], "zzz", "damaged"),
    (["lane_states", "0", "waiting"], 5, "damaged"),
]


@pytest.mark.parametrize(("keys", "value", "message"), DAMAGE)
def test_a_damaged_state_is_refused(corpus, keys, value, message):
    state = json.loads(json.dumps(saved(corpus)))
    at = state
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    with pytest.raises(StateError, match=message):
        make_loader(corpus, "full_best_fit", 16).load_state_dict(state)


def test_text_that_was_changed_under_a_state_is_noticed(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": "ab" * k}) + "\n" for k in range(40)))
    state = saved(path)
    path.write_text(path.read_text().replace("abab", "ab\\n", 1))  # as many bytes, another length
    with (
        make_loader(path, "full_best_fit", 16) as loader,
        pytest.raises(StateError, match=r"text or the tokenizer|shorter than it was"),
    ):
        loader.load_state_dict(state)
        next(iter(loader))


@pytest.mark.slow
def test_a_bad_row_is_an_error_after_the_batches_before_it_and_again_on_the_next_try(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "abcdefgh"}\n' * 50_000 + "broken\n")
    with make_loader(path, "flat", 800, batch_size=2) as loader:
        batches, iterator = 0, iter(loader)
        with pytest.raises(FormatError, match="line 50,001"):
            for _ in iterator:
                batches += 1
        assert 0 < batches == loader.position // 2
        with pytest.raises(FormatError, match="line 50,001"):
            next(iter(loader))
        assert loader.position == 2 * batches
    source = millstream.Source(path, bad_rows="skip")
    with make_loader(source, "flat", 8000, endless=False) as loader:
        assert len(list(loader)) == 28
        assert loader.stats.skipped_rows in (1, 2)  # a first epoch is counted first


def test_text_without_a_document_is_an_error_and_not_a_wait(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n\n")
    with (
        make_loader(tmp_path / "empty.jsonl", "flat", 8) as loader,
        pytest.raises(FormatError, match="contain no document"),
    ):
        next(iter(loader))


@pytest.mark.slow
def test_documents_without_a_token_are_passed_over(tmp_path):
    path = write_text(tmp_path / "text", [[["", "a", "", "bc"], [""]]])
    packing = Packing(policy="best_fit", add="none")
    with TextLoader(path, Bytes(), 1, 3, packing, endless=True, output="numpy") as loader:
        assert next(iter(loader))["input_ids"].tolist() == [[97, 98, 99]]


@pytest.mark.slow
def test_a_long_document_of_plain_text_is_whole(tmp_path):
    text = "".join(f"{k:07d} " for k in range(200_000))
    (tmp_path / "text.txt").write_text(f"first\n{text}\nlast\n")
    with make_loader(tmp_path / "text.txt", "flat", 1000, batch_size=8) as loader:
        tokens = np.concatenate(
            [batch["input_ids"].ravel() for batch in itertools.islice(loader, 201)]
        )
    expected = [256, *b"first", 256, *text.encode(), 256, *b"last", 256, *b"first"]
    assert tokens[: len(expected)].tolist() == expected


@pytest.mark.parametrize("policy", ["flat", "full_best_fit", "best_fit"])
def test_extras_are_those_of_a_stored_view(corpus, policy):
    extras = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")
    packing = Packing(policy=policy, buffer_size=5, extras=extras, mask_ends=True, pad_id=7)
    with TextLoader(corpus, Bytes(), 3, 16, packing, endless=True, output="numpy") as loader:
        for batch in itertools.islice(loader, 20):
            documents = batch["document_ids"]
            begins = np.ones_like(documents, bool)
            begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
            columns = np.broadcast_to(np.arange(16), documents.shape)
            since = columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
            is_token = documents >= 0
            assert (batch["attention_mask"] == is_token).all()
            assert (batch["input_ids"][~is_token] == 7).all()
            # Two pieces of one document may be neighbours: then positions begin anew without it.
            assert (batch["position_ids"] <= since)[is_token].all()
            starts = np.flatnonzero((batch["position_ids"] == 0).ravel() & is_token.ravel())
            ends = batch["cu_seqlens"].tolist()
            assert set(starts.tolist()) <= set(ends)
            assert ends[0] == 0
            assert ends[-1] == 48
            assert batch["max_seqlen"] == np.diff(ends).max()
            last = np.flatnonzero(begins.ravel())[1:] - 1
            inside = last[last % 16 != 15]
            assert (batch["labels"].ravel()[inside] == -100).all()


def test_batches_are_torch_tensors_that_the_next_batch_leaves_alone(corpus):
    torch = pytest.importorskip("torch")
    with TextLoader(corpus, Bytes(), 2, 8) as loader:
        batches = list(itertools.islice(loader, 12))
        kept = [batch["input_ids"].clone() for batch in batches]
        for _ in itertools.islice(loader, 12):
            pass
        assert all(isinstance(batch["labels"], torch.Tensor) for batch in batches)
        assert all(
            torch.equal(batch["input_ids"], was) for batch, was in zip(batches, kept, strict=True)
        )


@pytest.mark.slow
def test_threads_end_with_the_loader_however_it_ends(corpus):
    wait_for_background_threads_to_end()
    loader = make_loader(corpus, "flat", 8)
    next(iter(loader))
    assert background_threads()
    loader.close()
    assert not background_threads()
    next(iter(loader))
    del loader
    wait_for_background_threads_to_end()


@pytest.mark.process
def test_a_copy_and_a_forked_child_go_on_by_themselves(corpus):
    import pickle

    loader = make_loader(corpus, "full_best_fit", 16)
    iterator, num_batches = iter(loader), 12  # more than were packed ahead when it was copied
    next(iterator)
    copy = pickle.loads(pickle.dumps(loader))
    expected = rows_of(itertools.islice(copy, num_batches))
    copy.close()
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads
        child = os.fork()
    if child == 0:
        found = rows_of(itertools.islice(loader, num_batches))
        os.write(send, b"=" if found == expected else b"!")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(receive, 1) == b"="
    os.close(receive)
    os.close(send)
    assert rows_of(itertools.islice(iterator, num_batches)) == expected
    loader.close()


def test_statistics_count_what_was_handed_out(corpus):
    with make_loader(corpus, "best_fit", 16) as loader:
        assert loader.stats.batches == 0
        batches = list(itertools.islice(loader, 10))
        stats = loader.stats
    tokens = sum(int((batch["document_ids"] >= 0).sum()) for batch in batches)
    assert (stats.batches, stats.rows, stats.tokens) == (10, 20, tokens)
    assert stats.padded_share == pytest.approx(1 - tokens / (20 * 16))
    assert stats.cropped_share == 0
    assert stats.tokens_per_second > 0
    shares = (stats.waiting_for_reader, stats.waiting_for_tokenizer, stats.waiting_for_consumer)
    assert all(0 <= share <= 1 for share in shares)


def test_cropped_tokens_are_counted(tmp_path):
    path = write_text(tmp_path / "text", [[["a" * 99] * 4]])
    packing = Packing(policy="bos_best_fit", buffer_size=1, refill=1)
    with TextLoader(
        path, Bytes(), 1, 49, packing, endless=True, output="numpy", prefetch=1
    ) as loader:
        for _ in itertools.islice(loader, 4):
            pass
        # Of every document of 100 tokens, 50 fill a row and 50 are dropped; 49 are inputs.
        assert loader.stats.cropped_share == pytest.approx(50 / 99, abs=0.02)


def test_blocks_are_shuffled_anew_in_every_epoch_and_each_is_read_once(tmp_path):
    path = write_text(tmp_path / "text", [[[chr(97 + k) * 7] for k in range(20)]])
    with make_loader(path, "flat", 8, batch_size=20, shuffle=True, seed=1) as loader:
        epochs = [batch["input_ids"][:, 1].tolist() for batch in itertools.islice(loader, 3)]
    assert all(sorted(epoch) == list(range(97, 117)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_the_order_of_blocks_that_a_seed_gives_never_changes(tmp_path):
    """Golden values: a state holds how many blocks of this order each lane has read."""
    path = write_text(tmp_path / "text", [[[chr(97 + k) * 7] for k in range(20)]])
    with make_loader(path, "flat", 8, batch_size=20, shuffle=True, seed=1, lanes=2) as loader:
        epochs = [bytes(batch["input_ids"][:, 1].tolist()) for batch in itertools.islice(loader, 2)]
    assert epochs == [b"ankroclefibgjmqspdth", b"kmrahplcjfeibgsdtnoq"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path, policy):
    blocks = [[f"{k} " * (k % 7 + 1), f"{-k}"] for k in range(40)]
    path = write_text(tmp_path / "text", [blocks[:25], blocks[25:]])

    def rows(seed):
        with make_loader(path, policy, 16, shuffle=True, seed=seed) as loader:
            return rows_of(itertools.islice(loader, 30))

    expected = rows(5)
    assert rows(5) == expected
    assert rows(6) != expected


def test_train_and_validation_are_other_files(corpus):
    train, val = millstream.Source(corpus).split_by_file()
    assert len(train.files) == len(val.files) == 1
    with make_loader(val, "flat", 8) as loader:
        assert loader.source.files == val.files


@pytest.mark.process
def test_a_data_loader_with_several_workers_is_told_what_to_do(corpus):
    torch = pytest.importorskip("torch")
    loader = TextLoader(corpus, Bytes(), 2, 8)
    several = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2)
    with pytest.raises(UsageError, match="num_workers=0"):
        next(iter(several))
    one = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=0)
    assert next(iter(one))["input_ids"].shape == (2, 8)
    loader.close()


def test_a_row_group_larger_than_a_page_is_read(tmp_path):
    texts = [f"{k} " * 300 for k in range(3000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=3000)
    with make_loader(tmp_path, "flat", 512, batch_size=4) as loader:
        state = None
        for number, batch in enumerate(itertools.islice(loader, 600)):
            if number == 550:
                state, position = loader.state_dict(), number
            if number == 551:
                expected = batch["input_ids"].copy()
    assert position == 550
    with make_loader(tmp_path, "flat", 512, batch_size=4) as loader:
        loader.load_state_dict(state)
        assert (next(iter(loader))["input_ids"] == expected).all()
