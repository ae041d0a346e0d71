"""The planned release as an officer reads it before deciding: a question, a verdict and an answer for each matter.

The same answers stand in the terminal, on a page of one's own (HTML) and on the run's page (Markdown). Their words are
templates; what is here are figures and verdicts.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from storage.ledger import BudgetRefused, Charge, Ledger, ReleasePlan
from storage.ledger.amounts import as_replace_one
from storage.ledger.content import plan_content
from storage.ledger.records import RecordSet
from storage.ledger.siblings import others_names, siblings
from tasks.bundle.sentences import said_of
from tasks.pages.render import Table, render
from tasks.parameters import RELEASED
from tasks.releasing import formal_offer, gate, recorded
from tasks.releasing.approval import Standing
from tasks.releasing.at_hand import AtHand
from tasks.releasing.budget_table import down, up
from tasks.releasing.code_lists import Word
from tasks.releasing.made_with import made_with
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.recommendation import LARGE, Figures, Recommendation, Verdict, loss_of, recommend

NOTICE = (
    "Private. This page holds figures that were computed from the records without protection, among them how well the "
    "model codes. It is for whoever decides on the release; do not publish it or pass it on."
)
MARKS: dict[Verdict, str] = {"fine": "✓ fine", "look": "● look at this", "warning": "▲ warning"}


@dataclass(frozen=True)
class Answer:
    """One question about a plan: its verdict, and the figures in its answer's words."""

    key: str
    verdict: Verdict
    figures: Mapping[str, Any]
    table: Table | None = None

    @property
    def question(self) -> str:
        """In words."""
        return render("plan_words.txt", part="question", key=self.key, f=self.figures).strip()

    @property
    def text(self) -> str:
        """The answer in words, one paragraph."""
        return " ".join(render("plan_words.txt", part="answer", key=self.key, f=self.figures).split())


