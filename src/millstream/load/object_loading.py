"""What a loader cannot do with objects: these are Python objects on the host."""

from typing import Any

from millstream.errors import UsageError
from millstream.mixing.mixture import Mixture
from millstream.views.view import View


def check_objects(view: View | Mixture, *, device: Any, pin_memory: bool) -> None:
    """Refuse arguments that move batches, if the samples of a view are objects."""
    if all(source.coding is None for source in view.sources):
        return
    if device is not None:
        raise UsageError(
            f"objects cannot be brought to {device}: they are lists, or what your collate "
            "function returns; leave device out, and move the tensors of each batch yourself"
        )
    if pin_memory:
        raise UsageError(
            "pin_memory=True needs batches of tensors; leave it out for objects, and call "
            "pin_memory() in your collate function"
        )
