"""`decision.html`: what an officer asks of a comparison.

Which branch loses what at which epsilon, with the audit beside it, and a recommendation that is computed from the
figures (`tasks/releasing/recommendation.py`).
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
from tasks.comparing.judged import Judged, recommended
from tasks.comparing.run import Compared
from tasks.pages.render import Table, render
from tasks.releasing import publish
from tasks.releasing.budget_table import budget_table
from tasks.releasing.recommendation import Recommendation, Verdict

NOTICE = (
    "Internal. These figures are computed from private records without protection. Keep this file in the private "
    "workspace; do not publish it or pass it on."
)


@dataclass(frozen=True)
class Row:
    """One branch at one claim, as the page shows it."""

    cells: tuple[str, ...]
    chosen: bool
    out: bool
    plan: str | None
    """Where on the page its plan is."""


@dataclass(frozen=True)
class Answer:
    """One question: a verdict, a sentence, and what it rests on."""

    key: str
    question: str
    verdict: Verdict
    text: str
    rows: tuple[Row, ...] = ()
    picture: str | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Decided:
    """A comparison with what is recommended of it."""

    compared: Compared
    rows: tuple[Judged, ...]
    recommendation: Recommendation

    @staticmethod
    def of(compared: Compared, rows: Sequence[Judged]) -> Decided:
        """The recommendation is computed here, from the rows alone."""
        return Decided(compared, tuple(rows), recommended(rows))


def write(folder: Path, decided: Sequence[Decided], *, kinds: str) -> Path:
    """Write the page beside a comparison's report; returns the file."""
    file = folder / "decision.html"
    write_atomically(file, page(decided, kinds=kinds).encode())
    return file


def page(decided: Sequence[Decided], *, kinds: str) -> str:
    """The HTML. Nothing in it comes from another file or address."""
    study = decided[0].compared.study
    return render(
        "decision.html",
        notice=NOTICE,
        kinds=kinds,
        population=study.parameters.data.population,
        seeds=len(decided[0].compared.seeds),
        parts=[_part(one, number) for number, one in enumerate(decided)],
        plans=[plan for number, one in enumerate(decided) for plan in plans_of(one, number)],
    )


def plans_of(one: Decided, number: int) -> list[Mapping[str, str]]:
    """Name, place on the page, file and file for a shell of every plan, best first as the rows are."""
    return [
        {"name": _titled(row), "anchor": _anchor(row, number), "file": row.plan, "shown": shlex.quote(row.plan)}
        for row in one.rows
        if row.plan is not None
    ]


def branch_rows(one: Decided, number: int) -> tuple[Row, ...]:
    """All branches: without privacy first, then by kind, falling epsilon, F1."""
    order = {"none": 0, "formal": 1, "asymptotic-local": 2}
    rows = sorted(one.rows, key=lambda row: (order[row.figures.kind], row.figures.title, -(row.figures.epsilon or 0)))
    return tuple(_row(row, one.recommendation, number) for row in rows)


def _part(one: Decided, number: int) -> Mapping[str, Any]:
    study = one.compared.study
    facts = study.facts
    return {
        "title": protocols.title(study.parameters),
        "prefix": f"part-{number}-",
        "train": facts["train"],
        "test": facts["test"],
        "observed": facts["codes_observed"],
        "codes": facts["label_space"],
        "refused": one.compared.refused,
        "answers": [_what(one), _losses(one, number), _refuted(one), _budget(one), _missing(one)],
    }


def _what(one: Decided) -> Answer:
    said = one.recommendation
    return Answer("what", "What should be released?", said.verdict, said.sentence)


def _losses(one: Decided, number: int) -> Answer:
    reference, formal = one.recommendation.reference, [row for row in one.rows if row.figures.kind == "formal"]
    if reference is None:
        text = "Against what, nobody measured: no fit without privacy was compared (--branches non-private,…)."
    elif not formal:
        text = f"{reference.title} reaches {reference.weighted_f1:.3f}; no formal branch was compared with it."
    else:
        best: dict[float, Judged] = {}
        for row in sorted(formal, key=lambda row: row.figures.weighted_f1):
            best[round(row.figures.epsilon or 0.0, 2)] = row  # noise is solved to a little below its target
        told = [
            f"ε {epsilon:.3g}: {_loss(best[epsilon], one.recommendation)} ({best[epsilon].figures.title})"
            for epsilon in sorted(best)
        ]
        text = (
            f"Of {reference.weighted_f1:.3f} without privacy the best formal branch loses, at " + "; ".join(told) + "."
        )
    return Answer(
        "losses",
        "At which ε does which branch lose what?",
        "fine" if one.recommendation.loses_little else "look",
        text,
        rows=branch_rows(one, number),
        picture=figures.losses([row.figures for row in one.rows], reference),
    )


