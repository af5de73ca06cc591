"""Weights as exact shares: integers that add up to one denominator."""

import math
import operator
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from millstream.errors import UsageError
from millstream.order.mixing import DENOMINATOR

Weight = int | float | Fraction | Decimal
"""a number from 0 on; only its ratio to the other weights matters"""
_MAX_EXPONENT = 400  # a little more than that of floats
Shares = tuple[int, ...]
"""of each source, in units of 1 / DENOMINATOR"""


def exact(what: str, value: Any, *, allows_zero: bool = False) -> Fraction:
    """Return a positive number as a fraction: a float as the decimal number that Python prints.

    `what` names it in messages, such as "the weight of 'web'".

    >>> exact("the weight of 'web'", 0.7)
    Fraction(7, 10)
    """
    try:
        number = _fraction(value)
    except (TypeError, ValueError, OverflowError):  # NaN and infinity too
        raise UsageError(f"{what} is {value!r:.60}, not a finite number") from None
    if number < 0 or (number == 0 and not allows_zero):
        raise UsageError(f"{what} is {value!r:.60}; it must be positive")
    return number


def _fraction(value: Any) -> Fraction:
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise TypeError
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > _MAX_EXPONENT:
        raise ValueError
    if isinstance(value, Fraction | Decimal):
        return Fraction(value)
    if hasattr(value, "__index__"):
        return Fraction(operator.index(value))
    return Fraction(repr(float(value)))


def to_shares(weights: Sequence[Fraction], names: Sequence[str]) -> Shares:
    """Turn weights into integers that add up to `DENOMINATOR`: the nearest that do.

    >>> to_shares([Fraction(7), Fraction(2), Fraction(1)], ["web", "code", "math"])
    (700000000000000000, 200000000000000000, 100000000000000000)
    """
    total = sum(weights)
    if not total:
        raise UsageError("all weights are 0; a mixture needs a source to read from")
    common = math.lcm(*(weight.denominator for weight in weights))
    shares = _divide([weight.numerator * (common // weight.denominator) for weight in weights])
    for name, weight, share in zip(names, weights, shares, strict=True):
        if weight and not share:
            raise UsageError(
                f"the weight of {name!r} is {float(weight / total):.3g} of the total, less than "
                f"the smallest share, {1 / DENOMINATOR:g}; leave the source out"
            )
    return shares


def without(shares: Shares, gone: set[int]) -> Shares | None:
    """Hand the shares of some sources on to the others, in proportion; None if none is left."""
    left = [0 if k in gone else share for k, share in enumerate(shares)]
    return _divide(left) if any(left) else None


def _divide(parts: Sequence[int]) -> Shares:
    """Divide the denominator by integers: ten times as fast as by fractions."""
    total = sum(parts)
    divided = [divmod(part * DENOMINATOR, total) for part in parts]
    shares = [share for share, _ in divided]
    # The largest remainders get what is missing; of equal ones, the first.
    by_remainder = sorted(range(len(parts)), key=lambda k: -divided[k][1])
    for k in by_remainder[: DENOMINATOR - sum(shares)]:
        shares[k] += 1
    return tuple(shares)
