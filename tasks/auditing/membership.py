"""Stage: what can be measured of one candidate, beside what is claimed of it.

Five kinds of evidence. A membership test of one draw of the candidate itself, training half against test half, which
costs nothing and bounds epsilon by pairs of records. Trials, which rerun everything on records and canaries that took
part by the toss of a coin, and bound epsilon under add/remove; guesses are held against the curve that a formal claim
rests on, not against one of its points. Gradient canaries in a DP-SGD branch's sums. Densities of a SWAG posterior with
and without a record. Memorisation: wrong codes learnt, sequences recognised.
Trials fall into three: the first half are reference runs, from the next eighth guessing rules are chosen, the rest are
measured. All that may become a headline holds together at the stated confidence (Bonferroni), over the candidates
that are audited together and over the audits that the claim has had (`tasks.auditing.looks`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from mechanisms.audit import bounds as audit
from mechanisms.audit import gradient_canaries, leave_one_out
from mechanisms.dp_sgd import descent_of
from mechanisms.model.fields import Fields
from mechanisms.privacy.events import Event, decode
from storage.artifacts import ArtifactRef
from tasks.auditing import bounds as audit_bounds
from tasks.auditing import densities
from tasks.auditing.bounds import Bound, finite
from tasks.auditing.pool import Pool
from tasks.auditing.trials import Trials
from tasks.fitting.fits import predictions as read
from tasks.fitting.prepared import SPLITS, fields_of, load_inputs
from tasks.running.stage import Step, Work

RERUNS = ("trials", "halved")
"""Inputs of reruns."""


@dataclass(frozen=True)
class Design:
    """What an audit of one claim set itself before it measured.

    alpha: false-alarm rate of one test, by kind; first: what it would be if the claim had had no audit before.
    claimed: epsilon for one record more or less that the claim states, None for no claim.
    event: of a formal claim whose noise is Gaussian, as JSON.
    suspected: what earlier audits of the claim would have refuted as first ones.
    """

    alpha: Mapping[str, float]
    first: Mapping[str, float]
    claimed: float | None
    delta: float
    event: Mapping[str, Any] | None = None
    suspected: float = 0.0


def measure(
    name: str,
    design: Design,
    *,
    seed: int,
    inputs: Mapping[str, ArtifactRef | None],
    trials_of: str,
) -> Step:
    """Audit one candidate.

    Args:
        inputs: `prepared`; of several fields `dataset`; `predictions` of both halves by the candidate (of a posterior,
            by a repeatable draw of the audit's own: the one that is released does not exist yet, and is drawn once);
            where there are such, `pool` and `trials`, `halved` (trials at half noise), `gradients` and `densities`.
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
    layout = fields_of(work.inputs["dataset"]) if "dataset" in work.inputs else None
    ell = [_log_likelihood(s, y, layout) for s, y in zip(scores, codes, strict=True)]
    pool = Pool.load(work.inputs["pool"]) if "pool" in work.inputs else None
    trials, halved = (Trials.load(work.inputs[key], trials_of) if key in work.inputs else None for key in RERUNS)
    known = None if pool is None or trials is None else _reference_runs(pool, trials)
    event = audit_bounds.of_noise(None if design.event is None else decode(dict(design.event)))

    figures, curves = _membership(ell, known)
    # any grouping that owes nothing to who was trained on will do; all fields together would leave hardly a pair
    paired = [labels if labels.dim() == 1 else labels[:, 0] for labels in codes]
    counted = work.context.store.figures(work.refs["gradients"]) if "gradients" in work.inputs else {"coins": 0}

    def tested(alpha: Mapping[str, float], *, halved: Trials | None = None) -> tuple[list[Bound], dict[str, Any]]:
        """Every bound, and figures of the largest deltas, at these rates of a test of each kind."""
        one = 1 - alpha["pairs"]
        found = [audit_bounds.pairs(ell, paired, known, delta=design.delta, confidence=one, seed=seed)]
        if pool is not None and trials is not None:
            each = 1 - alpha["reruns"]
            found += audit_bounds.of_trials(
                pool, trials, delta=design.delta, confidence=each, event=event, halved=halved
            )
            if float(trials.epsilon.std()) == 0:  # a claim that does not depend on the records
                found = [replace(bound, claimed=None) for bound in found]
        if event is not None and counted["coins"]:
            found.append(_gradients(counted, event, design, alpha=alpha["gradients"]))
        if design.claimed is None or design.event is not None:
            return found, {}
        return found, _largest_deltas(work, pool, trials, claimed=design.claimed, alpha=alpha)

    bounds, deltas = tested(design.alpha, halved=halved)
    figures |= deltas
    figures["epsilon_lower_bound_replace_one"] = finite(2 * bounds[0].epsilon)
    if pool is not None and trials is not None:
        figures |= audit_bounds.memorisation(pool, trials)
        figures |= {
            "trials": len(trials.ell),
            "trial_epsilon_mean": finite(float(trials.epsilon.mean())),
            "trial_epsilon_max": finite(float(trials.epsilon.max())),
        }
    if event is not None and counted["coins"]:
        figures["gradient_runs"] = 1
    as_first, deltas_as_first = (bounds, deltas) if design.first == design.alpha else tested(design.first)
    refuted_as_first = max(bound.refutes for bound in as_first)
    suspected = max(refuted_as_first, design.suspected)
    best = max(bounds, key=lambda bound: bound.refutes)
    withheld = (
        design.claimed is not None
        and (suspected > design.claimed or _beyond(deltas_as_first))
        and not (best.refutes > design.claimed or _beyond(deltas))
    )
    (work.out / "curves.json").write_text(json.dumps(curves))
    attack = max(curves, key=lambda score: figures[f"{score}_auc"])
    return figures | {
        "epsilon_lower_bound": best.refutes,
        "from": best.name,
        # what as first audits would have contradicted the claim is not cleared by the smaller rate of a later one
        "reach": 0.0 if withheld else max(bound.could_refute for bound in bounds),
        "withheld": withheld,
        "epsilon_as_first": refuted_as_first,
        "epsilon_suspected": suspected,
        "reach_at_half_noise": max((bound.at_half_noise or 0.0 for bound in bounds), default=0.0),
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
                "at_half_noise": bound.at_half_noise,
                "auc": bound.auc,
                "claimed_in_trials": bound.claimed,
            }
            for bound in bounds
        ],
    }


