"""Who iterates over a loader: frameworks whose way of doing it would lose or repeat rows.

They give no sign to what they wrap, so the caller is read from the stack, once for an iteration.
Only frames between the loader and the first one that is neither torch's nor multiprocessing's
count: a loader that the user's own code iterates over, in whatever hook, is the user's business.
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
    """What a framework expects of the loader that it iterates over."""

    begins_epoch: bool = False
    """an epoch from its start, as Lightning's validation does, which leaves epochs early"""
    state: State | None = None
    """to go on from a checkpoint that Lightning has read, but does not hand to its loaders"""


def check_caller(loader: object, *, endless: bool) -> Expected:
    """Raise if the caller could not be right; returns what it expects."""
    if _FETCHER not in sys.modules and _ACCELERATE not in sys.modules:
        return Expected()  # all of these frameworks import torch
    is_wrapped = is_stateful = False
    frames = callers()
    for frame in frames:
        module = frame.f_globals.get("__name__", "")
        if module == _FETCHER and frame.f_locals.get("auto_collation"):
            raise UsageError(
                "a DataLoader with a batch_size makes batches of whole batches; write "
                "DataLoader(loader, batch_size=None), or iterate over the loader itself"
            )
        is_wrapped |= module == _DATA_LOADER
        is_stateful |= module.startswith(_STATEFUL)
        if module == _ACCELERATE:
            raise UsageError(
                "Accelerate deals the batches of a DataLoader that it prepared among the processes "
                "and reads ahead of them, and a loader has the share of its rank already: rows "
                "would be lost. Iterate over the loader itself, which needs no prepare(), and move "
                "the tensors of a batch with .to(accelerator.device)"
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
    """Refuse what its training loop would get wrong."""
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
            "Lightning reads a batch ahead of a loader that has no length, and its checkpoints "
            "would skip that batch; pass endless=False (and max_epochs=-1 to the Trainer)"
        )
    if forgets:
        raise UsageError(
            "Lightning saves the state of a loader, but not of one inside of a DataLoader, and a "
            "resumed run would repeat rows; pass the loader itself to trainer.fit"
        )
    loop = frame.f_locals.get("self")
    if getattr(getattr(loop, "trainer", None), "overfit_batches", 0):
        raise UsageError(
            "overfit_batches needs the same batches in every epoch, and a loader goes on with its "
            "next ones; pass a list of batches, such as list(itertools.islice(loader, 2))"
        )
    return Expected(state=_take_state(loop, loader))


def _take_state(loop: Any, loader: object) -> State | None:
    """Take the loader's state from Lightning, where that would keep it to itself.

    It loads the states of a checkpoint only if that was saved within an epoch or the run has
    max_steps. After one from the end of an epoch the loader would begin at its first epoch again.
    """
    states = getattr(loop, "_combined_loader_states_to_load", None)
    flattened = getattr(getattr(loop, "_combined_loader", None), "flattened", ())
    stateful = [each for each in flattened if hasattr(each, "load_state_dict")]
    number = next((k for k, each in enumerate(stateful) if each is loader), None)
    if not states or number is None:
        return None
    if len(states) != len(stateful):
        raise StateError(
            f"the checkpoint has the states of {len(states)} loaders, and there are "
            f"{len(stateful)} here; pass as many as when it was saved"
        )
    state: State | None = states[number]
    states[number] = None  # only now: later the loader has gone on, or is another
    return state
