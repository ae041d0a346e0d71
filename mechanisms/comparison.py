"""Compares mechanisms on the same records at equal epsilon and returns a data frame.

Every fit spends its epsilon again, so use public or synthetic records, or records with a budget for
the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mechanisms.errors import MechanismError
from mechanisms.estimator import PrivateClassifier
from mechanisms.mechanism import Mechanism
from mechanisms.model.metrics import classification
from mechanisms.model.resampling import resampled_f1
from mechanisms.privacy.events import Claim

if TYPE_CHECKING:
    import pandas as pd

Score = Literal["weighted_f1", "macro_f1"]


def compare(
    mechanisms: Mapping[str, Mechanism],
    X: Any,
    y: Any,
    *,
    epsilon: float | Sequence[float],
    delta: float = 1e-5,
    score: Score = "weighted_f1",
    seeds: int = 3,
    test_share: float = 0.5,
    **options: Any,
) -> pd.DataFrame:
    """Fits every mechanism on the same training records with the same seeds, and scores it on
    the others.

    Args:
        mechanisms: mechanism by row label.
        X: numbers [n, features], or n texts.
        y: n labels.
        epsilon: target of the mechanisms that have one, calibrated by their tightest accountant;
            one row per value. Mechanisms without a target are measured once.
        delta: of the formal claims.
        score: which F1 is reported.
        seeds: fits per row.
        test_share: fraction of the records that is used for testing.
        options: further arguments of `PrivateClassifier`, such as `bounds`, `titles` or `classes`.

    Returns:
        One row per mechanism and target. `mean` and `spread` (standard deviation) of the score are
        over seeds. `difference` is to the first row, and `standard_error` is its error over 2,000
        resamples of the held-out records that all rows share (paired bootstrap). `record_error` is
        the error of the mean. `epsilon`, `epsilon_replaced` and `guarantee_kind` come from the
        claim with the largest epsilon among the seeds.

    Raises:
        MechanismError: no mechanism, or a setting that one of them refuses.

    Examples:
        >>> from autocoder import NonPrivate, PriorDescent
        >>> X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 500, axis=0)
        >>> y = np.repeat(["fall", "burn"], 500)
        >>> methods = {"plain": NonPrivate(), "descent": PriorDescent()}
        >>> table = compare(methods, X, y, epsilon=[0.5, 1], classes=["burn", "fall"])
        >>> table["guarantee_kind"].tolist()
        ['none', 'formal', 'formal']
    """
    import pandas as pd
    from sklearn.model_selection import train_test_split

    classes, places = np.unique(np.asarray(y), return_inverse=True)
    train, test, fitted, expected = train_test_split(
        X, places, test_size=test_share, random_state=0
    )
    targets = [epsilon] if isinstance(epsilon, int | float) else list(epsilon)
    rows: dict[str, list[Any]] = {}
    first: tuple[float, np.ndarray] | None = None
    for name, mechanism in mechanisms.items():
        for target in targets if mechanism.needs_target_epsilon else [None]:
            scores, resampled, claims = [], [], []
            for seed in range(seeds):
                settings: dict[str, Any] = {"classes": classes} | options
                settings |= {"epsilon": target, "delta": delta, "random_state": seed}
                model = PrivateClassifier(mechanism, **settings).fit(train, classes[fitted])
                predicted = np.searchsorted(classes, model.predict(test)).astype(np.int64)
                scores.append(getattr(classification(expected, predicted), score))
                resampled.append(resampled_f1(expected, predicted)[score])
                claims.append(model.claim)
            mean, over = float(np.mean(scores)), np.mean(resampled, axis=0)
            first = (mean, over) if first is None else first
            row = {
                "mechanism": name,
                "mean": mean,
                "spread": float(np.std(scores, ddof=1)) if seeds > 1 else float("nan"),
                "difference": mean - first[0],
                "standard_error": float(np.std(over - first[1])),
                "record_error": float(np.std(over)),
                "target": float("nan") if target is None else float(target),
                **_claimed(claims),
            }
            for column, value in row.items():
                rows.setdefault(column, []).append(value)
    if not rows:
        raise MechanismError("no mechanism to compare. Specify at least one", kind="no-mechanism")
    return pd.DataFrame(rows).set_index("mechanism")


def _claimed(claims: Sequence[Claim]) -> dict[str, float | str]:
    largest = max(claims, key=lambda claim: claim.epsilon or 0.0)
    return {
        "epsilon": float("nan") if largest.epsilon is None else largest.epsilon,
        "epsilon_replaced": float("nan")
        if largest.epsilon_replaced is None
        else largest.epsilon_replaced,
        "guarantee_kind": largest.guarantee_kind,
    }