@dataclass(frozen=True)
class PlanPage:
    """A plan with all that is known of it."""

    planned: PlannedRelease
    standing: Standing
    file: str
    answers: tuple[Answer, ...]
    assumed: tuple[Mapping[str, str], ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the answers'."""
        found = {answer.verdict for answer in self.answers}
        return "warning" if "warning" in found else "look" if "look" in found else "fine"

    @property
    def summary(self) -> str:
        """How many questions speak against the release."""
        against = [answer.question for answer in self.answers if answer.verdict == "warning"]
        open_ = [answer.question for answer in self.answers if answer.verdict == "look"]
        if against:
            return f"{len(against)} of {len(self.answers)} answers speak against this release"
        return (
            f"nothing speaks against it; {len(open_)} of {len(self.answers)} answers want a look"
            if open_
            else "nothing speaks against it"
        )


def page_of(
    planned: PlannedRelease, ledger: Ledger, standing: Standing, *, file: str, found: AtHand | None = None
) -> PlanPage:
    """Ask all that an officer would ask of a plan, the measured leakage first.

    Args:
        file: path that the officer gives to `autocoder approve`.
        found: what the workspace says of it; None: the records are not at hand.
    """
    found = found or AtHand()
    records = found.records
    claim = planned.plan.claim
    said = said_of(
        {
            "guarantee_kind": claim.guarantee_kind,
            "mechanism": planned.plan.event.mechanism,
            "max_records_per_unit": claim.max_records_per_unit,
            "unprotected_inputs": claim.unprotected_inputs,
            **({"fields": list(planned.fields)} if planned.fields else {}),
        }
    )
    estimated = claim.guarantee_kind != "formal"
    own = recorded.own_scores(ledger, planned)
    alternatives = recorded.compared(ledger, planned.plan.data_fingerprint)
    recommended = recommend(alternatives)
    answers = [
        _leakage(planned, ledger, file),
        _promise(planned),
        _cost(planned, ledger, records),
        _accuracy(own, _better(recommended.reference, recorded.own_reference(ledger, planned))),
        _alone(own),
        *([] if found.lists is None else [_lists(found.lists)]),
        *([] if found.outdated is None else [Answer("outdated", "warning", {"why": found.outdated})]),
        *([_formal(planned, ledger, recommended, own, records)] if estimated else []),
        *([_diagnostics(planned, ledger, file)] if estimated or recorded.diagnosed(ledger, planned.plan) else []),
        _siblings(planned, ledger, records),
        _decision(standing, file),
    ]
    assumed = tuple(one for one in said if one["status"] == "assumed")
    return PlanPage(planned, standing, file, tuple(answers), assumed)


def markdown(page: PlanPage) -> str:
    """The page as Markdown."""
    return render("plan.md", **_values(page))


def html(page: PlanPage) -> str:
    """The page as one HTML file. Nothing in it comes from another file or address."""
    return render("plan.html", notice=NOTICE, **_values(page))


def facts(page: PlanPage) -> list[tuple[str, str]]:
    """What the plan is, apart from its verdicts: names and digests."""
    plan = page.planned.plan
    return [
        ("population", plan.population),
        ("cohorts", ", ".join(plan.cohorts)),
        ("records (rounded)", f"{page.standing.policy.round_records(plan.records_rounded):,}"),
        ("mechanism", plan.event.mechanism),
        *([("fields", ", ".join(page.planned.fields))] if page.planned.fields else []),
        ("label", plan.release_label),
        ("requested by", plan.requester),
        ("code", plan.code_commit + (" with uncommitted changes" if plan.code_dirty else "")),
        ("data fingerprint", plan.data_fingerprint),
        ("plan", page.file),
        ("digest", page.planned.digest),
    ]


def _values(page: PlanPage) -> dict[str, Any]:
    return {
        "page": page,
        "plan": page.planned.plan,
        "claim": page.planned.plan.claim,
        "facts": facts(page),
        "marks": MARKS,
    }


def _leakage(planned: PlannedRelease, ledger: Ledger, file: str) -> Answer:
    found, formal = gate.measured(ledger, planned), planned.plan.claim.guarantee_kind == "formal"
    if found is None:
        told = {"audited": False, "formal": formal, "file": shlex.quote(file), "asked": ledger.policy().require_audit}
        return Answer("leakage", "look" if formal and not told["asked"] else "warning", told)
    verdicts: dict[str, Verdict] = {gate.CONTRADICTED: "warning", gate.INCONCLUSIVE: "look"}
    told = {"audited": True, "verdict": found.verdict, "line": found.line, "row": found.ledger_sequence}
    return Answer("leakage", verdicts.get(found.verdict, "fine"), told)


def _promise(planned: PlannedRelease) -> Answer:
    claim, formal = planned.plan.claim, planned.plan.claim.guarantee_kind == "formal"
    told = {"claim": claim, "mechanism": planned.plan.event.mechanism, "formal": formal, "fields": planned.fields}
    return Answer("promise", "fine" if formal else "look", told)


def _cost(planned: PlannedRelease, ledger: Ledger, records: RecordSet | None) -> Answer:
    plan = planned.plan
    released = ledger.release_of(plan)
    if released is not None:
        told = {"released": released.release_id, "state": released.state, "refusal": None}
        return Answer("cost", "look", told)
    told: dict[str, Any] = {"released": None, "policy": ledger.policy().name, "refusal": None}
    told["by_name_alone"] = records is None
    try:
        charges = ledger.quote(plan, records=records)
    except BudgetRefused as refused:
        return Answer("cost", "warning", told | {"refusal": str(refused), "fits": 0})
    told |= {"accounts": len(charges), "least": down(min(map(_left, charges)))}
    told["after"] = min((c.epsilon_cap - c.epsilon_after, c.epsilon_after, c.epsilon_cap) for c in charges)[1:]
    told["after"] = [up(value) for value in told["after"]]
    told["delta_spent"] = [c.account for c in charges if c.delta_cap is not None and c.delta_after >= c.delta_cap]
    return Answer("cost", "look" if told["delta_spent"] else "fine", told, table=_charges(charges, plan))


def _charges(charges: Sequence[Charge], plan: ReleasePlan) -> Table:
    """What an account had before is with what it takes over from releases of the same records under other names."""
    head = ["account", "ε spent before", "this release", "after", "cap", "remains"]
    with_delta = any(charge.delta_cap is not None for charge in charges)
    head += ["δ after", "δ cap"] if with_delta else []
    rows = []
    for one in charges:
        name = one.account + (" (shares records)" if one.population else "")
        own = _own(one, plan)
        row = [name, *map(up, (one.epsilon_after - own, own, one.epsilon_after, one.epsilon_cap))]
        row.append(down(_left(one)))
        if with_delta:
            row += [f"{float(one.delta_after):.3g}", "–" if one.delta_cap is None else f"{float(one.delta_cap):.3g}"]
        rows.append(row)
    return head, rows


def _own(charge: Charge, plan: ReleasePlan) -> Decimal:
    """What the release itself costs an account, in the account's relation."""
    content = plan_content(plan)
    if charge.neighbouring_relation == content["neighbouring_relation"]:
        return content["epsilon"]
    return as_replace_one(content["epsilon"], content["delta"])[0]


def _left(charge: Charge) -> Decimal:
    return charge.epsilon_cap - charge.epsilon_after


def _better(*references: Figures | None) -> Figures | None:
    """What a loss is told against: the best fit without privacy, of a comparison or of the retrain itself."""
    known = [one for one in references if one is not None]
    return max(known, key=lambda one: one.weighted_f1, default=None)


def _accuracy(own: Mapping[str, float], reference: Figures | None) -> Answer:
    told: dict[str, Any] = {"own": own, "reference": None, "loss": None}
    if own and reference is not None:
        gap = reference.weighted_f1 - own["weighted_f1"]
        told |= {"reference": reference, "loss": gap}
        return Answer("accuracy", "look" if gap > LARGE * reference.weighted_f1 else "fine", told)
    return Answer("accuracy", "look", told)  # a figure beside nothing says neither that it is good nor what was lost


def _alone(own: Mapping[str, float]) -> Answer:
    alone = {name.removeprefix("alone_at_"): share for name, share in own.items() if name.startswith("alone_at_")}
    told = {"alone": alone, "missing": [target for target, share in alone.items() if not share], "own": own}
    return Answer("alone", "fine" if alone and not told["missing"] else "look", told)


def _lists(words: Sequence[Word]) -> Answer:
    refused = any(word.verdict == "refused" for word in words)
    verdict: Verdict = "warning" if refused else "fine" if words else "look"
    return Answer("lists", verdict, {"words": words, "refused": refused})


def _formal(
    planned: PlannedRelease,
    ledger: Ledger,
    recommended: Recommendation,
    own: Mapping[str, float],
    records: RecordSet | None,
) -> Answer:
    chosen = recommended.chosen
    told: dict[str, Any] = {"chosen": chosen, "gap": None, "offer": formal_offer.offer(ledger, planned, records)}
    if chosen is None:
        return Answer("formal", "look", told)
    told |= {"loss": loss_of(chosen, recommended.reference), "audit": chosen.audit or "not audited"}
    if own:
        told["gap"] = own["weighted_f1"] - chosen.weighted_f1
    return Answer("formal", "look", told)


def _diagnostics(planned: PlannedRelease, ledger: Ledger, file: str) -> Answer:
    found = recorded.diagnosed(ledger, planned.plan)
    if found is None:
        return Answer("diagnostics", "look", {"found": None, "file": shlex.quote(file), "branch": _branch(planned)})
    told = {verdict: [key for key, one in found.items() if one == verdict] for verdict in ("warning", "look", "fine")}
    verdict: Verdict = "warning" if told["warning"] else "look" if told["look"] else "fine"
    return Answer("diagnostics", verdict, {"found": told, "of": len(found)})


def _branch(planned: PlannedRelease) -> str | None:
    """The branch of a comparison that a plan is of, which `diagnose` cannot look at; None of a retrain, or unknown."""
    branch = made_with(planned).get("branch", RELEASED)
    return None if branch == RELEASED else str(branch)


def _siblings(planned: PlannedRelease, ledger: Ledger, records: RecordSet | None) -> Answer:
    found = siblings(ledger, planned.plan, records=records)
    names = others_names(planned.plan, found)
    told = {"found": found, "names": names, "population": planned.plan.population, "marked": records is not None}
    head = ["release", "population", "cohorts", "mechanism", "guarantee", "ε", "state", "shares"]
    rows = [
        [
            *(one.release_id, one.population, ", ".join(one.cohorts), one.mechanism, one.guarantee_kind),
            *("–" if one.epsilon is None else up(Decimal(one.epsilon)), one.state, one.shares),
        ]
        for one in found
    ]
    verdict: Verdict = "warning" if names else "look" if found else "fine"
    return Answer("siblings", verdict, told, table=(head, rows) if rows else None)


def _decision(standing: Standing, file: str) -> Answer:
    rule = standing.policy.approvals
    told = {
        "policy": standing.policy.name,
        "minimum": rule.minimum,
        "wanted": rule.wanted,
        "approvers": sorted(rule.approvers),
        "given": standing.approved,
        "missing": standing.missing,
        "problems": standing.problems,
        "refused": standing.refusal is not None,
        "file": shlex.quote(file),
    }
    verdict: Verdict = "warning" if told["refused"] else "look" if standing.missing or standing.problems else "fine"
    return Answer("decision", verdict, told)
