"""The accounts once more, plainly, by floats, scipy and dp_accounting, against the fold on random
histories.

Nothing here is shared with `storage.ledger` but the events that releases are made of.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from ledger_sites import Site
from refusals import of_kind
from releases import make_plan
from scipy.optimize import brentq
from scipy.stats import norm

from mechanisms.privacy.events import DpSgdEvent, GaussianReleaseEvent, NoiseSegment
from storage.ledger import BudgetRefused, Policy
from storage.ledger.records import RecordSet

EPSILON, DELTA = 6.0, 1e-4
POLICY = Policy.parse({"name": "plain", "default": {"formal": {"epsilon": 6, "delta": "0.0001"}}})
COHORTS = ("2024", "2025", "2026")


@dataclass(frozen=True)
class Asked:
    """A release that someone asks for."""

    key: str
    population: str
    cohorts: tuple[str, ...]
    blocks: frozenset[int]
    """Of records; two releases share records where they have a block in common."""
    kind: str
    """`gaussian`, `sampled`, `pure` or `claimed`."""
    epsilon: float
    delta: float
    noise: float = 0.0
    prob: float = 0.0
    steps: int = 0

    @property
    def accounts(self) -> list[tuple[str, str]]:
        return [(self.population, cohort) for cohort in self.cohorts]


def mu_squared(one: Asked) -> float:
    """Of a pure release the Gaussian's whose trade-off function passes through its corner."""
    if one.kind == "gaussian":
        return 1 / one.noise**2
    return 4 * float(norm.isf(1 / (1 + math.exp(one.epsilon)))) ** 2


def gaussian_delta(rate: float, epsilon: float) -> float:
    mu = math.sqrt(rate)
    return float(
        norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    )


@lru_cache
def loss_distribution(prob: float, noise: float, steps: int) -> Any:
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    step = dp_event.PoissonSampledDpEvent(prob, dp_event.GaussianDpEvent(noise))
    return accountant.compose(dp_event.SelfComposedDpEvent(step, steps))


def exact(counted: Sequence[Asked], rule: str) -> tuple[float, float] | None:
    """Epsilon at 99 % of the cap's delta, and delta at the cap's epsilon; None where the rule knows
    nothing of one.
    """
    first, share = counted[0], 0.99 * DELTA
    if rule == "gaussian" and all(one.kind in ("gaussian", "pure") for one in counted):
        rate = sum(map(mu_squared, counted))
        root: Any = brentq(lambda epsilon: gaussian_delta(rate, epsilon) - share, 0, 100)
        return float(root), gaussian_delta(rate, EPSILON)
    weaker = all(one.prob <= first.prob and one.noise >= first.noise for one in counted)
    if rule == "sampled" and weaker and all(one.kind == "sampled" for one in counted):
        every = loss_distribution(first.prob, first.noise, sum(one.steps for one in counted))
        return every.get_epsilon(share), every.get_delta(EPSILON)
    return None


def fits(counted: Sequence[Asked], rule: str) -> bool:
    epsilon, delta = sum(one.epsilon for one in counted), sum(one.delta for one in counted)
    claims = DELTA if rule == "basic" else DELTA / 100
    if epsilon <= EPSILON and delta <= claims * (1 + 1e-12):
        return True
    sums = exact(counted, rule)
    return sums is not None and sums[1] <= 0.99 * DELTA


def rule_of(counted: Sequence[Asked]) -> str:
    """By which more of the first charge fit, then by the smaller epsilon."""
    rule = "sampled" if counted[0].kind == "sampled" else "gaussian"
    sums = exact(counted, rule)
    if sums is None:
        return "basic"
    numbers = []
    for one in (rule, "basic"):
        number = 1
        while fits(list(counted) * number, one):
            number += 1
        numbers.append(number)
    if numbers[0] == numbers[1]:
        return rule if sums[0] < sum(one.epsilon for one in counted) else "basic"
    return rule if numbers[0] > numbers[1] else "basic"


