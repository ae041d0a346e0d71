"""`compare` and `curve` rank mechanisms on the same records and seeds, as data frames, at a given epsilon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_heads import KEY

from mechanisms import DpSgd, NonPrivate, PriorDescent, compare, curve
from mechanisms.errors import MechanismError
from mechanisms.model.config import OptimiserPhase

PLAIN = NonPrivate(phase=OptimiserPhase(optimiser="adamw", learning_rate=0.05, epochs=5, batch_size=32))


def records(n: int = 800) -> tuple[pd.DataFrame, pd.Series]:
    """A table of three classes around corners, with labels that are no numbers."""
    random = np.random.default_rng(0)
    places = np.arange(n) % 3
    features = np.eye(3)[places] * 2 + random.normal(0, 0.7, size=(n, 3))
    return pd.DataFrame(features.clip(-3, 3)), pd.Series(np.array(["cut", "fall", "burn"])[places])


def test_mechanisms_are_compared_at_equal_epsilon() -> None:
    """DP-SGD claims the target, and not what Mironov's conversion leaves of it; differences are to the first row."""
    X, y = records()
    table = compare(
        {"plain": PLAIN, "sgd": DpSgd(epochs=5), "head": PriorDescent(), "twin": PLAIN},
        *(X, y),
        epsilon=2,
        seeds=2,
        bounds=(-3, 3),
        key=KEY,
    )
    assert list(table.index) == ["plain", "sgd", "head", "twin"]
    assert list(table.columns[:4]) == ["mean", "spread", "difference", "standard_error"]
    rows: dict[Any, dict[str, Any]] = {name: dict(row) for name, row in table.iterrows()}
    assert rows["sgd"]["epsilon"] == pytest.approx(2, rel=0.01)
    assert max(rows[name]["epsilon"] for name in ("sgd", "head")) <= 2
    assert rows["plain"]["guarantee_kind"] == "none"
    assert rows["sgd"]["guarantee_kind"] == rows["head"]["guarantee_kind"] == "formal"
    assert min(rows[name]["epsilon_replaced"] for name in ("sgd", "head")) >= 1.8
    assert rows["plain"]["mean"] > 0.8
    assert rows["sgd"]["difference"] == pytest.approx(rows["sgd"]["mean"] - rows["plain"]["mean"])
    assert (rows["twin"]["difference"], rows["twin"]["standard_error"]) == (0, 0), "the same fits, paired"
    assert rows["sgd"]["standard_error"] > 0


def test_the_curve_has_a_row_per_target() -> None:
    """Claims rise with the targets; hardly any budget codes worse than a large one."""
    table = curve(PriorDescent(), [0.01, 8], *records(), seeds=2, bounds=(-3, 3), key=KEY)
    assert list(table.index) == [0.01, 8]
    rows: dict[Any, dict[str, Any]] = {name: dict(row) for name, row in table.iterrows()}
    assert rows[8]["epsilon"] == pytest.approx(8, rel=0.01)
    assert rows[0.01]["epsilon"] <= 0.01
    assert rows[0.01]["mean"] < rows[8]["mean"]
    assert (table["standard_error"] > 0).all()


def test_what_cannot_be_compared_is_named() -> None:
    """A reference that is no row, and a curve of a mechanism without a target."""
    X, y = records(60)
    with pytest.raises(MechanismError, match="reference best is not one of plain"):
        compare({"plain": PLAIN}, X, y, epsilon=1, reference="best")
    with pytest.raises(MechanismError, match="takes no target"):
        curve(PLAIN, [1], X, y)
