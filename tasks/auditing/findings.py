"""What audits say, told from their numbers alone: for a claim and against it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NATURAL = "in-distribution"
"""Name of the bound from reruns in which every record was tossed a coin for and none was crafted."""


def grouped(audited: Sequence[Any]) -> list[list[Any]]:
    """Audits of one branch together, branches in their order."""
    groups: dict[str, list[Any]] = {}
    for one in audited:
        groups.setdefault(one.branch, []).append(one)
    return list(groups.values())


def bound_of(one: Any, name: str) -> Mapping[str, Any] | None:
    """One of an audit's bounds by name; None where it was not measured."""
    return next((bound for bound in one.figures["bounds"] if bound["name"] == name), None)


def mean(group: Sequence[Any], name: str) -> float:
    """Mean of a field over seeds."""
    return statistics.fmean(getattr(one, name) for one in group)


def reruns(group: Sequence[Any]) -> int:
    """How many reruns the audits of a branch had."""
    return group[0].figures.get("trials", 0)


def gained(group: Sequence[Any], before: Sequence[Any]) -> float:
    """Change of weighted F1, in the mean over the seeds that both have."""
    return mean(group, "weighted_f1") - mean(before, "weighted_f1")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and, of several, the sample standard deviation."""
    several = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{several}"


def changed_groups(runs: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, list[Any], list[Any] | None]]:
    """(what was changed, audits of a branch then, the same branch and seeds unchanged), if it made a difference.

    A change that a branch knows nothing of leaves its stages as they were; it is told once, or not at all.
    """
    known = {group[0].branch: group for group in grouped(runs[""])}
    same = {one.curves for one in runs[""]}
    for name, audited in list(runs.items())[1:]:
        for group in grouped(audited):
            if group[0].curves not in same:
                same.add(group[0].curves)
                seeds = {one.seed for one in group}
                yield name, group, [one for one in known.get(group[0].branch, []) if one.seed in seeds] or None


def findings(runs: Mapping[str, Sequence[Any]]) -> list[str]:
    """Sentences on each branch, on what the weights do, and on what each change does.

    Args:
        runs: audits by what was changed; the first, under an empty name, changed nothing.
    """
    lines = [_branch(group) for group in grouped(runs[""]) if group[0].epsilon is not None]
    names = {group[0].branch: group for group in grouped(runs[""])}
    if "swag" in names and "swag-ppm" in names:
        lines.append(_weights(names["swag"], names["swag-ppm"]))
    for name, group, before in changed_groups(runs):
        if before is not None:
            lines.append(_change(name, group, before))
    return lines


def _branch(group: Sequence[Any]) -> str:
    first, bound = group[0], max(one.epsilon_lower_bound for one in group)
    contradicted = sum(one.verdict == "contradicted" for one in group)
    refuted = f"every ε below {bound:.2f} is refuted" if bound >= 0.005 else "no ε is refuted"
    said = f"{first.title}: claims ε {mean(group, 'epsilon'):.2f}, {refuted}"
    if contradicted:
        return f"{said}: **contradicted** at {contradicted} of {len(group)} seeds."
    natural = bound_of(first, NATURAL)
    if natural is not None and natural["epsilon"] > bound:
        return (
            f"{said}: not contradicted. Reruns on natural records measured {natural['epsilon']:.2f}, which does not "
            f"count: one of them claims {natural['claimed_in_trials']:.2f} for itself."
        )
    return f"{said}: not contradicted by these tests."


def _weights(before: Sequence[Any], after: Sequence[Any]) -> str:
    """Loss and, where there were reruns, the likelihood ratio and the natural bound, without and with weights."""
    told = [f"AUC of the loss {mean(before, 'auc'):.3f} without and {mean(after, 'auc'):.3f} with them"]
    if "online_lira_auc" in before[0].figures and "online_lira_auc" in after[0].figures:
        pair = [statistics.fmean(one.figures["online_lira_auc"] for one in group) for group in (before, after)]
        told.append(f"of the likelihood ratio {pair[0]:.3f} and {pair[1]:.3f}")
    natural = [bound_of(group[0], NATURAL) for group in (before, after)]
    if natural[0] is not None and natural[1] is not None:
        told.append(f"ε measured in natural reruns {natural[0]['epsilon']:.2f} and {natural[1]['epsilon']:.2f}")
    told.append(f"ε claimed {mean(before, 'epsilon'):.2f} and {mean(after, 'epsilon'):.2f}")
    told.append(f"weighted F1 {mean(before, 'weighted_f1'):.3f} and {mean(after, 'weighted_f1'):.3f}")
    return f"What the risk weights do to what can be measured: {', '.join(told)}."


def _change(name: str, group: Sequence[Any], before: Sequence[Any]) -> str:
    then, now = bound_of(before[0], NATURAL), bound_of(group[0], NATURAL)
    measured = ""
    if then is not None and now is not None:
        came = "" if reruns(group) != reruns(before) else f"{then['epsilon']:.2f} to "
        measured = f"measured in {reruns(group)} reruns {came}{now['epsilon']:.2f}, "
    return (
        f"`{name}`, {group[0].title}: claim {mean(before, 'epsilon'):.2f} to {mean(group, 'epsilon'):.2f}, {measured}"
        f"AUC {mean(before, 'auc'):.3f} to {mean(group, 'auc'):.3f}, weighted F1 {mean(before, 'weighted_f1'):.3f} to "
        f"{mean(group, 'weighted_f1'):.3f} ({gained(group, before):+.3f} at the same seeds): "
        f"{verdict(group)}."
    )


def verdict(group: Sequence[Any]) -> str:
    """The verdict over seeds, in words."""
    refuted = sum(one.verdict == "contradicted" for one in group)
    return group[0].verdict if len(group) == 1 or not refuted else f"contradicted at {refuted} of {len(group)}"
