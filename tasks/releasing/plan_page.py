"""Builds the page that an officer reads before deciding. Each topic has a question, a verdict and
an answer.

The terminal, the HTML page and the run's Markdown page have the same answers. The wording is in
templates; this file computes figures and verdicts.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mechanisms.privacy.events import Claim, ParallelEvent, is_exact
from storage.bundle.stated import AccuracyFigures, accuracy_lines
from storage.figures import delta_text
from storage.figures import epsilon_text as up
from storage.figures import left_text as down
from storage.ingest import Units
from storage.ledger import (
    BudgetRefused,
    Charge,
    Ledger,
    ReleaseRow,
)
from storage.ledger.decisions import approver_of
from storage.ledger.fold import Sought
from storage.ledger.models import Exact
from storage.ledger.records import RecordSet
from storage.ledger.registry import other_population_names
from storage.ledger.report import revocation_text
from storage.ledger.wording import describe_successors
from tasks.bundle.sentences import sentences_of
from tasks.bundle.texts import describe_encoder
from tasks.bundle.untold import REASONS, states_scale
from tasks.pages.render import Table, render
from tasks.releasing.case import ReleaseCase
from tasks.releasing.code_lists import CodeListVerdict
from tasks.releasing.decisions import ApprovalStatus
from tasks.releasing.evidence import CONTRADICTED, INCONCLUSIVE
from tasks.releasing.ledger_access import describe_large_delta
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.promise import promise_of
from tasks.releasing.scores import accuracy_by_epsilon, candidate_scores, reference_f1
from tasks.releasing.surroundings import Desk, Surroundings, desk_of, told_by_bundle
from tasks.running.stage import Context

NOTICE = (
    "Private. This page holds figures that were computed from the records without protection, "
    "among them how well the "
    "model codes. It is for anyone who decides on the release; do not publish it or pass it on."
)
Verdict = Literal["fine", "investigate", "warning"]
LARGE = 0.1
"""Share of the F1 without privacy above which a loss needs review."""
PlanVerdict = Verdict | Literal["note"]
"""`note`: worth knowing, but nothing has to be done about it."""
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
    figures: Mapping[str, object]
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
    case: ReleaseCase
    answers: tuple[Answer, ...]
    assumed: tuple[Mapping[str, str], ...]
    revoked: str = ""
    """When and why that release was revoked, and who has it."""
    units: Units | None = None
    """Units of its records. None if each record is a unit, or if the records are elsewhere."""
    told: AccuracyFigures | None = None
    """`accuracy.json` of its bundle. None before its release, or if no accuracy is reported."""

    @property
    def planned(self) -> PlannedRelease:
        return self.case.planned

    @property
    def status(self) -> ApprovalStatus:
        return self.case.approvals

    @property
    def file(self) -> str:
        return str(self.case.file)

    @property
    def released(self) -> ReleaseRow | None:
        """The ledger's row of its release, if it has one."""
        return self.case.released

    @property
    def title(self) -> str:
        return "Planned release" if self.released is None else "Release"

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the answers. A release needs no decision, unless it was revoked."""
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


def page_of(case: ReleaseCase, here: Surroundings | None = None) -> PlanPage:
    """Answers an officer's questions about a plan, the promise first.

    Args:
        here: facts from the plan's workspace, or None if the records are not available.
    """
    here = here or Surroundings()
    records, planned, ledger = here.records, case.planned, case.ledger
    claim, ingest = planned.plan.claim, planned.method.get("data", {}).get("ingest", {})
    statements = sentences_of(
        {
            "guarantee_kind": claim.guarantee_kind,
            "mechanism": planned.plan.event.of_training.mechanism,
            "neighbouring_relation": claim.neighbouring_relation,
            "max_records_per_unit": claim.max_records_per_unit,
            "privacy_unit": claim.privacy_unit,
            # for a method that does not report it, assume the weaker promise
            "sampling": ingest.get("sampling", "stratified"),
            "train_before": ingest.get("train_before"),
            "exact_arithmetic": is_exact(planned.plan.event),
            "accuracy_stated": isinstance(planned.plan.event, ParallelEvent),
            "scale_stated": states_scale(planned.plan.event),
        }
        | ({} if case.measurement is None else {"audit": case.measurement.line})
    )
    scores = candidate_scores(case.measurements, planned)
    answers = [
        _promise(planned),
        _accuracy(scores, case),
        _autocoded(scores, table=isinstance(planned.plan.event, ParallelEvent)),
        _cost(case, records),
        _leakage(case, here.desk),
        *([] if here.lists is None else [_lists(here.lists)]),
        *(
            []
            if here.outdated is None
            else [Answer("outdated", "warning", {"why": here.outdated.text})]
        ),
        _related_releases(planned, ledger, records),
        _decision(case, here.desk),
    ]
    assumed = tuple(statement for statement in statements if statement["status"] == "assumed")
    released = case.released
    revoked = "" if released is None else revocation_text(ledger, released.release_id)
    return PlanPage(case, tuple(answers), assumed, revoked, here.units, here.told)


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
        ("licence", _licence(page.planned.output.licence)),
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


def _licence(name: str) -> str:
    # every licence in `tasks.bundle.licence.SPDX` lets its holder pass the work on
    return f"The model is published under {name}, which lets everyone who gets it pass it on."


def _accuracy_for_partners(page: PlanPage) -> str:
    if page.told is not None:
        return "; ".join(accuracy_lines(page.told))
    planned = page.planned
    event = planned.plan.event
    if not isinstance(event, ParallelEvent):
        return f"none: {REASONS[planned.untold or 'no noise']}"
    decides = (
        "its unit alone decides whether a record"
        if event.split == "unit"
        else "the record alone decides whether it"
    )
    tables = (
        "one noisy table of the held-out records, in two parts, for the scale of the scores and "
        "for the accuracy"
        if states_scale(event)
        else "noisy counts of the held-out records"
    )
    return (
        f"{tables}, drawn with the model, at no further cost: {decides} is a training or a "
        "held-out record"
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


def _values(page: PlanPage) -> dict[str, object]:
    figures = {answer.key: answer.figures for answer in page.answers}
    return {
        "page": page,
        "plan": page.planned.plan,
        "claim": page.planned.plan.claim,
        "figures": figures,
        "basis": render("plan_words.txt", part="basis", key="promise", f=figures["promise"]),
        "facts": facts(page),
        "marks": MARKS,
        "output": page.planned.output,
    }


def _leakage(case: ReleaseCase, desk: Desk | None) -> Answer:
    measurement, formal = case.measurement, case.plan.claim.guarantee_kind == "formal"
    if measurement is None:
        required = case.policy.require_audit
        figures = {
            "audited": False,
            "formal": formal,
            "file": shlex.quote(str(case.file)),
            "required": required,
            "at_desk": desk is not None,
        }
        return Answer("leakage", "note" if formal and not required else "warning", figures)
    verdicts: dict[str, PlanVerdict] = {CONTRADICTED: "warning", INCONCLUSIVE: "investigate"}
    verdict, row = measurement.verdict, measurement.ledger_sequence
    figures = {"audited": True, "verdict": verdict, "line": measurement.line, "row": row}
    return Answer("leakage", verdicts.get(verdict, "fine"), figures)


def _promise(planned: PlannedRelease) -> Answer:
    claim, formal = planned.plan.claim, planned.plan.claim.guarantee_kind == "formal"
    large_delta = describe_large_delta(planned.plan.records_rounded, claim.delta)
    figures: dict[str, object] = {
        "claim": claim,
        "mechanism": planned.plan.event.of_training.mechanism,
        "formal": formal,
        "sentences": promise_of(claim, planned.plan.event),
    }
    figures |= {"large_delta": large_delta}
    proven = "note" if claim.unprotected_inputs else "fine"
    return Answer("promise", proven if formal and not large_delta else "investigate", figures)


def _cost(case: ReleaseCase, records: RecordSet | None) -> Answer:
    plan, released = case.plan, case.released
    if released is not None:
        return _cost_of_released(case, released)
    same = release_of_fit(case)
    figures: dict[str, object] = {"released": None, "policy": case.policy.name, "refusal": None}
    figures["same_fit"] = None if same is None else same.release_id
    figures["by_name_alone"] = records is None
    try:
        charges = case.ledger.quote(plan, records=records)
    except BudgetRefused as refused:
        return Answer("cost", "warning", figures | {"refusal": str(refused), "fits": 0})
    figures["accounts"] = len(charges)
    tightest = min(charges, key=lambda charge: charge.balance.left)
    epsilon_left, cap = tightest.balance.left, tightest.epsilon_cap
    figures["left"], figures["cap"] = down(epsilon_left), up(cap)
    figures["delta"] = _shared_delta(charges)
    figures["claim_delta"] = _claim_beside_budget(plan.claim, tightest)
    figures["alone"] = up(tightest.alone)
    figures["budget"] = _releases(tightest)
    more = min(charge.balance.more or 0 for charge in charges)
    figures["by_squares"] = tightest.after.rule == "gaussian"
    figures["further"] = f"ε {down(epsilon_left)} is left, with {describe_successors(more)}"
    figures["after"] = [up(tightest.after.epsilon), up(cap)]
    spent = [charge.account for charge in charges if _spends_delta(charge)]
    figures["delta_spent"] = spent
    figures["large_delta"] = _large_delta(case, charges)
    verdict: PlanVerdict = "fine"
    if same is not None:
        verdict = "warning"
    elif spent or figures["large_delta"]:
        verdict = "investigate"
    return Answer("cost", verdict, figures, table=_charges(charges))


def _large_delta(case: ReleaseCase, charges: Sequence[Charge]) -> dict[str, str] | None:
    """Returns the policy's δ and the number of records if δ is too large for them, else None."""
    caps = [charge.after.delta_cap for charge in charges if charge.after.delta_cap is not None]
    records = case.policy.round_records(case.plan.records_rounded)
    if not caps or not describe_large_delta(records, float(max(caps))):
        return None
    more = "more than" if max(caps) * records > 1 else "close to"
    return {"delta": delta_text(max(caps)), "records": f"{records:,}", "more": more}


