"""Weights as exact shares."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.order.mixing import DENOMINATOR
from millstream.order.shares import exact, to_shares, without

numbers = st.fractions(0, 10**9)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.7, Fraction(7, 10)),
        (1e-9, Fraction(1, 10**9)),
        (1e300, Fraction(10**300)),
        (3, Fraction(3)),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.1"), Fraction(1, 10)),
        (np.float64(0.7), Fraction(7, 10)),
        (np.float32(0.5), Fraction(1, 2)),
        (np.int64(4), Fraction(4)),
        (np.array(4), Fraction(4)),
    ],
)
def test_a_number_is_taken_as_it_is_written(value, expected):
    assert exact("x", value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("Infinity")),
        *("0.7", b"1", None, True, np.True_, 1j, [1], np.array([1, 2]), {}, object()),
    ],
)
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(UsageError, match=r"the weight of 'web' is .*, not a finite number"):
        exact("the weight of 'web'", value)


@pytest.mark.parametrize("value", [-1, -1e-300, Fraction(-1, 3), Decimal("-0.1"), np.float64(-2)])
def test_negative_numbers_are_refused(value):
    with pytest.raises(UsageError, match=r"max_epochs is .*; it must be positive"):
        exact("max_epochs", value, allows_zero=True)


def test_zero_is_refused_unless_it_is_allowed():
    assert exact("x", 0.0, allows_zero=True) == 0
    with pytest.raises(UsageError, match=r"x is 0.0; it must be positive"):
        exact("x", 0.0)


@pytest.mark.slow
@given(st.lists(numbers, min_size=1, max_size=9).filter(any))
def test_shares_add_up_and_are_the_nearest(weights):
    total = sum(weights)
    wanted = [weight * DENOMINATOR / total for weight in weights]
    if any(0 < share < 1 for share in wanted):
        return
    shares = to_shares(weights, [str(k) for k in range(len(weights))])
    assert sum(shares) == DENOMINATOR
    assert all(abs(share - right) < 1 for share, right in zip(shares, wanted, strict=True))
    assert [share == 0 for share in shares] == [weight == 0 for weight in weights]


@pytest.mark.slow
@given(st.lists(numbers, min_size=1, max_size=9).filter(any), st.fractions(1, 10**6))
def test_only_ratios_matter(weights, factor):
    names = [str(k) for k in range(len(weights))]
    try:
        expected = to_shares(weights, names)
    except UsageError:
        return
    assert to_shares([weight * factor for weight in weights], names) == expected


def test_equal_weights_that_do_not_divide_the_whole_favour_the_first():
    assert to_shares([Fraction(1)] * 3, ["a", "b", "c"]) == (
        333333333333333334,
        333333333333333333,
        333333333333333333,
    )


def test_a_weight_that_is_too_small_for_a_share_names_its_source():
    with pytest.raises(UsageError, match="the weight of 'b' is 1e-30 of the total"):
        to_shares([Fraction(1), Fraction(1, 10**30)], ["a", "b"])
    with pytest.raises(UsageError, match="the weight of 'a' is 1e-300 of the total"):
        to_shares([Fraction(1), Fraction(10**300)], ["a", "b"])
    with pytest.raises(UsageError, match="all weights are 0"):
        to_shares([Fraction(0)] * 2, ["a", "b"])


@given(st.lists(st.integers(1, 10), min_size=1, max_size=6), st.data())
def test_shares_of_sources_that_are_gone_go_to_the_others_in_proportion(weights, data):
    shares = to_shares([Fraction(weight) for weight in weights], [""] * len(weights))
    gone = data.draw(st.sets(st.integers(0, len(weights) - 1)))
    left = [0 if k in gone else weight for k, weight in enumerate(weights)]
    found = without(shares, gone)
    if not any(left):
        assert found is None
        return
    assert sum(found) == DENOMINATOR
    for share, weight in zip(found, left, strict=True):
        assert abs(share - Fraction(weight * DENOMINATOR, sum(left))) < 10
        assert (share == 0) == (weight == 0)
