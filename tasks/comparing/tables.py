"""Builds the tables of a comparison: measured figures next to the published ones of the same records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.comparing.published import Publication, Reported
from tasks.comparing.summary import BranchSummary
from tasks.pages.render import Table

_MISSING = "–"


def mean_and_spread(mean: float, spread: float, seeds: int, *, digits: int = 3) -> str:
    """Formats mean and spread over seeds; for one seed the mean alone."""
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if seeds > 1 else "")


def _measure(one: BranchSummary, name: str) -> str:
    return mean_and_spread(one.mean[name], one.spread[name], one.seeds) if name in one.mean else _MISSING


def _epsilon(one: BranchSummary) -> str:
    return _MISSING if one.epsilon is None else mean_and_spread(one.epsilon, one.epsilon_spread, one.seeds, digits=2)


def _delta(one: BranchSummary) -> str:
    return f"{one.delta:g}" if one.delta is not None else one.delta_text or _MISSING


def _cost(one: BranchSummary, name: str, form: str) -> str:
    return format(one.cost[name], form) if name in one.cost else _MISSING


def _f1(reported: Reported | None) -> str:
    return _MISSING if reported is None else f"{reported.weighted_f1:.2f} / {reported.macro_f1:.2f}"


def _reported_epsilon(reported: Reported | None) -> str:
    return _MISSING if reported is None or reported.epsilon is None else f"{reported.epsilon:g}"


def _with_branches(published: Sequence[Publication]) -> list[Publication]:
    return [one for one in published if one.branches]


def over_delta(summaries: Sequence[BranchSummary], delta: float) -> list[BranchSummary]:
    """Returns the branches whose formal claim has another delta than the comparison's."""
    return [one for one in summaries if one.delta is not None and one.delta != delta]


def representatives(summaries: Sequence[BranchSummary], published: Sequence[Publication]) -> list[str]:
    """Selects branches for tables that cannot show all: the best of each kind, and those published by code."""
    best: dict[str, BranchSummary] = {}
    for one in summaries:
        if one.guarantee_kind not in best or one.mean["weighted_f1"] > best[one.guarantee_kind].mean["weighted_f1"]:
            best[one.guarantee_kind] = one
    chosen = {one.branch for one in best.values()} | {name for source in published for name in source.columns}
    return [one.branch for one in summaries if one.branch in chosen]


def claims_table(summaries: Sequence[BranchSummary], published: Sequence[Publication]) -> Table:
    """Tabulates every branch's claim with its kind, and F1 (Chew et al., table 1)."""
    sources = _with_branches(published)
    head = ["branch", "guarantee", "neighbours", "ε claimed", "ε, one replaced", "δ", "weighted F1", "macro F1"]
    head += [f"{source.label}: {name}" for source in sources for name in ("ε", "F1 w / m")]
    rows = []
    for one in summaries:
        relation = _MISSING if one.guarantee_kind == "none" else one.relation
        replaced = _MISSING if one.epsilon_replaced is None else f"{one.epsilon_replaced:.2f}"
        row = [one.title, one.guarantee_kind, relation, _epsilon(one), replaced, _delta(one)]
        row += [_measure(one, "weighted_f1"), _measure(one, "macro_f1")]
        for source in sources:
            row += [_reported_epsilon(source.branches.get(one.branch)), _f1(source.branches.get(one.branch))]
        rows.append(row)
    return head, rows


def differences_table(summaries: Sequence[BranchSummary]) -> Table:
    """Tabulates each branch's difference to the best formal and to the best branch without privacy, with its errors."""
    best = {
        kind: max((one for one in summaries if one.guarantee_kind == kind), key=lambda one: one.mean["weighted_f1"])
        for kind in ("formal", "none")
        if any(one.guarantee_kind == kind for one in summaries)
    }
    scores = {"weighted_f1": "weighted F1", "macro_f1": "macro F1"}
    head = ["branch", *(f"{name}: error over test records" for name in scores.values())]
    head += [f"{name} minus {other.title}" for other in best.values() for name in scores.values()]
    rows = []
    for one in summaries if any(one.record_errors for one in summaries) else ():
        row = [one.title, *(f"{one.record_errors[score]:.3f}" for score in scores)]
        for other in best.values():
            for score in scores:
                apart = one.minus(other, score)
                text = f"{apart.gap:+.3f} ({apart.errors}): {apart.reading}"
                row.append(_MISSING if one.branch == other.branch else text)
        rows.append(row)
    return head, rows


def terms_table(summaries: Sequence[BranchSummary]) -> Table:
    """Tabulates how many settings were tried for each branch, and where its head starts: features are the same."""
    rows = [
        [
            one.title,
            _MISSING if one.settings_tried is None else str(one.settings_tried),
            "titles" if one.from_titles else "the run's",
        ]
        for one in summaries
    ]
    return ["branch", "settings tried", "start of the head"], rows