def _refuted(one: Decided) -> Answer:
    claimed = [row for row in one.rows if row.figures.kind != "none"]
    refuted = [row for row in claimed if row.figures.audit == "contradicted"]
    silent = [row for row in claimed if row.figures.audit is None]
    if refuted:
        text = f"An audit contradicts {_named(refuted)}: they leak more than they claim, and the gate refuses them."
        verdict: Verdict = "warning"
    elif len(silent) == len(claimed):
        text, verdict = "None was audited, so nothing is known: `autocoder audit` with the same options.", "look"
    else:
        text = "None of those that were audited. That a bound is small proves nothing."
        verdict = "look" if silent else "fine"
    also = f" Not audited: {_named(silent)}." if silent and len(silent) < len(claimed) else ""
    return Answer("refuted", "Which claims are refuted?", verdict, text + also)


def _budget(one: Decided) -> Answer:
    study = one.compared.study
    ledger = publish.open_ledger(study.context, study.parameters.release)
    cohorts, population = set(study.facts["cohorts"]), study.parameters.data.population
    lines = [
        line
        for line in ledger.budget()
        if line.account.population in (population, "*") and line.account.cohort in (*cohorts, "*", ALL_COHORTS)
    ]
    over = [row for row in one.rows if row.figures.refused and "over the cap" in row.figures.refused]
    text = f"Under policy {ledger.policy().name}" + (
        f" there is no room left for {_named(over)}." if over else " every claim here fits by itself."
    )
    return Answer(
        "budget",
        "What does the budget allow?",
        "look" if over else "fine",
        text,
        table=budget_table(lines),
    )


def _missing(one: Decided) -> Answer:
    compared = one.compared
    lacking = []
    if len(compared.seeds) < 3:
        lacking.append(f"{len(compared.seeds)} seed{'s' * (len(compared.seeds) > 1)} tell next to nothing of spread")
    if not compared.further:
        lacking.append("one target ε alone (--epsilons 1,2,5 fits the formal branches at more)")
    if one.recommendation.reference is None:
        lacking.append("no fit without privacy")
    if not any(row.figures.kind == "formal" for row in one.rows):
        lacking.append("no formal branch")
    if any(row.figures.audit is None for row in one.rows if row.figures.kind != "none"):
        lacking.append("claims without an audit")
    text = "; ".join(lacking).capitalize() + "." if lacking else "Nothing that this page looks for."
    return Answer("missing", "What was not looked at?", "look" if lacking else "fine", text)


def _row(row: Judged, said: Recommendation, number: int) -> Row:
    one = row.figures
    chosen = one == said.chosen
    verdict = "recommended" if chosen else row.why_not or "it could be"
    cells = (
        one.title,
        verdict,
        one.kind if one.kind == "none" else f"{one.kind}, {one.relation}",
        "–" if one.epsilon is None else f"{one.epsilon:.3g}",
        "–" if one.delta is None else f"{one.delta:g}",
        f"{one.weighted_f1:.3f}" + (f" ± {one.spread:.3f}" if one.seeds > 1 else ""),
        "–" if one == said.reference else _loss(row, said),
        "–" if one.macro_f1 is None else f"{one.macro_f1:.3f}",
        "–" if one.lower_bound is None else f"{one.lower_bound:.3g}",
        "–" if row.auc is None else f"{row.auc:.3f}",
        "–" if one.kind == "none" else one.audit or "not audited",
    )
    return Row(cells, chosen, bool(row.why_not), None if row.plan is None else _anchor(row, number))


def _loss(row: Judged, said: Recommendation) -> str:
    """In points of F1, and as a share."""
    if said.reference is None:
        return "–"
    gap = said.reference.weighted_f1 - row.figures.weighted_f1
    share = f" ({gap / said.reference.weighted_f1:.1%})" if said.reference.weighted_f1 > 0 else ""
    return f"{gap:.3f}{share}"


def _titled(row: Judged) -> str:
    one = row.figures
    return one.title if one.epsilon is None else f"{one.title}, ε {one.epsilon:.3g}"


def _named(rows: Sequence[Judged]) -> str:
    return ", ".join(_titled(row) for row in rows)


def _anchor(row: Judged, number: int) -> str:
    return f"plan-{number}-{row.name}-{row.figures.epsilon or 0:.4f}".replace(".", "-")
