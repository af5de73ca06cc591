"""Batches as Keras takes them, and which rows a process gets."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from millstream.errors import UsageError
from millstream.integrations.host_arrays import check_output, host_arrays
from millstream.load.base_loader import BaseLoader
from millstream.load.callers import callers
from millstream.load.parallel import Parallel

KerasBatch = tuple[Any, Any, Any]
"""inputs, labels and sample weights"""


def current_share() -> Parallel:
    """Return the share of the rows that this process has to load, as `parallel=` of a loader.

    It is the one of `keras.distribution`, or everything if there is none.
    """
    sharding = data_sharding()
    if sharding is None:
        return Parallel(rank=0, ranks=1)
    from millstream.integrations.jax import share_of

    return share_of(sharding)


class EvaluationBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """A loader for `evaluate`, `predict` and `validation_data`: the same rows every time."""

    def __init__(self, loader: BaseLoader) -> None:
        super().__init__()
        check_batches(loader)
        check_rows(loader)
        if loader.endless:
            raise UsageError("an evaluation of an endless loader has no end; leave out endless")
        self._loader, self._begin = loader, loader.state_dict()
        self._batches: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, index: int) -> KerasBatch:
        if index == 0:
            self._loader.load_state_dict(self._begin)
            self._batches = iter(self._loader)
        return inputs_labels_weights(next(self._batches))

    def on_epoch_begin(self) -> None:
        """Raise in `fit`, which would train on the same rows in every epoch."""
        for frame in callers():
            is_keras = frame.f_globals.get("__name__", "").startswith("keras.")
            if is_keras and frame.f_code.co_name in ("evaluate", "predict"):
                return
            if is_keras and frame.f_code.co_name == "fit":
                raise UsageError(
                    "these batches are the same in every epoch; write backup = Backup(loader, "
                    "directory), and model.fit(backup.batches, callbacks=[backup])"
                )


def inputs_labels_weights(batch: dict[str, Any]) -> KerasBatch:
    """Return what a Keras model trains on: weights are 1 where there is a label, and 0 elsewhere.

    The inputs are `input_ids`, or if the batch has more, a dict of all by name.
    """
    arrays = host_arrays(batch)
    arrays.pop("source_ids", None)  # of a mixture: nothing that a model takes
    if "labels" not in arrays:
        raise UsageError(f"Keras trains on labels, and batches have only {sorted(arrays)}")
    labels, mask = arrays.pop("labels"), arrays.pop("loss_mask")
    inputs = arrays["input_ids"] if len(arrays) == 1 else arrays
    return inputs, labels, mask.astype(np.float32)


def check_batches(loader: Any) -> None:
    """Raise unless Keras can train on the batches of the loader."""
    if keras.backend.backend() not in ("jax", "torch"):
        raise UsageError(
            f"the backend of Keras is {keras.backend.backend()!r}, which reads batches ahead that "
            "it may never train on; set KERAS_BACKEND=jax or KERAS_BACKEND=torch"
        )
    check_output(loader, "pass gradient_accumulation_steps= to the optimizer")


def check_rows(loader: BaseLoader) -> None:
    """Raise unless the loader's rows are those that fit takes on this process."""
    sharding = data_sharding()
    if sharding is not None:
        from millstream.integrations.jax import check_share

        check_share(loader, sharding, "current_share()")
    elif loader.ranks > 1 and keras.backend.backend() == "torch":
        raise UsageError(
            f"this loader is {loader.parallel}, but with the torch backend fit trains on one "
            "process alone; wrap the model in DistributedDataParallel and write the loop: "
            "for batch in loader: …"
        )
    elif loader.ranks > 1:
        raise UsageError(
            f"this loader is {loader.parallel}, but fit trains on one process alone; call "
            "keras.distribution.set_distribution(…) first, and pass parallel=current_share()"
        )


def check_processes(loader: BaseLoader) -> None:
    """Raise if the loaders of several processes differ; all processes have to call it."""
    sharding = data_sharding()
    if sharding is not None:
        from millstream.integrations.process_agreement import check_processes_agree

        check_processes_agree(loader, sharding.mesh)


def data_sharding() -> Any:
    """Return the sharding that `keras.distribution` gives to batches; None if there is none."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return None
    return distribution.get_data_layout((1, 1)).backend_layout
