"""Checks a plan against its ledger and policy: what gate, approvals and publication take."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property

from mechanisms.errors import MechanismError
from storage.ledger import Ledger, Policy, ReleasePlan, Row
from storage.ledger.content import release_terms
from storage.ledger.decisions import Matter
from tasks.releasing.evidence import Measurement, measurement_of
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


@dataclass(frozen=True)
class CheckedPlan:
    """Holds a plan that could be released, the policy in force, its release if it has one, and what is signed of it."""

    planned: PlannedRelease
    ledger: Ledger
    policy: Policy
    released: Row | None
    """The current row of its release."""
    matter: Matter
    """What a signature on it is about."""

    @property
    def plan(self) -> ReleasePlan:
        return self.planned.plan

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of everything that an approval covers."""
        return self.matter.digest

    @cached_property
    def measurement(self) -> Measurement | None:
        """Returns the audit that speaks most against the claim, or the best one for it; None without any audit."""
        return measurement_of(
            self.ledger,
            fitted=self.planned.candidate.fitted.sha256,
            fingerprint=self.plan.data_fingerprint,
            event=self.plan.event,
            claim=self.plan.claim,
            minimum=self.policy.audit_reach,
        )

    def require_current(self, context: Context) -> None:
        """Requires, of a plan without a release, that it is this ledger's and states how its fit was chosen."""
        if self.released is not None:
            return
        self.ledger.require_here(self.plan)
        now = self.planned.selection_now(self.ledger, context)
        # guard: test_the_number_left_out_or_another
        if now != self.planned.selection:
            raise MechanismError(
                f"this plan is out of date: {now.since(self.planned.selection)}. Partners are told this, so the plan "
                "must state it. Nothing was charged. State it again, which takes seconds and needs approvals again: "
                f"`autocoder plan {shlex.quote(str(self.planned.file(context)))} --renew`. Then release it"
            )


def check(planned: PlannedRelease, ledger: Ledger, policy: Policy | None = None) -> CheckedPlan:
    """Returns a plan with what the ledger knows of it now.

    Args:
        policy: by default the one in force.
    """
    plan = planned.plan
    matter = Matter("release", planned.digest, release_terms(plan), plan.requester)
    return CheckedPlan(planned, ledger, policy or ledger.policy(), ledger.find(plan.idempotency_key), matter)
