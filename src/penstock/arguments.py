"""Checks that many arguments share."""

import operator
from typing import Any

from penstock.errors import UsageError


def integer(name: str, value: Any, lowest: int = 0, highest: int = (1 << 63) - 1) -> int:
    """Take any integer, NumPy's too, within bounds; else say what was found.

    >>> integer("batch_size", 0, 1)
    Traceback (most recent call last):
    penstock.errors.UsageError: batch_size is 0; it must be an integer from 1 on
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = lowest - 1
    if isinstance(value, bool) or not lowest <= number <= highest:
        upwards = "on" if highest >= (1 << 63) - 1 else f"to {highest:,}"
        raise UsageError(f"{name} is {value!r}; it must be an integer from {lowest} {upwards}")
    return number
