"""Lower bounds on epsilon, and how well members are told from non-members: what is measured beside a claim.

A record (or canary) takes part in a run by the toss of a coin. The auditor sees the run's output, guesses some of the
coins and abstains from the others. Two bounds follow from how many guesses are right:

- one run (Steinke, Nasr, Jagielski 2023, arXiv 2305.08846, theorem 5.2): under (epsilon, delta) the number of right
  guesses among r is dominated by Binomial(r, e^epsilon / (1 + e^epsilon)), up to a term in m delta for m coins. It
  holds for any dependence between the records of one run, and for several runs pooled: a coin enters one run alone.
- Clopper-Pearson over runs: with one coin a run, TPR <= e^epsilon FPR + delta, each rate bounded by its interval.

Both hold for a rule of guessing that was fixed before the coins were tossed: rules are chosen on other runs (`choose`).
A bound says what cannot be true with the stated confidence; that it is small proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import beta, binom, norm

from mechanisms.errors import MechanismError
from mechanisms.privacy.numerics import safe_root

_RATES = (0.001, 0.01)


@dataclass(frozen=True)
class Guesses:
    """Counts a rule's guesses at coins: `correct` of `made` guesses, out of `coins` coins."""

    correct: int
    made: int
    coins: int

    @property
    def perfect(self) -> Guesses:
        """As many guesses, all right: the most that the test could have shown."""
        return Guesses(self.made, self.made, self.coins)


@dataclass(frozen=True)
class Rule:
    """Say `in` from the score `high` on, `out` up to the score `low`; abstain between. Infinite: never say it."""

    low: float
    high: float

    def apply(self, scores: np.ndarray, bits: np.ndarray) -> Guesses:
        """Guess the coins of these scores. scores float [k]; bits bool [k], True for a record that took part."""
        said_in, said_out = scores >= self.high, scores <= self.low
        correct = np.count_nonzero(said_in & bits) + np.count_nonzero(said_out & ~bits)
        return Guesses(int(correct), int(np.count_nonzero(said_in | said_out)), bits.size)


def one_run_bound(guesses: Guesses, *, delta: float = 0.0, confidence: float = 0.95) -> float:
    """The largest epsilon that so many right guesses refute, at a false-alarm rate of 1 - confidence; 0 for none.

    With delta 0 it is the logit of the Clopper-Pearson lower bound on the share of right guesses.
    """
    return _largest_refuted(guesses, delta, lambda _: delta, confidence)


def replace_one_bound(guesses: Guesses, *, delta: float = 0.0, confidence: float = 0.95) -> float:
    """The same of the replace-one epsilon, where the claim's delta is one under add/remove.

    The delta of a replacement, (1 + e^(epsilon/2)) delta, grows with the epsilon refuted: the largest consistent pair.
    """
    return _largest_refuted(guesses, delta, lambda epsilon: min((1 + math.exp(epsilon / 2)) * delta, 0.999), confidence)


def _largest_refuted(guesses: Guesses, delta: float, delta_at: Callable[[float], float], confidence: float) -> float:
    """The largest epsilon whose p-value is at most 1 - confidence, `delta_at` being the delta that goes with it."""
    v, r = guesses.correct, guesses.made
    if not 0 <= v <= r <= guesses.coins:
        raise MechanismError(f"{v} right of {r} guesses at {guesses.coins} coins: these counts contradict each other")
    _check_probabilities(delta, confidence)
    top = max(0.0, float(logit(beta.ppf(1 - confidence, v, r - v + 1)))) if v else 0.0
    if delta == 0 or top == 0:
        return top

    def excess(epsilon: float) -> float:
        return one_run_p_value(guesses, epsilon=epsilon, delta=delta_at(epsilon)) - (1 - confidence)

    # A delta only raises the p-value, so the answer lies in [0, top].
    if excess(0.0) > 0:
        return 0.0
    return safe_root(excess, 0.0, top, xtol=1e-12) if excess(top) > 0 else top


def one_run_p_value(guesses: Guesses, *, epsilon: float, delta: float) -> float:
    """Probability, at most, of so many right guesses under (epsilon, delta): theorem 5.2 and appendix D there."""
    v, r = guesses.correct, guesses.made
    q = expit(epsilon)
    p = float(binom.sf(v - 1, r, q))
    if delta > 0 and v > 0:
        # alpha = max over i of P[v > B >= v - i] / i
        tail = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, q))
        p += 2 * guesses.coins * delta * float(np.max(tail / np.arange(1, v + 1)))
    return min(p, 1.0)


