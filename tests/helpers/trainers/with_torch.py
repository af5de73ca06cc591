"""torch's DataLoader and torchdata's StatefulDataLoader."""

import torch
from torch.utils.data import DataLoader

from tests.helpers.trainer_runs import EPOCHS, ROWS, SAVE_EVERY


def train(run, num_workers=0):
    """The loader's own state says where to continue, with workers too."""
    loader = run.loader()
    _train(run, loader, DataLoader(loader, **_options(num_workers)), loader)


def train_stateful(run, num_workers=0):
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = run.loader()
    batches = StatefulDataLoader(loader, **_options(num_workers))
    _train(run, loader, batches, batches)


def _options(num_workers):
    # By default, workers are started as this process was: by a fork server, which takes seconds.
    context = "fork" if num_workers else None
    return {"batch_size": None, "num_workers": num_workers, "multiprocessing_context": context}


def _train(run, loader, batches, stateful):
    if run.ranks > 1:
        torch.distributed.init_process_group("gloo")
    step = 0
    for path in sorted(run.out.glob(f"step-*-{run.rank}.pt"))[-1:]:
        saved = torch.load(path)
        step = saved["step"]
        stateful.load_state_dict(saved["data"])
    for _ in range(step * ROWS // len(loader.view), EPOCHS):
        for batch in batches:
            step += 1
            run.saw(step, batch["input_ids"])
            if run.ranks > 1:
                torch.distributed.barrier()
            if step % SAVE_EVERY == 0:
                saved = {"step": step, "data": stateful.state_dict()}
                torch.save(saved, run.out / f"step-{step:03}-{run.rank}.pt")
