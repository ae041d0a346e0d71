"""What audits say, from their numbers alone: for a claim and against it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.auditing.audited import Audited, AuditResult
from tasks.comparing.published import Effect
from tasks.releasing.gate import CONTRADICTED, INCONCLUSIVE, round_down

NATURAL = "in-distribution"
"""Name of the bound from reruns in which every record was tossed a coin for and none was crafted."""
LIKELIHOOD_RATIO = "online_lira_auc"


def grouped(audits: Sequence[Audited]) -> list[list[Audited]]:
    """Audits of one branch together, branches in their order."""
    groups: dict[str, list[Audited]] = {}
    for audit in audits:
        groups.setdefault(audit.branch, []).append(audit)
    return list(groups.values())


def lines(result: AuditResult) -> list[str]:
    """Claim and measurement, a line a branch and seed, for a terminal or a page."""
    told = [_line(one, result.trials) for one in result.branches]
    return told + [f"{name}: not audited, {why}" for name, why in result.refused.items()]


def _line(audited: Audited, trials: int) -> str:
    claim = "nothing" if audited.epsilon is None else f"epsilon {audited.epsilon:.3g} ({audited.guarantee_kind})"
    if audited.epsilon_add_remove != audited.epsilon:
        claim += f", {audited.epsilon_add_remove:.3g} for one record more or less"
    said = audited.verdict
    if said == CONTRADICTED and audited.delta_refuted:
        said += f" for every delta up to {round_down(audited.delta_refuted)}"
    elif said == INCONCLUSIVE and audited.figures.get("withheld"):
        said += f": {_withheld(audited)}"
    elif said == INCONCLUSIVE:
        said += (
            f": {trials} reruns can show at most epsilon {audited.reach:.3g} at {100 * audited.confidence:.6g} %, the "
            f"claim is {audited.epsilon_add_remove:.3g}: not enough"
        )
    return (
        f"{audited.branch}, seed {audited.seed}: claimed {claim}; measured at least "
        f"{audited.epsilon_lower_bound:.3g} at {100 * audited.confidence:.6g} % confidence{_uncounted(audited)}; "
        f"strongest membership test, {audited.attack.replace('_', ' ')}: AUC {audited.auc:.3f}, TPR "
        f"{audited.tpr_at_fpr_0001:.2%} at FPR 0.1 %; {said}"
    )


def _withheld(audited: Audited) -> str:
    """Why nothing is said of a claim that lies below what a first audit would have refuted."""
    return (
        f"as a first audit it, or one before it, would have refuted every epsilon below "
        f"{audited.figures['epsilon_suspected']:.3g}; audit {audited.figures['look']} of a claim may not say so, nor "
        "that the claim withstood it"
    )


def _uncounted(audited: Audited) -> str:
    """What natural reruns measured beyond the bound, where they claim as much for themselves and it does not count."""
    natural = bound_of(audited, NATURAL)
    if natural is None or natural["claimed_in_trials"] is None or natural["epsilon"] <= audited.epsilon_lower_bound:
        return ""
    return f" (reruns: {natural['epsilon']:.3g}, not counted, as one of them claims {natural['claimed_in_trials']:.3g})"


def bound_of(audit: Audited, name: str) -> Mapping[str, Any] | None:
    """One of an audit's bounds by name; None where it was not measured."""
    return next((bound for bound in audit.figures["bounds"] if bound["name"] == name), None)


def mean(group: Sequence[Audited], name: str) -> float:
    """Mean of a field over seeds."""
    return statistics.fmean(getattr(audit, name) for audit in group)


def figure(group: Sequence[Audited], name: str) -> float | None:
    """Mean of a figure over the seeds that have it; None where none has."""
    values = [audit.figures[name] for audit in group if audit.figures.get(name) is not None]
    return statistics.fmean(values) if values else None


def reruns(group: Sequence[Audited]) -> int:
    """How many reruns the audits of a branch had."""
    return group[0].figures.get("trials", 0)


def change_of_f1(group: Sequence[Audited], unchanged: Sequence[Audited]) -> float:
    """Change of weighted F1, in the mean over the seeds that both have."""
    return mean(group, "weighted_f1") - mean(unchanged, "weighted_f1")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and, of several, the sample standard deviation."""
    several = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{several}"


def verdict(group: Sequence[Audited]) -> str:
    """The verdict over seeds, in words; of a contradiction, up to which delta it holds where none is claimed."""
    refuted = [audit for audit in group if audit.verdict == CONTRADICTED]
    if not refuted:
        return INCONCLUSIVE if any(audit.verdict == INCONCLUSIVE for audit in group) else group[0].verdict
    often = "contradicted" if len(group) == 1 else f"contradicted at {len(refuted)} of {len(group)}"
    delta = min(audit.delta_refuted or 0.0 for audit in refuted)
    return f"{often}, δ up to {round_down(delta)}" if delta > 0 else often


def changed_groups(
    runs: Mapping[str, Sequence[Audited]],
) -> Iterator[tuple[str, list[Audited], list[Audited] | None]]:
    """(what was changed, audits of a branch then, the same branch and seeds unchanged), if it made a difference.

    A change that a branch knows nothing of leaves its stages as they were; it comes once, or not at all.
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


def findings(runs: Mapping[str, Sequence[Audited]], effects: Sequence[Effect] = ()) -> list[str]:
    """Sentences on each branch, on each effect whose two branches are at hand, and on each change.

    Args:
        runs: audits by what was changed; the first, under an empty name, changed nothing.
    """
    branches = {group[0].branch: group for group in grouped(runs[""])}
    lines = [_branch(group) for group in branches.values() if group[0].epsilon is not None]
    for effect in effects:
        if effect.without in branches and effect.within in branches:
            lines.append(_effect(effect.of, branches[effect.without], branches[effect.within]))
    changes = [(change, group, same) for change, group, same in changed_groups(runs) if same is not None]
    return lines + [_change(*change) for change in changes]


def _branch(group: Sequence[Audited]) -> str:
    first, bound = group[0], max(audit.epsilon_lower_bound for audit in group)
    refuted = f"every ε below {bound:.2f} is refuted" if bound >= 0.005 else "no ε is refuted"
    own = ""
    if first.epsilon != first.epsilon_add_remove:
        own = f", {mean(group, 'epsilon_add_remove'):.2f} for one record more or less"
    claim = f"{first.title}: claims ε {mean(group, 'epsilon'):.2f}{own}; {refuted}"
    told = [audit for audit in group if audit.verdict == CONTRADICTED]
    if told:
        delta = min(audit.delta_refuted or 0.0 for audit in told)
        largest = f", for every δ up to {round_down(delta)}" if delta > 0 else ""
        return f"{claim}: **contradicted** at {len(told)} of {len(group)} seeds{largest}."
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


def _power(audit: Audited) -> str:
    """What the tests would have said of half of the noise, where that was tried."""
    halved = [bound["at_half_noise"] for bound in audit.figures["bounds"] if bound.get("at_half_noise") is not None]
    return f" (at half of its noise: every ε below {max(halved):.2f})" if halved else ""


def _effect(name: str, without: Sequence[Audited], within: Sequence[Audited]) -> str:
    """Loss and, where there were reruns, the likelihood ratio and the natural bound, without and with it."""
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


def _change(name: str, group: Sequence[Audited], unchanged: Sequence[Audited]) -> str:
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
