"""Keras 3: a `model.fit` that continues in mid-epoch, with the backends jax and torch.

    backup = Backup(loader, "run/backup", every=500)
    model.fit(backup.batches, epochs=3, callbacks=[backup])

`Backup` replaces `keras.callbacks.BackupAndRestore`, which begins an interrupted epoch again.
"""

import warnings
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras

from millstream.arguments import integer
from millstream.errors import UsageError
from millstream.integrations.keras_batches import (
    EvaluationBatches,
    KerasBatch,
    check_batches,
    check_processes,
    check_rows,
    current_share,
    inputs_labels_weights,
)
from millstream.integrations.training_backup import TrainingProgress, newest_training, save_training
from millstream.load.across_epochs import AcrossEpochs
from millstream.load.base_loader import BaseLoader
from millstream.load.loader import Loader
from millstream.load.state import State

__all__ = ["Backup", "EvaluationBatches", "current_share"]

_READ_TO_BUILD = 2
"""how many batches fit may read before it trains, to build the model; 2 if it reads one ahead"""


class TrainingBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of a `Backup`, in the loader's order: Keras' own shuffle has no effect."""

    def __init__(self, backup: "Backup") -> None:
        super().__init__()
        self._backup = backup
        self._batches: AcrossEpochs | None = None

    @property
    def num_batches(self) -> int:
        """Steps of an epoch; when Keras begins one, those that it has left."""
        return self._backup.num_announced or self._backup.num_steps

    @property
    def workers(self) -> int:
        """Always 1, which makes Keras read in its own thread."""
        return 1

    @workers.setter
    def workers(self, value: int) -> None:
        raise UsageError("the loader has threads of its own; pass threads= to it, not workers=")

    def on_epoch_begin(self) -> None:
        """Begin to iterate anew: what was read to build the model has been given back."""
        self._batches = None

    def on_epoch_end(self) -> None:
        """Let Keras warn again."""
        self._backup.unmute()

    def __getitem__(self, index: int) -> KerasBatch:
        if self._batches is None:
            self._batches = AcrossEpochs(self._backup.loader)
        batch = next(self._batches)
        self._backup.note_read()
        return inputs_labels_weights(batch)


class Backup(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves model, optimizer and loader together, and continues from the newest checkpoint.

    Pass `backup.batches` to fit, and the backup itself as a callback.

    Arguments:
        loader: with output="numpy", and on several processes with parallel=current_share().
        directory: of the checkpoints, of which only the newest is kept.
        every: steps between checkpoints; None saves at the end of every epoch.
        steps_per_epoch: steps of a Keras epoch, here instead of in fit; None for the epochs of the
            loader. An endless loader needs it.
    """

    def __init__(
        self,
        loader: BaseLoader,
        directory: str | Path,
        *,
        every: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        check_batches(loader)
        if loader.ranks > 1 and not isinstance(loader, Loader):
            raise UsageError(
                "each rank of a TextLoader has its own state, and Backup saves one; tokenize the "
                "text first (millstream.tokenize), and use a Loader"
            )
        if steps_per_epoch is None and (loader.endless or loader.tail == "wrap"):
            found = "endless=True" if loader.endless else "tail='wrap'"
            raise UsageError(
                f"with {found} the epochs of the loader have no fixed number of steps, which Keras "
                "needs; pass steps_per_epoch= to Backup"
            )
        self.loader, self.directory = loader, Path(directory)
        self.every = None if every is None else integer("every", every, 1)
        self.steps_per_epoch = (
            None if steps_per_epoch is None else integer("steps_per_epoch", steps_per_epoch, 1)
        )
        self.batches = TrainingBatches(self)
        """what to pass to fit"""
        self._progress = TrainingProgress(
            total_steps=0, epoch=0, epoch_steps=0, loader=loader.state_dict()
        )
        self._saved: TrainingProgress | None = None
        # States after batches that were read, but not trained on: JAX reads one ahead on a GPU.
        self._states: deque[State] = deque()
        self._is_attached = False  # to a running fit
        self._planned = self._trained = 0  # steps of the current epoch in this run, and those done
        # Keras asks for the steps of all epochs once, before it trains, and again for the batches
        # of each: only then is an epoch that was begun before shorter.
        self.num_announced: int | None = None
        self._muted: AbstractContextManager[Any] | None = None

    @property
    def num_steps(self) -> int:
        """Steps of a whole epoch."""
        return self.steps_per_epoch or len(self.loader)

    def note_read(self) -> None:
        """Remember where the loader is after a batch, until the model has trained on it."""
        self._states.append(self.loader.state_dict())
        self.num_announced = None
        if not self._is_attached and len(self._states) > _READ_TO_BUILD:
            raise UsageError(
                "backup.batches need the backup: write model.fit(backup.batches, "
                "callbacks=[backup]); for evaluate and predict, use EvaluationBatches(loader)"
            )

    def give_back(self) -> None:
        """Return the loader to where the model is."""
        if self._states:
            self.loader.load_state_dict(self._progress.loader)
            self._states.clear()

    def unmute(self) -> None:
        """Let Keras warn again about data that runs out."""
        if self._muted is not None:
            self._muted.__exit__(None, None, None)
            self._muted = None

    def _mute(self) -> None:
        """Keep Keras from warning at the end of an epoch that a killed run began.

        Keras expects all its steps, and ends it properly, but says that data ran out.
        """
        self._muted = warnings.catch_warnings()
        self._muted.__enter__()
        warnings.filterwarnings("ignore", "Your input ran out of data")

    def on_train_begin(self, logs: Any = None) -> None:
        """Continue from the newest checkpoint."""
        check_rows(self.loader)
        self.num_announced = None
        if self.params["steps"] != self.num_steps:
            raise UsageError(
                f"fit has steps_per_epoch={self.params['steps']}, and epochs have "
                f"{self.num_steps} steps; pass steps_per_epoch= to Backup, not to fit"
            )
        self._is_attached = True
        self.give_back()
        found = newest_training(self.directory)
        if found is None:
            self._progress = replace(self._progress, loader=self.loader.state_dict())
        else:
            self._progress, weights = found
            self._saved = self._progress
            self.loader.load_state_dict(self._progress.loader)
            self.model.load_weights(weights)
        check_processes(self.loader)
        self.model._initial_epoch = self._progress.epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Find how many steps the epoch has left."""
        self.give_back()
        if epoch != self._progress.epoch:
            self._progress = replace(self._progress, epoch=epoch, epoch_steps=0)
        self._trained = 0
        done = self._progress.epoch_steps
        self._planned = (self.steps_per_epoch or 0) - done
        if self.steps_per_epoch is None:
            self._planned = self.loader.remaining
        if self._planned <= 0:
            raise UsageError(
                f"{done} steps of epoch {epoch} are done, and steps_per_epoch is "
                f"{self.steps_per_epoch}; pass as many steps as before, or another directory"
            )
        self.num_announced = self._planned

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note that the model has trained up to this batch, and save if it is time."""
        before = self._progress
        # With steps_per_execution several at once, and the last time fewer than Keras counts.
        for _ in range(min(batch + 1 - self._trained, len(self._states))):
            state = self._states.popleft()
            self._trained += 1
            self._progress = replace(
                self._progress,
                total_steps=self._progress.total_steps + 1,
                epoch_steps=self._progress.epoch_steps + 1,
                loader=state,
            )
        if self._trained == self._planned:
            if self._planned < self.params["steps"]:
                self._mute()
            self._progress = replace(self._progress, epoch=before.epoch + 1, epoch_steps=0)
        if (
            self.every
            and self._progress.total_steps // self.every > before.total_steps // self.every
        ):
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save, unless it is done by steps."""
        if self.every is None:
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Save where the training ended: more epochs continue from there."""
        self.unmute()
        self.give_back()
        self._save()
        self._is_attached = False
        self.model._initial_epoch = None

    def _save(self) -> None:
        if self._progress == self._saved:
            return
        self._saved = self._progress
        if _is_first_process():
            save_training(self.directory, self._progress, self.model.save_weights)
            return
        # Keras makes variables while it saves, which JAX compares between processes: all of them
        # have to take part, or the first one waits for ever.
        with TemporaryDirectory() as unused:
            self.model.save_weights(Path(unused) / "unused.weights.h5")


def _is_first_process() -> bool:
    if keras.backend.backend() != "jax":
        return True
    import jax

    return bool(jax.process_index() == 0)
