"""Words the findings of audits, for and against a claim, from their numbers alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.auditing.audit_result import AuditResult, BranchAudit
from tasks.comparing.published import Effect
from tasks.releasing.evidence import CONTRADICTED, INCONCLUSIVE, describe_attack, describe_bound, round_down

NATURAL = "in-distribution"
"""Name of the bound from reruns with a coin for every record and no crafted ones."""
LIKELIHOOD_RATIO = "online_lira_auc"


def grouped(audits: Sequence[BranchAudit]) -> list[list[BranchAudit]]:
    """Groups audits by branch, in the order of branches."""
    groups: dict[str, list[BranchAudit]] = {}
    for audit in audits:
        groups.setdefault(audit.branch, []).append(audit)
    return list(groups.values())


def lines(result: AuditResult) -> list[str]:
    """Returns claim, measurements and verdict of each branch and seed, for a terminal or a log."""
    return [line for one in result.branches for line in _lines(one, result.trials)]


def _lines(audited: BranchAudit, trials: int) -> list[str]:
    guarantee = audited.guarantee_kind
    claim = "nothing" if audited.epsilon is None else f"epsilon {audited.epsilon:.3g} ({guarantee})"
    if audited.epsilon_add_remove != audited.epsilon:
        claim += f", {audited.epsilon_add_remove:.3g} for one record more or less"
    verdict = audited.verdict
    if audited.verdict == CONTRADICTED and audited.delta_refuted:
        verdict += f" for every delta up to {round_down(audited.delta_refuted)}"
    elif audited.verdict == INCONCLUSIVE and audited.figures.get("withheld"):
        verdict += f": {_withheld(audited)}"
    elif audited.verdict == INCONCLUSIVE:
        verdict += (
            f": {trials} reruns can show at most epsilon {audited.reach:.3g} at {100 * audited.confidence:.6g} %, the "
            f"claim is {audited.epsilon_add_remove:.3g}: not enough"
        )
    attack = describe_attack(audited.attack, coin=audited.figures.get("coin", True))
    return [
        f"{audited.branch}, seed {audited.seed}: {verdict}",
        f"  claimed   {claim}",
        f"  measured  {_bound(audited)} at {100 * audited.confidence:.6g} % confidence{_uncounted(audited)}",
        f"  attacked  {attack}: AUC {audited.auc:.3f}, TPR {audited.tpr_at_fpr_0001:.2%} at FPR 0.1 %",
    ]


def _bound(audited: BranchAudit) -> str:
    figures = audited.figures
    return describe_bound(audited.epsilon_lower_bound, figures.get("noise_at_most"), figures.get("epsilon_of_any"))


def _withheld(audited: BranchAudit) -> str:
    """Returns the reason for withholding a verdict on a claim that a first audit would have refuted."""
    return (
        f"as a first audit, this or an earlier one would have refuted every epsilon below "
        f"{audited.figures['epsilon_refuted_before']:.3g}; audit {audited.figures['attempt']} of a claim can neither "
        "refute nor clear it"
    )


def _uncounted(audited: BranchAudit) -> str:
    """Reports a bound from natural reruns that does not count, because a rerun claims as much for itself."""
    natural = bound_of(audited, NATURAL)
    if natural is None or natural["claimed_in_trials"] is None or natural["epsilon"] <= audited.epsilon_lower_bound:
        return ""
    return f" (reruns: {natural['epsilon']:.3g}, not counted, as one of them claims {natural['claimed_in_trials']:.3g})"


def bound_of(audit: BranchAudit, name: str) -> Mapping[str, Any] | None:
    """Returns one of an audit's bounds by name; None if it was not measured."""
    return next((bound for bound in audit.figures["bounds"] if bound["name"] == name), None)


def mean(group: Sequence[BranchAudit], name: str) -> float:
    """Returns the mean of a field over seeds."""
    return statistics.fmean(getattr(audit, name) for audit in group)


def figure(group: Sequence[BranchAudit], name: str) -> float | None:
    """Returns the mean of a figure over the seeds that have it; None if none has."""
    values = [audit.figures[name] for audit in group if audit.figures.get(name) is not None]
    return statistics.fmean(values) if values else None


