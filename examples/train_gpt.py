"""Train a GPT of 124 M parameters on packed documents, in bf16 on one GPU. Kill it: it resumes.

    python examples/train_gpt.py --out run                           # on Python's own source files
    python examples/train_gpt.py --data corpus/train --out run --attention flex
    python examples/train_gpt.py --tiny --steps 20 --out run         # a small model, on a CPU too

Start the same command again after a kill: it continues from the newest checkpoint, with the rows
that an undisturbed run reads, and prints the same digests of them. docs/training.md says more.
"""

import argparse
import hashlib
import math
import os
import sysconfig
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from gpt import ATTENTION, GPT, TINY, Shape, count_labels, sum_losses
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import millstream

SEED = 0


def read_options() -> argparse.Namespace:
    """Parse the command line; the batch sizes have to suit the GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory for checkpoints")
    parser.add_argument("--data", type=Path, help="dataset; default: Python's own source files")
    parser.add_argument("--attention", choices=ATTENTION, help="default: varlen, or sdpa on a CPU")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--global-batch-size", type=int, default=64, help="rows per step (64)")
    parser.add_argument("--batch-size", type=int, default=16, help="rows at a time per GPU (16)")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps (100)")
    parser.add_argument("--log-every", type=int, default=10, help="steps (10)")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--deterministic", action="store_true", help="the same bits, but slower")
    parser.add_argument("--tiny", action="store_true", help="small model and batches")
    if parser.parse_known_args()[0].tiny:
        parser.set_defaults(global_batch_size=16, batch_size=4, seq_len=128)
    options = parser.parse_args()
    if options.attention is None:
        options.attention = "varlen" if torch.cuda.is_available() else "sdpa"
    if options.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # any fixed number: it decides how sums are rounded
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def prepare_data(options: argparse.Namespace) -> None:
    """Tokenize Python's standard library, one document per file, unless --data is given."""
    if options.data is not None:
        return
    sources = Path(sysconfig.get_path("stdlib")) / "*.py"
    source = millstream.Source(sources, kind="text", documents="file")
    tokenizer = options.out / "tokenizer"
    if not tokenizer.exists():
        vocab_size = 512 if options.tiny else 8192
        millstream.train_tokenizer(source, vocab_size, specials=["<|bos|>"], out=tokenizer)
    millstream.tokenize(source, tokenizer, options.out / "data", workers=1)  # once; later a check


def make_loader(options: argparse.Namespace, **where: Any) -> millstream.Loader:
    """Create a loader whose items are steps: lists of micro-batches."""
    boundaries: Any = "document_ids" if options.attention == "flex" else "cu_seqlens"
    data = millstream.open(options.data or options.out / "data")
    view = data.packed(
        options.seq_len,
        extras=["position_ids", boundaries],
        static_shapes=options.compile,
    )
    return millstream.Loader(
        view,
        options.batch_size,
        global_batch_size=options.global_batch_size,
        seed=SEED,
        endless=True,  # train by steps
        **where,
    )


def make_model(options: argparse.Namespace, device: torch.device) -> GPT:
    """Create the model, with the same weights on all ranks."""
    torch.manual_seed(SEED)
    model = GPT(TINY if options.tiny else Shape(), options.seq_len, options.attention).to(device)
    if options.compile:
        for block in model.blocks:  # one graph for all layers
            block.compile()
    return model


def make_optimizer(model: GPT) -> torch.optim.Optimizer:
    """Create the optimizer; each step sets its learning rate."""
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Warm up for 20 steps, and decay to a tenth along a cosine."""
    decay = 0.55 + 0.45 * math.cos(math.pi * step / steps)
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * decay * min(1, step / 20)


class Log:
    """Prints a line about a step, and the speed since the last line."""

    def __init__(self, loader: millstream.Loader) -> None:
        self.loader, self.time, self.stats = loader, time.perf_counter(), loader.stats

    def write(self, step: int, loss: Tensor) -> None:
        """Print the line; the digest is that of the step's rows on all ranks together."""
        mean_loss = loss.item()  # waits for the GPU
        now, stats = time.perf_counter(), self.loader.stats
        seconds, tokens = now - self.time, stats.tokens - self.stats.tokens
        waited = (stats.waited_seconds - self.stats.waited_seconds) / seconds
        print(f"step {step}: loss {mean_loss:.4f}, rows {self.loader.digest()},", end=" ")
        rate = tokens * self.loader.ranks / seconds
        print(f"{rate:,.0f} tokens/s, {waited:.2%} of the time waited for data", flush=True)
        self.time, self.stats = now, stats


def save(out: Path, step: int, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint that appears complete or not at all, and keep the last two."""
    temporary = out / "checkpoint.tmp"
    with temporary.open("wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(out / f"step-{step:07d}.pt")
    for old in checkpoints(out)[:-2]:
        old.unlink()


def checkpoints(out: Path) -> list[Path]:
    """Return all complete checkpoints, the newest last."""
    return sorted(out.glob("step-*.pt"))


def print_digest(weights: Iterable[Tensor]) -> None:
    """Print a digest that only the same weights have, bit for bit."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.detach().cpu().numpy().tobytes())
    print(f"weights {digest.hexdigest()}")


def train(options: argparse.Namespace) -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepare_data(options)
    loader = make_loader(options, device=device)
    model = make_model(options, device)
    optimizer = make_optimizer(model)
    generator: Any = torch.cuda if device.type == "cuda" else torch  # dropout would draw from it
    for path in checkpoints(options.out)[-1:]:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        generator.set_rng_state(saved["rng"])
    begin = loader.position // options.global_batch_size
    print(f"process {os.getpid()} begins at step {begin}", flush=True)
    log = Log(loader)
    for step, batches in enumerate(islice(loader, max(0, options.steps - begin)), begin + 1):
        set_learning_rate(optimizer, step, options.steps)
        num_labels, loss = count_labels(batches), torch.zeros((), device=device)
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(batch)
            part = sum_losses(logits, batch["labels"]) / num_labels
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % options.log_every == 0:
            log.write(step, loss)
        if step % options.checkpoint_every == 0 or step == options.steps:
            checkpoint: dict[str, Any] = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "rng": generator.get_rng_state(),
            }
            save(options.out, step, checkpoint)
    loader.close()
    print_digest(model.parameters())


if __name__ == "__main__":
    train(read_options())
