"""The units of exact sums, and how many records they hold; known without torch.

A feature counts 2^-FEATURE_BITS, a residual 2^-RESIDUAL_BITS, a sum of their products 2^-SUM_BITS.
"""

from mechanisms.errors import MechanismError

FEATURE_BITS = 11
RESIDUAL_BITS = 19
SUM_BITS = FEATURE_BITS + RESIDUAL_BITS


def require_room(records: int, norm: float, *, bits: int = 51) -> None:
    """Refuses more records than a sum holds: 51 bits in float64, 62 in a `Total`.

    Raises:
        MechanismError: they are too many.
    """
    if records * norm * 2.0**SUM_BITS >= 2.0**bits:
        raise MechanismError(
            f"{records} records are more than exact sums hold. Lower clip or batch, "
            "or split the records",
            kind="too-many-records",
        )
