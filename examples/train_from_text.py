"""Train a small GPT from text on the CPU. Kill it at any moment: it ends with the same weights.

    python examples/train_from_text.py --out run                  # on Python's own source files
    python examples/train_from_text.py 'corpus/*.parquet' --out run
    torchrun --nproc-per-node 2 examples/train_from_text.py --out run

`millstream.TextLoader` tokenizes and packs while the model trains. Kill the run and start the same
command again: it resumes from the newest checkpoint. The digest of the weights that it prints at
the end is that of an undisturbed run: the weights are the same, bit for bit.
"""

import argparse
import hashlib
import os
import sysconfig
import time
import zlib
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import millstream

WIDTH, NUM_HEADS, NUM_LAYERS, DROPOUT = 96, 4, 3, 0.1  # 446,000 parameters
VOCAB_SIZE, SEED = 1024, 0


class Block(nn.Module):
    """Causal self-attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
        hidden: Tensor = self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return x + hidden


class GPT(nn.Module):
    """A language model with learned positions and tied embeddings."""

    def __init__(self, vocab_size: int, seq_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.places = nn.Parameter(torch.zeros(seq_len, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(NUM_LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        x = self.blocks(self.tokens(input_ids) + self.places)
        logits = self.norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make_loader(options: argparse.Namespace) -> millstream.TextLoader:
    """Create the loader of this rank, and train a tokenizer first if none is given."""
    if options.text:
        source = millstream.Source(options.text)
    else:
        sources = Path(sysconfig.get_path("stdlib")) / "*.py"
        source = millstream.Source(sources, kind="text", documents="file")
    tokenizer = options.tokenizer or options.out / "tokenizer"
    if not options.tokenizer and dist.get_rank() == 0 and not tokenizer.exists():
        millstream.train_tokenizer(source, VOCAB_SIZE, specials=["<|bos|>"], out=tokenizer)
    dist.barrier()  # other ranks wait for the tokenizer
    return millstream.TextLoader(
        source,
        tokenizer,
        options.batch_size,
        options.seq_len,
        endless=True,  # train by steps
        lanes=options.lanes,  # mix documents; ranks that divide them can resume
        threads=options.threads,
        prefetch=options.prefetch,
    )


def save(out: Path, checkpoint: dict[str, Any], loader: millstream.TextLoader) -> None:
    """Write one checkpoint for all ranks, which appears complete or not at all.

    A loader's state describes the lanes of its own rank, so the states of all ranks are joined.
    One file per rank works too, but a kill can leave some ranks one checkpoint behind.
    """
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, (loader.state_dict(), torch.get_rng_state()))
    states, rngs = zip(*shares, strict=True)
    checkpoint |= {"loader": millstream.TextLoader.join_states(states), "rngs": rngs}
    if dist.get_rank() == 0:
        temporary = out / "checkpoint.tmp"
        with temporary.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(out / f"step-{checkpoint['step']:07d}.pt")
        for old in checkpoints(out)[:-2]:
            old.unlink()


def checkpoints(out: Path) -> list[Path]:
    """Return all complete checkpoints, the newest last."""
    return sorted(out.glob("step-*.pt"))


def train(options: argparse.Namespace) -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    out, rank, ranks = options.out, dist.get_rank(), dist.get_world_size()
    out.mkdir(parents=True, exist_ok=True)
    loader = make_loader(options)
    torch.manual_seed(SEED)  # all ranks start with the same weights
    model = GPT(loader.tokenizer.vocab_size, options.seq_len)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(SEED + 1 + rank)  # but use different dropout
    step = rows_seen = 0
    for path in checkpoints(out)[-1:]:
        saved = torch.load(path, weights_only=True)
        step, rows_seen = saved["step"], saved["rows_seen"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        if rank < len(saved["rngs"]):
            torch.set_rng_state(saved["rngs"][rank])
    print(f"rank {rank} of {ranks}, process {os.getpid()}, begins at step {step}", flush=True)
    then, tokens = time.perf_counter(), 0
    for batch in islice(loader, max(0, options.steps - step)):
        loss = model(batch["input_ids"], batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        # Not DistributedDataParallel: it changes the order of sums after its first step, so on
        # three or more ranks a resumed run would differ in the last bits.
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        total = parameters_to_vector(gradients)
        dist.all_reduce(total)
        vector_to_parameters(total / ranks, gradients)
        optimizer.step()
        step += 1
        # The sum does not depend on which rank had which row: runs that print the same `rows` at
        # the end read the same rows in every step, on any number of ranks.
        row_sum = sum(zlib.crc32(row.numpy()) for row in batch["input_ids"])
        sums = torch.tensor([loss.item(), row_sum], dtype=torch.float64)
        dist.all_reduce(sums)
        rows_seen = zlib.crc32(b"%d" % int(sums[1]), rows_seen)
        if rank == 0 and step % 10 == 0:
            now, stats = time.perf_counter(), loader.stats
            rate = (stats.tokens - tokens) * ranks / (now - then)
            print(f"step {step}: loss {sums[0] / ranks:.3f}, {rate:,.0f} tokens/s;", end=" ")
            print(f"waited {stats.waited_seconds:.2f} s for text, {stats.ready} batches are ready")
            then, tokens = now, stats.tokens
        if step % options.checkpoint_every == 0 or step == options.steps:
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(out, {"step": step, "rows_seen": rows_seen} | checkpoint, loader)
    loader.close()
    if rank == 0:
        weights = parameters_to_vector(model.parameters()).detach().numpy().tobytes()
        print(f"rows {rows_seen:08x}\nweights {hashlib.sha256(weights).hexdigest()}")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("text", nargs="*", help="text files, directories or patterns")
    parser.add_argument("--out", type=Path, required=True, help="directory for checkpoints")
    parser.add_argument("--tokenizer", help="file, or 'bytes'; default: train one into --out")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps (20)")
    parser.add_argument("--batch-size", type=int, default=8, help="rows per rank (8)")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--lanes", type=int, default=8, help="text streams, split among ranks (8)")
    parser.add_argument("--threads", type=int, help="tokenizing threads")
    parser.add_argument("--prefetch", type=int, default=4, help="batches packed ahead (4)")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # any fixed number: it decides how sums are rounded
    if "RANK" in os.environ:  # torchrun
        dist.init_process_group("gloo")
    else:  # a group of one, so that the code below works unchanged
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
