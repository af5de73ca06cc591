"""`repr` of our objects: one line that needs no reading or computing.

A debugger may ask for it at any time, even while `__init__` is running or after `close`.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def one_line(describe: Callable[[Any], str]) -> Callable[[Any], str]:
    """Turn a method that describes an object into a `__repr__` that never raises.

    >>> class Pump:
    ...     def __init__(self, litres):
    ...         self.litres = litres
    ...     @one_line
    ...     def __repr__(self):
    ...         return f"of {self.litres:,} litres"
    >>> Pump(1000), Pump.__new__(Pump)
    (<Pump of 1,000 litres>, <Pump, incomplete>)
    """

    @wraps(describe)
    def shown(self: Any) -> str:
        name = type(self).__name__
        try:
            return f"<{name} {describe(self)}>"
        except Exception:
            return f"<{name}, incomplete>"

    return shown


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 shard" or "2,000 shards"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as a list in words, such as "1, 2,000"."""
    return ", ".join(f"{number:,}" for number in numbers)