def _gradients(counted: Mapping[str, Any], event: Event, design: Design, *, alpha: float) -> Bound:
    """What gradient canaries say of the event's descent; beside it, of half of its noise and of perfect guesses."""
    descent, coins = descent_of(event), counted["coins"]
    found, halved, perfect = (
        gradient_canaries.found(descent, right=right, coins=coins, delta=design.delta, alpha=alpha).epsilon
        for right in (counted["right"], counted["right_at_half_noise"], coins)
    )
    guesses = audit.Guesses(counted["right"], coins, coins)
    return Bound("gradients", found, guesses, perfect, at_half_noise=halved)


def _largest_deltas(
    work: Work, pool: Pool | None, trials: Trials | None, *, claimed: float, alpha: Mapping[str, float]
) -> dict[str, Any]:
    """For which deltas a claim that names none stays refuted, by counts of guesses and by exact densities."""
    told: dict[str, Any] = {"refuted_delta_epsilon": claimed}
    if pool is not None and trials is not None:
        told["refuted_delta_by_counts"] = audit_bounds.largest_delta(
            pool, trials, claimed=claimed, alpha=alpha["reruns"]
        )
    if "densities" in work.inputs:
        losses = densities.losses_of(work.inputs["densities"])
        each = alpha["densities"] / len(losses)
        refuted = [leave_one_out.refuted_delta(own, epsilon=claimed, alpha=each) for own in losses]
        trained = work.context.store.figures(work.refs["densities"])["trained"]
        told |= {
            "refuted_delta_by_densities": max(refuted),
            "densities_records": len(refuted),
            "densities_records_beyond": sum(delta > trained**-0.5 for delta in refuted),
            "delta_rate": trained**-0.5,
        }
    return told


def _beyond(deltas: Mapping[str, Any]) -> bool:
    """Whether densities refute a delta above n^(-1/2), which contradicts a claim (`gate.Evidence.verdict`)."""
    return deltas.get("refuted_delta_by_densities", 0.0) > deltas.get("delta_rate", 1.0)


def _log_likelihood(scores: Tensor, labels: Tensor, fields: Fields | None) -> np.ndarray:
    """Of each record, over all fields that it has."""
    return (fields or Fields((scores.shape[1],))).log_likelihood(scores.double(), labels).numpy()


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
