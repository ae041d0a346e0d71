"""What an audit's lines say follows from the numbers."""

from __future__ import annotations

from typing import Any

from mechanisms.privacy.events import Claim
from tasks.auditing.audit_result import AuditResult, BranchAudit
from tasks.auditing.findings import lines
from tasks.releasing.evidence import Evidence, describe_bound


def audited(
    branch: str,
    *,
    seed: int = 1,
    epsilon: float | None = 4.0,
    refuted: float = 1.0,
    natural: float = 1.0,
    claimed: float | None = 2.5,
    reach: float = 6.0,
    **other: Any,
) -> BranchAudit:
    """One branch at one seed, as far as sentences need it. It claims half as much for one record more or less, and the
    gate's own rule says what the bound says of that.
    """
    bound = {"name": "in-distribution", "epsilon": natural, "claimed_in_trials": claimed, "reach": reach}
    bound |= {"correct": 9, "guesses": 10}
    figures: dict[str, Any] = {"bounds": [bound], "trials": 16, "from": "in-distribution", "online_lira_auc": 0.7}
    figures |= {"epsilon_lower_bound": refuted, "confidence": 0.95, "reach": reach, "auc": 0.7, "tpr": 0.001}
    half = None if epsilon is None else epsilon / 2
    claim = Claim(
        guarantee_kind="none" if epsilon is None else "asymptotic-local",
        epsilon=epsilon,
        epsilon_add_remove=half,
        neighbouring_relation="add-remove",
        accountant="test",
    )
    fields: dict[str, Any] = {
        "branch": branch,
        "title": branch,
        "seed": seed,
        "mechanism": "swag-ppm",
        "guarantee_kind": claim.guarantee_kind,
        "epsilon": epsilon,
        "epsilon_add_remove": half,
        "delta": 0.0,
        "epsilon_lower_bound": refuted,
        "reach": reach,
        "confidence": 0.95,
        "delta_refuted": None,
        "verdict": Evidence.model_validate(figures).verdict(claim),
        "attack": "online_lira",
        "auc": 0.7,
        "tpr_at_fpr_001": 0.01,
        "tpr_at_fpr_0001": 0.001,
        "loss_auc": 0.6,
        "weighted_f1": 0.5,
        "macro_f1": 0.3,
        "curves": f"{branch}-{seed}",
        "figures": figures,
        "ledger_sequence": 1,
    }
    return BranchAudit.model_validate(fields | other)


def test_a_bound_on_noise_is_called_one_everywhere() -> None:
    """What noise is excluded, what follows if it is Gaussian, and what is refuted of any (epsilon, delta): in the
    terminal's line and at the gate. Without Gaussian noise there is one bound.
    """
    formal = audited("formal", refuted=4.1, epsilon=5.0, epsilon_add_remove=5.0, guarantee_kind="formal")
    shown = {"noise_at_most": 1.194, "epsilon_of_any": 0.753}
    formal.figures.update(shown)
    formal.figures["bounds"][0].update(shown)
    line = lines(AuditResult(branches=(formal,), trials=16, target_epsilon=None))[2]
    words = "noise of at most 1.19 times the stated; at least ε 4.1 if the noise is Gaussian; at least ε 0.753 of any"
    assert words in line
    assert words in describe_bound(4.1, **shown)
    assert describe_bound(4.1, None, None) == "at least ε 4.1"


def test_what_is_withheld_says_why() -> None:
    """A later audit that a first one would have been a contradiction by: in the terminal's line."""
    told = audited("late", refuted=1.9, reach=0.0)
    told.figures.update(withheld=True, epsilon_refuted_before=2.4, attempt=17)
    why = "would have refuted every epsilon below 2.4; audit 17 of a claim can neither refute nor clear it"
    line = lines(AuditResult(branches=(told,), trials=16, target_epsilon=None))[0]
    assert line.endswith(why)
