"""Builds the page that an officer reads before the decision: a question, a verdict and an answer
for each matter.

The terminal, the HTML page and the Markdown page of the run have the same answers. Templates hold
the words; this file computes figures and verdicts.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mechanisms.errors import MechanismError
from mechanisms.model.config import TARGETS
from mechanisms.privacy.events import ParallelEvent, is_exact
from storage.bundle.stated import accuracy_lines, read_stated
from storage.errors import InputError, StorageError
from storage.figures import delta_text
from storage.figures import epsilon_text as up
from storage.figures import left_text as down
from storage.ingest import Units, units_of
from storage.ledger import (
    BudgetRefused,
    Charge,
    ComparisonFit,
    Evaluated,
    Ledger,
    ReleaseRow,
    Sensitivity,
)
from storage.ledger.fold import Sought
from storage.ledger.records import RecordSet
from storage.ledger.registry import other_population_names
from storage.ledger.report import revocation_text
from storage.ledger.wording import describe_successors
from storage.paths import Workspace
from tasks.bundle.sentences import sentences_of
from tasks.bundle.texts import describe_encoder
from tasks.pages.render import Table, render
from tasks.parameters import LedgerParameters
from tasks.releasing import approval, code_lists, gate
from tasks.releasing.approval import ApprovalStatus
from tasks.releasing.code_lists import CodeListVerdict
from tasks.releasing.evidence import CONTRADICTED, INCONCLUSIVE
from tasks.releasing.gate import CheckedPlan
from tasks.releasing.ledger_access import describe_large_delta, existing_ledger
from tasks.releasing.ledger_records import save_record_set
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.promise import promise_of
from tasks.releasing.test_half import REASONS
from tasks.running.stage import Context

NOTICE = (
    "Private. This page holds figures that were computed from the records without protection, "
    "among them how well the "
    "model codes. It is for anyone who decides on the release; do not publish it or pass it on."
)
Verdict = Literal["fine", "investigate", "warning"]
LARGE = 0.1
"""Share of the F1 without privacy from which a loss calls for review."""
PlanVerdict = Verdict | Literal["note"]
"""`note`: worth knowing, and nothing has to be done about it."""
MARKS: dict[PlanVerdict, str] = {
    "fine": "✓ fine",
    "note": "○ note",
    "investigate": "● review",
    "warning": "▲ warning",
}


@dataclass(frozen=True)
class Answer:
    key: str
    verdict: PlanVerdict
    figures: Mapping[str, Any]
    table: Table | None = None

    @property
    def question(self) -> str:
        return render("plan_words.txt", part="question", key=self.key, f=self.figures).strip()

    @property
    def text(self) -> str:
        return " ".join(
            render("plan_words.txt", part="answer", key=self.key, f=self.figures).split()
        )


@dataclass(frozen=True)
class PlanPage:
    planned: PlannedRelease
    status: ApprovalStatus
    file: str
    answers: tuple[Answer, ...]
    assumed: tuple[Mapping[str, str], ...]
    released: ReleaseRow | None = None
    """The ledger's row of its release, where it has one."""
    revoked: str = ""
    """When and why that release was revoked, and who has it."""
    units: Units | None = None
    """Of its records; None where a record is the unit, or where the records are elsewhere."""
    told: Mapping[str, Any] | None = None
    """`accuracy.json` of its bundle; None before its release, or where nothing is stated."""

    @property
    def title(self) -> str:
        return "Planned release" if self.released is None else "Release"

    @property
    def verdict(self) -> Verdict:
        """Returns the worst verdict of the answers; of a release nothing is left to decide, unless
        it was revoked.
        """
        if self.released is not None:
            return "warning" if self.revoked else "fine"
        verdicts = {answer.verdict for answer in self.answers}
        return (
            "warning"
            if "warning" in verdicts
            else "investigate"
            if "investigate" in verdicts
            else "fine"
        )

    @property
    def summary(self) -> str:
        if self.released is not None and self.revoked:
            return f"release {self.released.release_id}: {self.revoked}"
        if self.released is not None:
            subject = (
                f"{self.released.release_id}, {self.released.state} "
                f"{self.released.recorded_at[:10]}"
            )
            return f"released already ({subject}); nothing has to be decided"
        verdicts = [answer.verdict for answer in self.answers]
        against, open_ = verdicts.count("warning"), verdicts.count("investigate")
        objections = "no objection" if not against else _counted(against, "objection")
        judgement = "" if not open_ else f"; {_counted(open_, 'answer')} for you to judge"
        return objections + judgement


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def page_of(
    plan: CheckedPlan, status: ApprovalStatus, *, file: str, context: PlanContext | None = None
) -> PlanPage:
    """Answers what an officer would ask about a plan, the promise first.

    Args:
        file: path that the officer gives to `autocoder approve`.
        context: the plan's context in its workspace; None: the records are not available.
    """
    context = context or PlanContext()
    records, planned, ledger = context.records, plan.planned, plan.ledger
    claim = planned.plan.claim
    statements = sentences_of(
        {
            "guarantee_kind": claim.guarantee_kind,
            "mechanism": planned.plan.event.of_training.mechanism,
            "neighbouring_relation": claim.neighbouring_relation,
            "max_records_per_unit": claim.max_records_per_unit,
            # of a method that does not say it, the weaker promise
            "sampling": planned.method.get("data", {})
            .get("ingest", {})
            .get("sampling", "stratified"),
            "exact_arithmetic": is_exact(planned.plan.event),
            "accuracy_stated": isinstance(planned.plan.event, ParallelEvent),
        }
    )
    scores = candidate_scores(ledger, planned)
    answers = [
        _promise(planned),
        _accuracy(scores, ledger, planned),
        _alone(scores),
        _cost(plan, records),
        _leakage(plan, file),
        *([] if context.lists is None else [_lists(context.lists)]),
        *(
            []
            if context.outdated is None
            else [Answer("outdated", "warning", {"why": context.outdated})]
        ),
        _siblings(planned, ledger, records),
        _decision(status, file),
    ]
    assumed = tuple(statement for statement in statements if statement["status"] == "assumed")
    revoked = "" if plan.released is None else revocation_text(ledger, plan.released.release_id)
    return PlanPage(
        planned,
        status,
        file,
        tuple(answers),
        assumed,
        plan.released,
        revoked,
        context.units,
        context.told,
    )


