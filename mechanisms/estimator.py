"""Fits every mechanism that reads features, a table or texts by the interface of scikit-learn.

    model = PrivateClassifier(PriorDescent(), epsilon=1, delta=1e-5).fit(X, y)
    model.predict(X), model.predict_proba(X), model.claim

It plans, fits and claims as a branch of the pipeline does. There is no ledger: who fits the same records again pays
again, and adds the costs up. Two fits differ, as their noise is secret; scikit-learn's tag `non_deterministic` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data  # pyrefly: ignore[missing-module-attribute]
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.mechanism import ClassifierModel, Fitted, Mechanism, Plan, Records, Run, Task
from mechanisms.model import classifier as classifiers
from mechanisms.model import prior
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.encoder_files import PACKAGED
from mechanisms.model.inputs import FeatureInputs
from mechanisms.posterior import risks, swag
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.swag import Normal
from mechanisms.privacy import claims
from mechanisms.privacy.entropy import system_normal
from mechanisms.privacy.events import Claim, Event, SwagPpmEvent
from mechanisms.privacy.noise import SecretStream
from mechanisms.swag_ppm import PosteriorDraw

_LABELS = "the set of labels, which was read from y; pass classes= to keep it out"


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """Fits a mechanism to features or texts, predicts labels, and holds the claim of its privacy.

    Args:
        mechanism: any that reads features (`from mechanisms import DpSgd, …`). None: `FormalHead()`.
        epsilon: target of one privacy unit. None for a mechanism without one (`NonPrivate`, `SwagPpm`).
        delta: of a formal claim, which adds it to e^epsilon times a probability; well below 1/n.
        bounds: public (lowest, highest) of the features, a number or one per feature. Features are cut to them, and
            scaled to what the mechanism reads: [0, 1] for one of tables, [-1, 1] otherwise. None: features as they are;
            a mechanism of tables cuts them to [0, 1].
        classes: public labels. None: those of y, which the claim then lists as unprotected.
        titles: public text of each label, by label; or, of features, their vectors [classes, width]. The head starts
            there, without cost. None: at zero, and `PriorDescent` spends nothing on the map between titles and records.
        encoder: of texts, a hub name or folder.
        records_per_unit: how many records one unit may have. The caller sees to it that none has more.
        privacy_unit: the name of that unit.
        unprotected_inputs: what else of the records reached the call, such as tuning; stated with the claim.
        random_state: of orders and initial values, on which no privacy rests.
        key: 32 bytes that all secret noise follows from, for tests and examples alone. Whoever knows it can take the
            noise out again. None: the operating system's entropy, at every fit.
        folder: private; a fit that was killed goes on from it. None: none.
    """

    def __init__(
        self,
        mechanism: Mechanism | None = None,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        bounds: tuple[Any, Any] | None = None,
        classes: Sequence[Any] | np.ndarray | None = None,
        titles: Mapping[Any, str] | Sequence[Sequence[float]] | np.ndarray | None = None,
        encoder: str = PACKAGED,
        records_per_unit: int = 1,
        privacy_unit: str = "record",
        unprotected_inputs: tuple[str, ...] = (),
        random_state: Any = None,
        key: bytes | None = None,
        folder: Path | None = None,
    ) -> None:
        self.mechanism = mechanism
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.classes = classes
        self.titles = titles
        self.encoder = encoder
        self.records_per_unit = records_per_unit
        self.privacy_unit = privacy_unit
        self.unprotected_inputs = unprotected_inputs
        self.random_state = random_state
        self.key = key
        self.folder = folder

    def fit(self, X: Any, y: Any) -> Self:
        """Plans for the number of records, classes and features, fits once, and sets the claim.

        Args:
            X: numbers [n, features], or n texts.
            y: n labels.

        Raises:
            MechanismError: no target or one too many, a label outside `classes`, or what the mechanism refuses.
            ValueError: what scikit-learn refuses (MechanismError is one too).
        """
        features, y = self._features(X, y, fitting=True)
        mechanism = self._mechanism(len(y))
        labels = self._labels(y)
        width, classes = features.shape[1], len(self.classes_)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        start = self._start(width)

        def untrained() -> Classifier:
            made = classifiers.build(ModelConfig(pooling="none"), num_labels=classes, seed=seed, width=width)
            made.flat.zero_()
            if start is not None:
                prior.start(made, start[None], torch.ones(classes, dtype=torch.bool))
            return made

        task = Task(
            records=len(y),
            classes=classes,
            records_per_unit=self.records_per_unit,
            target_epsilon=self.epsilon,
            delta=self.delta,
            features=width,
            columns=width,
        )
        run = Run(classes=classes, seed=seed, classifier=untrained, key=self.key, folder=self.folder)
        self.plan_ = mechanism.plan(task)
        fitted, self.claim_ = fit_once(
            self.plan_,
            Records(FeatureInputs(features), labels),
            run,
            task,
            privacy_unit=self.privacy_unit,
            unprotected_inputs=(*self.unprotected_inputs, *([] if self.classes is not None else [_LABELS])),
        )
        self.model_, self.figures_ = fitted.model, dict(fitted.figures)
        return self

    @property
    def claim(self) -> Claim:
        """Returns the claim of what ran: epsilon, delta, the kind of guarantee, and all that it rests on."""
        check_is_fitted(self)
        return self.claim_

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns probabilities [n, classes], in the order of `classes_`."""
        check_is_fitted(self)
        return self.model_.log_probabilities(FeatureInputs(self._features(X)[0])).exp().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Returns the most probable label of each record [n]."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def _mechanism(self, records: int) -> Mechanism:
        """Returns the mechanism with this class's defaults in place of what is left open."""
        from mechanisms.dppl_public import DpplPublic
        from mechanisms.formal_head import FormalHead
        from mechanisms.prior_descent import PriorDescent

        mechanism = FormalHead() if self.mechanism is None else self.mechanism
        if "features" not in mechanism.reads:
            raise MechanismError(f"mechanism `{mechanism.kind}` does not read features. Use another one.")
        if mechanism.has_target and self.epsilon is None and getattr(mechanism, "target_epsilon", None) is None:
            raise MechanismError(f"mechanism `{mechanism.kind}` needs a target. Pass epsilon=1, for example.")
        if not mechanism.has_target and self.epsilon is not None:
            raise MechanismError(f"mechanism `{mechanism.kind}` takes no target. Leave epsilon out.")
        if isinstance(mechanism, DpplPublic) and self.titles is None:
            raise MechanismError("mechanism `dppl-public` chooses among titles. Pass titles=.")
        free = "align_share" not in mechanism.model_fields_set
        if isinstance(mechanism, PriorDescent) and self.titles is None and free:
            mechanism = mechanism.model_copy(update={"align_share": 0.0})
        return mechanism.with_defaults(_defaults(records))

    def _labels(self, y: np.ndarray) -> Tensor:
        """Sets `classes_`; returns the index of each label, int64 [n]."""
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise MechanismError("y has one class. Give records of two classes at least, or pass classes=.")
        index = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if not (self.classes_[index] == y).all():
            raise MechanismError("y has a label outside classes. Add it to classes.")
        return torch.from_numpy(index.astype(np.int64))

    def _features(self, X: Any, y: Any = None, *, fitting: bool = False) -> tuple[Tensor, np.ndarray]:
        """Returns features float32 [n, width], and y as scikit-learn checks it. The first call fixes the width."""
        if _are_texts(X):
            config = ModelConfig(encoder=self.encoder, trainable="head", pooling="mean")
            X = prior.embed(config, list(X), device="cpu").numpy()
        if fitting:
            X, y = validate_data(self, X, y)
            check_classification_targets(y)
        else:
            X = validate_data(self, X, reset=False)
        X = np.asarray(X, dtype=np.float64)
        if self.bounds is not None:
            low, high = (np.asarray(bound, dtype=np.float64) for bound in self.bounds)
            X = (np.clip(X, low, high) - low) / np.where(high > low, high - low, 1.0)
            tables = self.mechanism is not None and self.mechanism.tables
            X = X if tables else 2 * X - 1
        return torch.from_numpy(X.astype(np.float32)), cast(np.ndarray, y)

    def _start(self, width: int) -> Tensor | None:
        """Returns vectors of the titles, float32 [classes, width]."""
        if self.titles is None:
            return None
        if isinstance(self.titles, Mapping):
            absent = [label for label in self.classes_.tolist() if label not in self.titles]
            if absent:
                raise MechanismError(f"titles has no text for {len(absent)} of the classes. Add them.")
            config = ModelConfig(encoder=self.encoder, trainable="head", pooling="mean")
            texts = [self.titles[label] for label in self.classes_.tolist()]
            vectors = prior.embed(config, texts, device="cpu")
        else:
            vectors = torch.as_tensor(np.asarray(self.titles), dtype=torch.float32)
        if vectors.shape != (len(self.classes_), width):
            raise MechanismError(
                f"titles have the shape {list(vectors.shape)}, the head [{len(self.classes_)}, {width}]. Give one "
                "vector per class in the width of X. Texts of titles go with texts in X."
            )
        return vectors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.non_deterministic = self.key is None
        return tags


