"""Train the GPT of train_gpt.py under FSDP2: every rank holds a part of every weight.

    torchrun --nproc-per-node 8 examples/train_gpt_fsdp.py --out run
    torchrun --nproc-per-node 2 examples/train_gpt_fsdp.py --tiny --steps 20 --out run # on CPUs too

Kill any process, and start again on the same or another number of them: every step has the same
rows, and torch.distributed.checkpoint splits the weights anew. --global-batch-size should be a
multiple of the number of processes.
"""

import argparse
import os
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, count_labels, sum_losses
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_
from train_gpt import (
    Log,
    make_loader,
    make_model,
    make_optimizer,
    prepare_data,
    print_digest,
    read_options,
    set_learning_rate,
)


class Training:
    """The model and the optimizer, as torch.distributed.checkpoint saves them."""

    def __init__(self, model: GPT, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the parts that this rank holds."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back, dealt out for this number of ranks."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def shard(model: GPT, mesh: DeviceMesh) -> FSDPModule:
    """Shard each layer, and the embeddings with the rest; in bf16 on GPUs, with float32 sums."""
    policy = MixedPrecisionPolicy()
    if mesh.device_type == "cuda":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def checkpoints(out: Path) -> list[Path]:
    """Return all complete checkpoints, the newest last; `.metadata` is written at the end."""
    return sorted(path.parent for path in out.glob("step-*/.metadata"))


def train(options: argparse.Namespace) -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ranks = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("dp",))  # chooses the GPU too
    rank = dist.get_rank()
    if rank == 0:
        prepare_data(options)
    dist.barrier()  # other ranks wait for the data
    loader = make_loader(options, device=device, parallel=mesh)
    model = make_model(options, device)
    sharded = shard(model, mesh)
    optimizer = make_optimizer(model)
    # A loader has state_dict and load_state_dict, which is all that a checkpoint needs.
    state: dict[str, Any] = {"training": Training(model, optimizer), "loader": loader}
    for path in checkpoints(options.out)[-1:]:
        load(state, checkpoint_id=path)
    begin = loader.position // options.global_batch_size
    print(f"rank {rank} of {ranks}, process {os.getpid()}, begins at step {begin}", flush=True)
    log = Log(loader)
    for step, batches in enumerate(islice(loader, max(0, options.steps - begin)), begin + 1):
        set_learning_rate(optimizer, step, options.steps)
        num_labels, loss = count_labels(batches), torch.zeros((), device=device)
        dist.all_reduce(num_labels)  # rows differ in their padding
        for number, batch in enumerate(batches, 1):
            sharded.set_requires_gradient_sync(number == len(batches))
            part = sum_losses(model(batch), batch["labels"]) / num_labels
            # FSDP takes the mean over ranks.
            (part * ranks).backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % options.log_every == 0:
            dist.all_reduce(loss)
            if rank == 0:
                log.write(step, loss)
        if step % options.checkpoint_every == 0 or step == options.steps:
            save(state, checkpoint_id=options.out / f"step-{step:07d}")
            if rank == 0:
                for old in checkpoints(options.out)[:-2]:
                    shutil.rmtree(old)
    loader.close()
    weights: dict[str, Any] = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True)
    )
    if rank == 0:
        print_digest(weights.values())


if __name__ == "__main__":
    train(read_options())
    dist.destroy_process_group()  # with the model gone: gloo can deadlock if that goes last