def markdown(page: PlanPage) -> str:
    return render("plan.md", **_values(page))


def html(page: PlanPage) -> str:
    return render("plan.html", notice=NOTICE, **_values(page))


def facts(page: PlanPage) -> list[tuple[str, str]]:
    plan, model = page.planned.plan, page.planned.candidate.model
    return [
        ("population", plan.population),
        ("cohorts", ", ".join(plan.cohorts)),
        ("records (rounded)", f"{page.status.policy.round_records(plan.records_rounded):,}"),
        *_units(page),
        ("mechanism", plan.event.of_training.mechanism),
        ("accuracy for partners", _accuracy_for_partners(page)),
        ("precision", page.planned.output.precision),
        *([("in eight bits too", "model.int8.onnx")] if page.planned.output.int8 else []),
        ("licence", page.planned.output.licence),
        ("encoder", describe_encoder(model.encoder, page.planned.output.encoder)),
        ("language of the encoder", model.encoder_language or "not known: it is your own"),
        ("language of the stems", model.stems_language or "none: it reads no stems"),
        ("label", plan.release_label),
        ("requested by", plan.requester),
        ("code", plan.code_commit + (" with uncommitted changes" if plan.code_dirty else "")),
        ("data fingerprint", plan.data_fingerprint),
        ("plan", page.file),
        ("digest", page.planned.digest),
    ]


