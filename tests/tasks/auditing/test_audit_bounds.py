"""Bounds from trials whose leak is known: found where there is one, nothing from nothing; and which of them count."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import binom

from mechanisms.audit.bounds import Guesses
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment, NonPrivateEvent
from tasks.auditing import bounds as audit_bounds
from tasks.auditing import membership
from tasks.auditing.bounds import Bound
from tasks.auditing.pool import FAMILIES, NEVER, Pool
from tasks.auditing.trials import Trials
from tasks.releasing import evidence

TRIALS = 32
CANARIES = 8


def pool(natural: int = 200) -> Pool:
    """A pool without features: only who belongs to which family matters here."""
    parts = [0] * natural + [1] * CANARIES + [NEVER] * CANARIES
    return Pool(
        inputs=FeatureInputs(torch.zeros(len(parts), 1)),
        labels=torch.zeros(len(parts), dtype=torch.int64),
        family=torch.tensor(parts),
        train=natural // 2,
        test=natural // 2,
    )


def trials(made: Pool, *, leak: float, seed: int, epsilon: float = 0.0) -> Trials:
    """Trials in which taking part raises the log-odds of a record's own code by `leak` standard deviations."""
    pick = np.random.default_rng(seed)
    bits = torch.stack([made.coins(seed=seed, trial=t) for t in range(TRIALS)])
    odds = pick.normal(size=len(made.family)) + leak * bits.numpy() + pick.normal(size=bits.shape)
    ell = torch.from_numpy(-np.logaddexp(0, -odds)).float()
    return Trials(
        included=bits, ell=ell, right=torch.from_numpy(odds > 0), epsilon=torch.full((TRIALS,), epsilon).double()
    )


TOGETHER = 1 - 0.05 / (1 + len(FAMILIES))
"""Confidence of each bound at which all of them hold together at 95 %."""


def bounds(leak: float, *, seed: int, each: float = TOGETHER) -> dict[str, Bound]:
    """Every bound by its name."""
    made = pool()
    told = audit_bounds.trial_bounds(made, trials(made, leak=leak, seed=seed), delta=0.0, confidence=each)
    return {bound.name: bound for bound in told}


@pytest.mark.parametrize(
    ("claimed", "refutes"), [(None, 3.0), (2.9, 3.0), (3.0, 0.0), (8.0, 0.0)], ids=["formal", "below", "at", "above"]
)
def test_a_bound_counts_only_above_what_its_trials_claimed(claimed: float | None, refutes: float) -> None:
    """Trials that claim 8 for their own records say nothing against a claim of 2, whatever was measured in them."""
    assert Bound("x", 3.0, Guesses(10, 10, 20), claimed=claimed).refutes == refutes
    assert Bound("x", 0.0, Guesses(9, 10, 20), reach=3.0, claimed=claimed).could_refute == refutes


def test_a_leak_is_found_in_every_family_with_coins_enough() -> None:
    """Five standard deviations: nearly every guess is right, and no more guesses are made than there are coins."""
    found = bounds(5.0, seed=1)
    assert tuple(found) == FAMILIES
    for name in FAMILIES:
        assert found[name].guesses.correct > 0.9 * found[name].guesses.made > 10, name
        assert found[name].guesses.made <= found[name].guesses.coins
    # 200 records in 6 trials: at most log(1200 / -log(0.05 / 3)) can be shown by guesses that are all right
    assert 3.0 < found["in-distribution"].refutes < math.log(1200 / -math.log(0.05 / 3)) + 0.01


def test_nothing_is_found_in_nothing() -> None:
    """Without a leak some bound is above 0 in at most 5 % of 100 audits: more than 12 have 0.15 %.

    Bounds that each hold at 70 % alone are above 0 far more often: holding together is what the audit pays for.
    """
    alarms, careless = 0, 0
    for seed in range(100):
        alarms += any(bound.epsilon > 0 for bound in bounds(0.0, seed=seed).values())
        careless += any(bound.epsilon > 0 for bound in bounds(0.0, seed=seed, each=0.7).values())
    assert binom.sf(12, 100, 0.05) < 0.0016
    assert alarms <= 12
    assert careless > 30


def test_guesses_at_a_formal_claim_are_held_against_its_curve() -> None:
    """A leak of five standard deviations where the noise allows 1.26: refuted by natural records, which the one point
    at delta 1e-4 could not be with every guess right. No leak: nothing above the claim."""
    step = NoiseSegment(steps=20, noise_multiplier=3.56, l2_clip_norm=1.0)
    event, made = DpSgdEvent(sampling_prob=1.0, segments=(step,)), pool()
    leaky, tight = (trials(made, leak=leak, seed=1) for leak in (5.0, 0.0))

    def told(these: Trials, **options: Any) -> dict[str, Bound]:
        found = audit_bounds.trial_bounds(made, these, delta=1e-4, confidence=TOGETHER, **options)
        return {bound.name: bound for bound in found}

    assert told(leaky)["in-distribution"].reach < 5.0
    caught = told(leaky, event=event)["in-distribution"]
    assert 5.0 < caught.epsilon <= caught.reach
    assert caught.guesses.made == caught.guesses.coins
    assert caught.noise_at_most is not None
    assert caught.noise_at_most < 1
    assert caught.epsilon_of_any is not None
    assert caught.epsilon_of_any < caught.epsilon
    quiet = told(tight, event=event)
    assert set(quiet) == set(FAMILIES)
    assert all(bound.epsilon < 5.0 for bound in quiet.values())
    assert audit_bounds.event_to_test(event) == event
    assert audit_bounds.event_to_test(NonPrivateEvent(epochs=1)) is None


