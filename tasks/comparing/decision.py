"""Renders `decision.html`, which answers the questions of whoever approves a release.

It shows the loss of each branch at each epsilon with its audit, and a recommendation that is computed from the figures
 (`tasks/releasing/recommendation.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.durable import write_atomically
from storage.ledger.policy import ALL_COHORTS
from tasks.comparing import figures, protocols
from tasks.comparing.assessment import BranchAssessment
from tasks.comparing.run import Comparison
from tasks.pages.render import Table, render
from tasks.releasing import ledger_access
from tasks.releasing.budgets import budget_table
from tasks.releasing.recommendation import Recommendation, Verdict, exclusion_reason, recommend

NOTICE = (
    "Internal. These figures are computed from private records without protection. Keep this file in the private "
    "workspace; do not publish it or pass it on."
)

_CLEARLY = 0.01
"""Share of the F1 without privacy by which a private fit has to exceed it to cast doubt on it."""


@dataclass(frozen=True)
class Row:
    """Shows one branch at one claim as a table row."""

    cells: tuple[str, ...]
    chosen: bool
    excluded: bool
    plan: str | None
    """The anchor of its plan on the page."""


@dataclass(frozen=True)
class Answer:
    """Answers one question: a verdict, a sentence, and the figures behind it."""

    key: str
    question: str
    verdict: Verdict
    text: str
    rows: tuple[Row, ...] = ()
    picture: str | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Decision:
    """Holds a comparison with its recommendation."""

    comparison: Comparison
    rows: tuple[BranchAssessment, ...]
    recommendation: Recommendation

    @staticmethod
    def of(comparison: Comparison, rows: Sequence[BranchAssessment]) -> Decision:
        """Computes the recommendation from the rows alone."""
        return Decision(comparison, tuple(rows), recommend([row.figures for row in rows]))


def write(folder: Path, decisions: Sequence[Decision], *, kinds: str) -> None:
    """Writes the page, self-contained HTML, next to a comparison's report."""
    text = render(
        "decision.html",
        notice=NOTICE,
        kinds=kinds,
        population=decisions[0].comparison.study.parameters.data.population,
        seeds=len(decisions[0].comparison.seeds),
        parts=[_part(one, number) for number, one in enumerate(decisions)],
        plans=plan_entries(decisions),
    )
    write_atomically(folder / "decision.html", text.encode())


def plan_entries(decisions: Sequence[Decision]) -> list[Mapping[str, str]]:
    """Returns name, anchor, file and shell-quoted file of every plan, in the order of the rows."""
    return [
        {"name": _titled(row), "anchor": _anchor(row, number), "file": row.plan, "shown": shlex.quote(row.plan)}
        for number, one in enumerate(decisions)
        for row in one.rows
        if row.plan is not None
    ]


def branch_rows(one: Decision, number: int) -> tuple[Row, ...]:
    """Returns the rows of all branches: without privacy first, then by kind, title and falling epsilon."""
    order = {"none": 0, "formal": 1, "asymptotic-local": 2}
    rows = sorted(one.rows, key=lambda row: (order[row.figures.kind], row.figures.title, -(row.figures.epsilon or 0)))
    return tuple(_row(row, one.recommendation, number) for row in rows)


def _part(one: Decision, number: int) -> Mapping[str, Any]:
    study = one.comparison.study
    facts = study.facts
    return {
        "title": protocols.protocol_title(study.parameters),
        "prefix": f"part-{number}-",
        "train": facts["train"],
        "test": facts["test"],
        "observed": facts["codes_observed"],
        "codes": facts["label_space"],
        "answers": [_recommended(one), _losses(one, number), _refuted(one), _budget(one), _missing(one)],
    }


def _recommended(one: Decision) -> Answer:
    recommendation, fault = one.recommendation, reference_fault(one)
    verdict = "investigate" if fault and recommendation.verdict == "fine" else recommendation.verdict
    return Answer("what", "What should be released?", verdict, " ".join(filter(None, (recommendation.sentence, fault))))


def _losses(one: Decision, number: int) -> Answer:
    reference, formal = one.recommendation.reference, [row for row in one.rows if row.figures.kind == "formal"]
    if reference is None:
        text = "The loss is unknown: no fit without privacy was compared. Add one with --branches non-private,…"
    elif not formal:
        text = f"{reference.title} reaches {reference.weighted_f1:.3f}; no formal branch was compared with it."
    else:
        best: dict[float, BranchAssessment] = {}
        for row in sorted(formal, key=lambda row: row.figures.weighted_f1):
            best[round(row.figures.epsilon or 0.0, 2)] = row  # noise is solved to a little below its target
        losses = [
            f"ε {epsilon:.3g}: {_loss(best[epsilon], one.recommendation)} ({best[epsilon].figures.title})"
            for epsilon in sorted(best)
        ]
        text = f"Of {reference.weighted_f1:.3f} without privacy the best formal branch loses, at {'; '.join(losses)}."
    fault = reference_fault(one)
    return Answer(
        "losses",
        "How much does each branch lose, and at which ε?",
        "warning" if fault else "fine" if one.recommendation.loses_little else "investigate",
        " ".join(filter(None, (text, fault))),
        rows=branch_rows(one, number),
        picture=figures.losses([row.figures for row in one.rows], reference),
    )


