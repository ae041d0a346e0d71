"""Names the columns of a coded table. Imports no model."""

from collections.abc import Sequence

DIGEST = "bundle_digest"
"""Column with the digest of the bundle, in every row, after a prefix where a table has the codes of several bundles."""

TEMPERATURE = "score_temperature"
"""Column with the temperature of the scores, in every row: `0.94`."""


def prefixes_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Returns what the columns of each bundle begin with, in the order of a coded table's columns; "" for no prefix."""
    return tuple(name.removesuffix(DIGEST) for name in columns if name.endswith(DIGEST))
