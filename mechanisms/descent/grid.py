"""Units of the exact sums and their capacity, without importing torch.

One unit of a feature is 2^-FEATURE_BITS, of a residual 2^-RESIDUAL_BITS, and of a sum of their
products 2^-SUM_BITS.
"""

from mechanisms.errors import MechanismError

FEATURE_BITS = 11
RESIDUAL_BITS = 19
SUM_BITS = FEATURE_BITS + RESIDUAL_BITS


def require_room(records: int, norm: float, *, bits: int = 51) -> None:
    """Refuses more records than a sum can hold: 51 bits in float64, 62 in a `Total`.

    Raises:
        MechanismError: too many records.
    """
    if records * norm * 2.0**SUM_BITS >= 2.0**bits:
        raise MechanismError(
            f"{records} records are more than exact sums hold. Lower clip or batch, "
            "or split the records",
            kind="too-many-records",
        )
