"""Detects processes of JAX whose loaders differ, before their first batch.

Every process computes its rows alone: one with another seed or position would train on wrong rows
without any error. `load.rank_agreement` does the same where torch.distributed is initialized.
"""

import json
from typing import Any

import jax
import numpy as np
import xxhash
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from millstream.errors import UsageError
from millstream.load.base_loader import BaseLoader
from millstream.load.loader import Loader
from millstream.load.staged_loader import StagedLoader


def check_processes_agree(loader: BaseLoader | StagedLoader, mesh: Mesh) -> None:
    """Raise on all processes of the mesh if their loaders differ; a collective."""
    if len({device.process_index for device in mesh.devices.flat}) == 1:
        return
    facts = _facts(loader)
    hashes = np.array([_hash(value) for value in facts.values()], np.uint32)
    everywhere = jax.make_array_from_callback(
        (mesh.size, *hashes.shape),
        NamedSharding(mesh, PartitionSpec(mesh.axis_names)),
        lambda index: hashes[None],
    )
    is_same = jax.jit(_is_same, out_shardings=NamedSharding(mesh, PartitionSpec()))(everywhere)
    differing = [
        f"{name} (here {value!r:.100})"
        for (name, value), same in zip(facts.items(), np.asarray(is_same), strict=True)
        if not same
    ]
    if differing:
        raise UsageError(
            f"the loaders of the processes differ in {', '.join(differing)}. Create the same "
            "loader on all of them, and load the same state"
        )


def _is_same(hashes: jax.Array) -> jax.Array:
    return (hashes.min(axis=0) == hashes.max(axis=0)).all(axis=1)


def _hash(value: Any) -> tuple[int, int]:
    text = json.dumps(value, sort_keys=True)
    return divmod(xxhash.xxh3_64_intdigest(text.encode()), 1 << 32)


def _facts(loader: BaseLoader | StagedLoader) -> dict[str, Any]:
    """What must be the same on all processes; the number of facts depends on no loader."""
    current = loader.loader if isinstance(loader, StagedLoader) else loader
    # The state of a TextLoader is that of its rank.
    state = loader.state_dict() if isinstance(current, Loader) else {}
    return {
        "position": loader.position,
        "seed": current.seed,
        "batch_size": current.batch_size,
        "tail": current.tail,
        "endless": current.endless,
        "dataset, view or order": [state.get(key) for key in ("order", "view", "stages")],
    }
