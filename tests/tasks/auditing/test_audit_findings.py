"""What a page says follows from the numbers: contradicted or not, counted or not, changed or not."""

from __future__ import annotations

from typing import Any

from mechanisms.privacy.events import Claim
from tasks.auditing import truth_page
from tasks.auditing.audit_result import AuditResult, BranchAudit
from tasks.auditing.findings import changed_groups, findings, lines, spread
from tasks.comparing.published import Effect
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


def test_each_verdict_names_its_claims() -> None:
    """Contradicted at so many seeds and for every delta up to the least, not contradicted, inconclusive; no claim, no
    line. A rerun that claims as much for itself counts for nothing.
    """
    formal = audited("formal", refuted=0.9, natural=0.5, claimed=None, epsilon_add_remove=4.0)
    lines = findings(
        {
            "": [
                audited("broken", refuted=6.0, delta_refuted=0.98519),
                audited("broken", refuted=1.5, seed=2),
                audited("halved", refuted=3.0),
                audited("undecided", natural=2.2),
                audited("quiet", refuted=0.0, natural=0.0, reach=1.9),
                formal,
                audited("plain", epsilon=None),
            ]
        }
    )
    assert lines == [
        "**Contradicted at 1 of 2, δ up to 0.985**: broken.",
        "**Contradicted**: halved.",
        "**Not contradicted**: undecided; formal.",
        "**Inconclusive**: quiet.",
    ]


def test_a_bound_on_noise_is_called_one_everywhere() -> None:
    """What noise is excluded, what follows if it is Gaussian, and what is refuted of any (epsilon, delta): in the
    terminal's line, in the page's tables and at the gate. Without Gaussian noise there is one bound.
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
    head, (row,) = truth_page.claims_table([formal])
    at = head.index("noise excluded above")
    assert (head[at + 1], head[at + 2]) == ("ε refuted below", "of any (ε, δ)")
    assert row[at : at + 3] == ["1.19", "4.10", "0.75"]
    assert truth_page.bounds_table([formal])[1][0][2].startswith("noise 1.19, 1.00 (9/10) of 6.00, any 0.75")
    assert truth_page.claims_table([audited("swag", refuted=1.5)])[1][0][at : at + 3] == ["–", "1.50", "1.50"]


def test_what_is_withheld_says_why() -> None:
    """A later audit that a first one would have been a contradiction by: in the terminal's line."""
    told = audited("late", refuted=1.9, reach=0.0)
    told.figures.update(withheld=True, epsilon_refuted_before=2.4, attempt=17)
    why = "would have refuted every epsilon below 2.4; audit 17 of a claim can neither refute nor clear it"
    line = lines(AuditResult(branches=(told,), trials=16, target_epsilon=None))[0]
    assert findings({"": [told]}) == ["**Inconclusive**: late."]
    assert line.endswith(why)


def test_the_page_marks_what_is_refuted_for_one_record() -> None:
    """Rows that a published page once had as not contradicted, since their bounds lie below 2 Delta: they lie above
    Delta. A bound below Delta still contradicts nothing.
    """
    before = [audited("a", epsilon=5.14, refuted=6.12, natural=6.12)]
    changes = {"c": (5.31, 3.91), "epochs": (4.60, 2.64), "scale": (5.44, 4.10), "fine": (5.31, 2.60)}
    runs = {"": before} | {
        name: [audited("a", epsilon=epsilon, refuted=bound, natural=bound, curves=name)]
        for name, (epsilon, bound) in changes.items()
    }
    head, rows = truth_page.changes_table(runs)
    verdicts = {row[0]: row[head.index("verdict")] for row in rows}
    claims = {row[0]: row[head.index("ε claimed, one record more or less")] for row in rows}
    assert [verdicts[f"`{name}`"] for name in changes] == ["contradicted"] * 3 + ["not contradicted"]
    assert [claims[f"`{name}`"] for name in changes] == ["2.65", "2.30", "2.72", "2.65"]
    (bounded,) = truth_page.claims_table([audited("bounded", epsilon=5.0, refuted=5.04)])[1]
    assert "contradicted" in bounded


def test_a_test_that_could_not_have_failed_says_so() -> None:
    """Where perfect guesses show nothing, a bound of 0.00 is no news; elsewhere the cell has what they would show, and
    what half of the noise did.
    """
    told = {"epsilon": 0.0, "correct": 9, "guesses": 10}
    assert truth_page._bound(told | {"reach": 0.0}) == "cannot be measured here (9/10)"
    shown = truth_page._bound(told | {"epsilon": 0.9, "reach": 7.25, "at_half_noise": 5.1})
    assert shown == "0.90 (9/10) of 7.25; half noise 5.10"


def test_a_change_is_held_against_the_same_seeds() -> None:
    """The second seed's better F1 is no gain; a change that left a branch's stages as they were is not told."""
    before = [audited("a"), audited("a", seed=2, weighted_f1=0.9), audited("b")]
    changed = [audited("a", weighted_f1=0.45, curves="new"), audited("b")]
    runs = {"": before, "x=1": changed}
    assert [(name, group[0].branch) for name, group, _ in changed_groups(runs)] == [("x=1", "a")]
    head, rows = truth_page.changes_table(runs)
    (row,) = [row for row in rows if row[0] == "`x=1`"]
    assert row[head.index("change of F1")] == "-0.050"
    assert row[head.index("natural reruns measured {claimed}")].startswith("1.00")


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
    audits = [audited(f"b{n}", loss_auc=0.5 + n / 100, seed=seed) for n in range(12) for seed in (1, 2)]
    assert [audit.branch for audit in truth_page._curves(audits)] == [f"b{n}" for n in range(3, 12)]


def test_one_measurement_is_not_called_several() -> None:
    """What was measured once and stands for all seeds has no deviation; what differs has one."""
    assert spread([6.28, 6.28, 6.28]) == "6.28"
    assert spread([1.0, 2.0]) == "1.50 ± 0.71"
