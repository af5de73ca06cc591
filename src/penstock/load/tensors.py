"""Where torch is met: tensors, page-locked memory, workers; imported only when needed."""

import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from penstock.errors import UsageError
from penstock.read.layout import Place


def check_output(output: str, *, pin_memory: bool) -> None:
    """Refuse what this installation, or this machine, cannot give."""
    if output not in ("torch", "numpy"):
        raise UsageError(f"output is {output!r}; it must be 'torch' or 'numpy'")
    if output == "torch" and find_spec("torch") is None:
        raise UsageError(
            "batches of torch tensors need torch: pip install 'penstock[torch]', or pass "
            "output='numpy'"
        )
    if pin_memory and output != "torch":
        raise UsageError("pin_memory gives torch tensors; leave out output='numpy'")
    if pin_memory and not _has_accelerator():
        raise UsageError("pin_memory needs an accelerator, and torch finds none here")


def plain_dtype(dtype: Any) -> DTypeLike | None:
    """Take torch's types by their names."""
    name = str(dtype)
    return name.removeprefix("torch.") if name.startswith("torch.") else dtype


def shower(place: Place, output: str, *, pinned: bool) -> Callable[[Any, int], Any]:
    """How an output of a batch's memory is handed out; what torch has no type for stays NumPy."""
    if output == "numpy":
        return place.of
    import torch

    try:
        dtype = torch.from_numpy(np.empty(0, place.dtype)).dtype
    except TypeError:
        # A copy, so that it need not keep page-locked memory from being used again.
        return (lambda block, rows: place.of(block.numpy(), rows).copy()) if pinned else place.of
    if not pinned:
        return lambda memory, rows: torch.from_numpy(place.of(memory, rows))

    def show(block: Any, rows: int) -> Any:
        num_bytes = rows * math.prod(place.row_shape) * place.dtype.itemsize
        flat = block[place.offset : place.offset + num_bytes].view(dtype)
        return flat.view(rows, *place.row_shape)

    return show


def register_as_dataset(kind: type) -> None:
    """Where torch is imported, make its DataLoader iterate over a loader of this type."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.utils.data.IterableDataset.register(kind)


def _has_accelerator() -> bool:
    import torch

    return bool(torch.accelerator.is_available())


def find_worker() -> tuple[int, int]:
    """Which of how many DataLoader workers this process is."""
    torch = sys.modules.get("torch")
    worker = torch.utils.data.get_worker_info() if torch is not None else None
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
