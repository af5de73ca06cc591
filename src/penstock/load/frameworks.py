"""Detection of frameworks that would lose or repeat rows of the loader that they iterate over.

Frameworks do not identify themselves to what they wrap, so the caller is found on the stack, once
per iteration. The search ends at the first frame outside of torch and multiprocessing: a loader
that the user's own code iterates over, in any hook, is left alone.
"""

import itertools
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, NamedTuple

from penstock.errors import StateError, UsageError
from penstock.load.callers import callers
from penstock.load.state import State

_PASSED_THROUGH = ("penstock.", "torch.utils.data", "torchdata", "multiprocessing")
_DATA_LOADER, _FETCHER = "torch.utils.data.dataloader", "torch.utils.data._utils.fetch"
_STATEFUL = "torchdata."
_ACCELERATE = "accelerate.data_loader"
_LIGHTNING = ("lightning.pytorch.", "pytorch_lightning.")


class Expected(NamedTuple):
    """What a framework expects from the loader that it iterates over."""

    begins_epoch: bool = False
    """start an epoch anew, for Lightning's validation, which leaves epochs early"""
    state: State | None = None
    """resume from this: Lightning has read it from a checkpoint and does not load it itself"""


def check_caller(loader: object, *, endless: bool) -> Expected:
    """Return what the caller expects of the loader; raise if it would lose or repeat rows."""
    if _FETCHER not in sys.modules and _ACCELERATE not in sys.modules:
        return Expected()  # all of these frameworks import torch
    is_wrapped = is_stateful = False
    frames = callers()
    for frame in frames:
        module = frame.f_globals.get("__name__", "")
        if module == _FETCHER and frame.f_locals.get("auto_collation"):
            raise UsageError(
                "a DataLoader with a batch_size would stack whole batches into batches; use "
                "DataLoader(loader, batch_size=None), or iterate over the loader itself"
            )
        is_wrapped |= module == _DATA_LOADER
        is_stateful |= module.startswith(_STATEFUL)
        if module == _ACCELERATE:
            raise UsageError(
                "Accelerate reads ahead and distributes a prepared DataLoader's batches among the "
                "processes, but a loader already serves only its rank's share, so rows would be "
                "lost. Iterate over the loader itself, without prepare(), and move the tensors of "
                "a batch with .to(accelerator.device)"
            )
        if module.startswith(_LIGHTNING):
            forgets = is_wrapped and not is_stateful
            outwards = itertools.chain([frame], frames)
            return _check_lightning(outwards, loader, endless=endless, forgets=forgets)
        if not module.startswith(_PASSED_THROUGH):
            return Expected()
    return Expected()


def _check_lightning(
    frames: Iterable[FrameType], loader: object, *, endless: bool, forgets: bool
) -> Expected:
    """Return what Lightning's loop expects; raise where its training would lose or repeat rows."""
    for frame in frames:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_LIGHTNING) and module.endswith("_loop"):
            break
    else:
        return Expected()
    if module.endswith((".evaluation_loop", ".prediction_loop")):
        return Expected(begins_epoch=True)
    if endless:
        raise UsageError(
            "Lightning reads one batch ahead from a loader without a length, so its checkpoints "
            "would skip that batch; pass endless=False (and max_epochs=-1 to the Trainer)"
        )
    if forgets:
        raise UsageError(
            "Lightning does not save the state of a loader inside a DataLoader, so a resumed run "
            "would repeat rows; pass the loader itself to trainer.fit"
        )
    loop = frame.f_locals.get("self")
    if getattr(getattr(loop, "trainer", None), "overfit_batches", 0):
        raise UsageError(
            "overfit_batches needs the same batches in every epoch, but a loader continues with "
            "new ones; pass a list of batches, such as list(itertools.islice(loader, 2))"
        )
    return Expected(state=_take_state(loop, loader))


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
