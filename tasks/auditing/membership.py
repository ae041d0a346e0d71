"""Stage: what can be measured of one candidate, beside what is claimed of it.

Three kinds of evidence. A membership test of one draw of the candidate itself, training half against test half, which
costs nothing and bounds epsilon by pairs of records. Trials, which rerun everything on records and canaries that took
part by the toss of a coin, and bound epsilon under add/remove. Memorisation: wrong codes learnt, sequences recognised.
Trials fall into three: the first half are reference runs, from the next eighth guessing rules are chosen, the rest are
measured. Every bound that may become the headline holds at the stated confidence together with the others
(Bonferroni).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from mechanisms.audit import bounds as audit
from storage.artifacts import ArtifactRef
from tasks.auditing import bounds as audit_bounds
from tasks.auditing.bounds import finite
from tasks.auditing.pool import FAMILIES, Pool
from tasks.auditing.settings import AuditParameters
from tasks.auditing.trials import Trials
from tasks.fitting.fits import predictions as read
from tasks.fitting.prepared import SPLITS, load_inputs
from tasks.running.stage import Step, Work


def measure(
    name: str,
    settings: AuditParameters,
    *,
    seed: int,
    delta: float,
    prepared: ArtifactRef,
    predictions: ArtifactRef,
    pool: ArtifactRef | None,
    trials: ArtifactRef | None,
    trials_of: str,
) -> Step:
    """Audit one candidate.

    Args:
        delta: of the claim; 0 where none is quantified, so that the bound is one on pure epsilon.
        predictions: of both halves by the candidate; of a posterior, by a repeatable draw of the audit's own: the one
            that is released does not exist yet, and is drawn once.
        trials_of: name of the candidate's mechanism in the trials.
    """
    inputs: dict[str, ArtifactRef | None] = {"prepared": prepared, "predictions": predictions}
    if pool is not None and trials is not None:
        inputs |= {"pool": pool, "trials": trials}
    config = {"seed": seed, "delta": delta, "confidence": settings.confidence, "trials_of": trials_of}
    return Step(
        name="audit",
        label=f"audit {name}, seed {seed}",
        config=config,
        inputs=inputs,
        body=partial(_measure, **config),
        modules=("tasks.auditing.membership",),
    )


def _measure(work: Work, *, seed: int, delta: float, confidence: float, trials_of: str) -> Mapping[str, Any]:
    codes = [load_inputs(work.inputs["prepared"], split)[1] for split in SPLITS]
    scores = [read(work.inputs["predictions"], split)["log_probabilities"] for split in SPLITS]
    ell = [_log_likelihood(s, y) for s, y in zip(scores, codes, strict=True)]
    pool = Pool.load(work.inputs["pool"]) if "pool" in work.inputs else None
    trials = Trials.load(work.inputs["trials"], trials_of) if pool is not None else None
    tests = 1 if trials is None else 2 + len(FAMILIES)
    each = 1 - (1 - confidence) / tests
    known = None if pool is None or trials is None else _reference_runs(pool, trials)

    figures, curves = _membership(ell, known)
    bounds = [audit_bounds.pairs(ell, codes, known, delta=delta, confidence=each, seed=seed)]
    figures["epsilon_lower_bound_replace_one"] = finite(2 * bounds[0].epsilon)
    if pool is not None and trials is not None:
        bounds += audit_bounds.of_trials(pool, trials, delta=delta, confidence=each)
        figures |= audit_bounds.memorisation(pool, trials)
        figures |= {
            "trials": len(trials.ell),
            "trial_epsilon_mean": finite(float(trials.epsilon.mean())),
            "trial_epsilon_max": finite(float(trials.epsilon.max())),
        }
    if trials is not None and float(trials.epsilon.std()) == 0:  # a claim that does not depend on the records
        bounds = [replace(bound, claimed=None) for bound in bounds]
    best = max(bounds, key=lambda bound: bound.refutes)
    (work.out / "curves.json").write_text(json.dumps(curves))
    return figures | {
        "epsilon_lower_bound": best.refutes,
        "from": best.name,
        "confidence": confidence,
        "delta": delta,
        "fit_gap": float(ell[0].mean() - ell[1].mean()),
        "bounds": [
            {
                "name": bound.name,
                "epsilon": bound.epsilon,
                "guesses": bound.guesses.made,
                "correct": bound.guesses.correct,
                "coins": bound.guesses.coins,
                "auc": bound.auc,
                "claimed_in_trials": bound.claimed,
            }
            for bound in bounds
        ],
    }


def _log_likelihood(scores: Tensor, labels: Tensor) -> np.ndarray:
    return scores.double().gather(1, labels[:, None])[:, 0].numpy()


def _reference_runs(pool: Pool, trials: Trials) -> audit.Reference:
    """Gaussians of each record of both halves, over all trials: none of them is the candidate."""
    n = pool.train + pool.test
    return audit.reference(audit.confidence_logit(trials.ell[:, :n].numpy()), trials.included[:, :n].numpy())


def _membership(ell: list[np.ndarray], known: audit.Reference | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and curves by score: the loss; with reference runs also calibrated by them, and likelihood ratios."""
    n = len(ell[0])
    scores = {"loss": np.concatenate(ell)}
    if known is not None:
        seen = audit.confidence_logit(scores["loss"])
        scores["calibrated"] = seen - known.mean_out
        scores["offline_lira"] = known.offline(seen)
        scores["online_lira"] = known.likelihood_ratio(seen)
    figures: dict[str, Any] = {}
    curves = {}
    for name, score in scores.items():
        found = audit.membership(score[:n], score[n:])
        figures |= {
            f"{name}_auc": found.auc,
            f"{name}_auc_low": found.auc_band[0],
            f"{name}_auc_high": found.auc_band[1],
        }
        for rate, value in found.tpr.items():
            low, high = found.tpr_band[rate]
            key = f"{name}_tpr_at_fpr_{rate}"
            figures |= {key: value, f"{key}_low": low, f"{key}_high": high}
        curves[name] = {"fpr": found.fpr_curve.tolist(), "tpr": found.tpr_curve.tolist()}
    return figures, curves
