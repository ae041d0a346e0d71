"""Computes the lower bounds of an audit from reruns and from gradient canaries, and how large each
could have been.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mechanisms.audit import bounds, curves
from mechanisms.privacy.events import DpSgdEvent
from tasks.auditing.pool import FAMILIES, Pool
from tasks.auditing.trials import Trials


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon (add/remove), with the guesses that it is based on."""

    name: str
    epsilon: float
    guesses: bounds.Guesses
    reach: float
    """The bound if every guess had been right; 0 if the test could not have contradicted any claim.
    """
    claimed: float | None = None
    """The largest epsilon that a measured trial would have claimed for its own records, or None if
    the claim does not depend on the records.

    SWAG-PPM's claim depends on the records. Crafted canaries have large losses that raise the claim
    of a trial, so a bound found among them is no evidence against a claim made without them.
    """
    noise_at_most: float | None = None
    """Largest multiple of the stated noise that the test does not exclude. If it is set, epsilon is
    a bound only if the noise is Gaussian.
    """
    epsilon_of_any: float | None = None
    """Bound from the same guesses that holds for any (epsilon, delta) mechanism, or None if
    `epsilon` already is such a bound.
    """

    @property
    def refutes(self) -> float:
        """The largest claim that this bound contradicts, or 0 if the trials themselves claimed as
        much.
        """
        return self._counts(self.epsilon)

    @property
    def could_refute(self) -> float:
        """The largest claim that perfect guesses would have contradicted; 0 if there is none."""
        return self._counts(self.reach)

    def _counts(self, epsilon: float) -> float:
        return epsilon if self.claimed is None or epsilon > self.claimed else 0.0


def trial_bounds(pool: Pool, trials: Trials, *, delta: float, alpha: float) -> list[Bound]:
    """Returns one bound per family of rows. Half of a family's trials serve as reference, an eighth
    select the decision rule, and the rest measure.
    """
    logits, bits = bounds.confidence_logit(trials.ell.numpy()), trials.included.numpy()
    from_records = float(trials.epsilon.std()) > 0
    measured = []
    for number, name in enumerate(FAMILIES):
        rows = (pool.family == number).numpy()
        turn = [t for t in range(len(bits)) if bool(pool.on_trial(t)[torch.from_numpy(rows)].all())]
        half, chosen = len(turn) // 2, max(1, len(turn) // 8)
        reference_turns, choosing, last = (
            turn[:half],
            turn[half : half + chosen],
            turn[half + chosen :],
        )
        if number == 0:
            last = [t for t in last if pool.natural(t)]
        reference = bounds.reference(
            logits[reference_turns][:, rows], bits[reference_turns][:, rows]
        )

        def scored(
            runs: list[int], rows: np.ndarray = rows, reference: bounds.Reference = reference
        ) -> np.ndarray:
            return reference.likelihood_ratio(logits[runs][:, rows]).ravel()

        rule = bounds.choose(scored(choosing), bits[choosing][:, rows].ravel())
        guesses = rule.apply(scored(last), bits[last][:, rows].ravel())
        confidence = 1 - alpha / len(FAMILIES)
        epsilon, reach = (
            bounds.one_run_bound(counted, delta=delta, confidence=confidence)
            for counted in (guesses, guesses.perfect)
        )
        claimed = float(trials.epsilon[last].max()) if from_records and last else None
        measured.append(Bound(name, epsilon, guesses, reach, claimed))
    return measured


def gradient_bound(
    descent: DpSgdEvent, *, right: int, coins: int, delta: float, alpha: float
) -> Bound:
    """Returns the bound on the noise that gradient canaries give, and the resulting bound on
    epsilon.
    """
    noise, least = (
        curves.noise_at_most(right=count, coins=coins, event=descent, alpha=alpha)
        for count in (right, coins)
    )
    guesses = bounds.Guesses(right, coins, coins)
    return Bound(
        "gradients",
        curves.epsilon_at(descent, factor=noise, delta=delta),
        guesses,
        curves.epsilon_at(descent, factor=least, delta=delta),
        noise_at_most=noise if np.isfinite(noise) else None,
        epsilon_of_any=bounds.one_run_bound(guesses, delta=delta, confidence=1 - alpha),
    )