def _shared_delta(charges: Sequence[Charge]) -> str | None:
    """Returns the δ of all accounts, or None if they differ or if claims are added
    up at the sum of their deltas.
    """
    kept_at = {charge.after.delta_cap if charge.after.exact else None for charge in charges}
    (delta_cap,) = kept_at if len(kept_at) == 1 else (None,)
    return None if delta_cap is None else delta_text(delta_cap)


def _claim_beside_budget(claim: Claim, charge: Charge) -> Literal["smaller", "same"] | None:
    """Returns how the claim's δ compares with the account's, if that explains the
    difference in ε.
    """
    cap = charge.after.delta_cap
    if cap is None or claim.delta is None or claim.epsilon is None:
        return None
    relation = charge.after.neighbouring_relation
    if relation is not None and relation != claim.neighbouring_relation:
        return None  # claims for different neighbouring relations also differ for that reason
    exact = Exact.of(claim)
    delta, epsilon = exact.delta, exact.epsilon
    assert delta is not None
    assert epsilon is not None
    if delta < cap and charge.alone < epsilon:
        return "smaller"
    # only with Gaussian noise is the share of δ that is set aside the sole reason
    of_noise = delta == cap and charge.after.rule == "gaussian" and charge.alone > epsilon
    return "same" if of_noise and up(charge.alone) != up(epsilon) else None


