"""Bags and SMOTE on subsamples: which exist, what they hold, and a short run of the command."""

import csv
import doctest
from pathlib import Path

import numpy as np
import pytest

from studies import __main__ as commands
from studies import imbalance, results, subsamples

TINY = {"records": 240, "minority": 60, "numeric": {"a": [0, 1], "b": [0, 1]}}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set in place of mammography: 60 of 240 records are rare, and lie apart."""
    rng = np.random.default_rng(0)
    with (tmp_path / "mammography.csv").open("w", newline="") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(["a", "b", "label"])
        for row in range(240):
            label = int(row % 4 == 0)
            a, b = np.clip(0.3 + 0.4 * label + 0.1 * rng.standard_normal(2), 0, 1)
            lines.writerow([f"{a:.4f}", f"{b:.4f}", label])
    monkeypatch.setattr(imbalance, "suite", lambda: {"sets": {"mammography": TINY}})
    return tmp_path


def test_only_sizes_that_the_set_can_fill_exist() -> None:
    """Mammography's 260 of 11,183: up to n = 2,000 at r = 8, 5,000 at r = 32, none drawn twice."""
    labels = (np.arange(11183) < 260).astype(int)
    sizes, ratios = (500, 1000, 2000, 5000, 10000), (4, 8, 16, 32)
    assert subsamples.existing(labels, sizes, ratios) == [
        (500, 4),
        (1000, 4),
        (500, 8),
        (1000, 8),
        (2000, 8),
        (500, 16),
        (1000, 16),
        (2000, 16),
        (500, 32),
        (1000, 32),
        (2000, 32),
        (5000, 32),
    ]
    for size, ratio in ((500, 8), (5000, 32)):
        places = subsamples.chosen(labels, size=size, ratio=ratio, seed=1)
        assert len(set(places.tolist())) == size
        assert int(labels[places].sum()) == subsamples.rare_of(size, ratio)
        other = subsamples.chosen(labels, size=size, ratio=ratio, seed=2)
        assert set(places.tolist()) != set(other.tolist())
    assert not doctest.testmod(subsamples).failed


def test_smote_pays_for_the_rows_that_a_record_reaches(data: Path) -> None:
    """240 records, 60 rare: R = 2 rows a base, so 1 + R + 2 l R rows; without SMOTE one."""
    rng = np.random.default_rng(1)
    labels = (np.arange(240) % 4 == 0).astype(int)
    features = np.clip(0.3 + 0.4 * labels[:, None] + 0.1 * rng.standard_normal((240, 2)), 0, 1)
    with_smote, without = (
        subsamples.oversampled(features, labels, variant=variant, epsilon=None, seed=0)
        for variant in ("non-private, SMOTE", "non-private")
    )
    assert (with_smote["rows"], without["rows"]) == (1 + 2 + 2 * 2 * 5 * 6, 1)
    assert min(with_smote["auc"], without["auc"]) > 0.95


def test_a_short_run(data: Path, tmp_path: Path) -> None:
    """Tables of both votes and splits, and three pictures; bags claim the epsilon of the paper."""
    out = tmp_path / "out"
    given = ["--sizes", "100,200", "--ratios", "4", "--seeds", "2", "--smote-seeds", "1"]
    command = ["subsamples", "--data", str(data), *given, "--out", str(out)]
    assert commands.main(command) == 0
    rows = results.load(out / "subsamples.csv")
    assert len(rows) == 2 * 2 * len(subsamples.SYSTEMS)
    private = [row for row in rows if row["system"] != "plain"]
    assert all(0.49 < row["claimed"] <= 0.5 for row in private)
    assert {row["relation"] for row in private} == {"replace-one"}
    text = (out / "subsamples-tables.md").read_text()
    assert text.count("## Tables ") == 3
    assert "| 20 bags, disjoint by class, majority vote |" in text
    smote = results.load(out / "subsamples-smote.csv")
    assert len(smote) == 2 * (2 + 2 * len(subsamples.SMOTE_EPSILONS))
    for name in ("bags", "smote-f1", "smote-auc"):
        assert (out / f"subsamples-{name}.svg").stat().st_size > 5_000