def clopper_pearson_bound(
    *, true_in: int, runs_in: int, true_out: int, runs_out: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Lower bound on epsilon from a test applied to independent runs with and without one record; 0 for none.

    Args:
        true_in: runs with the record that the test recognised as such, of `runs_in`.
        true_out: runs without it that the test recognised, of `runs_out`.

    Both error rates are bounded, each at (1 - confidence)/2, so that both directions of the inequality may be used.
    """
    _check_probabilities(delta, confidence)
    if not (0 <= true_in <= runs_in and 0 <= true_out <= runs_out):
        raise MechanismError("more runs recognised than there were")
    tpr = _lower(true_in, runs_in, (1 - confidence) / 2)
    tnr = _lower(true_out, runs_out, (1 - confidence) / 2)
    best = 0.0
    for power, error in ((tpr, 1 - tnr), (tnr, 1 - tpr)):
        if power > delta and error > 0:
            best = max(best, math.log((power - delta) / error))
    return best


def _lower(successes: int, runs: int, alpha: float) -> float:
    return float(beta.ppf(alpha, successes, runs - successes + 1)) if successes else 0.0


def _check_probabilities(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1 or not 0 < confidence < 1:
        raise MechanismError(f"delta is {delta} and confidence {confidence}; both must be probabilities below 1")


def choose(scores: np.ndarray, bits: np.ndarray) -> Rule:
    """The rule that gives the largest one-run bound on these scores (delta 0). Measure it on others.

    scores float [k], large for members; bits bool [k]. Ties at a threshold all count, as `apply` counts them.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, member = scores[order], bits[order]
    k = len(ordered)
    if k == 0:
        return Rule(-math.inf, math.inf)
    sizes = np.unique(np.concatenate([[0], np.geomspace(1, k, 40).astype(int)]))
    right_in = np.concatenate([[0], np.cumsum(member)])[sizes]
    right_out = np.concatenate([[0], np.cumsum(~member[::-1])])[sizes]
    guessed = sizes[:, None] + sizes[None, :]
    v = right_in[:, None] + right_out[None, :]
    with np.errstate(invalid="ignore"):
        bound = np.where((v > 0) & (guessed <= k), beta.ppf(0.05, v, guessed - v + 1), 0.0)
    i, j = np.unravel_index(int(np.argmax(bound)), bound.shape)
    high = ordered[sizes[i] - 1] if sizes[i] else math.inf
    low = ordered[k - sizes[j]] if sizes[j] else -math.inf
    if low >= high:  # ties made the two sides meet: keep the side that was guessed in
        low = float(np.nextafter(high, -math.inf))
    return Rule(float(low), float(high))


@dataclass(frozen=True)
class Membership:
    """Measures how well one score separates members from non-members. Bands at 95 %.

    auc with its band by DeLong's variance; tpr at false-positive rates 0.001 and 0.01 with Clopper-Pearson bands (for
    the threshold as given: the choice of the threshold from the same non-members is not in the band).
    """

    auc: float
    auc_band: tuple[float, float]
    tpr: dict[float, float]
    tpr_band: dict[float, tuple[float, float]]
    fpr_curve: np.ndarray
    tpr_curve: np.ndarray


def membership(members: np.ndarray, others: np.ndarray) -> Membership:
    """Computes the ROC of a finite score that is larger for members. members float [n], others float [m]."""
    if not len(members) or not len(others):
        raise MechanismError("a membership test needs members and non-members")
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        raise MechanismError("a membership score is not finite")
    auc, std = _delong(members, others)
    tpr, bands = {}, {}
    for rate in _RATES:
        # strictly above the threshold that at most rate * m non-members exceed
        threshold = np.sort(others)[::-1][math.floor(rate * len(others))]
        hits = int(np.count_nonzero(members > threshold))
        tpr[rate] = hits / len(members)
        bands[rate] = _interval(hits, len(members))
    fpr_curve, tpr_curve = _roc(members, others)
    half = 1.959964 * std
    return Membership(auc, (max(0.0, auc - half), min(1.0, auc + half)), tpr, bands, fpr_curve, tpr_curve)


def _interval(hits: int, n: int) -> tuple[float, float]:
    return _lower(hits, n, 0.025), float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0


def _roc(members: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    thresholds = np.unique(np.concatenate([members, others]))[::-1]
    above = [np.searchsorted(np.sort(-x), -thresholds, side="right") / len(x) for x in (others, members)]
    return above[0], above[1]


def _delong(members: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """AUC (ties count half) and its standard deviation, DeLong et al. 1988."""
    ranked_others, ranked_members = np.sort(others), np.sort(members)

    def share_below(values: np.ndarray, ranked: np.ndarray) -> np.ndarray:
        both = np.searchsorted(ranked, values, side="left") + np.searchsorted(ranked, values, side="right")
        return both / (2 * len(ranked))

    by_member, by_other = share_below(members, ranked_others), 1 - share_below(others, ranked_members)
    variance = sum(float(np.var(part, ddof=1)) / len(part) if len(part) > 1 else 0.25 for part in (by_member, by_other))
    return float(by_member.mean()), math.sqrt(variance)


def pair_scores(
    members: np.ndarray, others: np.ndarray, member_codes: np.ndarray, other_codes: np.ndarray, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Members and non-members of the same code in random pairs: (score difference, whether the first is the member).

    A split that draws so many of each code at random is no toss of a coin for each record, but given the pairs, which
    of the two was trained on is a fair coin for each pair. Exchanging them replaces one record by another: the one-run
    bound on the pairs is one for the replace-one relation, and half of it one for add/remove.
    """
    pick = np.random.default_rng(seed)
    differences = []
    for code in np.intersect1d(member_codes, other_codes):
        ours, theirs = (pick.permutation(np.flatnonzero(codes == code)) for codes in (member_codes, other_codes))
        count = min(len(ours), len(theirs))
        differences.append(members[ours[:count]] - others[theirs[:count]])
    difference = np.concatenate(differences) if differences else np.zeros(0)
    bits = pick.random(len(difference)) < 0.5
    return np.where(bits, difference, -difference), bits


def confidence_logit(log_likelihood: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) for p = exp(l): nearly Gaussian over models (Carlini et al. 2022, section V), float64."""
    ell = np.minimum(np.asarray(log_likelihood, dtype=np.float64), -1e-9)
    return ell - np.log(-np.expm1(ell))


@dataclass(frozen=True)
class Reference:
    """Gaussians of one observation per record, from runs that had it and runs that had not. All float64 [n]."""

    mean_in: np.ndarray
    mean_out: np.ndarray
    std_in: np.ndarray
    std_out: np.ndarray

    def likelihood_ratio(self, seen: np.ndarray) -> np.ndarray:
        """log N(seen; in) - log N(seen; out), [..., n]: LiRA with both kinds of runs ("online")."""
        return norm.logpdf(seen, self.mean_in, self.std_in) - norm.logpdf(seen, self.mean_out, self.std_out)

    def offline(self, seen: np.ndarray) -> np.ndarray:
        """Returns how far above the runs without the record, in their standard deviations: offline LiRA, [..., n]."""
        return (seen - self.mean_out) / self.std_out


def relative_likelihood(log_likelihood: np.ndarray, of_references: np.ndarray) -> np.ndarray:
    """Returns log p(y|x) of a model minus the log of its mean over references with and without the record, [n].

    RMIA (Zarifzadeh et al. 2024, arXiv 2312.03262) counts the share of a population's records below whose ratio this
    one's is not: a monotone function of it, so that its ROC is the same. It needs no variance, and does not take the
    references for models like this one, so that it is the stronger one where these are few, or without noise.
    """
    return log_likelihood - (np.logaddexp.reduce(of_references, axis=0) - np.log(len(of_references)))


_PRIOR = 8.0
"""Runs that the common variance counts for in a record's own: few runs say little of a variance."""


def reference(seen: np.ndarray, bits: np.ndarray) -> Reference:
    """Fit from R runs. seen float [R, n]; bits bool [R, n]. A record that all runs had, or none, gets the common mean.

    Where no run had any of the records, or every run all of them, both kinds get the same Gaussian: such runs tell
    nothing apart. Fewer than two runs are refused.
    """
    if len(seen) < 2:
        raise MechanismError(f"{len(seen)} reference run(s); a reference needs at least 2")
    parts = [_gaussian(seen, bits if bits.any() else ~bits), _gaussian(seen, bits if bits.all() else ~bits)]
    return Reference(parts[0][0], parts[1][0], parts[0][1], parts[1][1])


def _gaussian(seen: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = chosen.sum(0)
    total = np.where(chosen, seen, 0.0).sum(0)
    common = total.sum() / max(count.sum(), 1)
    mean = np.where(count > 0, total / np.maximum(count, 1), common)
    squares = np.where(chosen, (seen - mean) ** 2, 0.0).sum(0)
    pooled = squares.sum() / max(float(np.maximum(count - 1, 0).sum()), 1.0)
    variance = (_PRIOR * pooled + squares) / (_PRIOR + np.maximum(count - 1, 0))
    return mean, np.sqrt(np.maximum(variance, 1e-8))


def exposure(planted: np.ndarray, references: np.ndarray) -> np.ndarray:
    """log2(R + 1) - log2(rank) of a planted sequence among R that were not planted (Carlini et al. 2019), [...].

    planted float [...]; references float [..., R]; larger is more likely. 0 for the least likely; the mean is about
    1.44 where planting makes no difference.
    """
    rank = 1 + (references > planted[..., None]).sum(-1)
    return np.log2((references.shape[-1] + 1) / rank)
