"""Where batches arrive: the device of a loader, and the feed that brings them there."""

from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from millstream.batches.layout import BatchLayout
from millstream.errors import UsageError
from millstream.load.batch_maker import BatchMaker
from millstream.load.batch_memory import BatchMemory

if TYPE_CHECKING:
    import torch


class DeviceFeed(Protocol):
    """Brings batches to a device."""

    @property
    def ahead(self) -> int:
        """How many steps before their turn batches are uploaded."""

    @property
    def num_bytes(self) -> int:
        """How many bytes have been uploaded."""

    def check_process(self) -> None:
        """Raise in a process that cannot use the device."""

    def upload(self, memory: BatchMemory, rows: int) -> Any:
        """Begin to bring the batch in `memory` to the device."""

    def hand_out(self, upload: Any) -> dict[str, Any]:
        """Return the batch of an upload, for the current stream."""


class PlainFeed:
    """Copies batches when they are asked for, to devices whose streams we do not handle."""

    def __init__(self, maker: BatchMaker, device: "torch.device") -> None:
        self._maker, self._device = maker, device
        self.ahead = self.num_bytes = 0

    def check_process(self) -> None:
        """Do nothing: torch says what a forked process cannot use."""

    def upload(self, memory: BatchMemory, rows: int) -> Any:
        """Copy a batch to the device."""
        return self.move(self._maker.make(memory, rows))

    def move(self, value: Any) -> Any:
        """Copy what has a method `to`, also in dicts, lists and tuples; all else stays."""
        if hasattr(value, "to"):
            self.num_bytes += getattr(value, "nbytes", 0)
            return value.to(self._device)
        if isinstance(value, dict):
            moved = {} if type(value) is dict else copy(value)
            for name, each in value.items():
                moved[name] = self.move(each)
            return moved
        if isinstance(value, list):
            items = [] if type(value) is list else copy(value)
            items[:] = [self.move(each) for each in value]
            return items
        # Named tuples, and those of torch. The constructors of other classes may take anything.
        if hasattr(value, "_fields") and isinstance(value, tuple):
            return type(value)(*map(self.move, value))
        if type(value) is tuple or hasattr(value, "n_sequence_fields"):
            return type(value)(map(self.move, value))
        return value

    def hand_out(self, upload: Any) -> Any:
        """Return the batch."""
        return upload


def find_device(device: Any, *, output: str, pin_memory: bool) -> "torch.device | None":
    """Return the device that an argument names; None for the host, where batches are made."""
    if device is None:
        return None
    if output != "torch":
        raise UsageError(f"device={device!r} needs torch tensors; remove output={output!r}")
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device={device!r:.60}: {error}") from None
    if found.type == "cpu":
        return None
    module: Any = getattr(torch, found.type, None)
    if not hasattr(module, "is_available") or not module.is_available():
        raise UsageError(
            f"device={device!r}: torch {torch.__version__} finds no such device here; leave it out "
            "for batches on the host"
        )
    index: int | None = found.index
    if index is None:
        index = module.current_device() if hasattr(module, "current_device") else 0  # one MPS
    if index >= module.device_count():
        raise UsageError(f"device={device!r}: torch finds {module.device_count()}, numbered from 0")
    if pin_memory:
        raise UsageError(
            "pin_memory=True is for batches that stay on the host; leave it out with device=…"
        )
    return torch.device(found.type, index)


def crosses_compactly(device: "torch.device | None") -> bool:
    """Whether batches cross to the device in their compact form."""
    if device is None or device.type != "cuda":
        return False
    import torch

    return torch.version.hip is None  # AMD's devices have this type, but another driver


def new_feed(
    device: "torch.device",
    layout: BatchLayout,
    maker: BatchMaker,
    *,
    static_addresses: bool,
    transforms: bool = False,
) -> DeviceFeed:
    """Return the feed of a device; batches that the user transforms are moved as they are."""
    if transforms:
        return PlainFeed(maker, device)
    if not crosses_compactly(device) or not layout.has_compact_form:
        if static_addresses:
            raise UsageError(
                "static_addresses=True cannot be used with this mixture: its sources differ in the "
                "field that masks labels"
            )
        return PlainFeed(maker, device)
    from millstream.load.feed import CudaFeed

    return CudaFeed(layout, device, static_addresses=static_addresses)
