"""Lower bounds on epsilon from guesses about coins, and the scores on which guesses are based.

A fair coin decides whether a record (or canary) takes part in a run. The auditor sees the run's
output, guesses some of the coins and abstains from the others. Under (epsilon, delta) the number of
right guesses among r is dominated by Binomial(r, e^epsilon / (1 + e^epsilon)), up to a term in m
delta for m coins (Steinke, Nasr, Jagielski 2023, arXiv 2305.08846, theorem 5.2). The bound holds
for any dependence between the records of one run, and also for several pooled runs, because each
coin belongs to only one run. The guessing rule must be fixed before the coins are tossed, so rules
are chosen on other runs (`choose`). A bound says which claims the guesses contradict at the chosen
confidence. A small bound proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import beta, binom, norm

from mechanisms.errors import MechanismError
from mechanisms.privacy.numerics import safe_root


@dataclass(frozen=True)
class Guesses:
    """The outcome of a guessing rule: `correct` of `guessed` guesses, out of `coins` coins.

    Examples:
        >>> Guesses(correct=90, guessed=100, coins=200).perfect
        Guesses(correct=100, guessed=100, coins=200)
    """

    correct: int
    guessed: int
    coins: int

    @property
    def perfect(self) -> Guesses:
        """The same number of guesses, all right: the strongest result that this test could have
        shown.
        """
        return Guesses(self.guessed, self.guessed, self.coins)


@dataclass(frozen=True)
class Rule:
    """Guess `in` for scores of at least `high`, `out` for scores of at most `low`, and abstain in
    between. An infinite threshold never guesses that side.
    """

    low: float
    high: float

    def apply(self, scores: np.ndarray, bits: np.ndarray) -> Guesses:
        """Guess the coins from these scores.

        Args:
            scores: float [k].
            bits: bool [k], True for a record that took part.
        """
        said_in = scores >= self.high
        said_out = scores <= self.low
        right_in = np.count_nonzero(said_in & bits)
        right_out = np.count_nonzero(said_out & ~bits)
        guessed = np.count_nonzero(said_in | said_out)
        return Guesses(
            correct=int(right_in + right_out),
            guessed=int(guessed),
            coins=bits.size,
        )


def one_run_bound(guesses: Guesses, *, delta: float = 0.0, confidence: float = 0.95) -> float:
    """The largest epsilon that these guesses contradict; 0 if they contradict none.

    Args:
        delta: the delta of the claim under test.
        confidence: 1 minus the false-alarm rate.

    Raises:
        MechanismError: inconsistent counts, or a delta or confidence that is not a probability.

    Examples:
        >>> guesses = Guesses(correct=90, guessed=100, coins=200)
        >>> round(one_run_bound(guesses), 2)
        1.63
    """
    v, r = guesses.correct, guesses.guessed
    if not 0 <= v <= r <= guesses.coins:
        raise MechanismError(
            f"{v} right of {r} guesses at {guesses.coins} coins: inconsistent counts",
            kind="inconsistent-counts",
        )
    if not 0 <= delta < 1 or not 0 < confidence < 1:
        raise MechanismError(
            f"delta is {delta} and confidence {confidence}, but both must be probabilities below 1",
            kind="not-a-probability",
        )
    alarm = 1 - confidence
    if v == 0:
        return 0.0
    lowest_chance = beta.ppf(alarm, v, r - v + 1)
    top = max(0.0, float(logit(lowest_chance)))
    if delta == 0 or top == 0:
        return top

    def excess(epsilon: float) -> float:
        return one_run_p_value(guesses, epsilon=epsilon, delta=delta) - alarm

    # A delta can only raise the p-value, so the answer lies in [0, top].
    if excess(0.0) > 0:
        return 0.0
    if excess(top) <= 0:
        return top
    return safe_root(excess, 0.0, top, xtol=1e-12)


def one_run_p_value(guesses: Guesses, *, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of at least this many right guesses under (epsilon, delta)
    (Steinke et al. 2023, theorem 5.2 and appendix D).
    """
    v, r = guesses.correct, guesses.guessed
    q = expit(epsilon)
    p = float(binom.sf(v - 1, r, q))
    if delta > 0 and v > 0:
        # alpha = max over i of P[v > B >= v - i] / i
        falling = np.arange(v - 1, -1, -1)
        tail = np.cumsum(binom.pmf(falling, r, q))
        alpha = np.max(tail / np.arange(1, v + 1))
        p += 2 * guesses.coins * delta * float(alpha)
    return min(p, 1.0)


