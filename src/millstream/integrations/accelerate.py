"""Accelerate with a loader: `prepare(accelerator, loader)` for `accelerator.prepare(loader)`.

    from millstream.integrations.accelerate import prepare

    batches = prepare(accelerator, loader)
    accelerator.load_state(checkpoint)           # restores the loader too
    for batch in batches:                        # on the accelerator's device
        with accelerator.accumulate(model):
            ...

Accelerate's own `prepare` takes a DataLoader apart to distribute its batches among the processes,
and leaves anything else alone: not moved, not saved, and without a mark at the last batch, where
`accumulate` steps with the gradients it has.
"""

from collections.abc import Iterator
from typing import NoReturn

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device

from millstream.errors import UsageError
from millstream.integrations.checks import check_loader
from millstream.load.base_loader import BaseLoader, BatchDict


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """A loader's batches on the accelerator's device, with a mark at the last one of an epoch."""

    def __init__(self, accelerator: Accelerator, loader: BaseLoader) -> None:
        self.loader = loader
        self.device = accelerator.device
        self.gradient_state = GradientState()

    def __iter__(self) -> Iterator[BatchDict]:
        remaining = None if self.loader.endless else self.loader.remaining
        self.begin()
        try:
            for number, batch in enumerate(self.loader, 1):
                self.end_of_dataloader = number == remaining
                yield send_to_device(batch, self.device)
        finally:
            self.end()

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch, unless the loader is in it already."""
        self.loader.set_epoch(epoch)

    @property
    def dataset(self) -> NoReturn:
        """What `skip_first_batches` would read again from the start."""
        raise UsageError(
            "a prepared loader continues by itself after accelerator.load_state: iterate over it, "
            "without skip_first_batches"
        )


def prepare(accelerator: Accelerator, loader: BaseLoader) -> PreparedLoader:
    """Return the loader's batches for this process; `save_state` and `load_state` include it."""
    if not isinstance(loader, BaseLoader):
        raise UsageError(
            "write prepare(accelerator, millstream.Loader(view, batch_size)), and use "
            f"accelerator.prepare for models and optimizers; found {loader!r:.60}"
        )
    check_loader(loader, "Accelerate", "Accelerator(gradient_accumulation_steps=…)")
    if loader.tail == "keep" and loader.ranks > 1:
        raise UsageError(
            "with tail='keep' the last batches of an epoch may differ between processes, which "
            "Accelerate's gather does not expect; use tail='drop' or tail='wrap'"
        )
    if not any(each is loader for each in accelerator._custom_objects):
        accelerator.register_for_checkpointing(loader)
    return PreparedLoader(accelerator, loader)