def test_later_records_are_no_non_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that read no record, whose losses drift with time: nothing is refuted by that, and the AUC is called what
    it is."""
    pick = torch.Generator().manual_seed(1)
    labels: dict[str, torch.Tensor] = dict.fromkeys(("train", "test"), torch.randint(3, (4000,), generator=pick))
    drifting = {"train": torch.zeros(4000, 3), "test": torch.zeros(4000, 3)}
    for half, shift in (("train", 3.0), ("test", 0.0)):
        drifting[half] += torch.randn(4000, 3, generator=pick)
        drifting[half][torch.arange(4000), labels[half]] += shift
    monkeypatch.setattr(membership, "load_inputs", lambda _, half: (None, labels[half]))
    monkeypatch.setattr(membership, "read", lambda _, half: {"log_probabilities": drifting[half].log_softmax(1)})

    design = membership.Design({}, {}, claimed=1.0, delta=1e-5, coin=False)
    work = SimpleNamespace(inputs={"prepared": None, "predictions": None}, out=tmp_path)
    told = dict(membership._measure(cast(Any, work), seed=1, design=design, trials_of=""))
    assert (told["epsilon_lower_bound"], told["reach"], told["bounds"]) == (0.0, 0.0, [])
    assert told["attack_auc"] > 0.9
    assert "no membership test" in evidence.describe_attack(told["attack"], coin=told["coin"])
    assert evidence.describe_attack("loss", coin=True) == "strongest membership test, loss"


def test_a_bound_from_gradient_canaries_is_one_on_noise() -> None:
    """722 of 1,000 right, as published: epsilon 4 if the noise is Gaussian, 0.75 to 0.84 of any mechanism, which may be
    right as often at a pure epsilon of 1. Guesses at random exclude no noise.
    """
    step = NoiseSegment(steps=70, noise_multiplier=70**0.5 / 1.1212, l2_clip_norm=1.0)
    event = DpSgdEvent(sampling_prob=1.0, segments=(step,))
    design = membership.Design(alpha={}, first={}, claimed=5.0, delta=1e-5, event=event.model_dump(mode="json"))

    def made(right: int) -> Bound:
        counted = {"coins": 1000, "right": right}
        return membership._gradient_bound(counted, event, design, alpha=0.05)

    bound = made(722)
    assert bound.noise_at_most is not None
    assert 1.0 < bound.noise_at_most < 1.3
    assert 4.0 < bound.epsilon < 5.0
    assert bound.epsilon_of_any is not None
    assert 0.7 < bound.epsilon_of_any < 0.85
    assert (made(500).noise_at_most, made(500).epsilon, made(500).epsilon_of_any) == (None, 0.0, 0.0)


def test_the_largest_delta_by_counts() -> None:
    """Records that are told apart in every rerun: refuted for deltas up to what so few natural reruns can show, and not
    where the reruns claim as much themselves; without a leak for none, in any of 20 audits.
    """
    made = pool()
    leaky = trials(made, leak=12.0, seed=1)
    delta = audit_bounds.largest_delta(made, leaky, claimed=2.0, alpha=0.01)
    assert 0.02 < delta < 0.5
    strict = Trials(leaky.included, leaky.ell, leaky.right, torch.full((TRIALS,), 50.0).double())
    assert audit_bounds.largest_delta(made, strict, claimed=2.0, alpha=0.01) == 0.0
    quiet = (trials(made, leak=0.0, seed=seed) for seed in range(20))
    assert all(audit_bounds.largest_delta(made, one, claimed=2.0, alpha=0.01) == 0.0 for one in quiet)


def test_claims_count_of_the_trials_that_were_measured() -> None:
    """Natural records are measured where no canary was crafted: only what those trials claim holds a bound back."""
    made = pool()
    leaky = trials(made, leak=5.0, seed=1)

    def refuted(claims: torch.Tensor) -> Bound:
        changed = Trials(leaky.included, leaky.ell, leaky.right, claims)
        return audit_bounds.trial_bounds(made, changed, delta=0.0, confidence=0.99)[0]

    measured = torch.zeros(TRIALS, dtype=torch.bool)
    measured[TRIALS // 2 + TRIALS // 8 :] = True
    measured &= torch.arange(TRIALS) % 2 == 1
    assert measured.sum() == 6
    elsewhere = torch.where(measured, 1.0, 50.0).double()
    assert refuted(elsewhere).claimed == 1.0
    assert refuted(elsewhere).refutes > 3.0
    one = elsewhere.clone()
    one[measured.nonzero()[-1]] = 50.0
    assert refuted(one).epsilon > 3.0
    assert refuted(one).refutes == 0.0


@pytest.mark.parametrize("number", [16, 17, 23, 32, 64])
def test_some_measured_reruns_are_natural_whatever_the_coins(number: int) -> None:
    """At any number of reruns that is allowed, by their numbers; no canary is in them."""
    made = pool()
    measured = range(number // 2 + number // 8, number)
    natural = [t for t in measured if made.natural(t)]
    assert len(natural) >= len(measured) // 2
    assert not any(bool(made.coins(seed=seed, trial=t)[made.family > 0].any()) for t in natural for seed in range(20))
    turns = [made.on_trial(t)[made.family > 0] for t in range(4)]
    assert [int(turn.sum()) for turn in turns] == [CANARIES, 0, CANARIES, 0]


def test_without_natural_reruns_nothing_is_measured_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor refuted, nor within reach: what was measured with canaries is not taken for it."""
    made = pool()
    leaky = trials(made, leak=5.0, seed=1)
    monkeypatch.setattr(Pool, "natural", staticmethod(lambda trial: False))
    bound = audit_bounds.trial_bounds(made, leaky, delta=0.0, confidence=0.99)[0]
    assert (bound.guesses.made, bound.refutes, bound.could_refute, bound.claimed) == (0, 0.0, 0.0, None)
