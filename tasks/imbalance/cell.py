"""Computes one cell (set, branch, epsilon, seed): split, plan, fit, claim, score. The result is JSON under a key."""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score
from sklearn.model_selection import train_test_split

from mechanisms.errors import MechanismError
from mechanisms.mechanism import Mechanism, Plan, Records, Run, Task
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import derive_seed
from mechanisms.privacy.claims import claim_of, epsilon_of_one_replaced, formal
from tasks.branches.branch import Branch
from tasks.imbalance.suite import TableSet

_ATTEMPTS = 30
METRICS = ("auc", "f1", "balanced_accuracy", "recall", "worst_class_accuracy")
"""The five metrics of the page; cells also hold `precision` and `average_precision`."""
_SHARED = tuple(f"mechanisms.tabular.{name}" for name in ("columns", "linear", "trees"))
"""Files of `mechanisms.tabular` that its mechanisms share."""
_NONE: Any = 0


class Cell(BaseModel, frozen=True, extra="forbid"):
    """Holds the result of one fit.

    `epsilon` is the target for one record's values replaced (None: no protection), whatever neighbours the mechanism's
    claim is for; `replaced` what the event costs in that relation, `claimed` and `relation` the claim as it stands.
    """

    key: str
    set: str
    branch: str
    epsilon: float | None
    seed: int
    auc: float
    f1: float
    balanced_accuracy: float
    recall: float
    worst_class_accuracy: float
    precision: float
    average_precision: float
    seconds: float
    kind: str
    relation: str
    claimed: float | None
    replaced: float | None = None
    delta: float | None


def key_of(table: TableSet, branch: Branch, epsilon: float | None, seed: int, test_share: float) -> str:
    """Returns the key over all that the result depends on: file, schema, settings, seed, code of the mechanism."""
    content = {
        "set": table.sha256,
        "schema": table.schema.model_dump(mode="json"),
        "mechanism": branch.mechanism.model_dump(mode="json"),
        "epsilon": epsilon,
        "seed": seed,
        "test_share": test_share,
        "training_minority": table.training_minority,
        "code": _code(type(branch.mechanism).__module__),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


@cache
def _code(module: str) -> str:
    """Returns the digest of the mechanism's file, those that tabular ones share, and this; tests guard other code."""
    files = [importlib.import_module(name).__file__ for name in (module, __name__, *_SHARED)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files if file is not None)).hexdigest()


class Fits:
    """Fits cells; a plan does not depend on the seed and is solved once."""

    def __init__(self, test_share: float) -> None:
        self._test_share = test_share
        self._plans: dict[tuple[str, str, float | None], Plan] = {}

    def fit(self, table: TableSet, branch: Branch, epsilon: float | None, seed: int, key: str) -> Cell:
        """Splits, fits and scores.

        Raises:
            MechanismError: the mechanism refuses, or the set has fewer training records than it requires.
        """
        train, test = split(table, seed, self._test_share)
        task = Task(
            records=len(train),
            classes=2,
            target_epsilon=epsilon,
            delta=len(train) ** -2.0,
            features=table.features.shape[1],
            columns=len(table.schema.columns),
        )
        task_key = (table.name, branch.name, epsilon)
        if task_key not in self._plans:
            self._plans[task_key] = plan_replaced(branch.mechanism, task)
        run = Run(classes=2, seed=seed, classifier=_no_classifier, schema=table.schema)
        started = time.perf_counter()
        fitted = self._plans[task_key].fit(Records(FeatureInputs(table.features[train]), table.labels[train]), run)
        seconds = time.perf_counter() - started
        claim = claim_of(
            fitted.event,
            delta=task.delta if formal(fitted.event) else None,
            privacy_unit="record",
            max_records_per_unit=1,
            unprotected_inputs=(*table.unprotected, *branch.unprotected),
        )
        scores = fitted.model.log_probabilities(FeatureInputs(table.features[test]))
        return Cell(
            key=key,
            set=table.name,
            branch=branch.name,
            epsilon=epsilon,
            seed=seed,
            seconds=seconds,
            kind=claim.guarantee_kind,
            relation=claim.neighbouring_relation,
            claimed=claim.epsilon,
            replaced=claim.epsilon_replaced,
            delta=claim.delta,
            **evaluate(table.labels[test].numpy(), scores),
        )


def split(table: TableSet, seed: int, test_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Splits by label with the seed, and thins label 1 in training if the set requires it; returns two int64 vectors.

    Raises:
        MechanismError: the set has fewer training records of label 1 than it requires.
    """
    train, test = train_test_split(
        np.arange(len(table.labels)),
        test_size=test_share,
        stratify=table.labels.numpy(),
        random_state=derive_seed(seed, "imbalance", table.name) % (1 << 32),
    )
    if table.training_minority is not None:
        train = thin(np.asarray(train), table.labels.numpy(), table.training_minority)
    return np.asarray(train), np.asarray(test)


def plan_replaced(mechanism: Mechanism, task: Task) -> Plan:
    """Plans noise with which one record *replaced* costs at most the target epsilon, and at least 0.99 of it.

    Mechanisms whose claim is for that relation are planned as they are; one whose claim is for a record added or
    removed gets the smaller target that costs as much.

    Raises:
        MechanismError: no noise meets the target.
    """
    plan, target = mechanism.plan(task), task.target_epsilon
    aim = target
    for _ in range(_ATTEMPTS):
        if target is None or aim is None or plan.event is None or not formal(plan.event):
            return plan
        cost = epsilon_of_one_replaced(plan.event, delta=task.delta, records_per_unit=1)
        if cost is not None and 0.99 * target <= cost <= target * (1 + 1e-6):
            return plan
        if cost is None:
            aim /= 2
        elif aim == target and cost < target:
            return plan  # for one record replaced already, and noise has a grid
        else:
            aim *= 0.997 * target / cost
        plan = mechanism.plan(task.model_copy(update={"target_epsilon": aim}))
    raise MechanismError(f"no noise costs epsilon {target:g} for one record replaced")


def thin(train: np.ndarray, labels: np.ndarray, minority: int) -> np.ndarray:
    """Returns training rows [n] with the first `minority` of label 1 alone; a split's rows are in random order.

    Raises:
        MechanismError: label 1 has fewer records.
    """
    ones = train[labels[train] == 1]
    if len(ones) < minority:
        raise MechanismError(
            f"the suite requires {minority} training records of label 1, and the split has {len(ones)}"
        )
    return train[~np.isin(train, ones[minority:])]


def evaluate(labels: np.ndarray, scores: torch.Tensor) -> dict[str, float]:
    """Computes metrics of log-probabilities [n, 2] at threshold one half, and two without a threshold."""
    predicted, probability = scores.argmax(1).numpy(), scores[:, 1].exp().numpy()
    recall = float(recall_score(labels, predicted, zero_division=_NONE))
    specificity = float(recall_score(1 - labels, 1 - predicted, zero_division=_NONE))
    return {
        "auc": float(roc_auc_score(labels, probability)),
        "f1": float(f1_score(labels, predicted, zero_division=_NONE)),
        "balanced_accuracy": (recall + specificity) / 2,
        "recall": recall,
        "worst_class_accuracy": min(recall, specificity),
        "precision": float(precision_score(labels, predicted, zero_division=_NONE)),
        "average_precision": float(average_precision_score(labels, probability)),
    }


def _no_classifier() -> Classifier:
    raise MechanismError("this suite runs mechanisms with a built-in model only; choose another branch")
