"""Accelerate."""

import torch

from tests.helpers.trainer_runs import EPOCHS, SAVE_EVERY


def train(run):
    from accelerate import Accelerator

    from millstream.integrations.accelerate import prepare

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = run.loader()
    batches = prepare(accelerator, loader)
    for path in sorted(run.out.glob("step-*"))[-1:]:
        accelerator.load_state(path)
    step = loader.position // (loader.batch_size * loader.ranks)
    for _ in range(loader.epoch, EPOCHS):
        for batch in batches:
            step += 1
            run.saw(step, batch["input_ids"])
            accelerator.backward(model(torch.ones(1)).sum())
            optimizer.step()
            optimizer.zero_grad()
            if step % SAVE_EVERY == 0:
                accelerator.save_state(run.out / f"step-{step:03}")
    accelerator.free_memory(model, optimizer)
    del model, optimizer  # gloo can deadlock if they go after the process group
    accelerator.end_training()
