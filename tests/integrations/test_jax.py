"""Global arrays of JAX: what is in them, on which process, and after a kill."""

import json
import shutil
from itertools import islice

import numpy as np
import pytest

import millstream
from millstream.testing import assert_resumes_exactly
from tests.helpers.recipes import RECIPES
from tests.helpers.trainer_runs import (
    KILLED_AT,
    SAVE_EVERY,
    check_killed_and_resumed,
    expected_steps,
    seen_steps,
    start,
    write_data,
)
from tests.helpers.trainers import with_jax

jax = pytest.importorskip("jax")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec  # noqa: E402

from millstream.integrations.jax import divide_rows, global_batches, share_of  # noqa: E402


@pytest.fixture
def sharding():
    return NamedSharding(jax.make_mesh((2, 2), ("data", "model")), PartitionSpec("data"))


def loader_of(view, batch_size=4, **options):
    return millstream.Loader(view, batch_size, output="numpy", rank=0, ranks=1, **options)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_on_global_arrays_resumes_exactly(tmp_path, ranks):
    check_killed_and_resumed(with_jax.train, tmp_path, ranks)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "other_ranks"), [(2, 1), (1, 2)])
def test_a_killed_run_resumes_on_another_number_of_processes(tmp_path, ranks, other_ranks):
    data, killed, resumed = write_data(tmp_path / "data"), tmp_path / "killed", tmp_path / "resumed"
    assert not start(with_jax.train, data, killed, ranks, KILLED_AT)
    resumed.mkdir()
    shutil.copy(killed / "saved.npz", resumed)
    assert start(with_jax.train, data, resumed, other_ranks)
    expected = dict(enumerate(expected_steps(data), 1))
    (steps,) = seen_steps(resumed).values()
    assert list(steps) == list(range(KILLED_AT - KILLED_AT % SAVE_EVERY + 1, len(expected) + 1))
    assert steps == {step: expected[step] for step in steps}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("program", [with_jax.check_layouts, with_jax.check_differences])
def test_two_processes(program, tmp_path):
    assert start(program, write_data(tmp_path / "data"), tmp_path / "out", ranks=2)


def test_arrays_are_what_the_loader_gives_on_the_devices_of_the_sharding(data, sharding):
    view = data.windows(5)
    batches, expected = list(global_batches(loader_of(view), sharding)), list(loader_of(view))
    assert len(batches) == len(expected) == 50
    for batch, plain in zip(batches, expected, strict=True):
        assert list(batch) == ["input_ids", "labels", "loss_mask"]
        for name in ("input_ids", "labels"):
            assert isinstance(batch[name], jax.Array)
            assert (batch[name].dtype, batch[name].sharding.spec) == (jnp.int32, sharding.spec)
            np.testing.assert_array_equal(batch[name], plain[name])
        assert batch["loss_mask"].dtype == jnp.bool_
        assert batch["loss_mask"].all()


def test_batches_of_32_bits_that_are_kept_are_never_overwritten(data, sharding):
    # JAX may use the memory of a NumPy array as it is, and loaders use theirs again.
    options = {"dtype": np.int32, "threads": 1, "prefetch": 1}
    kept = list(global_batches(loader_of(data.windows(64), **options), sharding))
    plain = [each["input_ids"].copy() for each in loader_of(data.windows(64))]
    assert len(kept) == len(plain) > 2
    for batch, expected in zip(kept, plain, strict=True):
        np.testing.assert_array_equal(batch["input_ids"], expected)


def test_the_mean_over_the_mask_is_the_mean_over_real_labels(data, sharding):
    view = data.packed(64, extras=["position_ids", "document_ids"])
    batch = next(global_batches(loader_of(view), sharding))
    plain = next(iter(loader_of(view)))["labels"]
    losses = jnp.log1p(batch["labels"])
    found = jnp.mean(losses, where=batch["loss_mask"])
    assert float(found) == pytest.approx(np.log1p(plain[plain != -100]).mean(), rel=1e-5)
    assert 0 < (plain == -100).sum() < plain.size


