"""A training loop in plain JAX, over global arrays of all processes."""

import json

import numpy as np

from tests.helpers.trainer_runs import EPOCHS, ROWS, SAVE_EVERY, SEQ_LEN


def train(run):
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from millstream.integrations.jax import global_batches, share_of

    start_jax(run)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    @jax.jit
    def train_step(weights, batch):
        def loss(weights):
            rates = weights[batch["input_ids"]] - weights[batch["labels"]]
            return jnp.mean(rates**2, where=batch["loss_mask"])

        rows = jax.lax.with_sharding_constraint(batch["input_ids"], everywhere)
        return weights - 0.1 * jax.grad(loss)(weights), rows

    weights = np.linspace(0, 1, 1000, dtype=np.float32)
    loader = run.loader(parallel=share_of(sharding), output="numpy")
    step = 0
    saved = run.out / "saved.npz"
    if saved.exists():
        checkpoint = np.load(saved)
        weights, step = checkpoint["weights"], int(checkpoint["step"])
        loader.load_state_dict(json.loads(str(checkpoint["loader"])))
    weights = jax.device_put(weights, everywhere)
    while loader.epoch < EPOCHS:
        for batch in global_batches(loader, sharding):
            step += 1
            weights, rows = train_step(weights, batch)  # those of all processes
            assert rows.shape == (ROWS, SEQ_LEN)
            own = slice(
                loader.rank * ROWS // loader.ranks, (loader.rank + 1) * ROWS // loader.ranks
            )
            run.saw(step, np.asarray(rows)[own])
            if step % SAVE_EVERY == 0 and run.rank == 0:
                state = {
                    "weights": weights,
                    "step": step,
                    "loader": json.dumps(loader.state_dict()),
                }
                with (run.out / "saved.tmp").open("wb") as file:
                    np.savez(file, **state)
                (run.out / "saved.tmp").rename(saved)


def start_jax(run, devices=2):
    """Make this process one of several, with some devices each."""
    import os

    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    if run.ranks > 1:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, num_processes=run.ranks, process_id=run.rank)


def check_layouts(run):
    """On two processes of two devices: every device gets its part of the rows, in every layout."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from millstream.integrations.jax import global_batches, share_of

    start_jax(run)
    devices = np.array(jax.devices()).reshape(2, 2)  # processes, and the devices of each
    layouts = [
        # What the rows are sharded over, and how many shares of them there are.
        (devices, PartitionSpec(("x", "y")), 2),
        (devices, PartitionSpec(("y", "x")), 2),  # the shards of a process are not neighbours
        (devices, PartitionSpec("x"), 2),
        (devices, PartitionSpec("y"), 1),  # x would be tensor parallelism over processes
        (devices, PartitionSpec("x", "y"), 2),
        (devices, PartitionSpec("y", "x"), 1),  # sequences are cut between processes
        (devices, PartitionSpec(None, ("x", "y")), 1),
        (devices, PartitionSpec(), 1),
        (devices.T[::-1], PartitionSpec("y"), 2),
    ]
    for order, spec, ranks in layouts:
        sharding = NamedSharding(Mesh(order, ("x", "y")), spec)
        share = share_of(sharding)
        assert share.ranks == ranks
        batch = next(global_batches(run.loader(parallel=share, output="numpy"), sharding))
        shares = [next(iter(run.loader(rank=k, ranks=ranks, output="numpy"))) for k in range(ranks)]
        everywhere = NamedSharding(sharding.mesh, PartitionSpec())
        for name in ("input_ids", "labels"):
            found = np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(batch[name]))
            expected = np.concatenate([each[name] for each in shares])
            np.testing.assert_array_equal(found[found[:, 0].argsort()], np.sort(expected, axis=0))
            assert batch[name].sharding.is_equivalent_to(sharding, 2)
            own = shares[share.rank][name]
            pieces = {shard.index[0].indices(ROWS)[:2] for shard in batch[name].addressable_shards}
            places = dict(zip(sorted(pieces), np.split(own, len(pieces)), strict=True))
            for shard in batch[name].addressable_shards:
                rows, columns = shard.index
                place = places[rows.indices(ROWS)[:2]]
                np.testing.assert_array_equal(shard.data, place[:, columns])


def check_differences(run):
    """Processes that disagree raise, all of them."""
    import jax
    import pytest
    from jax.sharding import NamedSharding, PartitionSpec

    import millstream
    from millstream.integrations.jax import global_batches, share_of

    start_jax(run)
    sharding = NamedSharding(jax.make_mesh((4,), ("data",)), PartitionSpec("data"))
    given = {"batch_size": 2, "parallel": share_of(sharding), "output": "numpy"}
    batches = global_batches(millstream.Loader(run.view(), seed=run.rank, **given), sharding)
    with pytest.raises(
        millstream.UsageError, match=rf"differ in seed \(here {run.rank}\)\. Create"
    ):
        next(batches)
    loader = millstream.Loader(run.view(), **given)
    loader.load_state_dict(loader.state_dict() | {"position": 4 * run.rank})
    with pytest.raises(millstream.UsageError, match="differ in position"):
        next(global_batches(loader, sharding))
    windows = millstream.Loader(run.view().take(20 + run.rank), **given)
    with pytest.raises(millstream.UsageError, match="differ in dataset, view or order"):
        next(global_batches(windows, sharding))
    alone = millstream.Loader(run.view(), 2, output="numpy", rank=0, ranks=1)
    with pytest.raises(millstream.UsageError, match=r"rank 0 of 1, but the .* parallel=share_of"):
        global_batches(alone, sharding)
    next(global_batches(millstream.Loader(run.view(), **given), sharding))
