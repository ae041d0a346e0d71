"""SWAG-PPM by class size: quarters of codes, F1 in bins, and a short run of the command."""

import doctest
from pathlib import Path

import numpy as np
import pytest
import torch

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Task
from studies import __main__ as commands
from studies import accounting, rare_codes, results, swag_ppm

SIZES = {"a": 60, "b": 40, "c": 30, "d": 24, "e": 12, "f": 10, "g": 4, "h": 2}


def narratives() -> tuple[torch.Tensor, np.ndarray, np.ndarray, torch.Tensor]:
    """Features of eight codes of 2 to 60 records, each near its own corner."""
    generator = torch.Generator().manual_seed(0)
    codes = np.repeat(list(SIZES), list(SIZES.values()))
    known = np.unique(codes)
    corners = torch.eye(8)[np.searchsorted(known, codes)]
    features = corners + 0.2 * torch.randn(len(codes), 8, generator=generator)
    return features, codes, known, torch.eye(8)


def test_quarters_are_of_codes_and_weighted_f1_is_of_their_records() -> None:
    """Two codes of eight a quarter. Code `a` is always right, `b` never: the largest quarter has F1
    0.75 where weighted, and the mean of both where not.
    """
    train = np.repeat(list(SIZES), list(SIZES.values()))
    truth = np.array(["a"] * 3 + ["b"] + ["h"])
    said = np.array(["a"] * 3 + ["c"] + ["h"])
    figures = swag_ppm.utility(truth, said, train)
    assert figures["weighted_f1_3"] == pytest.approx(0.75)
    assert figures["macro_f1_3"] == pytest.approx(0.5)
    assert figures["macro_f1_0"] == 1
    assert figures["weighted_f1"] == pytest.approx(0.8)
    assert np.isnan(figures["macro_f1_1"])
    assert not doctest.testmod(swag_ppm).failed


def test_weights_by_quarter_count_every_record() -> None:
    """Shares of the histogram add to 1; records of large codes have weight 1 here, others 0."""
    codes = np.repeat(list(SIZES), list(SIZES.values()))
    alpha = np.isin(codes, ["a", "b"]).astype(float)
    rows = swag_ppm.weights(alpha, codes)
    assert [row["records"] for row in rows] == [6, 22, 54, 100]
    assert [row["mean"] for row in rows] == [0, 0, 0, 1]
    for row in rows:
        shares = [value for name, value in row.items() if name.startswith("from_")]
        assert sum(shares) == pytest.approx(1)
        assert shares[-1 if row["mean"] else 0] == 1


@pytest.mark.parametrize(("renyi", "tighter"), [(4.0, 3.09), (5.0, 3.92)])
def test_the_papers_noise_costs_less_by_the_tighter_accountant(
    renyi: float, tighter: float
) -> None:
    """As the page of Chew et al. says, for 2,357 training records at delta 1e-4."""
    mechanism = DpSgd(calibrate_by="rdp-mironov", learning_rate=1e-3)
    task = Task(records=2357, classes=102, target_epsilon=renyi, delta=swag_ppm.DELTA)
    event = mechanism.plan(task).event
    assert event is not None
    claim = accounting.of_event(event, swag_ppm.DELTA)
    assert claim.epsilon == pytest.approx(tighter, abs=0.005)
    page = Path(__file__).parents[2] / "docs" / "studies" / "chew.md"
    assert f"{tighter}" in page.read_text(encoding="utf-8")


def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four branches a seed; SWAG-PPM's figure is twice its Delta, DP-SGD's the accountant's."""
    monkeypatch.setattr(rare_codes, "sampled", lambda *_: narratives())
    given = ["swag-ppm", "--draws", "5", "--epochs", "2,3,3", "--seeds", "2"]
    assert commands.main([*given, "--out", str(tmp_path)]) == 0
    rows = results.load(tmp_path / "swag-ppm.csv")
    assert [row["branch"] for row in rows[:4]] == list(swag_ppm.TITLES)
    for row in rows:
        if row["branch"].startswith("swag-ppm"):
            assert row["epsilon"] == pytest.approx(2 * row["sensitivity"], rel=1e-4)
        if row["branch"] == "dp-sgd":
            assert 0 < row["epsilon"] <= swag_ppm.EPSILON
    alpha = results.load(tmp_path / "swag-ppm-weights.csv")
    assert len(alpha) == 2 * 2 * 4
    assert all(0 <= row["mean"] <= 1 for row in alpha)
    text = (tmp_path / "swag-ppm-tables.md").read_text()
    assert text.count("## ") == 4
    for name in ("classes", "utility", "weights"):
        assert (tmp_path / f"swag-ppm-{name}.svg").stat().st_size > 5_000
