"""JAX: global arrays, each process contributing the rows that its devices hold.

    sharding = NamedSharding(mesh, PartitionSpec("data"))
    loader = millstream.Loader(view, 8, parallel=share_of(sharding), output="numpy")
    for batch in global_batches(loader, sharding):
        state = train_step(state, batch)

Nothing is read ahead here, so `loader.state_dict()` is exact at every moment: the loader has its
batches ready, and JAX returns from a step before the device has done it.
"""

import math
from collections.abc import Iterator, Mapping, Set
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from millstream.errors import UsageError
from millstream.integrations.host_arrays import check_output, host_arrays
from millstream.integrations.process_agreement import check_processes_agree
from millstream.load.base_loader import BaseLoader
from millstream.load.parallel import Parallel
from millstream.load.staged_loader import StagedLoader


def share_of(sharding: NamedSharding | None = None) -> Parallel:
    """Return the share of the rows that this process has to load, as `parallel=` of a loader.

    Processes whose devices hold the same rows, as under tensor parallelism, get the same share.

    Arguments:
        sharding: of the batches, with the rows first, such as P("data") or P("data", "sequence");
            None divides the rows over all devices.
    """
    return divide_rows(_row_shards(_named(sharding)), jax.process_index())


def global_batches(
    loader: BaseLoader | StagedLoader, sharding: NamedSharding | None = None
) -> Iterator[dict[str, jax.Array]]:
    """Iterate over the rest of the loader's epoch, in arrays that span all processes.

    Arrays are as `host_arrays` describes them, and as wide as the loader's rows. An array of one
    dimension is sharded as the first dimension of the others.

    Arguments:
        loader: with output="numpy" and parallel=share_of(sharding).
        sharding: as in `share_of`.
    """
    sharding = _named(sharding)
    current = loader.loader if isinstance(loader, StagedLoader) else loader
    check_output(current, "divide the batch in your training step, as with jax.lax.scan")
    check_share(current, sharding)
    return _iterate(loader, sharding, current.ranks)


def _iterate(
    loader: BaseLoader | StagedLoader, sharding: NamedSharding, ranks: int
) -> Iterator[dict[str, jax.Array]]:
    check_processes_agree(loader, sharding.mesh)
    for batch in loader:
        arrays = host_arrays(batch, keep_64_bits=jax.config.jax_enable_x64)
        # Without its global shape, JAX takes a row that several processes share for a part of one.
        shapes = {name: (each.shape[0] * ranks, *each.shape[1:]) for name, each in arrays.items()}
        shardings = {
            name: NamedSharding(
                sharding.mesh,
                PartitionSpec(*sharding.spec[: each.ndim]),
                memory_kind=sharding.memory_kind,
            )
            for name, each in arrays.items()
        }
        yield jax.make_array_from_process_local_data(shardings, arrays, shapes)


def check_share(
    loader: BaseLoader, sharding: NamedSharding, argument: str = "share_of(sharding)"
) -> None:
    """Raise unless the loader's rows are those that the devices of this process hold."""
    expected, found = share_of(sharding), loader.parallel
    if (found.rank, found.ranks) != (expected.rank, expected.ranks):
        raise UsageError(
            f"this loader is {found}, but the devices of process {jax.process_index()} of "
            f"{jax.process_count()} hold the rows of {expected}; create it with "
            f"parallel={argument}"
        )
    num_shards = _num_row_shards(sharding)
    num_local = num_shards // expected.ranks
    if loader.batch_size % num_local:
        below = loader.batch_size // num_local * num_local
        works = f"{below} or {below + num_local}" if below else f"{num_local}"
        raise UsageError(
            f"batch_size={loader.batch_size} cannot be divided by the {num_local} shards of rows "
            f"on this process; use batch_size={works}"
        )
    if loader.tail == "keep" and num_shards > 1 and not loader.endless:
        raise UsageError(
            f"with tail='keep' the last step of an epoch may have fewer rows than the {num_shards} "
            "shards need; use tail='drop' or tail='wrap'"
        )


def divide_rows(shards: Mapping[int, Set[int]], process: int) -> Parallel:
    """Return the share of a process, from the shards of rows on each process's devices.

    >>> divide_rows({0: {0, 1}, 1: {2, 3}, 2: {0, 1}, 3: {2, 3}}, process=3)
    Parallel(rank=1, ranks=2, context_rank=0, context_ranks=1, context_layout='zigzag')
    """
    if process not in shards:
        raise UsageError(
            f"process {process} has no device of the mesh, which is of processes "
            f"{sorted(shards)}; create the loader only on those"
        )
    shares = sorted({frozenset(each) for each in shards.values()}, key=min)
    num_shards = len(frozenset().union(*shares))
    if sum(map(len, shares)) > num_shards or len({len(each) for each in shares}) > 1:
        listed = "; ".join(f"process {each}: {sorted(shards[each])}" for each in sorted(shards)[:8])
        raise UsageError(
            f"the processes hold unequal or overlapping parts of the {num_shards} shards of rows "
            f"({listed}). Order the devices of the mesh so that the shards of two processes are "
            "the same or have none in common, as jax.make_mesh does"
        )
    return Parallel(rank=shares.index(frozenset(shards[process])), ranks=len(shares))


def _named(sharding: NamedSharding | None) -> NamedSharding:
    if sharding is None:
        return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        raise UsageError(
            f"sharding is {sharding!r:.80}; it must be a NamedSharding of a mesh of devices, such "
            'as NamedSharding(mesh, PartitionSpec("data"))'
        )
    return sharding


def _row_shards(sharding: NamedSharding) -> dict[int, set[int]]:
    """Return which shards of the rows the devices of each process hold."""
    sizes = [_num_parts(sharding.mesh, axes) for axes in sharding.spec] or [1]
    shards: dict[int, set[int]] = {}
    for device, index in sharding.devices_indices_map(tuple(sizes)).items():
        shards.setdefault(device.process_index, set()).add(index[0].start or 0)
    return shards


def _num_row_shards(sharding: NamedSharding) -> int:
    return _num_parts(sharding.mesh, sharding.spec[0]) if sharding.spec else 1


def _num_parts(mesh: Mesh, axes: Any) -> int:
    """Into how many parts one entry of a PartitionSpec divides its dimension."""
    names = () if axes is None else (axes,) if isinstance(axes, str) else axes
    return math.prod(mesh.shape[name] for name in names)
