"""Accelerate takes a prepared loader, saves and restores it; other ways to wrap one are refused."""

import json
import os
import subprocess
import sys

import pytest
import torch

import millstream
from millstream.errors import UsageError
from tests.helpers.datasets import inputs_of
from tests.helpers.trainer_data import ROWS, STEPS, make, make_text, write_text
from tests.helpers.trainer_runs import check_killed_and_resumed
from tests.helpers.trainers import with_accelerate


@pytest.fixture
def accelerator():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    yield Accelerator(cpu=True, gradient_accumulation_steps=5)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def prepare():
    from millstream.integrations.accelerate import prepare

    return prepare


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_resumes_exactly(tmp_path, ranks):
    check_killed_and_resumed(with_accelerate.train, tmp_path, ranks)


@pytest.mark.parametrize("stop", [0, 13, STEPS - 1, STEPS])
def test_save_state_and_load_state_include_the_loader(view, accelerator, prepare, tmp_path, stop):
    expected = [*inputs_of(loader := make(view)), *inputs_of(loader)]
    batches = prepare(accelerator, make(view))
    for number, _ in enumerate(batches if stop else (), 1):
        if number == stop:
            accelerator.save_state(tmp_path / "saved")
            break
    else:
        accelerator.save_state(tmp_path / "saved")
    accelerator.free_memory()
    accelerator._custom_objects.clear()  # as in a new process
    resumed = prepare(accelerator, make(view))
    accelerator.load_state(tmp_path / "saved")
    assert len(resumed) == STEPS
    found = [*inputs_of(resumed), *inputs_of(resumed)]
    assert found[: 2 * STEPS - stop] == expected[stop:]


def test_accumulate_steps_at_the_last_batch_of_an_epoch_also_after_a_resumption(
    view, accelerator, prepare
):
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    loader = make(view)
    batches, synced = prepare(accelerator, loader), []
    for _ in range(2):
        for number, _ in enumerate(batches, 1):
            with accelerator.accumulate(model):
                if accelerator.sync_gradients:
                    synced.append(number)
    in_epoch = [*range(5, STEPS, 5), STEPS]
    assert synced == 2 * in_epoch
    loader.load_state_dict(loader.state_dict() | {"position": (STEPS - 3) * ROWS})
    assert [accelerator.gradient_state.end_of_dataloader for _ in batches] == [False, False, True]
    assert not accelerator.gradient_state.in_dataloader


def test_batches_arrive_where_the_accelerator_is(view, accelerator, prepare, monkeypatch):
    monkeypatch.setattr(type(accelerator), "device", torch.device("meta"))
    assert {batch["labels"].device.type for batch in prepare(accelerator, make(view))} == {"meta"}


def test_a_loader_that_is_prepared_twice_is_saved_once(view, accelerator, prepare, tmp_path):
    loader = make(view)
    prepare(accelerator, loader)
    prepare(accelerator, loader)
    accelerator.save_state(tmp_path / "saved")
    assert len(list((tmp_path / "saved").glob("custom_checkpoint_*"))) == 1


def test_set_epoch_reaches_the_loader(view, accelerator, prepare):
    batches = prepare(accelerator, make(view))
    batches.set_epoch(1)
    inputs_of(loader := make(view))
    assert inputs_of(batches) == inputs_of(loader)


def test_what_would_be_lost_is_refused_with_what_to_write(view, accelerator, prepare, tmp_path):
    from accelerate import skip_first_batches

    with pytest.raises(UsageError, match="iterate over it, without skip_first_batches"):
        skip_first_batches(prepare(accelerator, make(view)), 3)
    with pytest.raises(UsageError, match="gradient_accumulation_steps="):
        prepare(accelerator, make(view, global_batch_size=8))
    with pytest.raises(UsageError, match="use tail='drop' or tail='wrap'"):
        prepare(accelerator, make(view, tail="keep", rank=0, ranks=2))
    with pytest.raises(
        UsageError, match=r"use accelerator\.prepare for models and optimizers; found Linear"
    ):
        prepare(accelerator, torch.nn.Linear(1, 1))
    files = [write_text(tmp_path / name) for name in ("a.txt", "b.txt")]
    with pytest.raises(UsageError, match=r"state of rank 0 for all ranks.*gather_states=True"):
        prepare(accelerator, make_text(files, rank=0, ranks=2))


ACCELERATE = """
import json
import sys
import torch
from accelerate import Accelerator, DataLoaderConfiguration
import millstream
from millstream.errors import StateError, UsageError

path, *kinds = sys.argv[1:]
found = {}
for kind in kinds:
    loader = millstream.Loader(millstream.open(path).windows(8), 4, seed=3)
    feed = loader
    if kind != "itself":
        workers = 2 if kind == "workers" else 0
        feed = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=workers)
    config = DataLoaderConfiguration(use_stateful_dataloader=kind == "stateful")
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    try:
        found[kind] = [batch["input_ids"].tolist() for batch in accelerator.prepare(feed)]
    except UsageError as error:
        found[kind] = str(error)
with open(f"{path}/found{accelerator.process_index}", "w") as file:
    json.dump(found, file)
"""


def run_accelerate(view, processes, *kinds):
    """What every process got, by the way in which the loader was prepared."""
    directory = view.dataset.shards[0].directory
    program = directory / "program.py"
    program.write_text(ACCELERATE)
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    subprocess.run(
        [sys.executable, *(launch if processes > 1 else []), program, directory, *kinds],
        check=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    return [json.loads((directory / f"found{rank}").read_text()) for rank in range(processes)]


@pytest.mark.process
def test_accelerate_would_deal_one_ranks_share_to_all_which_is_refused(view):
    found = run_accelerate(view, 2, "plain", "stateful", "itself")
    for of_rank in found:
        for kind in ("plain", "stateful"):
            assert (
                "rows would be lost. Use millstream.integrations.accelerate.prepare"
                in of_rank[kind]
            )
    steps = zip(*(of_rank["itself"] for of_rank in found), strict=True)
    rows = [[row for rows in zip(*step, strict=True) for row in rows] for step in steps]
    assert rows == inputs_of(millstream.Loader(view, 2 * ROWS, seed=3))


@pytest.mark.process
def test_accelerate_reads_ahead_on_one_process_which_is_refused(view):
    (found,) = run_accelerate(view, 1, "plain", "workers")
    for message in found.values():
        assert "reads ahead and distributes" in message
