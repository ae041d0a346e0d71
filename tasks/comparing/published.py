"""Chew et al., tables 1 to 4: what the paper itself reports, to stand beside what is measured here."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

AGGREGATE = {
    "non-private": (0.76, 0.49),
    "swag-ppm": (0.75, 0.44),
    "swag-ppm-reweighted": (0.75, 0.45),
    "dp-sgd": (0.08, 0.03),
    "dp-sgd-delta-0.001": (0.08, 0.03),
    "dp-sgd-delta-0.01": (0.08, 0.03),
    "dp-sgd-delta-0.1": (0.16, 0.06),
    "dp-sgd-delta-0.99": (0.35, 0.13),
}
"""Weighted and macro F1 (tables 1 and 4)."""

EPSILON = {"swag-ppm": 4.35, "swag-ppm-reweighted": 4.81} | {
    name: 4.0 for name in AGGREGATE if name.startswith("dp-sgd")
}

QUARTILES = {"non-private": (0.81, 0.81, 0.17, 0.18), "swag-ppm": (0.81, 0.81, 0.06, 0.08)}
"""Weighted and macro F1 of the top, then of the bottom quartile of class sizes (table 2)."""


@cache
def per_code() -> dict[str, dict[str, float]]:
    """Table 3: by code, test size and F1 of the non-private model, SWAG-PPM and DP-SGD."""
    with Path(__file__).with_name("paper_table3.csv").open(encoding="utf-8", newline="") as file:
        return {row.pop("code"): {k: float(v) for k, v in row.items()} for row in csv.DictReader(file)}