def reference_fault(one: Decision) -> str:
    """Returns why the fit without privacy is not one to measure losses against; empty where nothing shows that."""
    reference = one.recommendation.reference
    if reference is None:
        return ""
    better = [
        row
        for row in one.rows
        if row.figures.kind != "none"
        and (apart := row.figures.minus(reference)).conclusive
        and apart.gap > _CLEARLY * reference.weighted_f1
    ]
    falling = [o for o in one.comparison.outcomes if o.branch.name == reference.name and still_falls(o.losses)]
    reasons = [f"{_named(better)} exceeds it"] * bool(better) + ["its loss still falls at the end"] * bool(falling)
    if not reasons:
        return ""
    return (
        f"{reference.title} is not a sound reference: {' and '.join(reasons)}. Losses against it mean little. Train it "
        "longer (--epochs) or at a higher rate (--set fit.adamw.learning_rate=…)."
    )


def still_falls(losses: Sequence[float]) -> bool:
    """Checks whether the last tenth of the epochs brought a twentieth or more of all that the loss fell."""
    if len(losses) < 2:
        return False
    fell, last = losses[0] - losses[-1], losses[-1 - max(1, len(losses) // 10)] - losses[-1]
    return fell > 0 and last >= fell / 20


def _refuted(one: Decision) -> Answer:
    claimed = [row for row in one.rows if row.figures.kind != "none"]
    refuted = [row for row in claimed if row.figures.audit == "contradicted"]
    unaudited = [row for row in claimed if row.figures.audit is None]
    if refuted:
        text = f"An audit contradicts {_named(refuted)}: they leak more than they claim. The gate refuses them."
        verdict: Verdict = "warning"
    elif len(unaudited) == len(claimed):
        text = "No claim was audited, so leakage is unknown. Run `autocoder audit` with the same options."
        verdict = "investigate"
    else:
        text = "None of the audited ones. A small bound does not prove privacy."
        verdict = "investigate" if unaudited else "fine"
    also = f" Not audited: {_named(unaudited)}." if unaudited and len(unaudited) < len(claimed) else ""
    return Answer("refuted", "Which claims are refuted?", verdict, text + also)


def _budget(one: Decision) -> Answer:
    study = one.comparison.study
    ledger = ledger_access.open_ledger(study.context, study.parameters.release)
    cohorts, population = set(study.facts["cohorts"]), study.parameters.data.population
    lines = [
        line
        for line in ledger.budget()
        if line.account.population in (population, "*") and line.account.cohort in (*cohorts, "*", ALL_COHORTS)
    ]
    over = [row for row in one.rows if row.figures.refused and "over the cap" in row.figures.refused]
    text = f"Under policy {ledger.policy().name}" + (
        f" the budget is too small for {_named(over)}." if over else " each claim alone fits the budget."
    )
    verdict = "investigate" if over else "fine"
    return Answer("budget", "What does the budget allow?", verdict, text, table=budget_table(lines))


def _missing(one: Decision) -> Answer:
    comparison = one.comparison
    lacking = []
    if len(comparison.seeds) < 3:
        lacking.append(f"{len(comparison.seeds)} seed{'s' * (len(comparison.seeds) > 1)} show little of the spread")
    if not comparison.further:
        lacking.append("a single target ε (--epsilons 1,2,5 fits the formal branches at several)")
    if one.recommendation.reference is None:
        lacking.append("no fit without privacy")
    if not any(row.figures.kind == "formal" for row in one.rows):
        lacking.append("no formal branch")
    if any(row.figures.audit is None for row in one.rows if row.figures.kind != "none"):
        lacking.append("claims without an audit")
    text = "; ".join(lacking).capitalize() + "." if lacking else "Nothing that this page checks."
    return Answer("missing", "What was not examined?", "investigate" if lacking else "fine", text)


def _row(row: BranchAssessment, recommendation: Recommendation, number: int) -> Row:
    one = row.figures
    chosen, excluded = one == recommendation.chosen, exclusion_reason(one)
    verdict = "recommended" if chosen else excluded or "possible"
    cells = (
        one.title,
        verdict,
        one.kind,
        "–" if one.kind == "none" else one.relation,
        "–" if one.epsilon is None else f"{one.epsilon:.3g}",
        "–" if one.epsilon_replaced is None else f"{one.epsilon_replaced:.3g}",
        "–" if one.delta is None else f"{one.delta:g}",
        f"{one.weighted_f1:.3f}" + (f" ± {one.spread:.3f}" if one.seeds > 1 else ""),
        "–" if one == recommendation.reference else _loss(row, recommendation),
        "–" if one.macro_f1 is None else f"{one.macro_f1:.3f}",
        "–" if one.lower_bound is None else f"{one.lower_bound:.3g}",
        "–" if row.auc is None else f"{row.auc:.3f}",
        "–" if one.kind == "none" else one.audit or "not audited",
    )
    return Row(cells, chosen, bool(excluded), None if row.plan is None else _anchor(row, number))


def _loss(row: BranchAssessment, recommendation: Recommendation) -> str:
    """Formats the loss in points of F1 with its standard error over test records, and as a share."""
    if recommendation.reference is None:
        return "–"
    apart, reference = row.figures.minus(recommendation.reference), recommendation.reference.weighted_f1
    share = f" ({-apart.gap / reference:.1%})" if reference > 0 else ""
    error = "" if apart.of_records is None else f" ± {apart.of_records:.3f}"
    return f"{-apart.gap:.3f}{error}{share}" + ("" if apart.conclusive else ", within the error")


def _titled(row: BranchAssessment) -> str:
    one = row.figures
    return one.title if one.epsilon is None else f"{one.title}, ε {one.epsilon:.3g}"


def _named(rows: Sequence[BranchAssessment]) -> str:
    return ", ".join(_titled(row) for row in rows)


def _anchor(row: BranchAssessment, number: int) -> str:
    return f"plan-{number}-{row.figures.name}-{row.figures.epsilon or 0:.4f}".replace(".", "-")
