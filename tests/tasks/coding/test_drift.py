"""Drift: seen where it is, not where it is not, and never between two models."""

from pathlib import Path

import numpy as np
import pytest
from csv_files import write_csv
from refusals import of_kind

from storage.errors import InputError
from tasks.coding.drift import Period, compare, read_period

COLUMNS = [
    "code",
    "title",
    "score",
    "model",
    "classification",
    "classification_version",
    "score_temperature",
]
CODES = np.array(["111", "132", "1311", "1520", "10"])


def period(
    n: int,
    *,
    shares: tuple[float, ...] = (0.4, 0.3, 0.2, 0.09, 0.01),
    power: float = 1.0,
    seed: int = 0,
) -> Period:
    rng = np.random.default_rng(seed)
    return Period(
        rng.choice(CODES, n, p=shares), rng.random(n) ** power, ("m", "OIICS", "2.01", "1")
    )


def test_without_drift_a_verdict_is_rare() -> None:
    """60 pairs of periods that differ only by chance, of 60 rows each: none drifts, at most three
    are to be looked at. Each of the two tests has a false alarm in a hundred, so four of 60 pairs
    or more happen with probability 0.03 % (binomial, 60 and 0.02), were every one of them also
    large enough only to matter. PSI, without its chance level, is over 0.1 in a fifth of such pairs
    and more: its usual rule would fail.
    """
    found = [compare(period(60, seed=2 * n), period(60, seed=2 * n + 1)) for n in range(60)]
    assert sum(entry.verdict == "drift" for entry in found) <= 1
    assert sum(entry.verdict != "stable" for entry in found) <= 3
    raw = [_psi(period(60, seed=2 * n), period(60, seed=2 * n + 1)) for n in range(60)]
    assert np.mean(np.array(raw) > 0.1) > 0.2


def _psi(now: Period, reference: Period) -> float:
    p, q = (
        (np.array([(side.codes == code).sum() for code in CODES]) + 0.5)
        for side in (now, reference)
    )
    p, q = p / p.sum(), q / q.sum()
    return float(((p - q) * np.log(p / q)).sum())


@pytest.mark.parametrize(
    ("now", "verdict", "moved"),
    [
        (period(3000, shares=(0.2, 0.3, 0.4, 0.09, 0.01), seed=1), "drift", {"111", "1311"}),
        (
            period(3000, shares=(0.25, 0.3, 0.35, 0.09, 0.01), seed=1),
            "investigate",
            {"111", "1311"},
        ),
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


@pytest.mark.parametrize("place", range(4))
def test_what_was_coded_otherwise_is_not_compared(place: int) -> None:
    """Model, classification, version and temperature: the difference would be theirs."""
    now = period(100)
    origin = tuple("other" if at == place else cell for at, cell in enumerate(now.origin))
    with pytest.raises(InputError, check=of_kind("incomparable-periods")):
        compare(now, Period(now.codes, now.scores, origin))


def test_codes_of_one_bundle_of_several_are_read(tmp_path: Path) -> None:
    """By the prefix of their columns."""
    header = [f"{prefix}{end}" for prefix in ("nature_", "part_") for end in COLUMNS]
    row = [
        "111",
        "cut",
        "0.5",
        "m",
        "OIICS",
        "2.01",
        "1",
        "32",
        "hand",
        "0.4",
        "n",
        "OIICS",
        "2.01",
        "1",
    ]
    coded = write_csv(tmp_path / "p.csv", header, [row] * 50)
    found = read_period(coded, "CODED", prefix="part_")
    assert (set(found.codes), found.origin, found.titles) == (
        {"32"},
        ("n", "OIICS", "2.01", "1"),
        {"32": "hand"},
    )


def test_a_period_is_read_or_refused(tmp_path: Path) -> None:
    """Rows without a code are left out; few rows, other models and scores that are no numbers are
    refused.
    """
    end = ["m", "OIICS", "2.01", "1"]
    good = [["111", "", "0.5", *end]] * 45 + [["", "", "", *end]] * 5
    found = read_period(write_csv(tmp_path / "p.csv", COLUMNS, good), "CODED")
    assert (len(found.codes), found.origin) == (45, tuple(end))
    for rows, refusal in (
        (good[:10], of_kind("too-few-coded-rows", saying="10 coded")),
        (
            [*good, ["111", "", "0.5", "other", *end[1:]]],
            of_kind("mixed-origins", saying="2 models"),
        ),
        ([*good, ["111", "", "high", *end]], of_kind("score-not-a-number", row=51)),
        ([*good, ["111", "", "nan", *end]], of_kind("score-not-a-number", row=51)),
        ([*good, ["111", "", "-inf", *end]], of_kind("score-not-a-number", row=51)),
    ):
        with pytest.raises(InputError, check=refusal):
            read_period(write_csv(tmp_path / "p.csv", COLUMNS, rows), "CODED")