def test_rows_of_one_number_are_sharded_as_the_rows(data):
    mixture = millstream.mix({"one": (data.windows(5), 1), "two": (data.windows(5), 2)})
    mesh = jax.make_mesh((2, 2), ("data", "sequence"))
    view = NamedSharding(mesh, PartitionSpec("data", None))
    batch = next(global_batches(millstream.Loader(mixture, 4, output="numpy"), view))
    assert batch["source_ids"].shape == (4,)
    assert batch["source_ids"].sharding.spec == PartitionSpec("data")


def test_without_a_sharding_rows_are_divided_over_all_devices(data):
    batch = next(global_batches(loader_of(data.windows(5), parallel=None)))
    shards = batch["input_ids"].addressable_shards
    assert [shard.data.shape for shard in shards] == [(1, 5)] * 4


class Arrays:
    """A loader that gives global arrays, for `assert_resumes_exactly`."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self):
        for batch in global_batches(self.loader):
            yield {name: np.asarray(values) for name, values in batch.items()}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"endless": True}, {"tail": "wrap"}])
def test_the_loaders_state_is_exact_after_every_batch(data, options):
    view = data.windows(31).take(13)
    assert_resumes_exactly(lambda: Arrays(loader_of(view, **options)), steps=9)


def test_a_loop_that_was_left_goes_on_with_the_next_batch(data, sharding):
    loader, expected = loader_of(data.windows(5)), list(loader_of(data.windows(5)))
    first = list(islice(global_batches(loader, sharding), 3))
    assert loader.position == 12
    rest = list(global_batches(loader, sharding))
    for batch, plain in zip([*first, *rest], expected, strict=True):
        np.testing.assert_array_equal(batch["input_ids"], plain["input_ids"])


def test_a_staged_loader_and_a_text_loader_work_too(data, tmp_path, sharding):
    stages = [
        millstream.LoaderStage(view=data.windows(4), batch_size=4, until=8),
        millstream.LoaderStage(view=data.windows(9).take(4), batch_size=2),
    ]
    with millstream.StagedLoader(stages, output="numpy") as loader:
        shapes = [batch["input_ids"].shape for batch in global_batches(loader, sharding)]
    assert shapes == [(4, 4), (4, 4), (2, 9), (2, 9)]
    (tmp_path / "text.txt").write_text("one\ntwo\nthree\n" * 9)
    packing = millstream.Packing(policy="best_fit", extras=("document_ids",))
    options = {"batch_size": 2, "seq_len": 8, "packing": packing, "output": "numpy"}
    with millstream.TextLoader(tmp_path / "text.txt", "bytes", **options) as loader:
        batch = next(global_batches(loader, sharding))
    assert batch["segment_ids"].shape == (2, 8)


def test_64_bits_stay_where_jax_has_them(data, sharding):
    with jax.enable_x64(True):
        batch = next(global_batches(loader_of(data.windows(5)), sharding))
    assert batch["input_ids"].dtype == np.int64


@pytest.mark.parametrize(
    ("shards", "shares"),
    [
        ({0: {0}, 1: {0}}, [(0, 1), (0, 1)]),
        ({0: {0, 1}, 1: {2, 3}}, [(0, 2), (1, 2)]),
        ({0: {1, 3}, 1: {0, 2}}, [(1, 2), (0, 2)]),
        ({0: {2}, 1: {0}, 2: {1}}, [(2, 3), (0, 3), (1, 3)]),
        ({0: {0}, 1: {1}, 2: {0}, 3: {1}}, [(0, 2), (1, 2), (0, 2), (1, 2)]),
    ],
)
def test_processes_that_hold_the_same_shards_have_the_same_share(shards, shares):
    found = [divide_rows(shards, process) for process in shards]
    assert [(share.rank, share.ranks) for share in found] == shares


@pytest.mark.parametrize(
    "shards", [{0: {0, 1}, 1: {1, 2}}, {0: {0, 1}, 1: {2}}, {0: {0}, 1: {0, 1}}]
)
def test_shares_that_overlap_or_differ_in_size_are_refused(shards):
    with pytest.raises(millstream.UsageError, match=r"unequal or overlapping .* as jax.make_mesh"):
        divide_rows(shards, 0)


def test_a_process_without_devices_is_refused():
    with pytest.raises(millstream.UsageError, match=r"process 2 has no device .* \[0, 1\]"):
        divide_rows({0: {0}, 1: {1}}, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "torch"}, r"create it with output='numpy' \(and without device=\)"),
        ({"global_batch_size": 8}, "leave it out, pass batch_size=rows, and divide"),
        ({"rank": 1, "ranks": 2}, "rank 1 of 2, but .* rank 0 of 1; .* parallel=share_of"),
        ({"batch_size": 3}, "batch_size=3 cannot be divided by the 2 shards .* batch_size=2 or 4"),
        ({"batch_size": 1}, "use batch_size=2$"),
        ({"tail": "keep"}, "use tail='drop' or tail='wrap'"),
    ],
)
def test_loaders_that_do_not_fit_are_refused_with_what_to_write(options, message, data, sharding):
    given = {"batch_size": 4, "output": "numpy", "rank": 0, "ranks": 1} | options
    with pytest.raises(millstream.UsageError, match=message):
        global_batches(millstream.Loader(data.windows(5), **given), sharding)


def test_slices_of_rows_are_refused(data, sharding):
    parallel = millstream.Parallel(rank=0, ranks=1, context_rank=0, context_ranks=2)
    loader = millstream.Loader(data.windows(8), 4, parallel=parallel, output="numpy")
    with pytest.raises(millstream.UsageError, match=r"gives slices .* leave out its context ranks"):
        global_batches(loader, sharding)


def test_a_short_last_step_is_allowed_where_rows_are_not_sharded(data):
    everywhere = NamedSharding(jax.make_mesh((4,), ("model",)), PartitionSpec())
    loader = loader_of(data.windows(5), 7, tail="keep")
    rows = [len(batch["input_ids"]) for batch in global_batches(loader, everywhere)]
    assert rows == [7] * 28 + [4]


def test_what_is_not_a_loader_or_a_sharding_of_devices_is_refused(data, sharding):
    with pytest.raises(
        millstream.UsageError, match="a millstream Loader or TextLoader is needed, not"
    ):
        global_batches([1], sharding)
    loader = loader_of(data.windows(5))
    abstract = NamedSharding(AbstractMesh((2,), ("data",)), PartitionSpec("data"))
    for wrong in (sharding.mesh, jax.sharding.SingleDeviceSharding(jax.devices()[0]), abstract):
        with pytest.raises(millstream.UsageError, match="must be a NamedSharding of a mesh of dev"):
            global_batches(loader, wrong)
    assert json.loads(json.dumps(loader.state_dict()))["position"] == 0


def test_the_share_of_the_only_process_is_everything(sharding):
    assert share_of(sharding) == share_of() == millstream.Parallel(rank=0, ranks=1)


def test_the_recipe_of_the_docs_trains_on_every_row_once(data):
    seen = []
    names = {"data": data, "millstream": millstream, "train_step": seen.append}
    exec(RECIPES["JAX"], names)
    assert names["checkpoint"]["data"]["position"] == 8 * len(seen) == 8 * len(names["loader"])
    for batch in seen:
        heads = {name: np.ones((8, 64, 2, 4), np.float32) for name in "qkv"}
        attention = {"batch": batch, "jax": jax, **heads}
        exec(RECIPES["JAX attention"], attention)
        assert attention["attended"].shape == (8, 64, 2, 4)
        assert np.isfinite(attention["attended"]).all()
