"""Lower bounds of one audit, from pairs of records and from trials; what was memorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanisms.audit import bounds
from mechanisms.model.seeding import derive_seed
from tasks.auditing.pool import FAMILIES, Pool
from tasks.auditing.trials import Trials


@dataclass(frozen=True)
class Bound:
    """One lower bound on epsilon (add/remove) with the guesses behind it."""

    name: str
    epsilon: float
    guesses: bounds.Guesses
    auc: float | None = None
    claimed: float | None = None
    """The largest epsilon that a trial measured here would have claimed for its own records; None: nothing of its own.

    SWAG-PPM's claim depends on the records. A bound found among crafted canaries, whose large losses raise that claim,
    is no evidence against a claim made without them.
    """

    @property
    def refutes(self) -> float:
        """The largest claim that this bound refutes: none where the trials themselves claimed as much."""
        return self.epsilon if self.claimed is None or self.epsilon > self.claimed else 0.0


def finite(value: float) -> float | None:
    """The value, None where there is none: JSON has no nan."""
    return value if np.isfinite(value) else None


def pairs(
    ell: list[np.ndarray],
    codes: list[Tensor],
    known: bounds.Reference | None,
    *,
    delta: float,
    confidence: float,
    seed: int,
) -> Bound:
    """The candidate's own bound: a pair of one code, one trained on, one not. Half the pairs choose the rule.

    Exchanging a pair replaces a record, which is one removal and one addition: (epsilon, delta) under add/remove gives
    (2 epsilon, (1 + e^epsilon) delta) there, so that half of a bound on the pairs is one under add/remove.
    """
    score = bounds.confidence_logit(np.concatenate(ell))
    if known is not None:
        score = known.likelihood_ratio(score)
    n = len(ell[0])
    own, others = (labels.numpy() for labels in codes)
    difference, bits = bounds.pair_scores(
        score[:n], score[n:], own, others, seed=derive_seed(seed, "audit", "pairs") >> 10
    )
    # pairs come code by code: mix them before halving
    order = np.random.default_rng(derive_seed(seed, "audit", "halves")).permutation(len(bits))
    choosing, measuring = order[: len(order) // 2], order[len(order) // 2 :]
    rule = bounds.choose(difference[choosing], bits[choosing])
    guesses = rule.apply(difference[measuring], bits[measuring])
    return Bound("pairs", bounds.replace_one_bound(guesses, delta=delta, confidence=confidence) / 2, guesses)


def of_trials(pool: Pool, trials: Trials, *, delta: float, confidence: float) -> list[Bound]:
    """One bound a family over the measured trials, and Clopper-Pearson for the one canary that stands alone."""
    seen = bounds.confidence_logit(trials.ell.numpy())
    bits = trials.included.numpy()
    found = []
    for number, name in enumerate(FAMILIES):
        rows = (pool.family == number).numpy()
        turn = [t for t in range(len(bits)) if bool(pool.on_trial(t)[torch.from_numpy(rows)].all())]
        half, chosen = len(turn) // 2, max(1, len(turn) // 8)
        parts = [turn[:half], turn[half : half + chosen], turn[half + chosen :]]
        if number == 0:
            parts[2] = _natural(parts[2], bits[:, (pool.family > 0).numpy()])
        observed = [seen[:, rows]]
        if name == "alpha-mover":
            observed.append(_others(pool, trials)[:, None])
        ratio = sum(
            bounds.reference(one[parts[0]], bits[parts[0]][:, rows]).likelihood_ratio(one[[*parts[1], *parts[2]]])
            for one in observed
        )
        choosing, measuring = np.asarray(ratio)[:chosen], np.asarray(ratio)[chosen:]
        if name == "alpha-mover":  # one coin a trial: a sign test, no choice to make
            rule = bounds.Rule(low=-1e-300, high=0.0)
        else:
            rule = bounds.choose(choosing.ravel(), bits[parts[1]][:, rows].ravel())
        truth = bits[parts[2]][:, rows]
        guesses = rule.apply(measuring.ravel(), truth.ravel())
        auc = None
        if truth.any() and not truth.all():
            auc = bounds.membership(measuring[truth], measuring[~truth]).auc
        bound = bounds.one_run_bound(guesses, delta=delta, confidence=confidence)
        claimed = finite(float(trials.epsilon[parts[2]].max()))
        found.append(Bound(name, bound, guesses, auc, claimed))
        if name == "alpha-mover":
            said = measuring.ravel() >= 0
            here = truth.ravel()
            over_trials = bounds.clopper_pearson_bound(
                true_in=int((said & here).sum()),
                runs_in=int(here.sum()),
                true_out=int((~said & ~here).sum()),
                runs_out=int((~here).sum()),
                delta=delta,
                confidence=confidence,
            )
            found.append(Bound("alpha-mover, over trials", over_trials, guesses, auc, claimed))
    return found


def _natural(turn: list[int], crafted: np.ndarray) -> list[int]:
    """Runs that no canary took part in; where coins left none, those that only the canary that moves weights may be in.

    crafted bool [T, canaries]. Which runs these are depends on the canaries' coins alone, not on what is measured.
    """
    others = [t for t in turn if t % 2]
    return [t for t in others if not crafted[t].any()] or others


def _others(pool: Pool, trials: Trials) -> np.ndarray:
    """Mean log-likelihood of the records that took part, float64 [T]: it moves with their weights."""
    took_part = (trials.included & (pool.family == 0)).double()
    return ((trials.ell.double() * took_part).sum(1) / took_part.sum(1)).numpy()


def memorisation(pool: Pool, trials: Trials) -> dict[str, Any]:
    """Agreement of a draw with wrong codes, and exposure of sequences, planted and not."""
    turn = torch.arange(len(trials.ell)) % 2 == 0
    wrong = pool.family == FAMILIES.index("mislabelled")
    agreed, had = trials.right[turn][:, wrong], trials.included[turn][:, wrong]
    planted, against = pool.references[:, 0], pool.references[:, 1:]
    ell = trials.ell[turn].double()
    exposed = bounds.exposure(ell[:, planted].numpy(), ell[:, against].numpy())
    inserted = trials.included[turn][:, planted].numpy()
    return {
        "wrong_code_agreement_trained": finite(float(agreed[had].double().mean())),
        "wrong_code_agreement_not_trained": finite(float(agreed[~had].double().mean())),
        "exposure_planted": finite(float(exposed[inserted].mean())),
        "exposure_not_planted": finite(float(exposed[~inserted].mean())),
        "exposure_largest_possible": float(np.log2(against.shape[1] + 1)),
    }
