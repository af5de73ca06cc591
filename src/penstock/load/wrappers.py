"""Frameworks that would lose or repeat rows by the way they wrap a loader are refused.

They give no sign to what they wrap, so who calls is read from the stack, once for an iteration, and
only where such a framework is imported. What each of them does is in the messages.
"""

import sys
from collections.abc import Iterator
from types import FrameType

from penstock.errors import UsageError

_FETCHER = "torch.utils.data._utils.fetch"
_ACCELERATE = "accelerate.data_loader"
_LIGHTNING = ("lightning.pytorch.loops", "pytorch_lightning.loops")


def check_caller(*, endless: bool) -> None:
    """Raise if a framework begins to iterate, or to copy a loader, that could not be right."""
    if not {_FETCHER, _ACCELERATE, *_LIGHTNING} & sys.modules.keys():
        return
    loop = ""
    for frame in _frames():
        module = frame.f_globals.get("__name__", "")
        if module == _FETCHER and frame.f_locals.get("auto_collation"):
            raise UsageError(
                "a DataLoader with a batch_size makes batches of whole batches; write "
                "DataLoader(loader, batch_size=None), or iterate over the loader itself"
            )
        if module == _ACCELERATE:
            raise UsageError(
                "Accelerate deals the batches of a DataLoader that it prepared among the processes "
                "and reads ahead of them, and a loader has the share of its rank already: rows "
                "would be lost. Iterate over the loader itself, which needs no prepare(), and move "
                "the tensors of a batch with .to(accelerator.device)"
            )
        if module.startswith(_LIGHTNING):
            loop = loop or module.rpartition(".")[2] * module.endswith("_loop")
    if loop == "fit_loop" and endless:
        raise UsageError(
            "Lightning reads a batch ahead of a loader that has no length, and its checkpoints "
            "would skip that batch; pass endless=False (and max_epochs=-1 to the Trainer)"
        )


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
