"""`cached_property` without a lock, as Python's own is from 3.12 on."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):  # noqa: N801, TID251
    """Computed once per object; if several threads ask at the same time, each may compute it.

    Python 3.11 has one lock for the property of all objects. A process forked while a thread
    computes it would wait for that lock without end.
    """

    def __init__(self, func: Callable[[Any], Value]) -> None:
        super().__init__(func)
        self.lock = nullcontext()
