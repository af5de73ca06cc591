"""Where torch is met: tensors, page-locked memory; imported only when needed."""

import contextlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from penstock.arguments import one_of
from penstock.errors import UsageError


def check_output(output: str, *, pin_memory: bool) -> None:
    """Refuse what this installation, or this machine, cannot give."""
    one_of("output", output, ("torch", "numpy"))
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


def from_numpy(output: str) -> Callable[[Any], Any] | None:
    """What makes an output of an array: torch's function, or nothing."""
    if output == "numpy":
        return None
    import torch

    make: Callable[[Any], Any] = torch.from_numpy
    return make


def new_pinned(num_bytes: int) -> Any:
    """Page-locked memory: torch's allocator uses it again when no copy is queued."""
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def as_tensors(decoded: dict[str, Any], output: str) -> dict[str, Any]:
    """Arrays of decoded metadata as tensors, where torch has their type; objects as they are."""
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
    """Where torch is imported, make its DataLoader iterate over a loader of this type."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.utils.data.IterableDataset.register(kind)


def _has_accelerator() -> bool:
    import torch

    return bool(torch.accelerator.is_available())
