import json
from itertools import islice

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp

import millstream
from millstream import StateError, UsageError
from tests.helpers.trainer_runs import check_killed_and_resumed
from tests.helpers.trainers import with_distributed_checkpoint as programs

alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
"""a checkpoint of a single process"""


def rows(loader, steps):
    return [batch["input_ids"].tolist() for batch in islice(loader, steps)]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("resumed_on", [1, 2, 4])
def test_a_killed_run_of_two_ranks_continues_exactly(tmp_path, resumed_on):
    check_killed_and_resumed(programs.train, tmp_path, 2, resumed_on=resumed_on)


@pytest.mark.process
@pytest.mark.slow
def test_async_save_stores_the_state_of_the_moment_of_the_call(tmp_path):
    check_killed_and_resumed(programs.train_while_saving, tmp_path, 2)


@pytest.mark.process
@pytest.mark.slow
def test_a_stateful_data_loader_continues_exactly_on_another_number_of_ranks(tmp_path):
    program = programs.train_with_stateful_data_loader
    check_killed_and_resumed(program, tmp_path, 2, resumed_on=1)


@alone
def test_a_mixture_with_a_new_source_loads_partially_and_one_with_fewer_raises(tmp_path):
    views = {}
    for name in ("a", "b", "c"):
        with millstream.Writer(tmp_path / name, vocab_size=60_000) as writer:
            writer.append(np.arange(401, dtype=np.uint16))
        views[name] = millstream.open(tmp_path / name).windows(4)
    mixture = millstream.mix({"a": (views["a"], 1), "b": (views["b"], 1)}, seed=0)
    loader = millstream.Loader(mixture, 2)
    rows(loader, 5)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    later = mixture.change(at=20, weights={"a": 1}, sources={"c": (views["c"], 1)})
    resumed = millstream.Loader(later, 2)
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "saved", planner=planner)
    assert resumed.position == 10
    assert rows(resumed, 5) == rows(loader, 5)
    fewer = millstream.Loader(millstream.mix({"a": (views["a"], 1)}, seed=0), 2)
    with pytest.raises(StateError, match="not a state of this mixture"):
        dcp.load({"loader": fewer}, checkpoint_id=tmp_path / "saved", planner=planner)


@alone
def test_a_text_loader_raises_and_continues_from_joined_states(tmp_path):
    for number in range(4):
        lines = [json.dumps({"text": f"document {number} {k} " * 3}) for k in range(40)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))

    def make_loader(batch_size, rank, ranks):
        options = {"batch_size": batch_size, "seq_len": 16, "rank": rank, "ranks": ranks}
        return millstream.TextLoader(tmp_path / "*.jsonl", "bytes", **options)

    loaders = [make_loader(1, rank, 2) for rank in range(2)]
    for loader in loaders:
        rows(loader, 5)
    with pytest.raises(UsageError, match="gather_states=True"):
        dcp.save({"loader": loaders[0]}, checkpoint_id=tmp_path / "saved")
    states = [loader.state_dict() for loader in loaders]
    text = json.dumps(millstream.TextLoader.join_states(states))
    dcp.save({"loader": text}, checkpoint_id=tmp_path / "saved")
    state = {"loader": ""}
    dcp.load(state, checkpoint_id=tmp_path / "saved")
    resumed = make_loader(2, 0, 1)
    resumed.load_state_dict(json.loads(state["loader"]))
    pairs = zip(*(rows(loader, 5) for loader in loaders), strict=True)
    assert rows(resumed, 5) == [[first[0], second[0]] for first, second in pairs]