def _accuracy_for_partners(page: PlanPage) -> str:
    if page.told is not None:
        return "; ".join(accuracy_lines(page.told))
    planned = page.planned
    event = planned.plan.event
    if not isinstance(event, ParallelEvent):
        return f"none: {REASONS[planned.untold or 'no noise']}"
    decides = "all records of its unit" if event.split == "unit" else "a record itself"
    return (
        f"a noisy table of the test half, drawn with the model, at no further cost: {decides} "
        "decides its half"
    )


def _units(page: PlanPage) -> list[tuple[str, str]]:
    if page.units is None:
        return []
    rounded = page.status.policy.round_records(page.units.number)
    cap = page.planned.plan.claim.max_records_per_unit
    return [
        ("units (rounded)", f"{rounded:,}"),
        ("most records of a unit", f"{page.units.largest:,}, of which at most {cap:,} are used"),
    ]


def _values(page: PlanPage) -> dict[str, Any]:
    return {
        "page": page,
        "plan": page.planned.plan,
        "claim": page.planned.plan.claim,
        "figures": {answer.key: answer.figures for answer in page.answers},
        "facts": facts(page),
        "marks": MARKS,
        "output": page.planned.output,
    }


def _leakage(plan: CheckedPlan, file: str) -> Answer:
    measurement, formal = plan.measurement, plan.plan.claim.guarantee_kind == "formal"
    if measurement is None:
        required = plan.policy.require_audit
        figures = {
            "audited": False,
            "formal": formal,
            "file": shlex.quote(file),
            "required": required,
        }
        return Answer("leakage", "note" if formal and not required else "warning", figures)
    verdicts: dict[str, PlanVerdict] = {CONTRADICTED: "warning", INCONCLUSIVE: "investigate"}
    verdict, row = measurement.verdict, measurement.ledger_sequence
    figures = {"audited": True, "verdict": verdict, "line": measurement.line, "row": row}
    return Answer("leakage", verdicts.get(verdict, "fine"), figures)


def _promise(planned: PlannedRelease) -> Answer:
    claim, formal = planned.plan.claim, planned.plan.claim.guarantee_kind == "formal"
    large_delta = describe_large_delta(planned.plan.records_rounded, claim.delta)
    figures: dict[str, Any] = {
        "claim": claim,
        "mechanism": planned.plan.event.of_training.mechanism,
        "formal": formal,
        "sentences": promise_of(claim, planned.plan.event),
    }
    figures |= {"large_delta": large_delta}
    proven = "note" if claim.unprotected_inputs else "fine"
    return Answer("promise", proven if formal and not large_delta else "investigate", figures)


def _cost(checked: CheckedPlan, records: RecordSet | None) -> Answer:
    plan, released = checked.plan, checked.released
    if released is not None:
        charged = {
            "epsilon": None if released.epsilon is None else up(released.epsilon),
            "cohorts": plan.cohorts,
        }
        revoked = checked.ledger.revocation(released.release_id)
        state = released.state if revoked is None else f"REVOKED on {revoked.recorded_at[:10]}"
        figures = {"released": released.release_id, "state": state, "refusal": None, **charged}
        return Answer("cost", "note" if revoked is None else "warning", figures)
    same = release_of_fit(checked.ledger, checked.planned)
    figures: dict[str, Any] = {"released": None, "policy": checked.policy.name, "refusal": None}
    figures["same_fit"] = None if same is None else same.release_id
    figures["by_name_alone"] = records is None
    try:
        charges = checked.ledger.quote(plan, records=records)
    except BudgetRefused as refused:
        return Answer("cost", "warning", figures | {"refusal": str(refused), "fits": 0})
    figures["accounts"] = len(charges)
    tightest = min(charges, key=lambda charge: charge.balance.left)
    figures["left"], figures["cap"] = down(tightest.balance.left), up(tightest.epsilon_cap)
    delta_cap = tightest.after.delta_cap
    figures["delta"] = None if delta_cap is None else delta_text(delta_cap)
    figures["budget"] = _releases(tightest)
    more = min(charge.balance.more or 0 for charge in charges)
    figures["further"] = (
        f"ε {down(tightest.balance.left)} is left, with {describe_successors(more)}"
    )
    figures["after"] = [up(tightest.after.epsilon), up(tightest.epsilon_cap)]
    figures["delta_spent"] = [
        charge.account
        for charge in charges
        if not charge.after.exact
        and charge.after.delta_cap is not None
        and charge.after.delta >= charge.after.delta_cap
    ]
    verdict: PlanVerdict = (
        "warning" if same is not None else "investigate" if figures["delta_spent"] else "fine"
    )
    return Answer("cost", verdict, figures, table=_charges(charges))


