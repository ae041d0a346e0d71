"""Stage: measures one candidate, to be compared with its claim.

Two kinds of evidence. Trials rerun everything on records and canaries that took part by the toss of a coin, and bound
epsilon under add/remove; guesses are held against the curve that a formal claim rests on, not against one of its
points. Gradient canaries are in a DP-SGD branch's sums. Beside them stands a membership test of one draw of the
candidate itself, training half against test half, which bounds nothing.
Trials fall into three: the first half are reference runs, from the next eighth guessing rules are chosen, the rest are
measured. All that may become a headline holds together at the stated confidence (Bonferroni), over the audits that the
claim has had (`tasks.auditing.alpha_spending`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mechanisms.audit import bounds as audit
from mechanisms.audit import gradient_canaries
from mechanisms.privacy.events import Event, decode, descent_of
from storage.artifacts import ArtifactRef
from tasks.auditing import bounds as audit_bounds
from tasks.auditing.bounds import Bound, finite
from tasks.auditing.pool import Pool
from tasks.auditing.trials import Trials
from tasks.fitting.fits import predictions as read
from tasks.fitting.model_inputs import SPLITS, load_inputs
from tasks.running.stage import Step, Work


@dataclass(frozen=True)
class Design:
    """Holds the design of an audit of one claim, fixed before it measures.

    alpha: false-alarm rate of one test, by kind; first: the same for a claim without earlier audits.
    claimed: epsilon of the claim for one record more or less, None without a claim.
    coin: whether chance alone decided which records were held out. Where a date did, the halves differ by what changed
        with time, and no test of training half against test half is one of membership.
    event: of a formal claim whose noise is Gaussian, as JSON.
    refuted_before: largest epsilon that earlier audits of the claim would have refuted as first ones.
    """

    alpha: Mapping[str, float]
    first: Mapping[str, float]
    claimed: float | None
    delta: float
    coin: bool = True
    event: Mapping[str, Any] | None = None
    refuted_before: float = 0.0


def measure(
    name: str,
    design: Design,
    *,
    seed: int,
    inputs: Mapping[str, ArtifactRef | None],
    trials_of: str,
) -> Step:
    """Declares the audit of one candidate.

    Args:
        inputs: `prepared`; `predictions` of both halves by the candidate (of a posterior,
            by a separate repeatable draw: the released draw does not exist yet, and is drawn once); and optionally
            `pool` and `trials`, and `gradients`.
        trials_of: name of the candidate's mechanism in the trials.
    """
    return Step(
        name="audit",
        label=f"audit {name}, seed {seed}",
        config={"seed": seed, "trials_of": trials_of, **asdict(design)},
        inputs={key: ref for key, ref in inputs.items() if ref is not None},
        body=partial(_measure, seed=seed, design=design, trials_of=trials_of),
        modules=("tasks.auditing.membership",),
    )


def _measure(work: Work, *, seed: int, design: Design, trials_of: str) -> Mapping[str, Any]:
    codes = [load_inputs(work.inputs["prepared"], split)[1] for split in SPLITS]
    scores = [read(work.inputs["predictions"], split)["log_probabilities"] for split in SPLITS]
    ell = [s.double().gather(1, y[:, None])[:, 0].numpy() for s, y in zip(scores, codes, strict=True)]
    pool = Pool.load(work.inputs["pool"]) if "pool" in work.inputs else None
    trials = Trials.load(work.inputs["trials"], trials_of) if "trials" in work.inputs else None
    event = audit_bounds.event_to_test(None if design.event is None else decode(dict(design.event)))

    figures, curves = _membership(ell, trials)
    counted = work.context.store.figures(work.refs["gradients"]) if "gradients" in work.inputs else {"coins": 0}

    def bounds_at(alpha: Mapping[str, float]) -> tuple[list[Bound], dict[str, Any]]:
        """Returns every bound, and figures of the largest deltas, at these rates per test."""
        measured: list[Bound] = []
        if pool is not None and trials is not None:
            each = 1 - alpha["reruns"]
            measured += audit_bounds.trial_bounds(pool, trials, delta=design.delta, confidence=each, event=event)
            if float(trials.epsilon.std()) == 0:  # a claim that does not depend on the records
                measured = [replace(bound, claimed=None) for bound in measured]
        if event is not None and counted["coins"]:
            measured.append(_gradient_bound(counted, event, design, alpha=alpha["gradients"]))
        if design.claimed is None or design.event is not None:
            return measured, {}
        deltas = {"refuted_delta_epsilon": design.claimed}
        if pool is not None and trials is not None:
            deltas["refuted_delta_by_counts"] = audit_bounds.largest_delta(
                pool, trials, claimed=design.claimed, alpha=alpha["reruns"]
            )
        return measured, deltas

    bounds, deltas = bounds_at(design.alpha)
    figures |= deltas
    figures["coin"] = design.coin
    if pool is not None and trials is not None:
        figures |= {
            "trials": len(trials.ell),
            "trial_epsilon_mean": finite(float(trials.epsilon.mean())),
            "trial_epsilon_max": finite(float(trials.epsilon.max())),
        }
    if event is not None and counted["coins"]:
        figures["gradient_runs"] = 1
    as_first = bounds if design.first == design.alpha else bounds_at(design.first)[0]
    refuted_as_first = max((bound.refutes for bound in as_first), default=0.0)
    refuted_before = max(refuted_as_first, design.refuted_before)
    best = max(bounds, key=lambda bound: bound.refutes, default=Bound("none", 0.0, audit.Guesses(0, 0, 0)))
    withheld = design.claimed is not None and refuted_before > design.claimed and not best.refutes > design.claimed
    (work.out / "curves.json").write_text(json.dumps(curves))
    attack = max(curves, key=lambda score: figures[f"{score}_auc"])
    # a claim that first audits would have contradicted is not cleared by the smaller rate of a later one
    # guard: test_a_contradiction_after_very_many_audits
    # guard: test_reruns_that_claim_as_much_as_could_be_measured
    reach = 0.0 if withheld else max((bound.could_refute for bound in bounds), default=0.0)
    return figures | {
        "epsilon_lower_bound": best.refutes,
        "from": best.name,
        "noise_at_most": best.noise_at_most,
        "epsilon_of_any": None
        if event is None
        else max((b.epsilon if b.epsilon_of_any is None else b.epsilon_of_any for b in bounds), default=0.0),
        "reach": reach,
        "withheld": withheld,
        "epsilon_as_first": refuted_as_first,
        "epsilon_refuted_before": refuted_before,
        "delta": design.delta,
        "attack": attack,
        "attack_auc": figures[f"{attack}_auc"],
        "attack_tpr_at_fpr_0.01": figures[f"{attack}_tpr_at_fpr_0.01"],
        "attack_tpr_at_fpr_0.001": figures[f"{attack}_tpr_at_fpr_0.001"],
        "fit_gap": float(ell[0].mean() - ell[1].mean()),
        "bounds": [
            {
                "name": bound.name,
                "epsilon": bound.epsilon,
                "guesses": bound.guesses.made,
                "correct": bound.guesses.correct,
                "coins": bound.guesses.coins,
                "reach": bound.reach,
                "claimed_in_trials": bound.claimed,
                "noise_at_most": bound.noise_at_most,
                "epsilon_of_any": bound.epsilon_of_any,
            }
            for bound in bounds
        ],
    }


def _gradient_bound(counted: Mapping[str, Any], event: Event, design: Design, *, alpha: float) -> Bound:
    """Returns the bound from gradient canaries, with that of perfect guesses."""
    descent, coins = descent_of(event), counted["coins"]
    shown, perfect = (
        gradient_canaries.noise_at_most(descent, right=right, coins=coins, alpha=alpha)
        for right in (counted["right"], coins)
    )
    guesses = audit.Guesses(counted["right"], coins, coins)
    return audit_bounds.gaussian_bound(
        "gradients", descent, guesses, noise=shown, least=perfect, delta=design.delta, alpha=alpha
    )


def _membership(ell: list[np.ndarray], trials: Trials | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns figures and curves by score: the loss; with reruns also likelihood ratios. No rerun is the candidate."""
    n = len(ell[0])
    scores = {"loss": np.concatenate(ell)}
    if trials is not None:
        rows = len(scores["loss"])
        seen = audit.confidence_logit(trials.ell[:, :rows].numpy())
        reference = audit.reference(seen, trials.included[:, :rows].numpy())
        scores["online_lira"] = reference.likelihood_ratio(audit.confidence_logit(scores["loss"]))
    figures: dict[str, Any] = {}
    curves = {}
    for name, score in scores.items():
        test = audit.membership(score[:n], score[n:])
        figures |= {f"{name}_auc": test.auc}
        figures |= {f"{name}_tpr_at_fpr_{rate}": value for rate, value in test.tpr.items()}
        curves[name] = {"fpr": test.fpr_curve.tolist(), "tpr": test.tpr_curve.tolist()}
    return figures, curves