def _cost_of_released(case: ReleaseCase, released: ReleaseRow) -> Answer:
    revoked = case.ledger.revocation(released.release_id)
    verdict: PlanVerdict = "note"
    state: str = released.state
    if revoked is not None:
        verdict, state = "warning", f"REVOKED on {revoked.recorded_at[:10]}"
    figures = {
        "released": released.release_id,
        "state": state,
        "refusal": None,
        "epsilon": None if released.epsilon is None else up(released.epsilon),
        "cohorts": case.plan.cohorts,
    }
    return Answer("cost", verdict, figures)


def _spends_delta(charge: Charge) -> bool:
    """Whether an account that adds up claims has none of its delta left afterwards."""
    after = charge.after
    if after.exact or after.delta_cap is None:
        return False
    return after.delta >= after.delta_cap


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
    """Tabulates the charges. Spent amounts include releases of the same records
    under other names.
    """
    head = ["account", "ε spent before", "this release", "after", "cap", "remains"]
    with_delta = any(charge.after.delta_cap is not None for charge in charges)
    exact = all(due.after.exact for due in charges if due.after.delta_cap is not None)
    head += [] if not with_delta else ["at δ"] if exact else ["δ after", "δ cap"]
    rows = []
    for due in charges:
        after, spent = due.after, due.earlier
        name = due.account + ("" if due.own else " (shares records)")
        row = [
            name,
            *map(up, (spent, after.epsilon - spent, after.epsilon, due.epsilon_cap)),
            down(due.balance.left),
        ]
        if with_delta and exact:
            row.append("–" if after.delta_cap is None else delta_text(after.delta_cap))
        elif with_delta:
            row += [
                delta_text(after.delta),
                "–" if after.delta_cap is None else delta_text(after.delta_cap),
            ]
        rows.append(row)
    return head, rows


def _accuracy(scores: Mapping[str, float], case: ReleaseCase) -> Answer:
    planned = case.planned
    reference = reference_f1(case.measurements, planned)
    loss = None if reference is None or not scores else reference - scores["weighted_f1"]
    curve = accuracy_by_epsilon(case.measurements, planned)
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


