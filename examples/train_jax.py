"""Train a GPT in plain JAX on packed documents, on one process or several. Kill it: it resumes.

    python examples/train_jax.py --data corpus/train --out run
    python examples/train_jax.py --data corpus/train --out run --tiny --steps 20  # on a CPU too
    python examples/train_jax.py … --coordinator 10.0.0.1:1234 --processes 2 --process 0

Kill any process, and start again on the same or another number of them: every step has the same
rows. --global-batch-size must be a multiple of the number of devices.
"""

import argparse
import hashlib
import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import millstream
from millstream.integrations.jax import global_batches, share_of

Tree = Any  # nested dicts and lists of arrays
HEADS = 4


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="dataset of documents")
    parser.add_argument("--out", type=Path, required=True, help="directory for checkpoints")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--global-batch-size", type=int, default=64, help="rows per step (64)")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps (100)")
    parser.add_argument("--coordinator", help="address of process 0, if there are several")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0, help="the number of this one")
    parser.add_argument("--tiny", action="store_true", help="small model and batches")
    if parser.parse_known_args()[0].tiny:
        parser.set_defaults(global_batch_size=8, seq_len=64)
    return parser.parse_args()


def new_weights(vocab_size: int, seq_len: int, width: int, layers: int) -> Tree:
    """Return random weights, the same on all processes."""
    keys = iter(jax.random.split(jax.random.key(0), 2 + 4 * layers))

    def normal(*shape: int) -> jax.Array:
        return 0.02 * jax.random.normal(next(keys), shape)

    shapes = {
        "qkv": (width, 3, HEADS, width // HEADS),
        "out": (HEADS, width // HEADS, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    blocks = [{name: normal(*shape) for name, shape in shapes.items()} for _ in range(layers)]
    return {"tokens": normal(vocab_size, width), "places": normal(seq_len, width), "blocks": blocks}


def normalized(hidden: jax.Array) -> jax.Array:
    """Scale vectors to a mean square of 1."""
    return hidden * jax.lax.rsqrt(jnp.mean(hidden**2, axis=-1, keepdims=True) + 1e-6)


def mean_loss(weights: Tree, batch: dict[str, jax.Array]) -> jax.Array:
    """Return the mean over all labels of the step, on all processes together."""
    segments = batch["segment_ids"]
    mask = (segments[:, :, None] == segments[:, None, :])[:, None]  # documents see themselves only
    hidden = weights["tokens"][batch["input_ids"]] + weights["places"][batch["position_ids"]]
    for block in weights["blocks"]:
        q, k, v = jnp.einsum("bsw,wthd->tbshd", normalized(hidden), block["qkv"])
        attended = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True)
        hidden += jnp.einsum("bshd,hdw->bsw", attended, block["out"])
        hidden += jax.nn.gelu(normalized(hidden) @ block["up"]) @ block["down"]
    scores = jax.nn.log_softmax(normalized(hidden) @ weights["tokens"].T)
    losses = -jnp.take_along_axis(scores, batch["labels"][..., None], axis=-1)[..., 0]
    return jnp.mean(losses, where=batch["loss_mask"])


def train_step(training: Tree, batch: dict[str, jax.Array]) -> tuple[Tree, jax.Array]:
    """Take one step of Adam."""
    step = training["step"] + 1
    loss, gradients = jax.value_and_grad(mean_loss)(training["weights"], batch)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, training["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g**2, training["second"], gradients)
    rate = 1e-3 * jnp.sqrt(1 - 0.95**step) / (1 - 0.9**step)
    updates = jax.tree.map(lambda m, v: rate * m / (jnp.sqrt(v) + 1e-8), first, second)
    weights = jax.tree.map(jnp.subtract, training["weights"], updates)
    return {"weights": weights, "first": first, "second": second, "step": step}, loss


def save(path: Path, training: Tree, loader: millstream.Loader) -> None:
    """Write a checkpoint that appears complete or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        state = json.dumps(loader.state_dict())  # the same on all processes, for any number of them
        np.savez(file, *jax.tree.leaves(training), loader=state)
        os.fsync(file.fileno())
    temporary.rename(path)


def train(options: argparse.Namespace) -> None:
    """Train to the last step, from the checkpoint if there is one."""
    if options.processes > 1:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], []))
    data = millstream.open(options.data)
    view = data.packed(options.seq_len, extras=["position_ids", "document_ids"])
    share = share_of(rows)
    batch_size = options.global_batch_size // share.ranks
    loader = millstream.Loader(view, batch_size, parallel=share, output="numpy", endless=True)
    size = {"width": 64, "layers": 2} if options.tiny else {"width": 768, "layers": 12}
    weights = new_weights(data.vocab_size or 1 << 16, options.seq_len, **size)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    training: Tree = {"weights": weights, "first": zeros, "second": zeros, "step": 0}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "checkpoint.npz"
    if path.exists():
        saved = np.load(path)
        leaves = [saved[name] for name in saved.files if name != "loader"]
        training = jax.tree.unflatten(jax.tree.structure(training), leaves)
        loader.load_state_dict(json.loads(str(saved["loader"])))
    training = jax.device_put(training, everywhere)
    begin = loader.position // options.global_batch_size
    process, compiled_step = jax.process_index(), jax.jit(train_step)
    print(f"process {process} of {options.processes} begins at step {begin}", flush=True)
    batches = islice(global_batches(loader, rows), max(0, options.steps - begin))
    for step, batch in enumerate(batches, begin + 1):
        training, loss = compiled_step(training, batch)
        print(f"step {step}: loss {float(loss):.4f}, rows {loader.digest()}", flush=True)
        if process == 0 and (step % options.checkpoint_every == 0 or step == options.steps):
            save(path, training, loader)
    loader.close()
    digest = hashlib.sha256()
    for weight in jax.tree.leaves(training["weights"]):
        digest.update(np.asarray(weight).tobytes())
    print(f"weights {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    train(read_options())
