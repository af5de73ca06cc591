"""Ranks under torchrun that disagree: one of them reports it before the first batch."""

import json
import subprocess
import sys

import numpy as np
import pytest

import millstream

pytestmark = pytest.mark.process

PROGRAM = """
import json
import os
import sys

import torch.distributed as distributed

import millstream
from millstream.errors import UsageError

root = sys.argv[1]
rank = int(os.environ["RANK"])
found = {}


def run(name, make):
    try:
        loader = make()
        next(iter(loader))
        loader.close()
        found[name] = ""
    except UsageError as error:
        found[name] = str(error)


def load(path="one", seq_len=8, batch_size=4, position=0, **options):
    view = millstream.open(f"{root}/{path}").windows(seq_len)
    loader = millstream.Loader(view, batch_size, **options)
    if position:
        loader.load_state_dict(loader.state_dict() | {"position": position})
    return loader


def mixed(weight=1, **options):
    views = {name: millstream.open(f"{root}/{name}").windows(8) for name in ("one", "two")}
    limited = millstream.MixtureSource(views["two"], weight, max_epochs=3)
    mixture = millstream.mix({"one": (views["one"], 1), "two": limited}, **options)
    return millstream.Loader(mixture, 4)


def read(**options):
    return millstream.TextLoader(f"{root}/text", "bytes", 2, 8, **({"seed": 1} | options))


world = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")}
early = load()
os.environ.update(world)
distributed.init_process_group("gloo")

run("early", lambda: early)
run("alike", load)
run("position alike", lambda: load(position=16))
run("seed", lambda: load(seed=rank))
run("dataset", lambda: load(path=["one", "two"][rank]))
run("view", lambda: load(seq_len=8 + rank))
run("batch_size", lambda: load(batch_size=4 + rank))
run("sizes alike", lambda: load(global_batch_size=[(0, 8), (40, 16)]))
run("sizes", lambda: load(global_batch_size=[(0, 8), (40 + rank, 16)]))
run("tail", lambda: load(tail=["keep", "drop"][rank]))
run("position", lambda: load(position=16 * rank))
run("allowed", lambda: load(seed=rank, check_ranks=False))
run("twice", lambda: load(rank=0, ranks=2))
run("of one", lambda: load(seed=rank, rank=0, ranks=1))
run("mixture alike", mixed)
run("weights", lambda: mixed(weight=1 + rank))
run("epochs", lambda: mixed(when_exhausted=["stop", "redistribute"][rank]))
run("text alike", read)
run("text", lambda: read(seed=1 + rank, shuffle=True))
if rank == 0:  # a loader that only one rank uses neither hangs nor disturbs
    run("alone", lambda: load(rank=0, ranks=1))
run("alike again", load)
with open(f"{root}/found{rank}", "w") as file:
    json.dump(found, file)
distributed.barrier()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each scenario said, on both ranks."""
    root = tmp_path_factory.mktemp("ranks")
    for number, name in enumerate(["one", "two"]):
        with millstream.Writer(root / name, vocab_size=60_000) as writer:
            writer.append(np.arange(number, 2000 + number, dtype=np.uint16))
    (root / "text").mkdir()
    for name in ("a.txt", "b.txt"):
        (root / "text" / name).write_text("some words\n" * 200)
    (root / "program.py").write_text(PROGRAM)
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    subprocess.run([sys.executable, *launch, root / "program.py", root], check=True, timeout=100)
    parts = [json.loads((root / f"found{rank}").read_text()) for rank in range(2)]
    return {name: [part.get(name, "") for part in parts] for name in parts[0]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("seed", "seed is "),
        ("dataset", "view is 'windows-v1"),
        ("view", "view is 'windows-v1"),
        ("batch_size", "batch_size is "),
        ("sizes", "global_batch_size is [[0, 8], [4"),
        ("tail", "tail is "),
        ("position", "position is "),
        ("twice", "2 of the 2 processes have rank 0 of 2"),
        ("weights", "order is {'mixture': 1, 'changes': [[0, 0, [['one', "),
        ("epochs", "num_samples is "),
        ("text", "text is "),
    ],
)
def test_the_rank_that_comes_later_says_what_differs(found, name, words):
    said = [message for message in found[name] if message]
    assert len(said) == 1
    assert words in said[0]
    assert said[0].startswith("ranks disagree")
    assert "pass check_ranks=False" in said[0]


def test_a_loader_made_before_the_process_group_is_refused_on_all_ranks(found):
    for message in found["early"]:
        assert "created for rank 0 of 1, before torch.distributed was initialized with 2" in message


@pytest.mark.parametrize(
    "name",
    [
        "alike",
        "position alike",
        "sizes alike",
        "allowed",
        "of one",
        "mixture alike",
        "text alike",
        "alone",
        "alike again",
    ],
)
def test_ranks_that_agree_or_are_meant_to_differ_go_on(found, name):
    assert found[name] == ["", ""]
