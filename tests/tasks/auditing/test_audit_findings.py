"""What a page says follows from the numbers: contradicted or not, counted or not, changed or not."""

from __future__ import annotations

from typing import Any

from tasks.auditing import results
from tasks.auditing.audited import Audited
from tasks.auditing.findings import changed_groups, findings
from tasks.comparing.published import Effect


def audited(
    branch: str, *, seed: int = 1, epsilon: float | None = 4.0, refuted: float = 1.0, natural: float = 1.0, **other: Any
) -> Audited:
    """One branch at one seed, as far as sentences need it."""
    bound = {"name": "in-distribution", "epsilon": natural, "claimed_in_trials": 5.0, "correct": 9, "guesses": 10}
    figures = {"bounds": [bound], "trials": 16, "from": "in-distribution", "online_lira_auc": 0.7}
    fields: dict[str, Any] = {
        "branch": branch,
        "title": branch,
        "seed": seed,
        "mechanism": "swag-ppm",
        "guarantee_kind": "none" if epsilon is None else "asymptotic-local",
        "epsilon": epsilon,
        "delta": 0.0,
        "epsilon_lower_bound": refuted,
        "confidence": 0.95,
        "verdict": "contradicted" if epsilon is not None and refuted > epsilon else "not contradicted",
        "auc": 0.6,
        "tpr_at_fpr_001": 0.01,
        "tpr_at_fpr_0001": 0.001,
        "weighted_f1": 0.5,
        "macro_f1": 0.3,
        "curves": f"{branch}-{seed}",
        "figures": figures,
        "ledger_sequence": 1,
    }
    return Audited.model_validate(fields | other)


def test_each_verdict_has_its_sentence() -> None:
    """Contradicted at so many seeds; measured more, but not counted; nothing refuted at all; no claim, no sentence."""
    lines = findings(
        {
            "": [
                audited("broken", refuted=6.0),
                audited("broken", refuted=3.0, seed=2),
                audited("undecided", natural=4.5),
                audited("quiet", refuted=0.0, natural=0.0),
                audited("plain", epsilon=None),
            ]
        }
    )
    assert lines == [
        "broken: claims ε 4.00, every ε below 6.00 is refuted: **contradicted** at 1 of 2 seeds.",
        "undecided: claims ε 4.00, every ε below 1.00 is refuted: not contradicted. Reruns on natural records measured "
        "4.50, which does not count: one of them claims 5.00 for itself.",
        "quiet: claims ε 4.00, no ε is refuted: not contradicted by these tests.",
    ]


def test_a_change_is_held_against_the_same_seeds() -> None:
    """The second seed's better F1 is no gain; a change that left a branch's stages as they were is not told."""
    before = [audited("a"), audited("a", seed=2, weighted_f1=0.9), audited("b")]
    changed = [audited("a", weighted_f1=0.45, curves="new"), audited("b")]
    runs = {"": before, "x=1": changed}
    assert [(name, group[0].branch) for name, group, _ in changed_groups(runs)] == [("x=1", "a")]
    (line,) = [line for line in findings(runs) if line.startswith("`x=1`")]
    assert "weighted F1 0.500 to 0.450 (-0.050 at the same seeds)" in line
    assert "measured in 16 reruns 1.00 to 1.00" in line


def test_an_effect_is_measured_by_its_two_branches() -> None:
    """Only where both are at hand; which they are stands in `deployments/published/`."""
    effect = Effect.model_validate({"of": "the bounds", "without": "a", "with": "b"})
    pair = [audited("a", epsilon=9.0), audited("b", natural=2.0)]
    line = findings({"": pair}, [effect])[-1]
    assert line.startswith("What the bounds do to what can be measured: AUC of the loss 0.600 without and 0.600 with")
    assert "ε measured in natural reruns 1.00 and 2.00, ε claimed 9.00 and 4.00" in line
    assert len(findings({"": pair[:1]}, [effect])) == 1


def test_curves_are_those_that_are_recognised_best() -> None:
    """Nine at most, first seeds alone, in their order."""
    audits = [audited(f"b{n}", auc=0.5 + n / 100, seed=seed) for n in range(12) for seed in (1, 2)]
    assert [audit.branch for audit in results._curves(audits)] == [f"b{n}" for n in range(3, 12)]
