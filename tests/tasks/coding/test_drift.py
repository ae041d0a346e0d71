"""Drift: seen where it is, not where it is not, and never between two models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csv_files import write_csv
from scipy.spatial.distance import jensenshannon
from scipy.stats import ks_2samp

from storage.errors import InputError
from tasks.coding.drift import Period, compare, plot, read_period

CODES = np.array(["111", "132", "1311", "1520", "10"])


def period(
    n: int, *, shares: tuple[float, ...] = (0.4, 0.3, 0.2, 0.09, 0.01), power: float = 1.0, seed: int = 0
) -> Period:
    """A period of made-up codes and scores."""
    rng = np.random.default_rng(seed)
    return Period(rng.choice(CODES, n, p=shares), rng.random(n) ** power, "OIICS 2.01", "m")


def test_without_drift_a_verdict_is_rare() -> None:
    """60 pairs of periods that differ by chance alone, of 60 rows each: none drifts, at most three are to be looked at.

    Each of the two tests has a false alarm in a hundred, so four of 60 pairs or more happen with probability 0.03 %
    (binomial, 60 and 0.02), were every one of them also large enough to matter. PSI alone, without its chance level, is
    over 0.1 in a fifth of such pairs and more: its usual rule would fail.
    """
    found = [compare(period(60, seed=2 * n), period(60, seed=2 * n + 1)) for n in range(60)]
    assert sum(entry.verdict == "drift" for entry in found) <= 1
    assert sum(entry.verdict != "stable" for entry in found) <= 3
    raw = [_psi(period(60, seed=2 * n), period(60, seed=2 * n + 1)) for n in range(60)]
    assert np.mean(np.array(raw) > 0.1) > 0.2


def _psi(now: Period, reference: Period) -> float:
    p, q = ((np.array([(side.codes == code).sum() for code in CODES]) + 0.5) for side in (now, reference))
    p, q = p / p.sum(), q / q.sum()
    return float(((p - q) * np.log(p / q)).sum())


@pytest.mark.parametrize(
    ("now", "verdict", "moved"),
    [
        (period(3000, shares=(0.2, 0.3, 0.4, 0.09, 0.01), seed=1), "drift", {"111", "1311"}),
        (period(3000, shares=(0.25, 0.3, 0.35, 0.09, 0.01), seed=1), "investigate", {"111", "1311"}),
        (period(3000, power=0.5, seed=1), "drift", None),
        (period(3000, power=0.75, seed=1), "investigate", None),
    ],
    ids=["codes", "codes a little", "scores", "scores a little"],
)
def test_what_moved_is_found(now: Period, verdict: str, moved: set[str] | None) -> None:
    """Codes or scores; of the codes those that moved most are named first."""
    found = compare(now, period(3000))
    assert found.verdict == verdict
    assert found.line.startswith(verdict.upper())
    if moved is not None:
        assert {code for code, _, _ in found.moved[:2]} == moved


def test_what_is_certain_but_too_small_to_matter_is_stable() -> None:
    """Three records in a hundred moved, among so many that it is no chance."""
    found = compare(period(20_000, shares=(0.43, 0.3, 0.17, 0.09, 0.01), seed=1), period(20_000))
    assert found.psi_chance <= 0.01
    assert found.verdict == "stable"


def test_distances_are_scipy_s() -> None:
    """JS with half a row added to each code, and KS with ties, against scipy's."""
    now, before = period(400, shares=(0.2, 0.3, 0.3, 0.1, 0.1), seed=3), period(300, seed=4)
    now = Period(now.codes, now.scores.round(1), now.version, now.model)
    before = Period(before.codes, before.scores.round(1), before.version, before.model)
    found = compare(now, before)
    shares = [np.array([(side.codes == code).sum() + 0.5 for code in CODES[:4]]) for side in (now, before)]
    pooled = [np.append(s, (side.codes == "10").sum() + 0.5) for s, side in zip(shares, (now, before), strict=True)]
    assert found.js == pytest.approx(jensenshannon(*pooled, base=2) ** 2, abs=1e-4)
    assert found.ks == pytest.approx(ks_2samp(now.scores, before.scores)[0], abs=1e-4)


def test_two_models_are_not_compared() -> None:
    """That difference would be the model's."""
    other = period(100)
    with pytest.raises(InputError, match="Code both with one bundle"):
        compare(period(100), Period(other.codes, other.scores, "OIICS 3.01", "m"))


def test_scores_of_two_temperatures_are_not_compared(tmp_path: Path) -> None:
    """That difference would be the thresholds file's. Tables of before the column was are compared all the same."""
    ends = ("code", "score", "model", "classification", "classification_version")
    header = [f"{prefix}{end}" for prefix in ("nature_", "part_") for end in ends]
    row = ["111", "0.5", "m", "OIICS", "2.01", "32", "0.4", "n", "OIICS", "2.01"]

    def read(prefix: str, *temperatures: str) -> Period:
        columns = [*header, *(["nature_score_temperature", "part_score_temperature"] if temperatures else [])]
        coded = write_csv(tmp_path / "p.csv", columns, [[*row, *temperatures]] * 50)
        return read_period(coded, "CODED", prefix=prefix)

    own, fitted = ("0.94", "1"), ("0.89", "1")
    with pytest.raises(InputError, match=r"temperatures are 0\.89 and 0\.94\. Code both with the same thresholds"):
        compare(read("nature_", *fitted), read("nature_", *own))
    assert compare(read("part_", *fitted), read("part_", *own)).verdict == "stable"
    assert compare(read("nature_", *fitted), read("nature_")).verdict == "stable"


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    """A PNG of some size."""
    now, before = period(100, seed=1), period(100)
    plot(now, before, compare(now, before), tmp_path / "drift.png")
    assert (tmp_path / "drift.png").read_bytes()[:4] == b"\x89PNG"


def test_a_period_is_read_or_refused(tmp_path: Path) -> None:
    """Rows without a code are left out; few rows, other models and scores that are no numbers are refused."""
    header = ["code", "score", "model", "classification", "classification_version"]
    good = [["111", "0.5", "m", "OIICS", "2.01"]] * 45 + [["", "", "m", "OIICS", "2.01"]] * 5

    found = read_period(write_csv(tmp_path / "p.csv", header, good), "CODED")
    assert (len(found.codes), found.version, found.model) == (45, "OIICS 2.01", "m")
    for rows, said in (
        (good[:10], "has 10 coded rows"),
        ([*good, ["111", "0.5", "other", "OIICS", "2.01"]], "2 models, versions or temperatures"),
        ([*good, ["111", "high", "m", "OIICS", "2.01"]], "row 51: the score is not a number"),
        ([*good, ["111", "nan", "m", "OIICS", "2.01"]], "row 51: the score is not a number"),
        ([*good, ["111", "-inf", "m", "OIICS", "2.01"]], "row 51: the score is not a number"),
    ):
        with pytest.raises(InputError, match=said):
            read_period(write_csv(tmp_path / "p.csv", header, rows), "CODED")
