"""Decision boundaries: the records they are drawn for, and a short run of the command."""

from pathlib import Path

import numpy as np
import pytest

from studies import __main__ as commands
from studies import boundaries, imbalance, mixture, results


def test_records_are_of_the_mixture() -> None:
    """Means and spread of both classes, back in the plane, within five standard errors."""
    table = boundaries.drawn(20_000, 3)
    points = table.features.numpy() * (boundaries.HIGH - boundaries.LOW) + boundaries.LOW
    for label, mean in enumerate(mixture.MEANS):
        own = points[table.labels.numpy() == label]
        assert np.abs(own.mean(0) - mean).max() < 5 * mixture.SPREAD / len(own) ** 0.5
        assert np.abs(own.std(0) / mixture.SPREAD - 1).max() < 0.1
    assert abs(float(table.labels.double().mean()) - mixture.SHARE) < 0.011


def test_the_systems_are_the_papers_four_and_four() -> None:
    plain = [name for name in boundaries.SYSTEMS if name in imbalance.PLAIN]
    assert list(boundaries.SYSTEMS[:4]) == plain
    assert set(boundaries.SYSTEMS) < set(imbalance.SYSTEMS)


def test_a_short_run(tmp_path: Path) -> None:
    """A line finds the best AUC without privacy; the private one claims epsilon 1."""
    given = ["--systems", "plain-logistic,objective", "--seeds", "2"]
    assert commands.main(["boundaries", *given, "--out", str(tmp_path)]) == 0
    rows = results.load(tmp_path / "boundaries.csv")
    plain = [row for row in rows if row["system"] == "plain-logistic"]
    best = 0.977  # Phi(|mu_1 - mu_0| / (sigma sqrt 2)), for |mu_1 - mu_0| = 4 sqrt 2
    assert all(row["auc"] == pytest.approx(best, abs=0.02) for row in plain)
    private = [row for row in rows if row["system"] == "objective"]
    assert all(0.99 < row["replaced"] <= 1 for row in private)
    assert (tmp_path / "boundaries.svg").stat().st_size > 20_000
    assert "share called positive" in (tmp_path / "boundaries-tables.md").read_text()
