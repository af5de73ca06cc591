from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
import tyro

import millstream
from millstream import UsageError
from millstream.integrations.torchtitan import MillstreamDataLoader
from tests.helpers.recipes import RECIPES
from tests.helpers.trainer_runs import (
    SEQ_LEN,
    STEPS,
    check_killed_and_resumed,
    expected_steps,
    seen_steps,
    start,
    write_data,
)
from tests.helpers.trainers import with_torchtitan

alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
"""a checkpoint of a single process"""


@pytest.fixture
def path(tmp_path):
    with millstream.Writer(tmp_path / "documents", vocab_size=60_000) as writer:
        for token in range(0, 900, 10):
            writer.append(np.arange(token, token + 10, dtype=np.uint16))
    return str(tmp_path / "documents")


@pytest.fixture
def data(path):
    return millstream.open(path)


def build(config, rank=0, ranks=1, rows=4, seq_len=SEQ_LEN):
    """As torchtitan's Trainer calls it."""
    return config.build(
        dp_world_size=ranks,
        dp_rank=rank,
        tokenizer=None,
        seq_len=seq_len,
        local_batch_size=rows,
        snapshot_every_n_steps=None,
    )


def test_the_recipe_of_the_docs_is_the_config_that_is_tested(data, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents").rename(tmp_path / "data")
    config = SimpleNamespace()
    exec(RECIPES["torchtitan"], {"config": config})
    assert isinstance(config.dataloader, MillstreamDataLoader.Config)
    expected = millstream.Loader(millstream.open("data").windows(SEQ_LEN), 4, endless=True)
    found = islice(build(config.dataloader), 10)
    for (inputs, labels), batch in zip(found, expected, strict=False):
        assert inputs["input"].equal(batch["input_ids"])
        assert labels.equal(batch["labels"])


def firsts(batches):
    return [inputs["input"][:, 0].tolist() for inputs, _ in batches]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(("ranks", "resumed_on"), [(1, 1), (2, 2), (2, 1), (1, 2)])
def test_a_killed_trainer_continues_exactly_on_any_degree(tmp_path, ranks, resumed_on):
    check_killed_and_resumed(
        with_torchtitan.train, tmp_path, ranks, resumed_on=resumed_on, endless=True
    )


@pytest.mark.slow
@pytest.mark.process
def test_a_trainer_without_infinite_stops_on_all_ranks_at_the_end_of_the_epoch(tmp_path):
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    assert start(with_torchtitan.train_one_epoch, data, out, ranks=2)
    assert list(seen_steps(out)[0].values()) == expected_steps(data)[:STEPS]


@pytest.mark.parametrize("rows", ["windows", "packed", "documents"])
def test_a_batch_has_what_torchtitan_takes(path, rows):
    config = MillstreamDataLoader.Config(dataset_path=path, rows=rows)
    inputs, labels = next(iter(build(config)))
    assert inputs.keys() == {"input", "positions"}
    for tensor in (*inputs.values(), labels):
        assert tensor.shape == (4, SEQ_LEN)
        assert tensor.dtype == torch.int64
    starts = inputs["positions"] == 0
    assert starts[:, 0].all()
    within = labels != -100
    within[:, :-1] &= ~starts[:, 1:]
    within[:, -1] = False
    assert within.any()
    assert (labels[within] == inputs["input"][within] + 1).all()


def test_a_view_gives_the_rows_and_its_own_fields_but_nothing_that_positions_tell(tmp_path):
    fields = [("token", "<u2"), ("kind", "u1")]
    with millstream.Writer(tmp_path / "data", fields=fields) as writer:
        writer.append({"token": list(range(100)), "kind": [1] * 100})
    data = millstream.open(tmp_path / "data")
    inputs, _ = next(iter(build(MillstreamDataLoader.Config(view=data.packed))))
    assert inputs.keys() == {"input", "positions", "kind"}


@alone
def test_a_state_continues_on_another_degree_through_a_checkpoint(path, tmp_path):
    config = MillstreamDataLoader.Config(dataset_path=path, seed=5)
    expected = firsts(islice(build(config), 60))  # over several epochs
    saved = build(config)
    assert firsts(islice(saved, 40)) == expected[:40]
    dcp.save({"dataloader": saved}, checkpoint_id=tmp_path / "saved", no_dist=True)
    resumed = [build(config, rank, ranks=2, rows=2) for rank in range(2)]
    for each in resumed:
        dcp.load({"dataloader": each}, checkpoint_id=tmp_path / "saved", no_dist=True)
    pairs = zip(*(firsts(islice(each, 20)) for each in resumed), strict=True)
    assert [[a[0], b[0], a[1], b[1]] for a, b in pairs] == expected[40:]


@alone
def test_a_mixture_with_a_new_source_continues_through_a_checkpoint(data, tmp_path):
    def mixture(seq_len):
        views = [data.windows(seq_len, extras=["position_ids"]) for _ in range(2)]
        return millstream.mix({"a": (views[0], 0.5), "b": (views[1], 0.5)}, seed=0)

    def changed(seq_len):
        books = data.packed(seq_len, extras=["position_ids"])
        return mixture(seq_len).change(at=40, weights={"a": 1}, sources={"books": (books, 1)})

    saved = build(MillstreamDataLoader.Config(view=mixture))
    # Models of torchtitan take no source_ids.
    assert [list(inputs) for inputs, _ in islice(saved, 5)] == [["input", "positions"]] * 5
    dcp.save({"dataloader": saved}, checkpoint_id=tmp_path / "saved", no_dist=True)
    resumed = build(MillstreamDataLoader.Config(view=changed))
    dcp.load({"dataloader": resumed}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert firsts(islice(resumed, 5)) == firsts(islice(saved, 5))
    assert firsts(islice(resumed, 5)) != firsts(islice(saved, 5))


def test_without_infinite_a_resumed_run_reads_only_the_rest_of_the_first_epoch(path):
    endless = MillstreamDataLoader.Config(dataset_path=path)
    once = replace(endless, infinite=False)  # as torchtitan's Validator makes it
    whole = firsts(build(once))
    assert len(whole) == len(millstream.open(path).windows(SEQ_LEN)) // 4
    for read, left in [(5, whole[5:]), (len(whole), [])]:
        saved, resumed = build(once), build(once)
        list(islice(saved, read))
        resumed.load_state_dict(saved.state_dict())
        assert firsts(resumed) == left
    saved, resumed = build(endless), build(once)
    list(islice(saved, 2 * len(whole)))
    resumed.load_state_dict(saved.state_dict())
    assert firsts(resumed) == []


def test_the_command_line_sets_plain_fields(data):
    default = MillstreamDataLoader.Config(view=data.packed)
    arguments = ["--seed", "7", "--rows", "packed", "--no-infinite"]
    config = tyro.cli(MillstreamDataLoader.Config, args=arguments, default=default)
    assert (config.seed, config.rows, config.infinite, config.view) == (
        7,
        "packed",
        False,
        data.packed,
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "pass either dataset_path, or view"),
        ({"dataset_path": "x", "view": lambda seq_len: 1}, "pass either dataset_path, or view"),
        ({"dataset": "c4"}, "pass the path as dataset_path"),
        ({"view": lambda seq_len: 1}, "must return a view or a mixture"),
        ({"dataset_path": "data", "rows": "window"}, "rows is 'window'"),
        ({"options": {"global_batch_size": 8}}, r"comes from training\.global_batch_size"),
    ],
)
def test_a_config_that_cannot_be_right_raises(fields, message):
    with pytest.raises(UsageError, match=message):
        build(MillstreamDataLoader.Config(**fields))


def test_a_view_without_positions_or_of_another_length_raises(data):
    with pytest.raises(UsageError, match=r'add extras=\["position_ids"\]'):
        build(MillstreamDataLoader.Config(view=data.windows))
    with pytest.raises(UsageError, match=r"rows of 16 tokens, but training\.seq_len is 8"):
        build(MillstreamDataLoader.Config(view=lambda seq_len: data.packed(2 * seq_len)))