def reruns(group: Sequence[BranchAudit]) -> int:
    """Returns the number of reruns of a branch."""
    return group[0].figures.get("trials", 0)


def change_of_f1(group: Sequence[BranchAudit], unchanged: Sequence[BranchAudit]) -> float:
    """Returns the mean change of weighted F1 over the seeds that both have."""
    return mean(group, "weighted_f1") - mean(unchanged, "weighted_f1")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Formats the mean and, of values that differ, the sample standard deviation: one measurement has none."""
    several = f" ± {statistics.stdev(values):.{digits}f}" if len(set(values)) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{several}"


def verdict(group: Sequence[BranchAudit]) -> str:
    """Words the verdict over seeds; for a contradiction without a claimed delta, also the largest delta refuted."""
    refuted = [audit for audit in group if audit.verdict == CONTRADICTED]
    if not refuted:
        return INCONCLUSIVE if any(audit.verdict == INCONCLUSIVE for audit in group) else group[0].verdict
    often = "contradicted" if len(group) == 1 else f"contradicted at {len(refuted)} of {len(group)}"
    delta = min(audit.delta_refuted or 0.0 for audit in refuted)
    return f"{often}, δ up to {round_down(delta)}" if delta > 0 else often


def changed_groups(
    runs: Mapping[str, Sequence[BranchAudit]],
) -> Iterator[tuple[str, list[BranchAudit], list[BranchAudit] | None]]:
    """Yields (change, audits of a branch with it, the same branch and seeds without it), if it made a difference.

    A change that does not concern a branch leaves its stages as they were; it comes once, or not at all.
    """
    unchanged = {group[0].branch: group for group in grouped(runs[""])}
    stages = {audit.curves for audit in runs[""]}
    for change, audits in list(runs.items())[1:]:
        for group in grouped(audits):
            if group[0].curves not in stages:
                stages.add(group[0].curves)
                seeds = {audit.seed for audit in group}
                same = [audit for audit in unchanged.get(group[0].branch, []) if audit.seed in seeds]
                yield change, group, same or None


def findings(runs: Mapping[str, Sequence[BranchAudit]], effects: Sequence[Effect] = ()) -> list[str]:
    """Names the claims of each verdict, a line a verdict, and what each effect with two audited branches changes."""
    branches = {group[0].branch: group for group in grouped(runs[""])}
    named: dict[str, list[str]] = {}
    for group in branches.values():
        if group[0].epsilon is not None:
            named.setdefault(verdict(group), []).append(group[0].title)
    lines = [f"**{outcome.capitalize()}**: {'; '.join(titles)}." for outcome, titles in named.items()]
    for effect in effects:
        if effect.without in branches and effect.within in branches:
            lines.append(_effect(effect.of, branches[effect.without], branches[effect.within]))
    return lines


def _effect(name: str, without: Sequence[BranchAudit], within: Sequence[BranchAudit]) -> str:
    """Compares loss and, with reruns, likelihood ratio and natural bound, without and with an effect."""
    groups = (without, within)
    parts = [f"AUC of the loss {mean(without, 'loss_auc'):.3f} without and {mean(within, 'loss_auc'):.3f} with them"]
    ratios = [figure(group, LIKELIHOOD_RATIO) for group in groups]
    if ratios[0] is not None and ratios[1] is not None:
        parts.append(f"of the likelihood ratio {ratios[0]:.3f} and {ratios[1]:.3f}")
    natural = [bound_of(group[0], NATURAL) for group in groups]
    if natural[0] is not None and natural[1] is not None:
        parts.append(f"ε measured in natural reruns {natural[0]['epsilon']:.2f} and {natural[1]['epsilon']:.2f}")
    parts.append(f"ε claimed {mean(without, 'epsilon'):.2f} and {mean(within, 'epsilon'):.2f}")
    parts.append(f"weighted F1 {mean(without, 'weighted_f1'):.3f} and {mean(within, 'weighted_f1'):.3f}")
    return f"What {name} do to what can be measured: {', '.join(parts)}."