def utility_table(summaries: Sequence[BranchSummary]) -> Table:
    """Tabulates all other measures."""
    names = {
        "accuracy": "accuracy",
        "top_3": "top 3",
        "top_5": "top 5",
        "ece": "ECE",
        "coverage_0.5": "coded at confidence 0.5",
        "accuracy_at_0.5": "right among those",
        "coverage_0.9": "coded at 0.9",
        "accuracy_at_0.9": "right among those (0.9)",
    }
    return ["branch", *names.values()], [[one.title, *(_measure(one, name) for name in names)] for one in summaries]


def quartile_table(summaries: Sequence[BranchSummary], published: Sequence[Publication]) -> Table:
    """Tabulates F1 of the largest and the smallest quarter of codes (Chew et al., table 2)."""
    head = ["branch", "top: weighted F1", "top: macro F1", "bottom: weighted F1", "bottom: macro F1"]
    names = [f"{quarter}_quartile_{kind}_f1" for quarter in ("top", "bottom") for kind in ("weighted", "macro")]
    rows = []
    for one in summaries:
        rows.append([one.title, *(_measure(one, name) for name in names)])
        for source in published:
            reported = source.branches.get(one.branch)
            if reported is not None and reported.quartiles is not None:
                values = [*reported.quartiles.top, *reported.quartiles.bottom]
                rows.append([f"{one.title}, {source.label}", *(f"{value:.2f}" for value in values)])
    return head, rows


def code_table(
    by_branch: Mapping[str, Sequence[Mapping[str, Any]]],
    published: Sequence[Publication],
    *,
    titles: Mapping[str, str],
) -> Table:
    """Tabulates F1 by code with class size, largest first (Chew et al., table 3). Internal.

    Args:
        by_branch: rows of `code`, `size` and `f1`, the same codes for each branch.
        titles: of the codes; without any the table has no such column.
    """
    f1 = {name: {row["code"]: row["f1"] for row in rows} for name, rows in by_branch.items()}
    sources = [(source, source.codes()) for source in published if source.by_code]
    titled = any(titles.values())
    head = ["code", *["title"] * titled, "size", *f1]
    head += [f"{source.label}: {name}" for source, _ in sources for name in source.columns]
    rows = []
    for row in sorted(next(iter(by_branch.values())), key=lambda row: (-row["size"], row["code"])):
        cells = [row["code"], *[titles.get(row["code"], "")] * titled, str(row["size"])]
        cells += [f"{scores[row['code']]:.2f}" for scores in f1.values()]
        for source, codes in sources:
            reported = codes.get(row["code"])
            cells += [
                _MISSING if reported is None else format(reported[name], "g" if name == "size" else ".2f")
                for name in source.columns
            ]
        rows.append(cells)
    return head, rows


def delta_table(summaries: Sequence[BranchSummary], published: Sequence[Publication], *, delta: float) -> Table:
    """Tabulates branches with another delta, and those published with them (Chew et al., table 4)."""
    sources = _with_branches(published)
    chosen = {one.branch for one in over_delta(summaries, delta)}
    chosen |= {name for source in sources for name in source.over_delta}
    head = ["branch", "δ", "ε (RDP, Mironov)", "ε claimed (PLD)", "weighted F1", "macro F1"]
    rows = []
    for one in summaries:
        if one.branch in chosen:
            row = [one.title, _delta(one), _cost(one, "epsilon_rdp_mironov", ".2f"), _epsilon(one)]
            row += [_measure(one, "weighted_f1"), _measure(one, "macro_f1")]
            rows.append(row + [_f1(source.branches.get(one.branch)) for source in sources])
    return [*head, *(f"{source.label}: F1 w / m" for source in sources)], rows


def accounting_table(summaries: Sequence[BranchSummary]) -> Table:
    """Tabulates the same noise by each accountant. Only PLD is claimed."""
    names = {
        "noise_multiplier": "last noise multiplier",
        "steps": "steps",
        "epsilon": "PLD, add/remove (claim)",
        "epsilon_replace_one": "PLD, replace one",
        "epsilon_rdp": "RDP",
        "epsilon_rdp_mironov": "RDP, Mironov",
    }
    rows = [[one.title, *(_cost(one, name, ".4g") for name in names)] for one in summaries if one.cost]
    return ["branch", *names.values()], rows


def orderings_table(summaries: Sequence[BranchSummary], published: Sequence[Publication]) -> Table:
    """Tabulates each expected ordering of these branches, with weighted F1 and the errors of their difference."""
    by_name, rows = {one.branch: one for one in summaries}, []
    for ordering in (one for source in published for one in source.orderings):
        if ordering.higher in by_name and ordering.lower in by_name:
            higher, lower = by_name[ordering.higher], by_name[ordering.lower]
            apart = higher.minus(lower)
            verdict = {"ahead": "holds", "behind": "**does not hold**"}.get(apart.reading, apart.reading)
            means = [f"{one.mean['weighted_f1']:.3f}" for one in (higher, lower)]
            rows.append([f"{higher.branch} above {lower.branch}", ordering.why, *means, apart.errors, verdict])
    return ["expected", "because of", "weighted F1", "of the second", "errors", "verdict"], rows


def unprotected(summaries: Sequence[BranchSummary]) -> list[str]:
    """Lists what reached some branch from the records without protection."""
    return sorted({line for one in summaries for line in one.unprotected})
