"""Which field of the records masks labels."""

from typing import Any, Literal

import numpy as np

from millstream.errors import UsageError
from millstream.formats.loss_masks import LOSS_MASK
from millstream.formats.shard import TOKEN
from millstream.suggestions import did_you_mean


def find_loss_mask(
    name: str | Literal[False] | None, fields: np.dtype[Any]
) -> str | Literal[False]:
    """The field that masks labels, for a view's `loss_mask=name`; False if none does."""
    names = fields.names or ()
    if name is None:
        is_there = LOSS_MASK in names and TOKEN in names and _is_mask(fields[LOSS_MASK])
        return LOSS_MASK if is_there else False
    if name is False:
        return False
    if name not in names:
        hint = did_you_mean(name, names)
        raise UsageError(f"loss_mask is {name!r}; the records have {list(names)}{hint}")
    if not _is_mask(fields[name]):
        raise UsageError(f"loss_mask: field {name!r} is {fields[name]}, not one integer")
    return name


def _is_mask(field: np.dtype[Any]) -> bool:
    return field.kind in "iub" and not field.shape