def _releases(charge: Charge) -> list[tuple[int, float]]:
    after, points = (
        charge.after,
        [(0, float(charge.before.epsilon)), (1, float(charge.after.epsilon))],
    )
    while after.rule == "gaussian" and len(points) < 8 and points[-1][1] < charge.epsilon_cap:
        after = replace(after, spent=after.spent.plus(charge.loss))
        points.append((len(points), float(after.epsilon)))
    return points if points[-1][1] <= charge.epsilon_cap else points[:-1]


def _charges(charges: Sequence[Charge]) -> Table:
    """Tabulates the charges; spent amounts include releases of the same records under other names."""
    head = ["account", "ε spent before", "this release", "after", "cap", "remains"]
    with_delta = any(charge.after.delta_cap is not None for charge in charges)
    head += ["δ after", "δ cap"] if with_delta else []
    rows = []
    for due in charges:
        after, spent = due.after, due.earlier
        name = due.account + ("" if due.own else " (shares records)")
        row = [
            name,
            *map(up, (spent, after.epsilon - spent, after.epsilon, due.epsilon_cap)),
            down(due.balance.left),
        ]
        if with_delta:
            row += [
                f"{float(after.delta):.3g}",
                "–" if after.delta_cap is None else f"{float(after.delta_cap):.3g}",
            ]
        rows.append(row)
    return head, rows


def _accuracy(scores: Mapping[str, float], ledger: Ledger, planned: PlannedRelease) -> Answer:
    reference = reference_f1(ledger, planned)
    loss = None if reference is None or not scores else reference - scores["weighted_f1"]
    curve = accuracy_by_epsilon(ledger, planned)
    if scores and planned.plan.claim.epsilon is not None:
        curve |= {float(f"{planned.plan.claim.epsilon:.3g}"): scores["weighted_f1"]}
    figures = {
        "scores": scores,
        "reference": reference,
        "loss": loss,
        "curve": sorted(curve.items()),
    }
    if loss is None or reference is None:
        return Answer("accuracy", "note", figures)
    return Answer("accuracy", "investigate" if loss > LARGE * reference else "fine", figures)


def _alone(scores: Mapping[str, float]) -> Answer:
    alone = {
        name.removeprefix("alone_at_"): share
        for name, share in scores.items()
        if name.startswith("alone_at_")
    }
    figures = {
        "alone": alone,
        "missing": [target for target, share in alone.items() if not share],
        "scores": scores,
        "points": [(int(target), 100 * share) for target, share in alone.items()],
    }
    return Answer("alone", "fine" if alone and not figures["missing"] else "note", figures)


def _lists(words: Sequence[CodeListVerdict]) -> Answer:
    own = any(word.verdict == "to be signed" for word in words)
    return Answer("lists", "investigate" if own else "fine" if words else "note", {"words": words})


def _siblings(planned: PlannedRelease, ledger: Ledger, records: RecordSet | None) -> Answer:
    others = ledger.overlaps(Sought.of(planned.plan), records=records)
    names = other_population_names(planned.plan.population, others)
    figures = {
        "others": others,
        "names": names,
        "population": planned.plan.population,
        "marked": records is not None,
    }
    head = ["release", "population", "cohorts", "mechanism", "guarantee", "ε", "state", "shares"]
    rows = [
        [
            row.release_id,
            row.plan.population,
            ", ".join(row.plan.cohorts),
            row.plan.event.of_training.mechanism,
            row.guarantee_kind,
            "–" if row.epsilon is None else up(row.epsilon),
            row.state,
            shares,
        ]
        for row, shares in ((other.row, other.shares) for other in others)
    ]
    verdict: Verdict = "warning" if names else "investigate" if others else "fine"
    return Answer("siblings", verdict, figures, table=(head, rows) if rows else None)


