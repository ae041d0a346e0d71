"""Bounds from trials whose leak is known: found where there is one, nothing from nothing; and which
of them count.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from mechanisms.audit.bounds import Guesses
from mechanisms.model.inputs import FeatureInputs
from tasks.auditing import bounds as audit_bounds
from tasks.auditing.bounds import Bound
from tasks.auditing.pool import FAMILIES, NEVER, Pool
from tasks.auditing.trials import Trials

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
    """Trials in which taking part raises the log-odds of a record's own code by `leak` standard
    deviations.
    """
    pick = np.random.default_rng(seed)
    bits = torch.stack([made.coins(seed=seed, trial=t) for t in range(TRIALS)])
    odds = pick.normal(size=len(made.family)) + leak * bits.numpy() + pick.normal(size=bits.shape)
    ell = torch.from_numpy(-np.logaddexp(0, -odds)).float()
    return Trials(
        included=bits,
        ell=ell,
        right=torch.from_numpy(odds > 0),
        epsilon=torch.full((TRIALS,), epsilon).double(),
    )


def bounds(leak: float, *, seed: int, alpha: float = 0.05) -> dict[str, Bound]:
    """Every bound by its name."""
    made = pool()
    told = audit_bounds.trial_bounds(
        made, trials(made, leak=leak, seed=seed), delta=0.0, alpha=alpha
    )
    return {bound.name: bound for bound in told}


@pytest.mark.parametrize(
    ("claimed", "refutes"),
    [(None, 3.0), (2.9, 3.0), (3.0, 0.0), (8.0, 0.0)],
    ids=["formal", "below", "at", "above"],
)
def test_a_bound_counts_only_above_what_its_trials_claimed(
    claimed: float | None, refutes: float
) -> None:
    """Trials that claim 8 for their own records say nothing against a claim of 2, whatever was
    measured in them.
    """
    assert Bound("x", 3.0, Guesses(10, 10, 20), 3.0, claimed=claimed).refutes == refutes
    assert Bound("x", 0.0, Guesses(9, 10, 20), 3.0, claimed=claimed).could_refute == refutes


def test_a_leak_is_found_in_every_family_with_coins_enough() -> None:
    """Five standard deviations: nearly every guess is right, and no more guesses are made than
    there are coins.
    """
    found = bounds(5.0, seed=1)
    assert tuple(found) == FAMILIES
    for name in FAMILIES:
        assert found[name].guesses.correct > 0.9 * found[name].guesses.guessed > 10, name
        assert found[name].guesses.guessed <= found[name].guesses.coins
    # 200 records in 6 trials: at most log(1200 / -log(0.05 / 2)) can be shown by guesses that are
    # all right
    assert 3.0 < found["in-distribution"].refutes < math.log(1200 / -math.log(0.05 / 2)) + 0.01


def test_nothing_is_found_in_nothing() -> None:
    """Without a leak some bound is above 0 in at most 5 % of 100 audits: more than 12 have 0.15 %.
    Bounds that hold together at 40 % alone are above 0 far more often: holding together is what the
    audit pays for.
    """
    alarms, careless = 0, 0
    for seed in range(100):
        alarms += any(bound.epsilon > 0 for bound in bounds(0.0, seed=seed).values())
        careless += any(bound.epsilon > 0 for bound in bounds(0.0, seed=seed, alpha=0.6).values())
    assert binom.sf(12, 100, 0.05) < 0.0016
    assert alarms <= 12
    assert careless > 30
