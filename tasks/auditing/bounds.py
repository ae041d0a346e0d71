"""Computes lower bounds of one audit from trials, and their reach."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from mechanisms.audit import bounds, curves
from mechanisms.errors import MechanismError
from mechanisms.privacy.events import Event
from tasks.auditing.pool import FAMILIES, Pool
from tasks.auditing.trials import Trials


@dataclass(frozen=True)
class Bound:
    """Holds one lower bound on epsilon (add/remove) with the guesses behind it."""

    name: str
    epsilon: float
    guesses: bounds.Guesses
    reach: float = 0.0
    """The bound that as many right guesses would give: 0 if the test could not have failed."""
    claimed: float | None = None
    """The largest epsilon that a measured trial would have claimed for its records; None: no claim from the records.

    SWAG-PPM's claim depends on the records. A bound found among crafted canaries, whose large losses raise that claim,
    is no evidence against a claim made without them.
    """
    noise_at_most: float | None = None
    """The multiple of the stated noise above which it is excluded. Epsilon is then a bound if the noise is Gaussian."""
    epsilon_of_any: float | None = None
    """The bound of the same guesses for any mechanism with (epsilon, delta); None: `epsilon` is one."""

    @property
    def refutes(self) -> float:
        """Returns the largest claim that this bound refutes: none if the trials themselves claimed as much."""
        return self._counts(self.epsilon)

    @property
    def could_refute(self) -> float:
        """Returns `refutes` for perfect guesses: 0 if these, too, could have refuted nothing."""
        return self._counts(self.reach)

    def _counts(self, epsilon: float) -> float:
        return epsilon if self.claimed is None or epsilon > self.claimed else 0.0


def finite(value: float) -> float | None:
    """Returns the value, or None for nan, which JSON lacks."""
    return value if np.isfinite(value) else None


def event_to_test(event: Event | None) -> Event | None:
    """Returns the event if its trade-off curve can be tested; otherwise None."""
    try:
        return None if event is None or curves.curve_of(event) is None else event
    except MechanismError:
        return None


@dataclass(frozen=True)
class _Family:
    """Holds the scores of a family's coins, float [runs, coins], and the coins, in choosing and in measured runs."""

    name: str
    choosing: np.ndarray
    measuring: np.ndarray
    chosen: np.ndarray
    truth: np.ndarray
    separation: np.ndarray
    """Separation of each record's reference runs with and without it, float [coins]."""
    claimed: float | None


def _families(pool: Pool, trials: Trials) -> Iterator[_Family]:
    """Yields each family's likelihood ratios: half its turns are reference, an eighth choose, the rest measure."""
    logits = bounds.confidence_logit(trials.ell.numpy())
    bits = trials.included.numpy()
    for number, name in enumerate(FAMILIES):
        rows = (pool.family == number).numpy()
        turn = [t for t in range(len(bits)) if bool(pool.on_trial(t)[torch.from_numpy(rows)].all())]
        half, chosen = len(turn) // 2, max(1, len(turn) // 8)
        parts = [turn[:half], turn[half : half + chosen], turn[half + chosen :]]
        if number == 0:
            parts[2] = [t for t in parts[2] if pool.natural(t)]
        reference = bounds.reference(logits[parts[0]][:, rows], bits[parts[0]][:, rows])
        ratio = reference.likelihood_ratio(logits[[*parts[1], *parts[2]]][:, rows])
        yield _Family(
            name,
            ratio[:chosen],
            ratio[chosen:],
            bits[parts[1]][:, rows],
            bits[parts[2]][:, rows],
            (reference.mean_in - reference.mean_out) / (reference.std_in + reference.std_out),
            None if not parts[2] else finite(float(trials.epsilon[parts[2]].max())),
        )


def trial_bounds(
    pool: Pool, trials: Trials, *, delta: float, confidence: float, event: Event | None = None
) -> list[Bound]:
    """Returns one bound per family over the measured trials.

    Args:
        event: of Gaussian noise: guesses are tested against its trade-off curve. None: against one point, delta.
    """
    measured = []
    for family in _families(pool, trials):
        if event is not None:
            measured.append(
                replace(_curve_bound(family, event, delta=delta, alpha=1 - confidence), claimed=family.claimed)
            )
            continue
        rule = bounds.choose(family.choosing.ravel(), family.chosen.ravel())
        guesses = rule.apply(family.measuring.ravel(), family.truth.ravel())
        epsilon, reach = (
            bounds.one_run_bound(counted, delta=delta, confidence=confidence) for counted in (guesses, guesses.perfect)
        )
        measured.append(Bound(family.name, epsilon, guesses, reach, family.claimed))
    return measured


def _curve_bound(family: _Family, event: Event, *, delta: float, alpha: float) -> Bound:
    """Guesses all coins in every run; the choosing runs set how many must be right for a run to count."""
    right, before = (
        ((scores >= 0) == coins).sum(1)
        for scores, coins in ((family.measuring, family.truth), (family.choosing, family.chosen))
    )
    coins = family.truth.shape[1]
    threshold = max(1, math.floor(before.mean() - math.sqrt(coins) / 2)) if coins > 1 else 1
    runs = curves.Runs(tuple(int(count) for count in right), coins, threshold)
    noise, least = (curves.noise_at_most([counted], event, alpha=alpha) for counted in (runs, runs.perfect()))
    total = coins * len(right)
    guesses = bounds.Guesses(int(right.sum()), total, total)
    return gaussian_bound(family.name, event, guesses, noise=noise, least=least, delta=delta, alpha=alpha)


def gaussian_bound(
    name: str, event: Event, guesses: bounds.Guesses, *, noise: float, least: float, delta: float, alpha: float
) -> Bound:
    """Returns a bound on the noise, and what follows for epsilon: if it is Gaussian, and of any (epsilon, delta).

    Args:
        noise: the multiple of the event's noise above which the guesses exclude it; `least`: of perfect guesses.
    """
    epsilon, reach = (curves.epsilon_at(event, factor=factor, delta=delta) for factor in (noise, least))
    of_any = bounds.one_run_bound(guesses, delta=delta, confidence=1 - alpha)
    return Bound(name, epsilon, guesses, reach, noise_at_most=finite(noise), epsilon_of_any=of_any)


_MOST_EXPOSED = 100
"""Records that the test for the largest delta guesses: more of them hide the distinguishable ones."""


def largest_delta(pool: Pool, trials: Trials, *, claimed: float, alpha: float) -> float:
    """Returns the largest delta for which natural reruns refute (claimed, delta); 0 if they do not even at delta 0.

    The records that the reference runs separate best are guessed in every measured run; a run counts with as many
    right as all choosing runs had, less one. Claims that the reruns make for themselves are refuted too, or none.
    """
    family = next(_families(pool, trials))
    picked = np.argsort(-family.separation, kind="stable")[:_MOST_EXPOSED]
    right, before = (
        ((scores[:, picked] >= 0) == coins[:, picked]).sum(1)
        for scores, coins in ((family.measuring, family.truth), (family.choosing, family.chosen))
    )
    runs = curves.Runs(tuple(int(count) for count in right), len(picked), max(1, int(before.min()) - 1))
    return curves.largest_delta(runs, epsilon=max(claimed, family.claimed or 0.0), alpha=alpha)