def _decision(status: ApprovalStatus, file: str) -> Answer:
    rule = status.policy.approvals
    figures = {
        "policy": status.policy.name,
        "minimum": rule.minimum,
        "wanted": rule.signatures_required,
        "approvers": sorted(rule.approvers),
        "given": status.approved,
        "missing": status.missing,
        "problems": status.problems,
        "refused": status.refusal is not None,
        "file": shlex.quote(file),
    }
    open_ = status.missing or status.problems
    return Answer(
        "decision",
        "warning" if status.refusal is not None else "investigate" if open_ else "fine",
        figures,
    )


def release_of_fit(ledger: Ledger, planned: PlannedRelease) -> ReleaseRow | None:
    """Returns the newest release of the plan's very fit under whatever plan, None where it has
    none.

    A posterior has none: each draw of it is another model.
    """
    if planned.candidate.is_sampled:
        return None
    fit = planned.candidate.fitted.sha256
    rows = [row for row in ledger.releases() if row.state != "burned"]
    same = (row for row in reversed(rows) if row.plan.artifact_digests.get("fit") == fit)
    return next(same, None)


def candidate_scores(ledger: Ledger, planned: PlannedRelease) -> Mapping[str, float]:
    """Returns weighted and macro F1 of a plan's candidate on held-out records, and the shares that
    it codes alone (`calibration.coded_alone`) where measured; empty without scores.
    """
    fitted = planned.candidate.fitted.sha256
    for row in reversed(_scored(ledger)):
        measured = row.evaluation
        if (
            isinstance(measured.subject, ComparisonFit)
            and measured.artifact_digests.get("fit") == fitted
        ):
            return _scores(measured.details)
    return {}


def reference_f1(ledger: Ledger, planned: PlannedRelease) -> float | None:
    """Returns the best weighted F1 without privacy on these records: the retrain's fit without risk
    weights, or a comparison's; None where neither was scored.
    """
    unprotected = [
        row
        for row in _scored(ledger)
        if isinstance(subject := row.evaluation.subject, Sensitivity)
        and subject.round == _UNWEIGHTED
        and row.evaluation.data_fingerprint == planned.plan.data_fingerprint
    ]
    unprotected += [row for row in _compared(ledger, planned) if row.guarantee_kind == "none"]
    return max(map(_weighted_f1, unprotected), default=None)


def accuracy_by_epsilon(ledger: Ledger, planned: PlannedRelease) -> dict[float, float]:
    """Returns the weighted F1 of the plan's mechanism on these records by epsilon, means over a
    comparison's seeds.
    """
    scores: dict[float, list[float]] = {}
    for row in _compared(ledger, planned):
        event, planned_event = row.evaluation.event, planned.plan.event
        same = event and event.of_training.mechanism == planned_event.of_training.mechanism
        if same and row.epsilon is not None:
            scores.setdefault(float(f"{row.epsilon:.3g}"), []).append(_weighted_f1(row))
    return {epsilon: sum(each) / len(each) for epsilon, each in scores.items()}


def _compared(ledger: Ledger, planned: PlannedRelease) -> list[Evaluated]:
    rows = [row for row in _scored(ledger) if isinstance(row.evaluation.subject, ComparisonFit)]
    fingerprint = planned.plan.data_fingerprint
    return [row for row in rows if row.evaluation.data_fingerprint == fingerprint]


def _scored(ledger: Ledger) -> list[Evaluated]:
    return [row for row in ledger.measurements() if _F1 in row.evaluation.details]


