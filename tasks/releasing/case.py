"""Reads the case of a release: its plan, and the ledger's and the policy's facts about it.

A case is read once per process and passed from the command to the seal, so that the ledger is
opened and replayed once, and each signature is checked once. Facts that may change in the meantime
are read again where they count: audits right before the draw, and budget and policy in the
transaction that reserves.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mechanisms.errors import MechanismError
from storage.ledger import Decision, Evaluated, Ledger, Policy, ReleasePlan, ReleaseRow
from storage.ledger.content import release_terms
from storage.ledger.decisions import Matter
from tasks.parameters import LedgerParameters
from tasks.releasing.decisions import ApprovalStatus, count_approvals, saved_decisions
from tasks.releasing.evidence import Measurement, audits_of, measurement_of
from tasks.releasing.ledger_access import require_ledger
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


@dataclass(frozen=True)
class ReleaseCase:
    """A planned release, the ledger and its policy, the release if the plan has
    one, and the signed decisions on it.
    """

    planned: PlannedRelease
    ledger: Ledger
    policy: Policy
    """The current policy."""
    released: ReleaseRow | None
    """The plan's release in its current state."""
    matter: Matter
    """The content that a signature on the plan covers."""
    decisions: tuple[Decision, ...] = ()
    """As they were saved; `approvals` shows which of them count."""
    file: Path = Path("PLAN")
    """Path of the plan, as shown in commands."""

    @staticmethod
    def of(
        planned: PlannedRelease,
        ledger: Ledger,
        *,
        decisions: Sequence[Decision] = (),
        file: Path = Path("PLAN"),
    ) -> ReleaseCase:
        """Returns a plan with the ledger's current facts about it."""
        plan = planned.plan
        matter = Matter("release", planned.digest, release_terms(plan), plan.requester)
        released = ledger.find(plan.idempotency_key)
        return ReleaseCase(
            planned, ledger, ledger.policy(), released, matter, tuple(decisions), file
        )

    @staticmethod
    def read(
        context: Context, planned: PlannedRelease, ledger: Ledger, *, file: Path | None = None
    ) -> ReleaseCase:
        """Returns a plan with the ledger's current facts about it and the decisions
        saved next to it.
        """
        decisions = saved_decisions(context, planned)
        file = file or planned.file(context)
        return ReleaseCase.of(planned, ledger, decisions=decisions, file=file)

    @staticmethod
    def open(
        context: Context, planned: PlannedRelease, settings: LedgerParameters, *, file: Path
    ) -> ReleaseCase:
        """Opens the ledger of a plan, and reads its case. Creates nothing."""
        ledger = require_ledger(context, settings)
        return ReleaseCase.read(context, planned, ledger, file=file)

    def reread(self, context: Context) -> ReleaseCase:
        """Returns the current case from the same open ledger."""
        decisions = saved_decisions(context, self.planned)
        return ReleaseCase.of(self.planned, self.ledger, decisions=decisions, file=self.file)

    def with_plan(self, planned: PlannedRelease) -> ReleaseCase:
        """Returns the case of another version of the plan, such as the reserved one."""
        return ReleaseCase.of(planned, self.ledger, decisions=self.decisions, file=self.file)

    def with_ledger(self, ledger: Ledger) -> ReleaseCase:
        return replace(self, ledger=ledger)

    @property
    def plan(self) -> ReleasePlan:
        return self.planned.plan

    @property
    def digest(self) -> str:
        """SHA-256 of everything that an approval covers."""
        return self.matter.digest

    @cached_property
    def approvals(self) -> ApprovalStatus:
        """The saved decisions that count under the policy, and those that are missing."""
        return count_approvals(self.policy, self.matter, self.decisions)

    @cached_property
    def measurements(self) -> Sequence[Evaluated]:
        """Evaluations and audits from the ledger's table next to its chain, oldest first."""
        return self.ledger.measurements()

    @cached_property
    def audits(self) -> Sequence[Evaluated]:
        """The audits of the plan's own fit, oldest first."""
        return audits_of(self.measurements, self.planned.candidate.fitted.sha256)

    @cached_property
    def measurement(self) -> Measurement | None:
        """The audit with the strongest evidence against the claim, or else the best one for it.
        None if there is no audit.
        """
        return measurement_of(
            self.measurements,
            fitted=self.planned.candidate.fitted.sha256,
            fingerprint=self.plan.data_fingerprint,
            event=self.plan.event,
            claim=self.plan.claim,
            minimum=self.policy.audit_reach,
        )

    def require_current(self, context: Context) -> None:
        """Refuses a plan without a release that belongs to another ledger, or that
        misstates how its fit was chosen.
        """
        if self.released is not None:
            return
        self.ledger.require_here(self.plan)
        now = self.planned.selection_now(self.measurements, context)
        # guard: test_the_number_left_out_or_another
        if now != self.planned.selection:
            raise MechanismError(
                f"this plan is out of date: {now.since(self.planned.selection)}. "
                "Partners are told this, so the plan must contain it. Nothing "
                "was charged. Refresh it, which takes seconds and needs "
                "approvals again: `autocoder plan "
                f"{shlex.quote(str(self.planned.file(context)))} --renew`. Then "
                "release it",
                kind="plan-out-of-date",
            )
