"""Exact amounts of privacy loss: decimals with a fixed scale, rounded up, and never a float in a
sum.

A float is converted exactly and then rounded towards more loss. Numbers that cannot be used in a
budget are refused: NaN, infinities, zero, negative and subnormal numbers, and numbers finer than
the scale.
"""

from __future__ import annotations

import math
import sys
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation

from storage.errors import OutOfRange

EPSILON_SCALE = 12
"""Decimals of epsilon and of the sensitivity Delta, in nats."""
DELTA_SCALE = 18
"""Decimals of delta and of probabilities."""
EPSILON_LIMIT = Decimal(10) ** 9
"""Larger losses guarantee nothing and are refused."""

# Wide enough for any sum of amounts: 9 digits before the point, 18 after, and room for the
# exponential.
_CONTEXT = Context(prec=80)


def amount(value: float | int | str | Decimal, *, name: str, scale: int) -> Decimal:
    """Converts `value` to a positive decimal with `scale` decimals. Floats are rounded up.

    Text and decimals were entered by a person and must fit the scale exactly. A float is a
    measurement and is rounded towards more loss.

    Raises:
        OutOfRange: not a positive number below the limit, or finer than the scale.
    """
    try:
        number, quantum = (
            Decimal("NaN" if isinstance(value, bool) else value),
            Decimal(1).scaleb(-scale),
        )
    except (InvalidOperation, ValueError, TypeError):
        raise OutOfRange(f"{name}: not a number", kind="not-a-number", option=name) from None
    if not number.is_finite():
        raise OutOfRange(f"{name}: {value} is not a finite number", kind="not-finite", option=name)
    if isinstance(value, float) and 0 < abs(value) < sys.float_info.min:
        raise OutOfRange(
            f"{name}: {value} is subnormal, so it was already rounded and cannot be charged",
            kind="subnormal",
            option=name,
        )
    if number <= 0:
        raise OutOfRange(f"{name}: {value} is not above zero", kind="not-positive", option=name)
    if number >= EPSILON_LIMIT:
        raise OutOfRange(
            f"{name}: {value} is beyond {EPSILON_LIMIT}, which guarantees nothing",
            kind="beyond-limit",
            option=name,
        )
    rounded = number.quantize(quantum, rounding=ROUND_CEILING, context=_CONTEXT)
    if number < quantum or (rounded != number and not isinstance(value, float)):
        raise OutOfRange(
            f"{name}: {value} is more precise than the ledger's {scale} decimals",
            kind="too-precise",
            option=name,
        )
    return rounded


def epsilon(value: float | int | str | Decimal, *, name: str = "epsilon") -> Decimal:
    """An epsilon, or a sensitivity Delta (nats), rounded up to 12 decimals."""
    return amount(value, name=name, scale=EPSILON_SCALE)


def probability(value: float | int | str | Decimal, *, name: str) -> Decimal:
    number = amount(value, name=name, scale=DELTA_SCALE)
    if number >= 1:
        raise OutOfRange(f"{name}: {value} is not below one", kind="not-below-one", option=name)
    return number


def delta(value: float | int | str | Decimal, *, name: str = "delta") -> Decimal:
    """A delta, rounded up to 18 decimals. For a float, its shortest decimal text is used.

    A delta is chosen, not measured, and so is a cap: 1e-4 means 0.0001, and must fit under a cap of
    0.0001.
    """
    return probability(
        repr(value) if isinstance(value, float) and math.isfinite(value) else value, name=name
    )


ZERO_EPSILON, ZERO_DELTA = Decimal(0).scaleb(-EPSILON_SCALE), Decimal(0).scaleb(-DELTA_SCALE)
"""Nothing spent, at the scale of each column."""


def add(left: Decimal, right: Decimal) -> Decimal:
    return _CONTEXT.add(left, right)


def as_replace_one(eps: Decimal, delta: Decimal) -> tuple[Decimal, Decimal]:
    """The cost of an add-remove guarantee under replace-one: (2 epsilon, (1 + e^epsilon) delta),
    rounded up.

    Replacing a record is removing one and adding one: group privacy of two (Vadhan, The Complexity
    of Differential Privacy, 2017, Lemma 2.2).
    """
    doubled = _CONTEXT.multiply(eps, Decimal(2))
    if delta == 0:
        return doubled, delta
    factor = _CONTEXT.add(Decimal(1), _CONTEXT.next_plus(_CONTEXT.exp(eps)))
    product = _CONTEXT.multiply(factor, delta)
    if product >= 1:
        raise OutOfRange(
            "delta: under replace-one it would be one or more, which guarantees nothing",
            kind="replaced-delta",
        )
    return doubled, product.quantize(ZERO_DELTA, rounding=ROUND_CEILING, context=_CONTEXT)


def text(value: Decimal | None) -> str | None:
    """The fixed-point text of an amount, as stored and hashed."""
    return None if value is None else format(value, "f")


def short(value: Decimal) -> str:
    """An amount for display: fixed point without trailing zeros."""
    shown = format(value, "f")
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def brief(value: Decimal) -> str:
    """An epsilon or a sensitivity for a narrow table, rounded up to 6 decimals."""
    return short(value.quantize(Decimal("1e-6"), rounding=ROUND_CEILING, context=_CONTEXT))
