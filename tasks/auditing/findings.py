"""Words what an audit found, for and against a claim, from its numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.auditing.audit_result import AuditResult, BranchAudit
from tasks.releasing.evidence import CONTRADICTED, INCONCLUSIVE, describe_attack, describe_bound, round_down

NATURAL = "in-distribution"
"""Name of the bound from reruns with a coin for every record and no crafted ones."""


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
