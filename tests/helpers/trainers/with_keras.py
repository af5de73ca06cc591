"""Keras' model.fit, with the backends jax and torch."""

import os

import numpy as np

from tests.helpers.trainer_runs import EPOCHS, ROWS, SAVE_EVERY, SEQ_LEN
from tests.helpers.trainers.with_jax import start_jax


def train(run):
    """With the backend that KERAS_BACKEND names; several processes only with jax."""
    if os.environ["KERAS_BACKEND"] == "jax":
        start_jax(run, devices=1)
        if run.ranks == 1:
            read_ahead()
    import keras

    from millstream.integrations.keras import Backup, current_share

    if run.ranks > 1:
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
    keras.utils.set_random_seed(0)
    model = make_model()
    loader = run.loader(parallel=current_share(), output="numpy")

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rows = np.asarray(self.model.get_layer("seen").rows)
            own = rows.reshape(run.ranks, ROWS // run.ranks, SEQ_LEN)[loader.rank]
            run.saw(int(self.model.optimizer.iterations), own)

    backup = Backup(loader, run.out / "backup", every=SAVE_EVERY)
    callbacks = [Recorder(), backup]
    history = model.fit(backup.batches, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    assert history.epoch[-1] == EPOCHS - 1
    if run.rank == 0:
        np.savez(run.out / "weights.npz", *map(np.asarray, model.get_weights()))


def read_ahead():
    """Let Keras read one batch ahead, as it does on every accelerator."""
    import jax

    jax.default_backend = lambda: "gpu"


def check_steps_per_execution(run):
    """A fit that is left after any step, and resumed, trains as one that is not."""
    start_jax(run, devices=1)
    read_ahead()
    import keras

    expected = fit_until(run, None, run.out / "whole")
    for last_step in (6, 14):  # executions are of 3 steps, and of 2 at the end of an epoch
        directory = run.out / f"left-{last_step}"
        fit_until(run, last_step, directory)
        keras.backend.clear_session()
        found = fit_until(run, None, directory)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def fit_until(run, last_step, directory):
    """The weights after a fit of two epochs that ends at a step."""
    import keras

    from millstream.integrations.keras import Backup

    class Leave(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = int(self.model.optimizer.iterations) == last_step

    keras.utils.set_random_seed(0)
    model = make_model(steps_per_execution=3)
    backup = Backup(run.loader(output="numpy", rank=0, ranks=1), directory, every=100)
    model.fit(backup.batches, epochs=2, callbacks=[backup, Leave()], verbose=0)
    assert int(model.optimizer.iterations) == (last_step or 22)
    return model.get_weights()


def make_model(steps_per_execution=1, records_rows=True):
    """A tiny language model, which keeps the rows that it trained on."""
    import keras

    class Seen(keras.layers.Layer):
        def build(self, shape):
            self.rows = self.add_weight(
                shape=(ROWS, SEQ_LEN), dtype="int32", initializer="zeros", trainable=False
            )

        def call(self, tokens, training=False):
            if training:
                self.rows.assign(tokens)
            return tokens

    tokens = keras.Input((None,), dtype="int32")
    seen = Seen(name="seen")(tokens) if records_rows else tokens
    hidden = keras.layers.Embedding(400, 4)(seen)
    model = keras.Model(tokens, keras.layers.Dense(400)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    model.compile(keras.optimizers.Adam(0.01), loss, steps_per_execution=steps_per_execution)
    return model
