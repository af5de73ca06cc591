"""One rank of the demo's training, started by torchrun.

It logs a hash of every row in the batches that it receives. The all-reduce stands for that of the
gradients: it keeps the ranks in step, as in real training.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed
import xxhash

from millstream.cli.demo import SEED, SEQ_LEN
from millstream.load.loader import Loader
from millstream.opening import open as open_dataset

_CHECKPOINT_EVERY = 100


def main(directory: Path, name: str, batch_size: int) -> None:
    """Train for the rest of one epoch, from the checkpoint if there is one."""
    torch.distributed.init_process_group("gloo")
    view = open_dataset(directory / "corpus").windows(SEQ_LEN)
    loader = Loader(view, batch_size, seed=SEED, tail="keep", dtype=torch.int32)
    rank, checkpoint = loader.plan.rank, directory / "checkpoint.json"
    (directory / f"{name}-{rank}.pid").write_text(str(os.getpid()))
    if checkpoint.exists():
        loader.load_state_dict(json.loads(checkpoint.read_text()))
    with (directory / f"{name}-{rank}.jsonl").open("w") as log:
        position = loader.position
        for step, batch in enumerate(loader, 1):
            tokens = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], dim=1)
            rows = tokens.to(torch.int16).numpy()
            line = {
                "rank": rank,
                "step": step,
                "position": position,
                "digest": loader.digest(),
                "rows": [xxhash.xxh3_64_hexdigest(row.tobytes()) for row in rows],
            }
            torch.distributed.all_reduce(tokens.sum())
            log.write(json.dumps(line) + "\n")
            log.flush()
            position = loader.position
            if step % _CHECKPOINT_EVERY == 0:
                torch.distributed.barrier()  # every rank has logged its steps
                if rank == 0:
                    temporary = checkpoint.with_suffix(".tmp")
                    temporary.write_text(json.dumps(loader.state_dict()))
                    temporary.rename(checkpoint)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
