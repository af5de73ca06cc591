"""Tensors and page-locked memory; torch is imported only when needed."""

import contextlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from millstream.arguments import one_of
from millstream.errors import UsageError


def check_output(output: str, *, pin_memory: bool) -> None:
    """Raise if this installation or this machine cannot produce the output."""
    one_of("output", output, ("torch", "numpy"))
    if output == "torch" and find_spec("torch") is None:
        raise UsageError(
            "output='torch' needs torch: pip install 'millstream[torch]', or pass output='numpy'"
        )
    if pin_memory and output != "torch":
        raise UsageError("pin_memory=True needs torch tensors; remove output='numpy'")
    if pin_memory and not _has_accelerator():
        raise UsageError("pin_memory=True needs an accelerator, and torch finds none")


def plain_dtype(dtype: Any) -> DTypeLike | None:
    """Return a torch dtype's NumPy name; any other dtype unchanged."""
    name = str(dtype)
    return name.removeprefix("torch.") if name.startswith("torch.") else dtype


def from_numpy(output: str) -> Callable[[Any], Any] | None:
    """Return the function that converts an array to the output: torch's, or None."""
    if output == "numpy":
        return None
    import torch

    make: Callable[[Any], Any] = torch.from_numpy
    return make


def new_pinned(num_bytes: int) -> Any:
    """Return page-locked memory; torch's allocator reuses it once no copy is queued."""
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def as_tensors(decoded: dict[str, Any], output: str) -> dict[str, Any]:
    """Return decoded metadata with arrays as tensors where torch has their type."""
    if output == "numpy":
        return decoded
    import torch

    shown = dict(decoded)
    for name, values in decoded.items():
        if isinstance(values, np.ndarray):
            with contextlib.suppress(TypeError, ValueError):
                shown[name] = torch.from_numpy(values)
    return shown


def register_as_dataset(kind: type) -> None:
    """If torch is imported, make its DataLoader treat a loader class as an iterable dataset."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.utils.data.IterableDataset.register(kind)


def _has_accelerator() -> bool:
    import torch

    return bool(torch.accelerator.is_available())
