"""One set, branch, epsilon and seed: split, plan, fit, claim, score. Its result is a small JSON, found by its key."""

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
from mechanisms.mechanism import Plan, Records, Run, Task
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import derive_seed
from mechanisms.privacy.claims import claim_of, formal
from tasks.branches.branch import Branch
from tasks.imbalance.suite import TableSet

METRICS = ("auc", "f1", "balanced_accuracy", "recall", "worst_class_accuracy")
"""The five of the page; `precision` and `average_precision` are kept beside them."""
_ROOM = Path(__file__).resolve().parents[2] / "mechanisms" / "tables"
_NONE: Any = 0


class Cell(BaseModel, frozen=True, extra="forbid"):
    """What came of one fit. `epsilon` is the target; None without protection. `claimed` is what the event costs."""

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
    delta: float | None


def key_of(table: TableSet, branch: Branch, epsilon: float | None, seed: int, test_share: float) -> str:
    """Of all that the result depends on: file, schema, settings, seed, and the code of the mechanism and its room."""
    content = {
        "set": table.sha256,
        "schema": table.schema.model_dump(mode="json"),
        "mechanism": branch.mechanism.model_dump(mode="json"),
        "epsilon": epsilon,
        "seed": seed,
        "test_share": test_share,
        "kept": table.kept,
        "code": _code(type(branch.mechanism).__module__),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


@cache
def _code(module: str) -> str:
    """Of the mechanism's own file, the room of tables and this file: what else changes, tests hold to the same fits."""
    own = importlib.import_module(module).__file__
    assert own is not None
    files = [Path(own), Path(__file__), *sorted(_ROOM.glob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class Fits:
    """Fits cells; plans, which no seed changes, are solved once."""

    def __init__(self, test_share: float) -> None:
        self._test_share = test_share
        self._plans: dict[tuple[str, str, float | None], Plan] = {}

    def fit(self, table: TableSet, branch: Branch, epsilon: float | None, seed: int, key: str) -> Cell:
        """Split by label with the seed, thin label 1 in training if the set says so, fit, and score on the rest.

        Raises:
            MechanismError: what the mechanism refuses, or a set that keeps more records than it has.
        """
        train, test = train_test_split(
            np.arange(len(table.labels)),
            test_size=self._test_share,
            stratify=table.labels.numpy(),
            random_state=derive_seed(seed, "imbalance", table.name) % (1 << 32),
        )
        if table.kept is not None:
            train = thinned(np.asarray(train), table.labels.numpy(), table.kept)
        task = Task(
            records=len(train),
            classes=2,
            target_epsilon=epsilon,
            delta=len(train) ** -2.0,
            features=table.features.shape[1],
            columns=len(table.schema.columns),
        )
        at = (table.name, branch.name, epsilon)
        if at not in self._plans:
            self._plans[at] = branch.mechanism.plan(task)
        run = Run(classes=2, seed=seed, classifier=_no_classifier, schema=table.schema)
        started = time.perf_counter()
        fitted = self._plans[at].fit(Records(FeatureInputs(table.features[train]), table.labels[train]), run)
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
            delta=claim.delta,
            **measured(table.labels[test].numpy(), scores),
        )


def thinned(train: np.ndarray, labels: np.ndarray, kept: int) -> np.ndarray:
    """Rows [n] that train, with the first `kept` of label 1 alone: a split's rows come in random order.

    Raises:
        MechanismError: there are not as many.
    """
    ones = train[labels[train] == 1]
    if len(ones) < kept:
        raise MechanismError(f"the suite keeps {kept} training records of label 1, and the split has {len(ones)}")
    return train[~np.isin(train, ones[kept:])]


def measured(labels: np.ndarray, scores: torch.Tensor) -> dict[str, float]:
    """Figures of log-probabilities [n, 2] at threshold one half, and two without a threshold."""
    said, probability = scores.argmax(1).numpy(), scores[:, 1].exp().numpy()
    recall = float(recall_score(labels, said, zero_division=_NONE))
    specificity = float(recall_score(1 - labels, 1 - said, zero_division=_NONE))
    return {
        "auc": float(roc_auc_score(labels, probability)),
        "f1": float(f1_score(labels, said, zero_division=_NONE)),
        "balanced_accuracy": (recall + specificity) / 2,
        "recall": recall,
        "worst_class_accuracy": min(recall, specificity),
        "precision": float(precision_score(labels, said, zero_division=_NONE)),
        "average_precision": float(average_precision_score(labels, probability)),
    }


def _no_classifier() -> Classifier:
    raise MechanismError("this suite is of mechanisms that bring a model of their own")
