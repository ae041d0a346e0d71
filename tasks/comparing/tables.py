"""The tables of a comparison: what is measured, and beside it what others report of the same records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.comparing.published import Publication, Reported
from tasks.comparing.summary import BranchSummary
from tasks.pages.render import Table

_MISSING = "–"


def mean_and_spread(mean: float, spread: float, seeds: int, *, digits: int = 3) -> str:
    """Mean and spread over seeds; the mean alone for one seed."""
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
    """Branches whose formal claim is at a delta of their own, not at the comparison's."""
    return [one for one in summaries if one.delta is not None and one.delta != delta]


def representatives(summaries: Sequence[BranchSummary], published: Sequence[Publication]) -> list[str]:
    """Branches that stand for all where not all can be shown: the best of each kind, and those reported by code."""
    best: dict[str, BranchSummary] = {}
    for one in summaries:
        if one.guarantee_kind not in best or one.mean["weighted_f1"] > best[one.guarantee_kind].mean["weighted_f1"]:
            best[one.guarantee_kind] = one
    chosen = {one.branch for one in best.values()} | {name for source in published for name in source.columns}
    return [one.branch for one in summaries if one.branch in chosen]


def claims_table(summaries: Sequence[BranchSummary], published: Sequence[Publication]) -> Table:
    """Every branch's claim with its kind, and F1 (Chew et al., table 1)."""
    sources = _with_branches(published)
    head = ["branch", "guarantee", "ε claimed", "δ", "weighted F1", "macro F1"]
    head += [f"{source.label}: {name}" for source in sources for name in ("ε", "F1 w / m")]
    rows = []
    for one in summaries:
        row = [one.title, one.guarantee_kind, _epsilon(one), _delta(one)]
        row += [_measure(one, "weighted_f1"), _measure(one, "macro_f1")]
        for source in sources:
            row += [_reported_epsilon(source.branches.get(one.branch)), _f1(source.branches.get(one.branch))]
        rows.append(row)
    return head, rows


def fields_table(summaries: Sequence[BranchSummary], fields: Sequence[str]) -> Table:
    """Weighted and macro F1 of each of several fields, and their means."""
    names = ("weighted_f1", "macro_f1")
    head = ["branch", *(f"{name}: F1 w / m" for name in fields), "mean of the fields"]
    rows = []
    for one in summaries:
        pairs = [[_measure(one, f"{prefix}{name}") for name in names] for prefix in (*(f"{f}." for f in fields), "")]
        rows.append([one.title, *(" / ".join(pair) for pair in pairs)])
    return head, rows


def separate_table(summaries: Sequence[BranchSummary], fields: int) -> Table:
    """What the same fields would cost as releases of their own."""
    head = ["branch", "ε of all fields in one release", f"ε left for each of {fields} releases at that total"]
    head += [f"ε of {fields} releases at that ε each"]
    names = ("epsilon", "separate_each_epsilon", "separate_together_epsilon")
    priced = [one for one in summaries if names[1] in one.cost]
    return head, [[one.title, *(_cost(one, name, ".2f") for name in names)] for one in priced]


def utility_table(summaries: Sequence[BranchSummary]) -> Table:
    """Everything else that is measured."""
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
    """F1 of the largest and the smallest quarter of codes (Chew et al., table 2)."""
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
    """F1 by code with class size, largest first (Chew et al., table 3). Internal.

    Args:
        by_branch: rows of `code`, `size` and `f1`, the same codes for each branch.
        titles: of the codes; no column where none is known.
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
            there = codes.get(row["code"])
            cells += [
                _MISSING if there is None else format(there[name], "g" if name == "size" else ".2f")
                for name in source.columns
            ]
        rows.append(cells)
    return head, rows


def delta_table(summaries: Sequence[BranchSummary], published: Sequence[Publication], *, delta: float) -> Table:
    """Branches with a delta of their own, and those that are reported beside such (Chew et al., table 4)."""
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
    """The same noise by each accountant. Only PLD is claimed."""
    names = {
        "noise_multiplier": "last noise multiplier",
        "steps": "steps",
        "epsilon": "PLD, add/remove (claim)",
        "epsilon_replace_one": "PLD, replace one",
        "epsilon_rdp": "RDP",
        "epsilon_rdp_mironov": "RDP, Mironov",
        "epsilon_opacus": "Opacus",
    }
    rows = [[one.title, *(_cost(one, name, ".4g") for name in names)] for one in summaries if one.cost]
    return ["branch", *names.values()], rows


def orderings(summaries: Sequence[BranchSummary], published: Sequence[Publication]) -> Iterator[str]:
    """What the figures say to each ordering that is expected of branches at hand: from the numbers, spread included."""
    f1 = {one.branch: (one.mean["weighted_f1"], one.spread["weighted_f1"]) for one in summaries}
    for ordering in (one for source in published for one in source.orderings):
        if ordering.higher in f1 and ordering.lower in f1:
            (higher, above), (lower, below) = f1[ordering.higher], f1[ordering.lower]
            gap, noise = higher - lower, (above**2 + below**2) ** 0.5
            verdict = "within the spread" if abs(gap) <= 2 * noise else "holds" if gap > 0 else "**does not hold**"
            yield (f"{ordering.higher} above {ordering.lower} ({ordering.why}): {higher:.3f} to {lower:.3f}, {verdict}")


def unprotected(summaries: Sequence[BranchSummary]) -> list[str]:
    """What reached some branch from the records without protection."""
    return sorted({line for one in summaries for line in one.unprotected})
