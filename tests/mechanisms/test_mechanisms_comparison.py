"""`compare` ranks mechanisms on the same records and seeds, as a data frame, at equal epsilon."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import of_kind
from small_heads import KEY

from autocoder import DpSgd, NonPrivate, PriorDescent, compare
from mechanisms.errors import MechanismError
from mechanisms.model.config import OptimiserPhase

PLAIN = NonPrivate(
    phase=OptimiserPhase(optimiser="adamw", learning_rate=0.05, epochs=5, batch_size=32)
)


def records(n: int = 800) -> tuple[pd.DataFrame, pd.Series]:
    """A table of three classes around corners, with labels that are no numbers."""
    random = np.random.default_rng(0)
    places = np.arange(n) % 3
    features = np.eye(3)[places] * 2 + random.normal(0, 0.7, size=(n, 3))
    return pd.DataFrame(features.clip(-3, 3)), pd.Series(np.array(["cut", "fall", "burn"])[places])


def test_mechanisms_are_compared_at_equal_epsilon() -> None:
    """DP-SGD claims the target, and not what Mironov's conversion leaves of it; differences are to
    the first row.
    """
    mechanisms = {"plain": PLAIN, "sgd": DpSgd(epochs=5), "head": PriorDescent(), "twin": PLAIN}
    table = compare(mechanisms, *records(), epsilon=2, seeds=2, bounds=(-3, 3), key=KEY)
    assert list(table.index) == ["plain", "sgd", "head", "twin"]
    rows: dict[Any, dict[str, Any]] = {name: dict(row) for name, row in table.iterrows()}
    assert rows["sgd"]["epsilon"] == pytest.approx(2, rel=0.01)
    assert max(rows[name]["epsilon"] for name in ("sgd", "head")) <= 2
    assert rows["plain"]["guarantee_kind"] == "none"
    assert rows["sgd"]["guarantee_kind"] == rows["head"]["guarantee_kind"] == "formal"
    assert min(rows[name]["epsilon_replaced"] for name in ("sgd", "head")) >= 1.8
    assert rows["plain"]["mean"] > 0.8
    assert rows["sgd"]["difference"] == pytest.approx(rows["sgd"]["mean"] - rows["plain"]["mean"])
    assert (rows["twin"]["difference"], rows["twin"]["standard_error"]) == (0, 0), (
        "the same fits, paired"
    )
    assert rows["sgd"]["standard_error"] > 0


def test_several_targets_are_several_rows() -> None:
    """Claims rise with the targets; hardly any budget codes worse than a large one; what has no
    target has one row.
    """
    table = compare(
        {"head": PriorDescent(), "plain": PLAIN},
        *records(),
        epsilon=[0.01, 8],
        seeds=2,
        bounds=(-3, 3),
        key=KEY,
    )
    assert list(table.index) == ["head", "head", "plain"]
    assert table["target"].tolist()[:2] == [0.01, 8]
    least, most, _ = table["epsilon"].tolist()
    assert least <= 0.01
    assert most == pytest.approx(8, rel=0.01)
    assert table["mean"].tolist()[0] < table["mean"].tolist()[1]
    assert (table["record_error"] > 0).all()


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(MechanismError, check=of_kind("no-mechanism")):
        compare({}, *records(60), epsilon=1)
