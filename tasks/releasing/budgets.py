"""Shows budgets: the charge of a release, what accounts have left, and the plans that wait."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from mechanisms.privacy.events import Claim
from mechanisms.privacy.numerics import epsilon_text
from storage.artifacts import ArtifactRef
from storage.errors import Fault, InputError
from storage.figures import delta_text
from storage.ledger import BudgetRefused, Ledger, Policy, ReleaseRow, amounts, budget, recovery
from storage.ledger.budget import Balance, accounts_of
from storage.ledger.fold import Sought
from storage.ledger.registry import other_population_names
from storage.ledger.wording import BudgetLine, budget_json, describe_balance
from storage.paths import Workspace
from tasks.fitting.ingest import ingest_figures
from tasks.parameters import LedgerParameters, RetrainParameters
from tasks.releasing import gate, ledger_access
from tasks.releasing.case import ReleaseCase
from tasks.releasing.claims import privacy_unit
from tasks.releasing.ledger_access import default_delta, describe_large_delta
from tasks.releasing.ledger_records import find_record_set
from tasks.releasing.plan import PlannedRelease, release_lock
from tasks.running.stage import Context
from tasks.running.worker_metrics import RunningStage, running_stages


@dataclass(frozen=True)
class ExpectedCharge:
    """The charge of one release to each of its cohorts."""

    population: str
    guarantee_kind: str
    epsilon: float | None
    """None if it is not measured yet."""
    delta: float | None
    policy: str
    accounts: tuple[Balance, ...]
    others: tuple[str, ...] = ()
    """Other population names under which the same records were released."""
    by_name_alone: bool = False
    """True if the ledger has releases but the records are not available, so that
    overlaps are not counted yet.
    """
    other_unit: str | None = None
    """The unit that earlier releases of the population protect, if it differs. The
    release would be refused.
    """
    warning: str = ""
    """Warning that delta is large for the number of records; empty if it is not."""

    @property
    def exceeds(self) -> bool:
        """Whether the charge exceeds the balance of any account."""
        return self.other_unit is not None or not all(account.fits for account in self.accounts)

    @property
    def line(self) -> str:
        if self.epsilon is None:
            return f"ε as measured: twice Δ, known after training ({self.guarantee_kind})"
        delta = "" if self.delta is None else f", δ {delta_text(self.delta)}"
        return f"ε {epsilon_text(self.epsilon)}{delta} ({self.guarantee_kind})"

    @property
    def budget(self) -> list[str]:
        """The balances as lines. Accounts with equal balances share a line."""
        states: dict[tuple[str, str], list[str]] = {}
        for line in self.accounts:
            states.setdefault(
                (line.account.population, describe_balance(line, self.policy)), []
            ).append(line.account.cohort)
        lines = []
        for (population, text), cohorts in states.items():
            names = ", ".join(cohorts[:6]) + (
                f" and {len(cohorts) - 6} more" if len(cohorts) > 6 else ""
            )
            lines += f"{population}/{names}: {text}".split("\n")
        if self.other_unit is not None:
            lines.append(
                f"{self.population}: earlier releases protect a {self.other_unit}, so their costs "
                "cannot be added"
            )
        return lines

    @staticmethod
    def of(
        context: Context,
        parameters: RetrainParameters,
        cohorts: Sequence[str],
        *,
        train: int,
        claim: Claim | None = None,
        dataset: ArtifactRef | None = None,
    ) -> ExpectedCharge:
        """Returns the charge of these parameters for records of these cohorts. Creates no ledger.

        Epsilons are as claimed. An account under the replace-one relation is charged more than the
        claim.

        Args:
            train: approximate number of training records, which determines the default delta.
            claim: the claim, once it is measured.
            dataset: the records if they were already ingested. Releases of them under other names
                are then counted too.
        """
        method = parameters.method
        kind, epsilon, delta = method.guarantee_kind, method.target_epsilon, method.delta
        if kind == "formal":
            if delta is None:
                delta = default_delta(context, parameters, records=train)
        elif claim is not None:
            kind, epsilon, delta = claim.guarantee_kind, claim.epsilon, claim.delta
        population, settings = parameters.data.population, parameters.release
        unit = privacy_unit(parameters.data.ingest)[0] if claim is None else claim.privacy_unit
        account_names = accounts_of(population, sorted(cohorts), unit)
        projected = [budget.Account(*name, kind) for name in account_names]
        other_unit: str | None = None
        names: tuple[str, ...] = ()
        by_name = False
        ledger = ledger_access.existing_ledger(context, settings)
        policy = ledger_access.given_policy(settings) if ledger is None else ledger.policy()
        if ledger is not None:
            fingerprint = ""
            records = None if dataset is None else find_record_set(context, dataset)
            by_name = records is None and any(line.used for line in ledger.budget())
            if dataset is not None and records is not None:
                fingerprint = ingest_figures(context.store, dataset)["fingerprint"]
                query = Sought(population, tuple(cohorts), fingerprint, kind)
                overlapping = ledger.overlaps(query, records=records)
                names = other_population_names(population, overlapping)
            # guard: test_what_is_shown_before_is_what_is_charged
            projected, other_unit = ledger.projected_balance(
                kind, population, sorted(cohorts), unit, fingerprint=fingerprint, records=records
            )
        accounts = _balances(policy, projected, epsilon=epsilon, delta=delta)
        warning = describe_large_delta(train, delta)
        return ExpectedCharge(
            population,
            kind,
            epsilon,
            delta,
            policy.name,
            accounts,
            names,
            by_name,
            other_unit,
            warning,
        )


def _balances(
    policy: Policy,
    accounts: Iterable[budget.Account],
    *,
    epsilon: float | None,
    delta: float | None,
) -> tuple[Balance, ...]:
    """Returns the balances of the accounts after a claim, or their current balances
    if epsilon is None.
    """
    balances: list[Balance] = []
    claimed_delta = amounts.delta(delta) if delta else None
    for account in accounts:
        cap = policy.cap(account.population, account.cohort, account.guarantee_kind)
        if epsilon is None:
            balances.append(Balance(account, cap))
        else:
            balances.append(Balance.of_claim(account, cap, amounts.epsilon(epsilon), claimed_delta))
    return tuple(balances)


class LedgerPlace(TypedDict):
    row: int
    hash: str
    policy: str


class OpenRelease(TypedDict):
    release: str
    state: str
    since: str
    remedy: str
    """The next command to type; empty while the release is in progress."""


class WaitingPlan(TypedDict):
    """A plan without a release, and what it is waiting for."""

    file: str
    population: str
    label: str
    epsilon: float | None
    approved_by: tuple[str, ...]
    missing: int
    """Number of approvals that are still needed."""
    refused: str | None
    unfit: str | None
    """Why the budget would refuse it."""
    obstacle: str | None
    releasing: bool
    unaudited: bool
    remedy: str
    """The next command to type."""


class LedgerOverview(TypedDict):
    ledger: LedgerPlace | None
    budget: list[BudgetLine]
    open_releases: list[OpenRelease]
    plans: list[WaitingPlan]
    stages: list[RunningStage]


def ledger_overview(context: Context, settings: LedgerParameters) -> LedgerOverview:
    """Returns the ledger's head, budgets in use, open releases, plans without a
    release, and running stages.
    """
    stages = running_stages(context.workspace.private)
    ledger = ledger_access.existing_ledger(context, settings)
    if ledger is None:
        return {"ledger": None, "budget": [], "open_releases": [], "plans": [], "stages": stages}
    sequence, row_hash = ledger.head()
    return {
        "ledger": {"row": sequence, "hash": row_hash, "policy": ledger.policy().name},
        "budget": budget_json([line for line in ledger.budget() if line.used]),
        "open_releases": [
            {
                "release": row.release_id,
                "state": row.state,
                "since": row.recorded_at,
                "remedy": _next_of_open(context, row),
            }
            for row in ledger.open_releases()
        ],
        "plans": _plans(context, ledger),
        "stages": stages,
    }


def resuming_command(workspace: Workspace, row: ReleaseRow) -> str | None:
    """Returns the command that resumes an open release without a second charge, or None if it
    cannot be resumed from this workspace.
    """
    file = workspace.private / "plans" / f"{row.plan.idempotency_key[:16]}.json"
    if not file.is_file() or recovery.assess(row, workspace).step not in recovery.RESUMED:
        return None
    return f"autocoder release {shlex.quote(str(file))}"


def _next_of_open(context: Context, row: ReleaseRow) -> str:
    if context.store.is_locked(release_lock(row.plan)):
        return ""
    return resuming_command(context.workspace, row) or "autocoder ledger recover"


def _plans(context: Context, ledger: Ledger) -> list[WaitingPlan]:
    plans: list[WaitingPlan] = []
    for file in sorted((context.workspace.private / "plans").glob("*.json")):
        try:
            planned = PlannedRelease.load(file)
            case = ReleaseCase.read(context, planned, ledger, file=file)
        except (InputError, BudgetRefused):
            continue  # it must be planned again before it can be released
        if case.released is not None:
            continue
        status, obstacle = case.approvals, gate.obstacle(case)
        refusal = ledger.refusal(planned.plan)
        unaudited, quoted = case.measurement is None, shlex.quote(str(file))
        unfit = None if refusal is not None else _over_budget(context, case)
        releasing = context.store.is_locked(release_lock(planned.plan))
        if refusal is not None or releasing:
            remedy = ""
        elif unfit is not None:
            remedy = _without_budget(case, unfit, quoted)
        elif obstacle is not None:
            remedy = f"autocoder {'audit' if unaudited else 'plan show'} {quoted}"
        elif status.missing:
            remedy = f"autocoder approve {quoted} --key YOUR-KEY.pem"
        else:
            remedy = f"autocoder release {quoted}"
        plans.append(
            {
                "file": str(file),
                "population": planned.plan.population,
                "label": planned.plan.release_label,
                "epsilon": planned.plan.claim.epsilon,
                "approved_by": status.approved,
                "missing": status.missing,
                "refused": None if refusal is None else refusal.entry.reason,
                "unfit": None if unfit is None else unfit.text,
                "obstacle": None if obstacle is None else obstacle.text,
                "releasing": releasing,
                "unaudited": unaudited,
                "remedy": remedy,
            }
        )
    return plans


def _over_budget(context: Context, case: ReleaseCase) -> Fault | None:
    """Returns why the budget would refuse a plan now. Records nothing."""
    try:
        records = find_record_set(context, case.planned.candidate.dataset)
        case.ledger.quote(case.plan, records=records)
    except BudgetRefused as refused:
        return Fault(str(refused), kind=refused.kind)
    return None


def _without_budget(case: ReleaseCase, unfit: Fault, quoted: str) -> str:
    if case.policy.approvals.approvers:
        return f'autocoder approve {quoted} --refuse --key YOUR-KEY.pem --reason "…"'
    if unfit.kind == "over-cap":
        return "repeat its command, `autocoder train`, with a smaller ε"
    return f"autocoder plan {quoted}"
