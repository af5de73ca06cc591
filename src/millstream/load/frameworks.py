"""Detection of frameworks that would lose or repeat rows of a loader, or lose its state.

Frameworks do not identify themselves to what they wrap, so the caller is found on the stack, once
per iteration. The search ends at the first frame outside of torch and multiprocessing: a loader
that the user's own code iterates over, in any hook, is left alone.
"""

import itertools
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, NamedTuple

from millstream.errors import StateError, UsageError
from millstream.load.callers import callers

_OURS = ("millstream.integrations.", "millstream.load.across_epochs")
_PASSED_THROUGH = ("millstream.", "torch.utils.data", "torchdata", "multiprocessing")
_DATA_LOADER, _FETCHER = "torch.utils.data.dataloader", "torch.utils.data._utils.fetch"
_ACCELERATE, _TRAINER = "accelerate.data_loader", "transformers.trainer"
_LIGHTNING = ("lightning.pytorch.", "pytorch_lightning.")
_DEEPSPEED = "deepspeed."
_DISTRIBUTED_CHECKPOINT = "torch.distributed.checkpoint"


ROWS_PER_STEP = "rows_per_step"
"""a key of states that Lightning saves"""


class Expected(NamedTuple):
    """What a framework expects from the loader that it iterates over."""

    returns: bool = False
    """return to where it was first: validations read the same rows every time"""
    crosses_epochs: bool = False
    """go on at the end of the loader's epoch: the framework counts the steps of its epochs"""
    num_steps: int | None = None
    """how many steps to give if the loader crosses epochs; None for no end"""


def check_caller(loader: Any) -> Expected:
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
                "lost. Use millstream.integrations.accelerate.prepare(accelerator, loader)"
            )
        if module.startswith(_LIGHTNING):
            outwards = itertools.chain([frame], frames)
            return _check_lightning(outwards, loader, is_wrapped=is_wrapped)
        if not module.startswith(_PASSED_THROUGH):
            return Expected()
    return Expected()


def _stacked_by(frames: Iterable[FrameType]) -> str:
    """Say what to write instead of what makes batches of batches."""
    if any(frame.f_globals.get("__name__") == _TRAINER for frame in frames):
        return (
            "transformers.Trainer would batch and distribute the loader's batches again; use "
            "millstream.integrations.transformers.Trainer instead, with the same arguments"
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


def is_saved_by_lightning() -> bool:
    """Return whether Lightning asks for the state of a loader."""
    has_lightning = "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules
    return has_lightning and _is_called_by(_LIGHTNING)


def _is_called_by(package: str | tuple[str, ...]) -> bool:
    """Return whether the first caller outside of Millstream and torch's data utilities is in it."""
    for frame in callers():
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_PASSED_THROUGH):
            return bool(module.startswith(package))
    return False


def _check_lightning(frames: Iterable[FrameType], loader: Any, *, is_wrapped: bool) -> Expected:
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
    loop: Any = frame.f_locals.get("self")
    trainer: Any = getattr(loop, "trainer", None)
    if module.endswith((".evaluation_loop", ".prediction_loop")):
        _check_evaluation(trainer, loader)
        return Expected(returns=not loader.endless)
    if loader.endless:
        raise UsageError(
            "Lightning reads one batch ahead from a loader without a length, so its checkpoints "
            "would skip that batch; pass endless=False (and max_epochs=-1 to the Trainer)"
        )
    if not loader.has_common_state:
        raise UsageError(one_state_for_all("Lightning"))
    if is_wrapped:
        raise UsageError(
            "Lightning loads the state of a DataLoader around a loader not at all, or only within "
            "an epoch, so a resumed run would repeat rows; pass the loader itself to trainer.fit"
        )
    if getattr(trainer, "overfit_batches", 0):
        raise UsageError(
            "overfit_batches needs the same batches in every epoch, but a loader continues with "
            "new ones; pass a list of batches, such as list(itertools.islice(loader, 2))"
        )
    if loader.tail == "wrap":
        raise UsageError(
            "with tail='wrap' epochs differ by a step, and Lightning counts the same in each; use "
            "tail='drop' or tail='keep'"
        )
    if combination is None:
        return Expected()  # Lightning tries whether it can iterate, and reads nothing
    _load_state(loop, loader)
    progress = trainer.fit_loop.epoch_loop.batch_progress
    may_be_new = trainer.ckpt_path is not None or trainer.reload_dataloaders_every_n_epochs
    if may_be_new and progress.total.ready and loader.position == loader.epoch == 0:
        raise StateError(
            f"Lightning has trained on {progress.total.ready:,} batches, and this loader is at its "
            "first row: rows would be repeated. If train_dataloader() makes a loader for every "
            "epoch, return the same one, or call loader.set_epoch(self.current_epoch); if the "
            "checkpoint has no state of a loader, load one of your own"
        )
    rows_before = loader.saved_rows_per_step
    if trainer.max_steps == -1 and rows_before not in (None, loader.rows_per_step):
        raise StateError(
            f"a step had {rows_before:,} rows and now has {loader.rows_per_step:,}. Lightning "
            "counts batches, so its epochs would end elsewhere: keep the product of batch_size and "
            "ranks, or pass max_steps to the Trainer"
        )
    num_steps = None
    if type(combination).__name__ == "_MaxSize":  # in which shorter loaders end before the others
        num_done = progress.current.ready
        has_ended = num_done >= len(combination)
        num_steps = len(loader) if has_ended else max(0, len(loader) - num_done)
    return Expected(crosses_epochs=True, num_steps=num_steps)


def _check_evaluation(trainer: Any, loader: Any) -> None:
    training = getattr(getattr(trainer, "fit_loop", None), "_combined_loader", None)
    if any(each is loader for each in getattr(training, "flattened", ())):
        raise UsageError("a validation would move the training loader; pass a loader of its own")
    if loader.endless and not isinstance(getattr(trainer, "limit_val_batches", None), int):
        raise UsageError(
            "a validation of an endless loader has no end; leave out endless, or pass a number of "
            "batches as limit_val_batches to the Trainer"
        )


def _load_state(loop: Any, loader: Any) -> None:
    """Load the loader's state where Lightning has read it from a checkpoint, but would not load it.

    Lightning loads a checkpoint's loader states only if it was saved within an epoch or the run has
    max_steps. After a checkpoint from the end of an epoch, the loader would restart at epoch 0.
    """
    states = getattr(loop, "_combined_loader_states_to_load", None)
    flattened = getattr(getattr(loop, "_combined_loader", None), "flattened", ())
    stateful = [each for each in flattened if hasattr(each, "load_state_dict")]
    number = next((k for k, each in enumerate(stateful) if each is loader), None)
    if not states or number is None:
        return
    if len(states) != len(stateful):
        raise StateError(
            f"the checkpoint has the states of {len(states)} loaders, but there are "
            f"{len(stateful)} here; pass as many loaders as when it was saved"
        )
    if states[number] is not None:
        loader.load_state_dict(states[number])
    states[number] = None  # load it once: later the loader has moved on, or is a different one
