"""Checkpoints of a training: the newest complete one counts.

run/backup/
  step-000000500/
    model.weights.h5     weights and optimizer
    training.json        epoch, steps, and the state of the loader; written last
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millstream.atomic import publish
from millstream.load.state import State

_WEIGHTS, _TRAINING = "model.weights.h5", "training.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingProgress:
    """How far a training has come."""

    total_steps: int
    """over all epochs"""
    epoch: int
    """the epoch that the next step is in"""
    epoch_steps: int
    """steps of that epoch which are done"""
    loader: State


def save_training(
    directory: Path, progress: TrainingProgress, save_weights: Callable[[Path], Any]
) -> None:
    """Write a checkpoint, and remove the older ones."""
    new = directory / f"step-{progress.total_steps:09d}"
    shutil.rmtree(new, ignore_errors=True)  # a kill left it incomplete
    new.mkdir(parents=True)
    save_weights(new / _WEIGHTS)
    with (new / _WEIGHTS).open("rb") as file:
        os.fsync(file.fileno())
    publish(new / _TRAINING, json.dumps(asdict(progress)))
    for old in directory.glob("step-*"):
        if old != new:
            shutil.rmtree(old)


def newest_training(directory: Path) -> tuple[TrainingProgress, Path] | None:
    """Return the newest complete checkpoint and its weights."""
    complete = sorted(path.parent for path in directory.glob(f"step-*/{_TRAINING}"))
    if not complete:
        return None
    saved = json.loads((complete[-1] / _TRAINING).read_text())
    return TrainingProgress(**saved), complete[-1] / _WEIGHTS
