"""Canary records on the records' own path: every planted fault is found by its check, and what ran
as stated passes.
"""

import json
from pathlib import Path

import pytest
import torch
from planted_faults import (
    CLASSES,
    FAULTS,
    MECHANISMS,
    TASK,
    faults_of,
    least_power,
    records,
    watched,
)
from scipy import stats
from small_heads import KEY

from mechanisms.audit import curves
from mechanisms.audit.gradient_canaries import Check, GradientCanaries
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import descent_of

EACH = 0.005
"""False-alarm rate of a check, as of an audit at 95 %; the keys are fixed."""
CASES = [(name, fault) for name in MECHANISMS for fault in faults_of(name)]


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_ran_as_stated_passes(name: str) -> None:
    """All checks ran, and none fails; the guesses do not refute the noise."""
    witness = watched(name, None, seed=1, key=KEY)
    assert set(witness.checks()) == set(Check)
    assert min(witness.checks().values()) > EACH
    event = descent_of(MECHANISMS[name].plan(TASK).event)
    assert witness.steps == event.steps
    assert curves.noise_at_most(right=witness.right(), coins=24, event=event, alpha=EACH) > 1


@pytest.mark.parametrize(
    ("name", "fault"), CASES, ids=[f"{name}: {fault}" for name, fault in CASES]
)
def test_a_planted_fault_is_found(name: str, fault: str) -> None:
    assert watched(name, fault, seed=1, key=KEY).checks()[FAULTS[fault][0]] <= EACH


@pytest.mark.parametrize("fault", ["no clip", "one number for all coordinates"])
def test_guesses_find_what_leaks(fault: str) -> None:
    """The attacker's guesses alone bound the noise below the stated."""
    witness = watched("DP-SGD, full batch", fault, seed=1, key=KEY)
    event = descent_of(MECHANISMS["DP-SGD, full batch"].plan(TASK).event)
    assert curves.noise_at_most(right=witness.right(), coins=24, event=event, alpha=EACH) < 0.7


def test_canaries_are_records_of_orthogonal_features() -> None:
    """At most half as many as features; only those whose coin says so are among the records of the
    fit.
    """
    real = records()
    event = descent_of(MECHANISMS["prior descent"].plan(TASK).event)
    pick = torch.Generator().manual_seed(0)
    witness = GradientCanaries.toss(
        (real.inputs, real.labels), event, classes=CLASSES, canaries=99, generator=pick
    )
    assert len(witness.labels) == 32
    gram = witness.canaries @ witness.canaries.T
    assert torch.allclose(gram, 100 * torch.eye(32), atol=1e-3)
    inputs, labels = witness.fitted
    assert len(inputs) == len(labels) == len(real) + int(witness.included.sum())


def test_the_correlation_of_steps_alarms_as_often_as_it_says() -> None:
    """Also with few coordinates, where products of normal variables have heavier tails than a
    normal one: by its tail, twice as many runs would fail.
    """
    nothing = torch.zeros(0)
    draws = torch.Generator().manual_seed(0)
    found = 0
    for _ in range(1000):
        witness = GradientCanaries(
            (FeatureInputs(torch.zeros(0, 1)), nothing), nothing, nothing, nothing.bool(), (), 1.0
        )
        noise = torch.randn(10, 20, generator=draws, dtype=torch.float64)
        witness._noise = list(noise)
        found += witness._repeated() <= 0.05
    assert stats.binom.sf(found - 1, 1000, 0.05) > 1e-3
    witness._noise[7] = 2 * witness._noise[3]
    assert witness._repeated() < 1e-9


def test_a_fifth_less_noise_is_found_and_two_percent_less_is_not() -> None:
    """With a fixed key; by the chi-square of a step the one is found always, the other once in
    170.
    """
    for factor, found in ((0.8, True), (0.98, False)):
        witness = watched("prior descent", None, seed=1, key=KEY, noise_factor=factor)
        assert (witness.checks()[Check.NOISE] <= EACH) == found
        expected = least_power(390, 10, noise_factor=factor, level=EACH)
        assert (expected > 0.999) == found
    assert least_power(390, 10, noise_factor=1.0, level=EACH) == pytest.approx(EACH / 3, rel=0.05)


def test_the_power_of_every_fault_was_measured() -> None:
    """Each mechanism's every fault was planted, and the page says what the file counts."""
    root = Path(__file__).parents[3]
    rows = json.loads((root / "docs/studies/results/power.json").read_text(encoding="utf-8"))
    assert {(row["mechanism"], row["fault"]) for row in rows} == {
        (name, fault) for name in MECHANISMS for fault in ("none", *faults_of(name))
    }
    page = (root / "docs/studies/audits.md").read_text(encoding="utf-8")
    for planted, said in ((True, "found"), (False, "failed in")):
        own = [row for row in rows if (row["fault"] != "none") == planted]
        assert (
            f"{said} {sum(row['found by checks'] for row in own)} of "
            f"{sum(row['runs'] for row in own)}"
        ) in page


def test_the_least_change_was_measured_as_its_chi_square_says() -> None:
    """Of every mechanism the counts are between the binomial's ends of one in ten thousand, where
    the two other tests of the check add at most their level; the page says the sums.
    """
    root = Path(__file__).parents[3]
    rows = json.loads((root / "docs/studies/results/power-least.json").read_text(encoding="utf-8"))
    assert {row["mechanism"] for row in rows} == set(MECHANISMS)
    page = (root / "docs/studies/audits.md").read_text(encoding="utf-8")
    for factor, said in (
        (0.85, "15% less was found in"),
        (0.9, "10% less in"),
        (0.95, "5% less in"),
    ):
        own = [row for row in rows if row["noise"] == factor]
        for row in own:
            shape = row["coordinates"], row["steps"]
            share = least_power(*shape, noise_factor=factor, level=EACH)
            assert row["expected share"] == pytest.approx(share, abs=0.001)
            found, runs = row["found by the noise check"], row["runs"]
            assert stats.binom.cdf(found, runs, share) > 1e-4
            assert stats.binom.sf(found - 1, runs, min(1.0, share + EACH)) > 1e-4
        total = sum(row["found by the noise check"] for row in own)
        fits = " fits" if factor == 0.85 else ""
        assert f"{said} {total} of {sum(row['runs'] for row in own)}{fits}" in page
    assert least_power(390, 10, noise_factor=(1 - 4 * (2 / 390) ** 0.5) ** 0.5, level=EACH) > 0.999
    half = (1 - 2 * (2 / 390) ** 0.5) ** 0.5
    assert 0.3 < least_power(390, 10, noise_factor=half, level=EACH) < 0.4
