"""RMIA, a published membership attack, on SWAG-PPM and prior descent (this project's
implementation).

Zarifzadeh, Liu and Shokri 2024 (arXiv 2312.03262, ML Privacy Meter). The score of a record x is the
share of population records z with (p(x | model) / p(x)) / (p(z | model) / p(z)) >= gamma, where p()
is the mean over reference models, half of which saw x. Coin tosses select the records of each fit.
Each fit is the target once, with all other fits as references. A rule is chosen on half of the
target's coins and measured on the other half, which gives a lower bound on epsilon at 95%
confidence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

from mechanisms.audit import bounds
from mechanisms.audit.trials import Records
from mechanisms.estimator import PrivateClassifier
from mechanisms.mechanism import Task
from mechanisms.model.config import OptimiserPhase
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy.claims import of_one_record
from mechanisms.swag_ppm import SwagPpm
from studies import accounting, results
from studies.options import CodeList, Label, NarrativeFile, Out, Text
from studies.rare_codes import DELTA, sampled

GAMMA, POPULATION, EPSILON = 2.0, 0.2, 5.0


def scores(
    target: np.ndarray, references: np.ndarray, included: np.ndarray, population: np.ndarray
) -> np.ndarray:
    """Returns RMIA's score of every record.

    Args:
        target: probabilities of the right labels [n].
        references: the same from the other models [m, n].
        included: whether each reference was trained on a record, bool [m, n].
        population: bool [n], records that were used in no training.
    """
    seen = np.where(included, references, 0).sum(0) / np.maximum(included.sum(0), 1)
    unseen = np.where(included, 0, references).sum(0) / np.maximum((~included).sum(0), 1)
    mean = np.where(population | ~included.any(0), unseen, (seen + unseen) / 2)
    ratio = target / np.maximum(mean, 1e-30)
    return (
        np.searchsorted(np.sort(ratio[population]), ratio / GAMMA, side="right") / population.sum()
    )


def bound(
    score: np.ndarray, member: np.ndarray, delta: float, draws: np.random.Generator
) -> tuple[float, float]:
    """Returns the lower bound on epsilon, and the share of right guesses behind it."""
    choosing = draws.random(len(score)) < 0.5
    # a score with few values has ties, which a rule would include or exclude together
    score = score + draws.uniform(0, 1e-9, len(score))
    rule = bounds.choose(score[choosing], member[choosing])
    guesses = rule.apply(score[~choosing], member[~choosing])
    return bounds.one_run_bound(guesses, delta=delta), guesses.correct / max(guesses.guessed, 1)


def fits(
    features: Tensor, labels: Tensor, titles: Tensor, included: Tensor
) -> dict[str, tuple[Tensor, list[float]]]:
    """Returns log-likelihoods [fits, n] and the epsilon claimed by each fit, by mechanism."""
    classes, seeds = len(titles), tuple(range(1, len(included) + 1))
    swag = SwagPpm(
        fine_tune=OptimiserPhase(optimiser="adamw", learning_rate=0.003, epochs=10, batch_size=8),
        collect=OptimiserPhase(optimiser="sgd", learning_rate=0.01, epochs=20, batch_size=8),
        pseudo_posterior=PseudoPosteriorConfig(risk_draws=50, sensitivity_draws=50),
    )
    plan = swag.plan(Task(records=int(included[0].sum()), classes=classes))
    assert isinstance(plan.mechanism, SwagPpm)
    pool = Records(features, labels, included, seeds=seeds)
    many = plan.mechanism.fit_many(plan, pool, torch.zeros(classes, features.shape[1] + 1))[
        swag.round
    ]
    claimed = [of_one_record(accounting.of_event(event, None)) for event in many.events]
    found = {"swag-ppm": (many.ell, [float(epsilon or np.nan) for epsilon in claimed])}
    alone = []
    for members in included:
        model = PrivateClassifier(
            PriorDescent(),
            epsilon=EPSILON,
            delta=DELTA,
            classes=np.arange(classes),
            titles=titles.numpy(),
        )
        model.fit(features[members].numpy(), labels[members].numpy())
        alone.append(
            np.log(model.predict_proba(features.numpy())[np.arange(len(labels)), labels.numpy()])
        )
    return found | {"prior-descent": (torch.tensor(np.array(alone)), [EPSILON] * len(included))}


def run(
    out: Out,
    records: NarrativeFile = None,
    codelist: CodeList = None,
    text: Text = "Final Narrative",
    label: Label = "Nature",
    targets: Annotated[int, typer.Option(help="number of fits to attack")] = 5,
    references: Annotated[int, typer.Option(help="number of further fits for the attacker")] = 5,
) -> Path:
    """RMIA, a published membership attack, on SWAG-PPM and prior descent: bounds and claims.

    Example: python -m studies rmia --records osha.csv --codelist oiics201_nature.csv --out results
    """
    features, codes, _, titles = sampled(records, codelist, text, label)
    labels = np.unique(codes, return_inverse=True)[1]
    draws = np.random.default_rng(0)
    population = draws.random(len(labels)) < POPULATION
    included = (draws.random((targets + references, len(labels))) < 0.5) & ~population
    rows = []
    for name, (ell, claimed) in fits(
        features, torch.tensor(labels), titles, torch.tensor(included)
    ).items():
        right = np.exp(ell.numpy().astype(float))
        for target in range(targets):
            is_reference = np.arange(len(right)) != target
            score = scores(right[target], right[is_reference], included[is_reference], population)
            delta = DELTA if name == "prior-descent" else 0.0
            least, correct = bound(score[~population], included[target][~population], delta, draws)
            place = {"mechanism": name, "target": target, "claimed": claimed[target]}
            rows.append(place | {"bound": least, "right": correct})
    results.save(out / "rmia.csv", rows)
    return out / "rmia.csv"
