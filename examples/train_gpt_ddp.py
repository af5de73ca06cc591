"""Train the GPT of train_gpt.py under DistributedDataParallel.

    torchrun --nproc-per-node 8 examples/train_gpt_ddp.py --out run
    torchrun --nproc-per-node 2 examples/train_gpt_ddp.py --tiny --steps 20 --out run  # on CPUs too

Kill any process, and start again on the same or another number of them: every step has the same
rows. --global-batch-size should be a multiple of the number of processes.
"""

import argparse
import os
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from gpt import count_labels, sum_losses
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from train_gpt import (
    Log,
    checkpoints,
    make_loader,
    make_model,
    make_optimizer,
    prepare_data,
    print_digest,
    read_options,
    save,
    set_learning_rate,
)


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
    optimizer = make_optimizer(model)
    for path in checkpoints(options.out)[-1:]:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # the same on all ranks, and for any number of them
    begin = loader.position // options.global_batch_size
    print(f"rank {rank} of {ranks}, process {os.getpid()}, begins at step {begin}", flush=True)
    parallel, log = DistributedDataParallel(model), Log(loader)
    for step, batches in enumerate(islice(loader, max(0, options.steps - begin)), begin + 1):
        set_learning_rate(optimizer, step, options.steps)
        num_labels, loss = count_labels(batches), torch.zeros((), device=device)
        dist.all_reduce(num_labels)  # rows differ in their padding
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            with nullcontext() if is_last else parallel.no_sync():
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    logits = parallel(batch)
                part = sum_losses(logits, batch["labels"]) / num_labels
                # DDP takes the mean over ranks.
                (part * ranks).backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % options.log_every == 0:
            dist.all_reduce(loss)
            if rank == 0:
                log.write(step, loss)
        if rank == 0 and (step % options.checkpoint_every == 0 or step == options.steps):
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(options.out, step, checkpoint | {"loader": loader.state_dict()})
    loader.close()
    if rank == 0:
        print_digest(model.parameters())


if __name__ == "__main__":
    train(read_options())
    dist.destroy_process_group()  # with the model gone: gloo can deadlock if that goes last