def _weighted_f1(row: Evaluated) -> float:
    return row.evaluation.details[_F1]


def _scores(details: Mapping[str, Any]) -> dict[str, float]:
    alone = (f"alone_at_{round(100 * target)}" for target in TARGETS)
    named = (_F1, "macro_f1", *alone, "surest_accuracy", "surest_share")
    return {name: details[name] for name in named if name in details}


_F1 = "weighted_f1"
_UNWEIGHTED = "base"
"""The round of a pseudo posterior whose fit has no risk weights, and no privacy."""


@dataclass(frozen=True)
class PlanContext:
    records: RecordSet | None = None
    """Marks of its records: earlier releases of them, by whatever name, are charged and named with
    it.
    """
    lists: Sequence[CodeListVerdict] | None = ()
    """The gate's verdicts on its code lists; empty without the records, None where no bundle can
    hold the model.
    """
    outdated: str | None = None
    """Why it would be refused as it is: other fits of its records were recorded since, or its fit
    is gone.
    """
    units: Units | None = None
    """Of its records; None where a record is the unit, or without them."""
    told: Mapping[str, Any] | None = None
    """`accuracy.json` of its bundle; None before its release, or where nothing is stated."""

    @staticmethod
    def of(context: Context, plan: CheckedPlan) -> PlanContext:
        """Reads the context; returns defaults where the records are elsewhere, as on an officer's
        machine.
        """
        planned = plan.planned
        folder, private = (
            Path(planned.candidate.dataset.path),
            Workspace(Path(context.home)).private,
        )
        if not folder.is_dir() or not folder.resolve().is_relative_to(private.resolve()):
            return PlanContext()
        try:
            records = save_record_set(context, planned.candidate.dataset)
        except StorageError:
            return PlanContext()
        bundled = planned.has_bundle(context.store)
        lists = (
            (code_lists.assess_dataset(context, planned.candidate.dataset),) if bundled else None
        )
        return PlanContext(records, lists, _outdated(context, plan), units_of(folder))


def _outdated(context: Context, plan: CheckedPlan) -> str | None:
    if plan.released is not None:
        return None  # the choice no longer matters
    try:
        plan.require_current(context)
    except (MechanismError, StorageError, BudgetRefused) as error:
        return str(error)
    return None


def load_plan_page(context: Context, planned: PlannedRelease, *, file: Path) -> PlanPage:
    """Loads the page of a plan from its workspace and ledger, by default the workspace's own.
    Changes nothing.
    """
    ledger = existing_ledger(context, LedgerParameters())
    if ledger is None:
        raise InputError(
            f"{context.home} has no ledger with budget and audits. Give the plan's workspace "
            "(--home), "
            "or AUTOCODER_LEDGER_URL"
        )
    plan = CheckedPlan.of(planned, ledger)
    status = approval.approval_status(context, plan)
    here = replace(PlanContext.of(context, plan), told=_told(context, plan))
    return page_of(plan, status, file=str(file), context=here)


def _told(context: Context, plan: CheckedPlan) -> Mapping[str, Any] | None:
    if plan.released is None:
        return None
    return read_stated(context.workspace.bundles / str(plan.released.release_id))


def require_releasable(context: Context, checked: CheckedPlan) -> None:
    """Refuses to sign what a release would refuse now."""
    plan, ledger = checked.plan, checked.ledger
    if checked.released is not None:
        raise InputError(
            f"plan {plan.release_label}: it is release {checked.released.release_id} already"
        )
    refusal = ledger.refusal(plan)
    if refusal is not None:
        raise InputError(
            f"plan {plan.release_label}: {refusal.entry.reason} (ledger row {refusal.sequence})"
        )
    ledger.require_here(plan)
    here = PlanContext.of(context, checked)
    if here.outdated is not None:
        raise InputError(here.outdated)
    ledger.quote(plan, records=here.records)
    obstacle = gate.obstacle(checked)
    if obstacle is not None:
        raise InputError(f"plan {plan.release_label}: {obstacle}")
