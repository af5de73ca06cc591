"""Train the GPT of train_gpt.py with Accelerate, from `prepare` to `save_state`.

    accelerate launch examples/train_accelerate.py --out run
    python examples/train_accelerate.py --tiny --steps 20 --out run  # on a CPU too

Start the same command again after a kill: `load_state` restores the loader with the model.
"""

import argparse
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from gpt import count_labels, sum_losses
from train_gpt import SEED, make_model, make_optimizer, prepare_data, read_options

import millstream
from millstream.integrations.accelerate import prepare


def checkpoints(out: Path) -> list[Path]:
    """Return all complete checkpoints, the newest last."""
    return sorted(out.glob("step-*"))


def save(accelerator: Accelerator, out: Path, step: int) -> None:
    """Write a checkpoint that appears complete or not at all, and keep the last two."""
    accelerator.save_state(str(out / "unfinished"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (out / "unfinished").rename(out / f"step-{step:07d}")
        for old in checkpoints(out)[:-2]:
            shutil.rmtree(old)


def train(options: argparse.Namespace) -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    accelerator = Accelerator()
    with accelerator.main_process_first():
        prepare_data(options)
    data = millstream.open(options.data or options.out / "data")
    view = data.packed(options.seq_len, extras=["position_ids", "cu_seqlens", "document_ids"])
    loader = millstream.Loader(view, options.batch_size, seed=SEED)
    model = make_model(options, accelerator.device)
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    batches = prepare(accelerator, loader)
    for path in checkpoints(options.out)[-1:]:
        accelerator.load_state(str(path))
    step = loader.position // (loader.batch_size * loader.ranks)
    accelerator.print(f"begins at step {step}", flush=True)
    while step < options.steps:
        for batch in batches:
            step += 1
            loss = sum_losses(model(batch), batch["labels"]) / count_labels([batch])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % options.log_every == 0:
                # The digest is that of the rows on all ranks.
                accelerator.print(
                    f"step {step}: loss {loss:.4f}, rows {loader.digest()},", flush=True
                )
            if step % options.checkpoint_every == 0:
                save(accelerator, options.out, step)
            if step == options.steps:
                break
    accelerator.free_memory(model, optimizer)
    del model, optimizer  # gloo can deadlock if they go after the process group
    accelerator.end_training()


if __name__ == "__main__":
    torch.manual_seed(SEED)
    train(read_options())