def choose(scores: np.ndarray, bits: np.ndarray) -> Rule:
    """The rule with the largest one-run bound on these scores (delta 0). Apply it to other runs.

    Args:
        scores: float [k], larger for members. All ties at a threshold count, as in `apply`.
        bits: bool [k].
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    member = bits[order]
    k = len(ordered)
    if k == 0:
        return Rule(-math.inf, math.inf)
    steps = np.geomspace(1, k, 40).astype(int)
    sizes = np.unique(np.concatenate([[0], steps]))
    right_in = _first_sums(member)[sizes]
    right_out = _first_sums(~member[::-1])[sizes]
    guessed = sizes[:, None] + sizes[None, :]
    v = right_in[:, None] + right_out[None, :]
    possible = (v > 0) & (guessed <= k)
    with np.errstate(invalid="ignore"):
        lowest_chance = beta.ppf(0.05, v, guessed - v + 1)
    bound = np.where(possible, lowest_chance, 0.0)
    best = int(np.argmax(bound))
    i, j = np.unravel_index(best, bound.shape)
    high = ordered[sizes[i] - 1] if sizes[i] else math.inf
    low = ordered[k - sizes[j]] if sizes[j] else -math.inf
    if low >= high:  # ties made the two sides meet: keep the `in` side
        low = float(np.nextafter(high, -math.inf))
    return Rule(float(low), float(high))


def _first_sums(flags: np.ndarray) -> np.ndarray:
    """How many of the first 0, 1, … flags are set, int64 [k + 1]."""
    return np.concatenate([[0], np.cumsum(flags)])


def confidence_logit(log_likelihood: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) for p = exp(l), float64. It is nearly Gaussian over models (Carlini et al.
    2022, section V).
    """
    ell = np.minimum(np.asarray(log_likelihood, dtype=np.float64), -1e-9)
    return ell - np.log(-np.expm1(ell))


@dataclass(frozen=True)
class Reference:
    """One Gaussian per record for runs that included it and one for runs that did not. All arrays
    are float64 [n].
    """

    mean_in: np.ndarray
    mean_out: np.ndarray
    std_in: np.ndarray
    std_out: np.ndarray

    def likelihood_ratio(self, seen: np.ndarray) -> np.ndarray:
        """log N(seen; in) - log N(seen; out), [..., n]: LiRA with reference runs of both kinds (its
        "online" form).
        """
        log_in = norm.logpdf(seen, self.mean_in, self.std_in)
        log_out = norm.logpdf(seen, self.mean_out, self.std_out)
        return log_in - log_out


_PRIOR = 8.0
"""Weight of the pooled variance in each record's variance, in runs: a few runs estimate a variance
poorly.
"""


def reference(seen: np.ndarray, bits: np.ndarray) -> Reference:
    """Fits a reference to R runs.

    Args:
        seen: float [R, n].
        bits: bool [R, n]. A record that was in all runs, or in none, gets the common mean.

    Raises:
        MechanismError: fewer than two runs.
    """
    if len(seen) < 2:
        raise MechanismError(
            f"{len(seen)} reference run(s); a reference needs at least 2", kind="too-few-references"
        )
    included = bits if bits.any() else ~bits
    excluded = bits if bits.all() else ~bits
    mean_in, std_in = _gaussian(seen, included)
    mean_out, std_out = _gaussian(seen, excluded)
    return Reference(
        mean_in=mean_in,
        mean_out=mean_out,
        std_in=std_in,
        std_out=std_out,
    )


def _gaussian(seen: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = chosen.sum(0)
    total = np.where(chosen, seen, 0.0).sum(0)
    common_mean = total.sum() / max(count.sum(), 1)
    own_mean = total / np.maximum(count, 1)
    mean = np.where(count > 0, own_mean, common_mean)
    squares = np.where(chosen, (seen - mean) ** 2, 0.0).sum(0)
    freedom = np.maximum(count - 1, 0)
    pooled = squares.sum() / max(float(freedom.sum()), 1.0)
    variance = (_PRIOR * pooled + squares) / (_PRIOR + freedom)
    return mean, np.sqrt(np.maximum(variance, 1e-8))
