"""How objects show themselves: one line, from what is known without reading or computing anything.

A debugger asks for it at any time: of an object whose `__init__` has not ended, or that is closed.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any


def one_line(describe: Callable[[Any], str]) -> Callable[[Any], str]:
    """Make a `__repr__` of a method that describes the object; it never raises.

    >>> class Pump:
    ...     def __init__(self, litres):
    ...         self.litres = litres
    ...     @one_line
    ...     def __repr__(self):
    ...         return f"of {self.litres:,} litres"
    >>> Pump(1000), Pump.__new__(Pump)
    (<Pump of 1,000 litres>, <Pump, not made yet>)
    """

    @wraps(describe)
    def shown(self: Any) -> str:
        name = type(self).__name__
        try:
            return f"<{name} {describe(self)}>"
        except Exception:
            return f"<{name}, not made yet>"

    return shown


def counted(number: int, noun: str) -> str:
    """A number and its noun, such as "1 shard" or "2,000 shards"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
