"""Claims of posterior draws in the ledger: reserved in their own account, at delta 0 too, in either relation."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from releases import make_plan

from mechanisms.bounded_posterior import BoundedPosteriorEvent
from mechanisms.privacy.claims import claim_of
from storage.ledger import BudgetRefused, Ledger, Policy, ReleasePlan


def plan_of(bound: float, label: str = "first") -> ReleasePlan:
    event = BoundedPosteriorEvent(bound=bound, prior_std=0.5)
    claim = claim_of(event, delta=1e-4, privacy_unit="record", max_records_per_unit=1, unprotected_inputs=())
    return make_plan(label, event=event, claim=claim, cohorts=("2015",))


def test_a_pure_claim_is_charged_without_delta(tmp_path: Path) -> None:
    """Epsilon 2B of replacing one and delta 0; a second one above the formal cap is refused."""
    policy = Policy.parse({"name": "test", "default": {"formal": {"epsilon": 6, "delta": 1e-6}}})
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", policy=policy)
    row = ledger.reserve(plan_of(2.5))
    (charge,) = row.charges
    assert (Decimal(str(charge.epsilon)), Decimal(str(charge.delta))) == (Decimal(5), Decimal(0))
    with pytest.raises(BudgetRefused):
        ledger.reserve(plan_of(2.5, "second"))