def _autocoded(scores: Mapping[str, float], *, table: bool) -> Answer:
    """Answers how much can be coded without a person, from exact counts.

    Args:
        table: whether a noisy table of the held-out records is planned, from which the bundle's
        thresholds
            come.
    """
    alone = {
        name.removeprefix("coverage_at_"): share
        for name, share in scores.items()
        if name.startswith("coverage_at_")
    }
    figures = {
        "alone": alone,
        "missing": [target for target, share in alone.items() if not share],
        "scores": scores,
        "table": table,
        "points": [(int(target), 100 * share) for target, share in alone.items()],
    }
    return Answer("alone", "fine" if alone and not figures["missing"] else "note", figures)


def _lists(words: Sequence[CodeListVerdict]) -> Answer:
    to_be_signed = any(word.verdict == "to be signed" for word in words)
    noted = not words or any(word.is_demonstration for word in words)
    verdict: PlanVerdict = "note" if noted else "fine"
    return Answer("lists", "investigate" if to_be_signed else verdict, {"words": words})


def _related_releases(planned: PlannedRelease, ledger: Ledger, records: RecordSet | None) -> Answer:
    overlaps = ledger.overlaps(Sought.of(planned.plan), records=records)
    names = other_population_names(planned.plan.population, overlaps)
    figures = {
        "others": overlaps,
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
        for row, shares in ((overlap.row, overlap.shares) for overlap in overlaps)
    ]
    verdict: Verdict = "warning" if names else "investigate" if overlaps else "fine"
    return Answer("related", verdict, figures, table=(head, rows) if rows else None)


def _decision(case: ReleaseCase, desk: Desk | None) -> Answer:
    status = case.approvals
    rule = status.policy.approvals
    refusal = _refusal(case)
    figures = {
        "policy": status.policy.name,
        "minimum": rule.minimum,
        "wanted": rule.signatures_required,
        "approvers": sorted(rule.approvers),
        "given": status.approved,
        "missing": status.missing,
        "problems": status.problems,
        "refusal": refusal,
        "released": case.released is not None,
        "file": shlex.quote(str(case.file)),
        **_commands(case, desk),
    }
    open_ = status.missing or status.problems
    return Answer(
        "decision",
        "warning" if refusal is not None else "investigate" if open_ else "fine",
        figures,
    )


def _commands(case: ReleaseCase, desk: Desk | None) -> dict[str, str]:
    """Returns the commands that decide on a plan where its page is read."""
    file = shlex.quote(str(case.file))
    sign = f"autocoder approve {file}"
    if desk is not None and desk.home is not None:
        sign += f" --home {shlex.quote(desk.home)}"
    approve, refuse = f"{sign} --key KEY.pem", f'{sign} --refuse --key KEY.pem --reason "…"'
    if desk is None:
        return {"approve": approve, "refuse": refuse, "release": f"autocoder release {file}"}
    return {
        "approve": f"{approve} --print > approval.txt",
        "refuse": f"{refuse} --print > refusal.txt",
        "release": "",
    }


def _refusal(case: ReleaseCase) -> dict[str, object] | None:
    """Returns who refused a plan, when, why, and the ledger's row, which is None if the ledger does
    not have the refusal yet.
    """
    row = case.ledger.refusal(case.plan)
    if row is not None:
        decision, by, number = row.entry.decision, row.entry.by, row.sequence
    elif case.approvals.refusal is not None:
        decision, number = case.approvals.refusal, None
        by = approver_of(case.policy.approvals, decision.key_id)
    else:
        return None
    return {
        "by": by,
        "on": decision.signed_at[:10],
        "reason": decision.reason,
        "row": number,
    }


def release_of_fit(case: ReleaseCase) -> ReleaseRow | None:
    """Returns the newest release of exactly this fit under any plan, or None.

    A posterior has none, because each draw of it is another model.
    """
    if case.planned.candidate.is_sampled:
        return None
    fit = case.planned.candidate.fitted.sha256
    rows = [row for row in case.ledger.releases() if row.state != "burned"]
    same = (row for row in reversed(rows) if row.plan.artifact_digests.get("fit") == fit)
    return next(same, None)


def load_plan_page(context: Context, case: ReleaseCase) -> PlanPage:
    """Loads the page of a plan from its workspace and ledger. Changes nothing."""
    here, told = Surroundings.of(context, case), told_by_bundle(context, case)
    return page_of(case, replace(here, told=told, desk=desk_of(context, case)))
