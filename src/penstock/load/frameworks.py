"""Detection of frameworks that would lose or repeat rows of a loader, or lose its state.

Frameworks do not identify themselves to what they wrap, so the caller is found on the stack, once
per iteration. The search ends at the first frame outside of torch and multiprocessing: a loader
that the user's own code iterates over, in any hook, is left alone.
"""

import itertools
import sys
from collections.abc import Iterable, Sized
from types import FrameType
from typing import Any, NamedTuple

from penstock.errors import StateError, UsageError
from penstock.load.callers import callers
from penstock.load.state import State

_OURS = ("penstock.integrations.", "penstock.load.across_epochs")
_PASSED_THROUGH = ("penstock.", "torch.utils.data", "torchdata", "multiprocessing")
_DATA_LOADER, _FETCHER = "torch.utils.data.dataloader", "torch.utils.data._utils.fetch"
_ACCELERATE, _TRAINER = "accelerate.data_loader", "transformers.trainer"
_LIGHTNING = ("lightning.pytorch.", "pytorch_lightning.")
_DEEPSPEED = "deepspeed."
_DISTRIBUTED_CHECKPOINT = "torch.distributed.checkpoint"


class Expected(NamedTuple):
    """What a framework expects from the loader that it iterates over."""

    begins_epoch: bool = False
    """start an epoch anew, for Lightning's validation, which leaves epochs early"""
    state: State | None = None
    """resume from this: Lightning has read it from a checkpoint and does not load it itself"""
    crosses_epochs: bool = False
    """go on at the end of the loader's epoch: the framework's epochs have other lengths"""
    num_steps: int | None = None
    """how many steps to give if the loader crosses epochs; None for no end"""


def check_caller(loader: Sized, *, endless: bool, has_common_state: bool) -> Expected:
    """Return what the caller expects of the loader; raise if it would lose or repeat rows."""
    if _FETCHER not in sys.modules and _ACCELERATE not in sys.modules:
        return Expected()  # all of these frameworks import torch
    is_wrapped = False
    frames = callers()
    for frame in frames:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OURS):
            return Expected()  # it takes care of the framework
        if module == _FETCHER and frame.f_locals.get("auto_collation"):
            raise UsageError(_stacked_by(frames))
        is_wrapped |= module == _DATA_LOADER
        if module == _ACCELERATE:
            raise UsageError(
                "Accelerate reads ahead and distributes a prepared DataLoader's batches among the "
                "processes, but a loader already serves only its rank's share, so rows would be "
                "lost. Use penstock.integrations.accelerate.prepare(accelerator, loader)"
            )
        if module.startswith(_LIGHTNING):
            return _check_lightning(
                itertools.chain([frame], frames),
                loader,
                endless=endless,
                has_common_state=has_common_state,
                is_wrapped=is_wrapped,
            )
        if not module.startswith(_PASSED_THROUGH):
            return Expected()
    return Expected()


def _stacked_by(frames: Iterable[FrameType]) -> str:
    """Say what to write instead of what makes batches of batches."""
    if any(frame.f_globals.get("__name__") == _TRAINER for frame in frames):
        return (
            "transformers.Trainer would batch and distribute the loader's batches again; use "
            "penstock.integrations.transformers.Trainer instead, with the same arguments"
        )
    return (
        "a DataLoader with a batch_size would stack whole batches into batches; use "
        "DataLoader(loader, batch_size=None), or iterate over the loader itself"
    )


def one_state_for_all(framework: str) -> str:
    """Say what to do where a framework saves the state of one rank, and every rank has its own."""
    return (
        f"{framework} saves the state of rank 0 for all ranks, and this TextLoader has another one "
        "on each; pass gather_states=True to it"
    )


def check_length_caller() -> None:
    """Raise if DeepSpeed asks for the length of a loader: it does so only to wrap it."""
    if "deepspeed" in sys.modules and _is_called_by(_DEEPSPEED):
        raise UsageError(
            "DeepSpeed would put a DistributedSampler and a batch size around the loader, which "
            "already serves batches of its rank's share. Leave out training_data= (or "
            "deepspeed_io) and write `for batch in loader:`, with the engine's calls in it"
        )


