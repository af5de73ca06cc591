"""Checks of arguments that many functions share."""

import operator
import re
from collections.abc import Iterable
from typing import Any

from millstream.errors import UsageError
from millstream.suggestions import did_you_mean


def integer(name: str, value: Any, lowest: int = 0, highest: int = (1 << 63) - 1) -> int:
    """Return an integer within bounds, of Python or NumPy; raise for anything else.

    >>> integer("batch_size", 0, 1)
    Traceback (most recent call last):
    millstream.errors.UsageError: batch_size is 0; it must be an integer from 1 on
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = lowest - 1
    if isinstance(value, bool) or not lowest <= number <= highest:
        upwards = "on" if highest >= (1 << 63) - 1 else f"to {highest:,}"
        raise UsageError(f"{name} is {value!r}; it must be an integer from {lowest} {upwards}")
    return number


def one_of(name: str, value: Any, allowed: Iterable[str]) -> Any:
    """Return one of a few words; raise for any other, and suggest the closest.

    >>> one_of("policy", "bestfit", ["best_fit", "bos_best_fit"])
    Traceback (most recent call last):
    millstream.errors.UsageError: policy is 'bestfit'; it must be 'best_fit' or 'bos_best_fit'; \
did you mean 'best_fit'?
    """
    words = list(allowed)
    if isinstance(value, str) and value in words:
        return value
    *others, last = map(repr, words)
    listed = f"{', '.join(others)} or {last}" if others else last
    hint = did_you_mean(value, words) if isinstance(value, str) else ""
    raise UsageError(f"{name} is {value!r:.80}; it must be {listed}{hint}")


def size_bytes(name: str, text: str) -> int:
    """Return a number of bytes, written as in 1000000, 500MB or 2GiB; raise for anything else.

    >>> size_bytes("--shard-bytes", "500MB"), size_bytes("--shard-bytes", "2 GiB")
    (500000000, 2147483648)
    """
    found = re.fullmatch(r"([0-9]{1,15})\s*(?:([kKMGT])(i?))?B?", text.strip())
    if not found:
        raise UsageError(
            f"{name}: {text!r:.40} is not a size; write it as in 1000000, 500MB or 2GiB"
        )
    thousand = 1024 if found[3] else 1000
    unit: int = thousand ** " KMGT".index((found[2] or " ").upper())
    return int(found[1]) * unit
