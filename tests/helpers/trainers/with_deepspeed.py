"""DeepSpeed's engine, with ZeRO or without, and two micro-batches a step."""

from itertools import islice

import pytest
import torch
import torch.distributed as dist

import millstream
from millstream import UsageError
from tests.helpers.trainer_runs import EPOCHS, ROWS, SAVE_EVERY, STEPS


def train(run):
    _train(run, stage=0)


def train_with_zero(run):
    _train(run, stage=1)


def wrap(run):
    """What DeepSpeed would wrap raises; its RepeatingLoader only starts the next epoch."""
    from deepspeed.runtime.dataloader import RepeatingLoader

    engine = _initialize(run)
    loader = run.loader()
    with pytest.raises(UsageError, match="for batch in loader"):
        _initialize(run, training_data=loader)
    with pytest.raises(UsageError, match="for batch in loader"):
        _initialize(run, training_data=run.loader(endless=True))
    for route in ("train", "eval"):
        with pytest.raises(UsageError, match="for batch in loader"):
            engine.deepspeed_io(loader, route=route)
    for step, batch in enumerate(islice(RepeatingLoader(loader), STEPS * EPOCHS), 1):
        run.saw(step, batch["input_ids"])
    dist.destroy_process_group()


def import_on_cpu():
    """DeepSpeed, without an extension that it would compile to communicate on CPUs."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _initialize(run, stage=0, **options):
    deepspeed = import_on_cpu()
    model = torch.nn.Linear(1, 1)
    config = {
        "train_batch_size": ROWS,
        "train_micro_batch_size_per_gpu": max(1, ROWS // run.ranks // 2),
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters())
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, **options)[0]


def _train(run, stage):
    engine = _initialize(run, stage)
    loader = millstream.Loader(
        run.view(),
        engine.train_micro_batch_size_per_gpu(),
        global_batch_size=engine.train_batch_size(),
        seed=3,
    )
    _, client_state = engine.load_checkpoint(run.out / "saved")
    if client_state:
        loader.load_state_dict(client_state["data"])
    while loader.epoch < EPOCHS:
        for batches in loader:
            inputs = torch.cat([batch["input_ids"] for batch in batches])
            run.saw(engine.global_steps + 1, inputs)
            for batch in batches:
                loss = engine(batch["input_ids"][:, :1].float()).mean()
                engine.backward(loss)
                engine.step()
            if engine.global_steps % SAVE_EVERY == 0:
                engine.save_checkpoint(
                    run.out / "saved", client_state={"data": loader.state_dict()}
                )
    dist.barrier()
    dist.destroy_process_group()
