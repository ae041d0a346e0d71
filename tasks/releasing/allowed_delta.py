"""The usual delta of a formal claim, or the smaller one that a policy allows; nothing else is asked."""

from __future__ import annotations

from storage.ledger import Policy

USUAL = 1e-5
"""Well below one over the number of records of a few tens of thousands."""


def of_policy(policy: Policy, population: str) -> float:
    """The smallest formal cap on delta of any cohort of a population, at most the usual one."""
    budget = policy.populations.get(population, policy.default)
    caps = () if budget is None else (budget.formal, *(own.formal for own in budget.cohorts.values()))
    return min([USUAL, *(float(cap.delta) for cap in caps if cap is not None and cap.delta is not None)])
