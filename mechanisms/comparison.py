"""Compares mechanisms on the same records at equal epsilon, and follows one over several; answers are data frames.

    compare({"plain": NonPrivate(), "descent": DpSgd()}, X, y, epsilon=1, bounds=(-1, 3))
    curve(DpSgd(), [0.5, 1, 2, 4], X, y, bounds=(-1, 3))

Every fit costs its epsilon again: both serve public or invented records, or a study that somebody else has paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    epsilon: float,
    delta: float = 1e-5,
    reference: str | None = None,
    score: Score = "weighted_f1",
    seeds: int = 3,
    test_share: float = 0.5,
    **options: Any,
) -> pd.DataFrame:
    """Fits every mechanism on the same half, by the same seeds, and scores it on the other half.

    Mechanisms with a target get `epsilon`, calibrated by their tightest accountant; those without are measured.

    Args:
        reference: the name that differences are taken to; None: the first.
        score: `weighted_f1` or `macro_f1`.
        seeds: fits per mechanism.
        options: further arguments of `PrivateClassifier`, such as `bounds`, `titles` or `classes`.

    Returns:
        One row per name: `mean` and `spread` (standard deviation) of the score over seeds; `difference` to the
        reference and its `standard_error` over 2,000 resamples of the test records that all share (paired bootstrap);
        `epsilon`, `epsilon_replaced` and `guarantee_kind` of the claims, the largest of the seeds.

    Raises:
        MechanismError: there is no such reference, or what a mechanism refuses.
    """
    import pandas as pd

    names = list(mechanisms)
    if not names:
        raise MechanismError("no mechanism to compare. Name at least one")
    reference = names[0] if reference is None else reference
    if reference not in mechanisms:
        raise MechanismError(f"reference {reference} is not one of {', '.join(names)}. Name one of them")
    half = _Halves.of(X, y, test_share)
    fits = {
        name: half.fits(one, epsilon=epsilon, delta=delta, seeds=seeds, options=options)
        for name, one in mechanisms.items()
    }
    base = fits[reference]
    rows = {
        name: one.row(score)
        | {
            "difference": one.scores(score).mean() - base.scores(score).mean(),
            "standard_error": float(np.std(one.resampled[score] - base.resampled[score])),
        }
        | one.claimed
        for name, one in fits.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("mechanism")


def curve(
    mechanism: Mechanism,
    epsilons: Sequence[float],
    X: Any,
    y: Any,
    *,
    delta: float = 1e-5,
    score: Score = "weighted_f1",
    seeds: int = 3,
    test_share: float = 0.5,
    **options: Any,
) -> pd.DataFrame:
    """Fits one mechanism at each target epsilon, on the same halves and by the same seeds.

    Returns:
        One row per target: `mean` and `spread` over seeds, `standard_error` of the mean over resamples of the test
        records, and the claims, as `compare` has them.

    Raises:
        MechanismError: the mechanism has no target, or what it refuses.
    """
    import pandas as pd

    if not mechanism.has_target:
        raise MechanismError(f"mechanism `{mechanism.kind}` takes no target, so it has no curve. Use compare()")
    half = _Halves.of(X, y, test_share)
    rows = {}
    for target in epsilons:
        fits = half.fits(mechanism, epsilon=target, delta=delta, seeds=seeds, options=options)
        rows[float(target)] = fits.row(score) | {"standard_error": float(np.std(fits.resampled[score]))} | fits.claimed
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("target_epsilon")


@dataclass(frozen=True)
class _Fits:
    labels: np.ndarray
    predicted: tuple[np.ndarray, ...]
    claims: tuple[Claim, ...]

    def scores(self, score: Score) -> np.ndarray:
        return np.array([getattr(classification(self.labels, one), score) for one in self.predicted])

    def row(self, score: Score) -> dict[str, Any]:
        scores = self.scores(score)
        return {"mean": scores.mean(), "spread": scores.std(ddof=1) if len(scores) > 1 else float("nan")}

    @cached_property
    def resampled(self) -> dict[str, np.ndarray]:
        each = [resampled_f1(self.labels, one) for one in self.predicted]
        return {name: np.mean([one[name] for one in each], axis=0) for name in each[0]}

    @property
    def claimed(self) -> dict[str, Any]:
        largest = max(self.claims, key=lambda claim: claim.epsilon or 0.0)
        return {
            "epsilon": float("nan") if largest.epsilon is None else largest.epsilon,
            "epsilon_replaced": float("nan") if largest.epsilon_replaced is None else largest.epsilon_replaced,
            "guarantee_kind": largest.guarantee_kind,
        }


@dataclass(frozen=True)
class _Halves:
    train: Any
    test: Any
    labels: np.ndarray
    expected: np.ndarray
    """int64 [test records], places in `classes`."""
    classes: np.ndarray

    @staticmethod
    def of(X: Any, y: Any, test_share: float) -> _Halves:
        from sklearn.model_selection import train_test_split

        classes, places = np.unique(np.asarray(y), return_inverse=True)
        train, test, fitted, expected = train_test_split(X, places, test_size=test_share, random_state=0)
        return _Halves(train, test, classes[fitted], np.asarray(expected, dtype=np.int64), classes)

    def fits(
        self, mechanism: Mechanism, *, epsilon: float, delta: float, seeds: int, options: Mapping[str, Any]
    ) -> _Fits:
        predicted, claims = [], []
        for seed in range(seeds):
            settings: dict[str, Any] = {"classes": self.classes} | dict(options)
            settings |= {"epsilon": epsilon if mechanism.has_target else None, "delta": delta, "random_state": seed}
            model = PrivateClassifier(mechanism, **settings).fit(self.train, self.labels)
            predicted.append(np.searchsorted(self.classes, model.predict(self.test)).astype(np.int64))
            claims.append(model.claim)
        return _Fits(self.expected, tuple(predicted), tuple(claims))