def check_state_caller() -> None:
    """Raise if torch.distributed.checkpoint asks for the state of a loader with lanes."""
    if _DISTRIBUTED_CHECKPOINT in sys.modules and _is_called_by(_DISTRIBUTED_CHECKPOINT):
        raise UsageError(
            "torch.distributed.checkpoint would lose the lanes of a TextLoader: it loads only "
            "keys that a new loader has. Save one text instead: json.dumps(loader.state_dict()), "
            "of a loader with gather_states=True"
        )


def _is_called_by(package: str) -> bool:
    """Return whether the first caller outside of Penstock and torch's data utilities is in it."""
    for frame in callers():
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_PASSED_THROUGH):
            return bool(module.startswith(package))
    return False


def _check_lightning(
    frames: Iterable[FrameType],
    loader: Sized,
    *,
    endless: bool,
    has_common_state: bool,
    is_wrapped: bool,
) -> Expected:
    """Return what Lightning's loop expects; raise where its training would lose or repeat rows."""
    combination: Any = None  # Lightning's iterator over the loaders of one run
    for frame in frames:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_LIGHTNING) and module.endswith("_loop"):
            break
        if combination is None and module.endswith("combined_loader"):
            combination = frame.f_locals.get("self")
    else:
        return Expected()
    if module.endswith((".evaluation_loop", ".prediction_loop")):
        return Expected(begins_epoch=True)
    if endless:
        raise UsageError(
            "Lightning reads one batch ahead from a loader without a length, so its checkpoints "
            "would skip that batch; pass endless=False (and max_epochs=-1 to the Trainer)"
        )
    if not has_common_state:
        raise UsageError(one_state_for_all("Lightning"))
    if is_wrapped:
        raise UsageError(
            "Lightning loads the state of a DataLoader around a loader not at all, or only within "
            "an epoch, so a resumed run would repeat rows; pass the loader itself to trainer.fit"
        )
    loop = frame.f_locals.get("self")
    trainer: Any = getattr(loop, "trainer", None)
    if getattr(trainer, "overfit_batches", 0):
        raise UsageError(
            "overfit_batches needs the same batches in every epoch, but a loader continues with "
            "new ones; pass a list of batches, such as list(itertools.islice(loader, 2))"
        )
    state = _take_state(loop, loader)
    loaders = getattr(combination, "iterables", [])
    limits = dict(zip(map(id, loaders), getattr(combination, "limits", None) or (), strict=False))
    is_cut = limits.get(id(loader), len(loader)) < len(loader)
    if len(loaders) < 2 and not is_cut:
        return Expected(state=state)
    num_steps = None
    if type(combination).__name__ == "_MaxSize":  # in which shorter loaders end before the others
        num_done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        has_ended = num_done >= len(combination)
        num_steps = len(loader) if has_ended else max(0, len(loader) - num_done)
    return Expected(state=state, crosses_epochs=True, num_steps=num_steps)


def _take_state(loop: Any, loader: object) -> State | None:
    """Take the loader's state from Lightning where Lightning would not load it.

    Lightning loads a checkpoint's loader states only if it was saved within an epoch or the run has
    max_steps. After a checkpoint from the end of an epoch, the loader would restart at epoch 0.
    """
    states = getattr(loop, "_combined_loader_states_to_load", None)
    flattened = getattr(getattr(loop, "_combined_loader", None), "flattened", ())
    stateful = [each for each in flattened if hasattr(each, "load_state_dict")]
    number = next((k for k, each in enumerate(stateful) if each is loader), None)
    if not states or number is None:
        return None
    if len(states) != len(stateful):
        raise StateError(
            f"the checkpoint has the states of {len(states)} loaders, but there are "
            f"{len(stateful)} here; pass as many loaders as when it was saved"
        )
    state: State | None = states[number]
    states[number] = None  # load it once: later the loader has moved on, or is a different one
    return state
