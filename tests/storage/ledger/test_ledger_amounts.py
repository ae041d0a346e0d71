"""Exact amounts: rounded up, never down, and what can't be kept is refused."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import of_kind

from storage.errors import InputError
from storage.ledger import amounts

QUANTUM = Decimal("1e-12")


@given(st.floats(min_value=1e-12, max_value=1e6))
def test_a_float_is_rounded_up_by_less_than_one_unit(value):
    """exact <= kept < exact + 1e-12, for every float: the float's own binary value counts, not its
    print.
    """
    if Decimal(value) < QUANTUM:
        return
    kept = amounts.epsilon(value)
    assert Fraction(value) <= Fraction(kept) < Fraction(value) + Fraction(QUANTUM)
    assert kept.as_tuple().exponent == -12


def test_a_tenth_as_a_float_is_more_than_a_tenth():
    """0.1 in binary is 0.1000000000000000055…: its sum of ten is over one, as it is in truth."""
    ten = sum((amounts.epsilon(0.1) for _ in range(10)), Decimal(0))
    assert ten == Decimal("1.00000000001")
    assert amounts.epsilon("0.1") * 10 == 1


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (math.nan, "not-finite"),
        (math.inf, "not-finite"),
        (-math.inf, "not-finite"),
        (0.0, "not-positive"),
        (-0.0, "not-positive"),
        (-1.0, "not-positive"),
        (5e-324, "subnormal"),
        (2.2e-308, "subnormal"),
        (1e-13, "too-precise"),
        (1e9, "beyond-limit"),
        (True, "not-finite"),
        ("NaN", "not-finite"),
        ("Infinity", "not-finite"),
        ("-1", "not-positive"),
        ("0", "not-positive"),
        ("0.1234567890123", "too-precise"),
        (Decimal("1e-13"), "too-precise"),
        (Decimal("sNaN"), "not-finite"),
        ("one", "not-a-number"),
        ("", "not-a-number"),
    ],
)
def test_what_no_budget_can_hold_is_refused(value, kind):
    """NaN, infinite, zero, negative, subnormal, too small, too large, too precise, no number at
    all.
    """
    with pytest.raises(InputError, check=of_kind(kind, option="epsilon")):
        amounts.epsilon(value)


def test_a_probability_is_below_one():
    """A delta of one allows everything."""
    assert amounts.probability(0.5, name="delta") == Decimal("0.5")
    with pytest.raises(InputError, check=of_kind("not-below-one")):
        amounts.probability(1.0, name="delta")


def test_a_chosen_delta_is_what_was_written():
    """1e-4 fits under a cap of 0.0001, though its float is above; one of more decimals is refused,
    not cut.
    """
    assert amounts.delta(1e-4) == amounts.probability("0.0001", name="cap delta")
    assert amounts.probability(1e-4, name="delta") > Decimal("0.0001")
    for refused, kind in (
        (math.nan, "not-finite"),
        (1.0, "not-below-one"),
        (1e-19, "too-precise"),
    ):
        with pytest.raises(InputError, check=of_kind(kind, option="delta")):
            amounts.delta(refused)


@given(st.floats(min_value=1e-6, max_value=20), st.floats(min_value=1e-15, max_value=1e-10))
def test_the_group_of_two_is_not_understated(epsilon, delta):
    """(1 + e^epsilon) delta at 60 digits is at most what is kept, and by less than one unit of
    1e-18.
    """
    eps, dlt = amounts.epsilon(epsilon), amounts.probability(delta, name="delta")
    doubled, converted = amounts.as_replace_one(eps, dlt)
    with localcontext(prec=60):
        exact = (1 + eps.exp()) * dlt
        assert converted is not None
        assert exact <= converted < exact + Decimal("1e-18")
        assert doubled == 2 * eps


def test_a_group_of_two_without_any_guarantee_is_refused():
    """Where (1 + e^epsilon) delta reaches one, there is nothing to add up."""
    with pytest.raises(InputError, check=of_kind("replaced-delta")):
        amounts.as_replace_one(Decimal(20), Decimal("0.001"))