@dataclass
class Plain:
    """Each account is the list of the releases that it counts."""

    released: list[Asked] = field(default_factory=list)
    accounts: dict[tuple[str, str], list[Asked]] = field(default_factory=dict)
    rules: dict[tuple[str, str], str] = field(default_factory=dict)

    def ask(self, new: Asked) -> bool:
        sharing = [old for old in self.released if old.blocks & new.blocks]
        after = {name: list(counted) for name, counted in self.accounts.items()}
        for name in new.accounts:
            counted = after.setdefault(name, [])
            counted += [new, *(old for old in sharing if old not in counted)]
        for name in {name for old in sharing for name in old.accounts} - set(new.accounts):
            after[name].append(new)
        changed = [name for name in after if after[name] != self.accounts.get(name)]
        rules = self.rules | {
            name: rule_of(after[name]) for name in changed if name not in self.rules
        }
        if not all(fits(after[name], rules[name]) for name in changed):
            return False
        self.accounts, self.rules = after, rules
        self.released.append(new)
        return True


def event_of(one: Asked) -> dict[str, Any]:
    if one.kind == "gaussian":
        return {
            "event": GaussianReleaseEvent(
                what="a vector", noise_multiplier=one.noise, l2_sensitivity=1.0
            )
        }
    if one.kind == "sampled":
        segment = NoiseSegment(steps=one.steps, noise_multiplier=one.noise, l2_clip_norm=1.0)
        return {"event": DpSgdEvent(sampling_prob=one.prob, segments=(segment,))}
    return {}


def some_release(draw: random.Random, number: int) -> Asked:
    kind = draw.choices(["gaussian", "sampled", "pure", "claimed"], [4, 4, 2, 1])[0]
    of_kind: dict[str, dict[str, Any]] = {
        "gaussian": {"epsilon": 1.0, "delta": 1e-7, "noise": draw.choice([4.0, 6.0, 9.0])},
        "sampled": {
            "epsilon": 0.9,
            "delta": 1e-7,
            "noise": draw.choice([1.1, 1.1, 1.3]),
            "prob": 0.02,
        }
        | {"steps": draw.choice([200, 400])},
        "pure": {"epsilon": draw.choice([0.25, 0.5]), "delta": 0.0},
        "claimed": {"epsilon": 0.5, "delta": 1e-7},
    }
    return Asked(
        key=str(number),
        population=draw.choice("ab"),
        cohorts=tuple(sorted(draw.sample(COHORTS, draw.randint(1, 2)))),
        blocks=frozenset(draw.sample(range(12), 2)),
        kind=kind,
        **of_kind[kind],
    )


@pytest.mark.parametrize(
    "seed", [1, 2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_the_fold_charges_and_refuses_as_the_plain_accounts_do(
    sqlite_site: Site, seed: int
) -> None:
    """The same releases, rules and sums, and each epsilon that is shown within a hundredth of
    dp_accounting's.
    """
    draw, plain, ledger = random.Random(seed), Plain(), sqlite_site.open(POLICY)
    refused = 0
    for number in range(40):
        asked = some_release(draw, number)
        claim = {
            "epsilon": asked.epsilon,
            "delta": asked.delta,
            "delta_text": "" if asked.delta else "0: pure",
        }
        contents = [f"{block} {n}".encode() for block in asked.blocks for n in range(5)]
        plan = make_plan(
            asked.key,
            kind="formal",
            claim=claim,
            population=asked.population,
            cohorts=asked.cohorts,
            data_fingerprint=asked.key.rjust(64, "0"),
            **event_of(asked),
        )
        if plain.ask(asked):
            ledger.reserve(plan, records=RecordSet.of(contents, key=b"k" * 32))
        else:
            refused += 1
            with pytest.raises(BudgetRefused, check=of_kind("over-cap")):
                ledger.reserve(plan, records=RecordSet.of(contents, key=b"k" * 32))
    assert refused > 3
    accounts = {(one.population, one.cohort): one for one in ledger.state().accounts.values()}
    assert accounts.keys() == plain.accounts.keys()
    assert len(set(plain.rules.values())) > 1
    for name, counted in plain.accounts.items():
        account, spent = accounts[name], accounts[name].spent
        assert account.rule == plain.rules[name]
        assert float(spent.epsilon) == pytest.approx(sum(one.epsilon for one in counted))
        assert float(spent.delta) == pytest.approx(sum(one.delta for one in counted), abs=1e-15)
        sums = exact(counted, plain.rules[name])
        if sums is not None:
            claimed = float(spent.epsilon) if float(spent.delta) <= DELTA / 100 else math.inf
            assert float(account.epsilon) == pytest.approx(min(sums[0], claimed), abs=0.01)
    assert ledger.verify().ok