def fit_once(
    plan: Plan,
    records: Records,
    run: Run,
    task: Task,
    *,
    privacy_unit: str,
    unprotected_inputs: tuple[str, ...] = (),
    public_inputs: tuple[str, ...] = (),
) -> tuple[Fitted, Claim]:
    """Fits a plan, draws once where the model is a posterior, and claims what ran.

    The draw of a SWAG posterior is the operating system's entropy's, or the key's; Delta is measured at it too, and the
    larger value is claimed.
    """
    fitted = plan.fit(records, run)
    if isinstance(fitted.model, PosteriorDraw):
        fitted = _drawn(fitted, fitted.model, records, run)
    delta = getattr(plan.mechanism, "delta", None) or task.delta
    claim = claims.claim_of(
        fitted.event,
        delta=delta if claims.formal(fitted.event) else None,
        privacy_unit=privacy_unit,
        max_records_per_unit=task.records_per_unit,
        unprotected_inputs=unprotected_inputs,
        public_inputs=public_inputs,
    )
    return fitted, claim


def _drawn(fitted: Fitted, model: PosteriorDraw, records: Records, run: Run) -> Fitted:
    """Returns the classifier at one draw that nobody can repeat; its event counts Delta there too, in nats."""
    classifier = model.classifier
    swag.sample(model.posterior, normal=_normal_of(run), out=classifier.flat)
    alpha = torch.ones(len(records)) if model.weights is None else model.weights
    at_draw = risks.at_draw(classifier, records.inputs, records.labels, weights=alpha.to(classifier.device))
    event: Event = fitted.event
    if isinstance(event, SwagPpmEvent):  # a bound holds at every draw
        event = event.model_copy(update={"sensitivity": max(event.sensitivity, at_draw)})
    return Fitted(ClassifierModel(classifier), event, dict(fitted.figures) | {"sensitivity_at_draw": at_draw})


def _normal_of(run: Run) -> Normal:
    """Returns the source of a draw's normals: the operating system's entropy, unless the run has a key."""
    if run.key is None:
        return system_normal
    stream, step = SecretStream(run.key), count()
    return lambda out: stream.normal_(out, purpose="draw", step=next(step))


def _defaults(records: int) -> dict[str, Any]:
    """Returns settings that a mechanism leaves to its caller, by name."""
    return {
        "phase": OptimiserPhase(optimiser="adamw", learning_rate=0.05, epochs=20, batch_size=64, schedule="linear"),
        "fine_tune": OptimiserPhase(optimiser="adamw", learning_rate=0.05, epochs=10, batch_size=64),
        "collect": OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=20, batch_size=64),
        "pseudo_posterior": PseudoPosteriorConfig(risk_draws=100, sensitivity_draws=100),
        "epochs": 30,
        "batch_size": min(512, records),
    }


def _are_texts(X: Any) -> bool:
    """Checks for a flat sequence of strings, a pandas column and a numpy array of text included."""
    if isinstance(X, str) or not hasattr(X, "__len__") or getattr(X, "ndim", 1) != 1:
        return False
    return len(X) > 0 and all(isinstance(text, str) for text in X)
