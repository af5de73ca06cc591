"""Keras' fit: killed, left and resumed, and what it trains on."""

import os

import numpy as np
import pytest

import millstream
from tests.helpers.recipes import RECIPES
from tests.helpers.trainer_runs import (
    EPOCHS,
    ROWS,
    STEPS,
    Run,
    check_killed_and_resumed,
    expected_steps,
    start,
    write_data,
)
from tests.helpers.trainers import with_keras

os.environ["KERAS_BACKEND"] = "torch"  # of this process; others say what they use
keras = pytest.importorskip("keras")

from millstream.integrations.keras import Backup, EvaluationBatches, current_share  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"  # Keras'
)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("backend", "ranks"), [("torch", 1), ("jax", 1), ("jax", 2)])
def test_a_killed_fit_resumes_exactly(tmp_path, backend, ranks):
    check_killed_and_resumed(with_keras.train, tmp_path, ranks, KERAS_BACKEND=backend)


@pytest.mark.process
@pytest.mark.slow
def test_several_steps_in_one_execution_are_counted_one_by_one(tmp_path):
    data = write_data(tmp_path / "data")
    program = with_keras.check_steps_per_execution
    assert start(program, data, tmp_path / "out", ranks=1, KERAS_BACKEND="jax")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """As many threads as processors make small models slow where tests run side by side."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    return Run(write_data(directory / "data"), directory, 0, 1, 0, None)


class Recorder(keras.callbacks.Callback):
    """Notes the rows of every step, and ends the training after some of them."""

    def __init__(self, last_step=None):
        super().__init__()
        self.rows, self.epochs, self.last_step = [], [], last_step

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.rows.append(self.model.get_layer("seen").rows.numpy().tolist())
        self.model.stop_training = int(self.model.optimizer.iterations) == self.last_step


def loader_of(run, batch_size=ROWS, **options):
    given = {"seed": 3, "output": "numpy", "rank": 0, "ranks": 1} | options
    return millstream.Loader(run.view(), batch_size, **given)


def fit(run, directory, last_step=None, epochs=EPOCHS, every=100, **options):
    """The rows, epochs and weights of a fit with a new model and a new loader."""
    steps_per_epoch = options.pop("steps_per_epoch", None)
    keras.utils.set_random_seed(0)
    model, recorder = with_keras.make_model(), Recorder(last_step)
    loader = loader_of(run, **options)
    backup = Backup(loader, directory, every=every, steps_per_epoch=steps_per_epoch)
    model.fit(backup.batches, epochs=epochs, callbacks=[recorder, backup], verbose=0)
    return recorder.rows, recorder.epochs, model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"every": None}, {"endless": True, "steps_per_epoch": 7}, {"steps_per_epoch": 9}],
)
def test_a_fit_that_is_left_anywhere_goes_on_as_if_it_were_not(run, options, tmp_path):
    steps = options.get("steps_per_epoch", STEPS)
    rows, epochs, weights = fit(run, tmp_path / "whole", **options)
    assert epochs == [0, 1, 2]
    assert len(rows) == 3 * steps
    if "endless" not in options:
        assert rows == expected_steps(run.data)[: 3 * steps]
    for last_step in (steps - 1, steps, 2 * steps + 3):
        directory = tmp_path / str(last_step)
        first, _, _ = fit(run, directory, last_step, **options)
        assert first == rows[:last_step]
        second, later_epochs, found = fit(run, directory, **options)
        assert second == rows[last_step:]
        assert later_epochs == list(range(last_step // steps, 3))
        for one, other in zip(found, weights, strict=True):
            np.testing.assert_array_equal(one, other)


def test_other_batch_sizes_continue_with_the_next_rows(run, tmp_path):
    steps = []
    for batch_size, epochs in [(10, 1), (16, 3), (16, 3)]:
        model = with_keras.make_model(records_rows=False)
        backup = Backup(loader_of(run, batch_size, tail="keep"), tmp_path)
        leave = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, model=model, first=batch_size == 10: setattr(
                model, "stop_training", first and batch == 1
            )
        )
        model.fit(backup.batches, epochs=epochs, callbacks=[backup, leave], verbose=0)
        steps.append(int(model.optimizer.iterations))
    # 20 rows in 2 steps; the other 27 in 2, and two epochs of 47 in 3 each; nothing is left.
    assert steps == [2, 2 + 2 + 3 + 3, 10]
    assert backup.loader.position == 3 * 47


def test_a_checkpoint_that_a_kill_left_incomplete_is_not_used(run, tmp_path):
    rows, _, _ = fit(run, tmp_path, last_step=6)
    (tmp_path / "step-000000008").mkdir()
    (tmp_path / "step-000000008" / "model.weights.h5").write_bytes(b"half of a")
    later, _, _ = fit(run, tmp_path, last_step=8)
    assert rows + later == expected_steps(run.data)[:8]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000008"]


def test_a_fit_that_an_error_ended_can_be_called_again(run, tmp_path):
    fit(run, tmp_path, last_step=14)
    model, recorder = with_keras.make_model(), Recorder()
    backup = Backup(loader_of(run), tmp_path, every=100)

    def fail(batch, logs):
        raise KeyboardInterrupt

    failing = keras.callbacks.LambdaCallback(on_train_batch_begin=fail)
    with pytest.raises(KeyboardInterrupt):
        model.fit(backup.batches, epochs=3, callbacks=[backup, failing], verbose=0)
    model.fit(backup.batches, epochs=3, callbacks=[recorder, backup], verbose=0)
    assert recorder.rows == expected_steps(run.data)[14:]


def test_more_epochs_continue_where_fewer_ended(run, tmp_path):
    keras.utils.set_random_seed(0)
    model, recorder = with_keras.make_model(), Recorder()
    backup = Backup(loader_of(run), tmp_path)
    for epochs in (1, 1, 3):
        model.fit(backup.batches, epochs=epochs, callbacks=[recorder, backup], verbose=0)
    assert recorder.rows == expected_steps(run.data)


def test_validation_is_on_the_same_rows_in_every_epoch(run, tmp_path):
    model = with_keras.make_model()
    model.optimizer.learning_rate = 0.0
    backup = Backup(loader_of(run), tmp_path)
    validation = EvaluationBatches(loader_of(run, 5, tail="keep"))
    history = model.fit(
        backup.batches, epochs=2, callbacks=[backup], validation_data=validation, verbose=0
    )
    first, second = history.history["val_loss"]
    assert first == second == pytest.approx(model.evaluate(validation, verbose=0), rel=1e-6)
    assert model.evaluate(validation, steps=2, verbose=0) == pytest.approx(
        model.evaluate(validation, steps=2, verbose=0)
    )
    assert len(model.predict(validation, verbose=0)) == 47


def test_the_loss_is_the_mean_over_labels_that_are_not_masked(data):
    view = data.packed(64, extras=["document_ids"])
    loader = millstream.Loader(view, 4, output="numpy", rank=0, ranks=1)
    _, labels, weights = EvaluationBatches(loader)[0]
    plain = view.read(loader.samples())["labels"]
    assert (weights == (plain != -100)).all()
    assert 0 < weights.sum() < weights.size
    labels %= 10
    logits = np.random.default_rng(0).normal(size=(4, 64, 10)).astype(np.float32)
    chosen = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    losses = np.log(np.exp(logits).sum(-1)) - chosen
    loss = keras.losses.SparseCategoricalCrossentropy(True, reduction="mean_with_sample_weight")
    found = float(loss(labels, logits, sample_weight=weights))
    assert found == pytest.approx(losses[plain != -100].mean(), rel=1e-4)


def test_the_inputs_are_a_dict_if_there_are_several(data):
    view = data.packed(64, extras=["position_ids", "document_ids"])
    inputs, _, _ = EvaluationBatches(millstream.Loader(view, 4, output="numpy"))[0]
    assert list(inputs) == ["input_ids", "position_ids", "segment_ids"]
    assert {array.dtype.name for array in inputs.values()} == {"int32"}


def test_the_sources_of_a_mixture_are_no_inputs(data):
    mixture = millstream.mix({"a": (data.windows(8), 1), "b": (data.windows(8), 1)})
    inputs, _, _ = EvaluationBatches(millstream.Loader(mixture, 2, output="numpy"))[0]
    assert inputs.shape == (2, 8)


def test_without_the_callback_fit_raises_with_what_to_write(run, tmp_path):
    batches = Backup(loader_of(run), tmp_path).batches
    with pytest.raises(millstream.UsageError, match=r"write model.fit\(.*, callbacks=\[backup\]\)"):
        with_keras.make_model().fit(batches, verbose=0)


def test_batches_for_evaluation_are_refused_in_fit(run):
    batches = EvaluationBatches(loader_of(run))
    with pytest.raises(millstream.UsageError, match=r"write backup = Backup\(loader, directory\)"):
        with_keras.make_model().fit(batches, verbose=0)


def test_steps_per_epoch_of_fit_is_refused(run, tmp_path):
    backup = Backup(loader_of(run), tmp_path)
    with pytest.raises(millstream.UsageError, match="steps_per_epoch=4, and epochs have 11 steps"):
        with_keras.make_model().fit(
            backup.batches, steps_per_epoch=4, callbacks=[backup], verbose=0
        )


def test_fewer_steps_per_epoch_than_are_done_are_refused(run, tmp_path):
    fit(run, tmp_path, last_step=5)
    with pytest.raises(
        millstream.UsageError, match="5 steps of epoch 0 are done, and steps_per_ep"
    ):
        fit(run, tmp_path, steps_per_epoch=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "torch"}, "create it with output='numpy'"),
        ({"global_batch_size": 8}, "pass gradient_accumulation_steps= to the optimizer"),
        ({"endless": True}, "with endless=True .* pass steps_per_epoch= to Backup"),
        ({"tail": "wrap"}, "with tail='wrap' .* pass steps_per_epoch= to Backup"),
    ],
)
def test_loaders_that_do_not_fit_are_refused_with_what_to_write(options, message, run, tmp_path):
    with pytest.raises(millstream.UsageError, match=message):
        Backup(loader_of(run, **options), tmp_path)


def test_several_ranks_are_refused_where_fit_knows_one_process(run, tmp_path):
    backup = Backup(loader_of(run, 2, rank=1, ranks=2), tmp_path)
    with pytest.raises(millstream.UsageError, match="wrap the model in DistributedDataParallel"):
        with_keras.make_model().fit(backup.batches, callbacks=[backup], verbose=0)
    with pytest.raises(millstream.UsageError, match="wrap the model in DistributedDataParallel"):
        EvaluationBatches(loader_of(run, 2, rank=1, ranks=2))
    assert current_share() == millstream.Parallel(rank=0, ranks=1)


def test_workers_and_other_backends_are_refused(run, tmp_path, monkeypatch):
    backup = Backup(loader_of(run), tmp_path)
    with pytest.raises(millstream.UsageError, match="pass threads= to it, not workers="):
        backup.batches.workers = 4
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    with pytest.raises(millstream.UsageError, match="set KERAS_BACKEND=jax or KERAS_BACKEND=torch"):
        Backup(loader_of(run), tmp_path)


def test_the_recipe_of_the_docs_trains_two_epochs(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"keras": keras, "millstream": millstream, "data": millstream.open(run.data)}
    names["model"] = with_keras.make_model(records_rows=False)
    exec(RECIPES["Keras loss"], names)  # the loss
    exec(RECIPES["Keras"], names)
    assert int(names["model"].optimizer.iterations) == 2 * len(names["loader"])
    assert (tmp_path / "run" / "backup").is_dir()
