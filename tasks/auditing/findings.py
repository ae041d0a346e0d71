"""Words the findings of audits, for and against a claim, from their numbers alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mechanisms.privacy.events import describe_guarantee
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
    """Returns claim and measurement, one line per branch and seed, for a terminal or a page."""
    audited = [_line(one, result.trials) for one in result.branches]
    return audited + [f"{name}: not audited, {why}" for name, why in result.refused.items()]


def _line(audited: BranchAudit, trials: int) -> str:
    guarantee = describe_guarantee(audited.guarantee_kind, audited.mechanism)
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
    return (
        f"{audited.branch}, seed {audited.seed}: claimed {claim}; measured {_bound(audited)} at "
        f"{100 * audited.confidence:.6g} % confidence{_uncounted(audited)}; "
        f"{describe_attack(audited.attack, coin=audited.figures.get('coin', True))}: AUC {audited.auc:.3f}, TPR "
        f"{audited.tpr_at_fpr_0001:.2%} at FPR 0.1 %; {verdict}"
    )


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
    """Writes sentences on each branch, on each effect whose two branches were audited, and on each change.

    Args:
        runs: audits by change; the first, under an empty name, changed nothing.
    """
    branches = {group[0].branch: group for group in grouped(runs[""])}
    lines = [_branch(group) for group in branches.values() if group[0].epsilon is not None]
    for effect in effects:
        if effect.without in branches and effect.within in branches:
            lines.append(_effect(effect.of, branches[effect.without], branches[effect.within]))
    changes = [(change, group, same) for change, group, same in changed_groups(runs) if same is not None]
    return lines + [_change(*change) for change in changes]


def _branch(group: Sequence[BranchAudit]) -> str:
    first, strongest = group[0], max(group, key=lambda audit: audit.epsilon_lower_bound)
    bound, noise = strongest.epsilon_lower_bound, strongest.figures.get("noise_at_most")
    refuted = f"every ε below {bound:.2f} is refuted" if bound >= 0.005 else "no ε is refuted"
    if noise is not None:
        of_any = strongest.figures["epsilon_of_any"]
        refuted = (
            f"noise of more than {noise:.2f} times the stated is excluded, which refutes every ε below {bound:.2f} if "
            f"the noise is Gaussian; of any (ε, δ) every ε below {of_any:.2f} is refuted"
        )
    one_record = ""
    if first.epsilon != first.epsilon_add_remove:
        one_record = f", {mean(group, 'epsilon_add_remove'):.2f} for one record more or less"
    claim = f"{first.title}: claims ε {mean(group, 'epsilon'):.2f}{one_record}; {refuted}"
    contradicted = [audit for audit in group if audit.verdict == CONTRADICTED]
    if contradicted:
        delta = min(audit.delta_refuted or 0.0 for audit in contradicted)
        largest = f", for every δ up to {round_down(delta)}" if delta > 0 else ""
        return f"{claim}: **contradicted** at {len(contradicted)} of {len(group)} seeds{largest}."
    claim += _power(first)
    natural = bound_of(first, NATURAL)
    if natural is not None and natural["epsilon"] > bound and natural["claimed_in_trials"] is not None:
        claim += (
            f". Reruns on natural records measured {natural['epsilon']:.2f}, which does not count: one of them claims "
            f"{natural['claimed_in_trials']:.2f} for itself"
        )
    withheld = next((audit for audit in group if audit.figures.get("withheld")), None)
    if withheld is not None:
        return f"{claim}. **Inconclusive**: {_withheld(withheld)}."
    if any(audit.verdict == INCONCLUSIVE for audit in group):
        reach = max(audit.reach for audit in group)
        return (
            f"{claim}. **Inconclusive**: perfect guesses could have shown at most ε {reach:.2f}, which is not enough."
        )
    return f"{claim}. Not contradicted by these tests."


def _power(audit: BranchAudit) -> str:
    """Reports the bound at half of the noise, if it was measured."""
    halved = [bound["at_half_noise"] for bound in audit.figures["bounds"] if bound.get("at_half_noise") is not None]
    return f" (at half of its noise, if Gaussian: every ε below {max(halved):.2f})" if halved else ""


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


def _change(name: str, group: Sequence[BranchAudit], unchanged: Sequence[BranchAudit]) -> str:
    before, after = bound_of(unchanged[0], NATURAL), bound_of(group[0], NATURAL)
    measured = ""
    if before is not None and after is not None:
        comparable = f"{before['epsilon']:.2f} to " if reruns(group) == reruns(unchanged) else ""
        measured = f"measured in {reruns(group)} reruns {comparable}{after['epsilon']:.2f}, "
    return (
        f"`{name}`, {group[0].title}: claim {mean(unchanged, 'epsilon'):.2f} to {mean(group, 'epsilon'):.2f}, "
        f"{measured}AUC of the loss {mean(unchanged, 'loss_auc'):.3f} to {mean(group, 'loss_auc'):.3f}, weighted F1 "
        f"{mean(unchanged, 'weighted_f1'):.3f} to {mean(group, 'weighted_f1'):.3f} "
        f"({change_of_f1(group, unchanged):+.3f} at the same seeds): {verdict(group)}."
    )
