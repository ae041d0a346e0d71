"""The scikit-learn interface of every mechanism that reads features, a table or texts.

Each fit spends epsilon again. A search over settings is not covered by epsilon, so the claim of a
fit mentions earlier fits on the same records in this process. It does not add up their cost. Two
fits differ because their noise is secret, which scikit-learn's tag `non_deterministic` declares.
"""

import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_is_fitted,
    column_or_1d,
    validate_data,  # pyrefly: ignore[missing-module-attribute]
)
from torch import Tensor

from mechanisms import earlier_fits
from mechanisms import estimator_inputs as inputs
from mechanisms.errors import MechanismError
from mechanisms.mechanism import (
    ClassifierModel,
    Drawable,
    Fitted,
    Mechanism,
    Plan,
    Records,
    Run,
    Task,
)
from mechanisms.model import classifier as classifiers
from mechanisms.model import lexicon, packaged, prior, word_vectors
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.encoder_files import PACKAGED
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.lexicon import Lexicon
from mechanisms.model.word_vectors import WordVectors
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.swag import Normal
from mechanisms.privacy import claims
from mechanisms.privacy.entropy import system_normal
from mechanisms.privacy.events import Claim
from mechanisms.privacy.noise import SecretStream

_WARNING = (
    "the set of labels was read from y, and epsilon does not cover it: a label that only one "
    "person has would show. "
    "Pass the public list as classes=."
)
_LABELS = "the set of labels, which was read from y; pass classes= to keep it out"
_KEY = "the noise, which follows from the key that the caller passed: who knows it can remove it"
_VOCABULARY = (
    "the vocabulary of the sparse features, if a vectoriser was fitted on these records; one "
    "that is not fitted, such as HashingVectorizer, has none"
)
_LITTLE_OF_BOUNDS = 0.25
"""Fraction of the bounds that the data should at least fill: the noise is scaled to the bounds, not
to the data.
"""


_NORMS = (0.3, 30.0)
"""Median norm of a record's features, in clips, between which they are used. At epsilon 1, digits
(breast cancer) had accuracies of 0.16 (0.65) at 0.1, 0.58 (0.90) at 0.3, 0.75 (0.95) at 0.5, 0.88
(0.97) at 3, 0.85 (0.97) at 10, 0.72 (0.95) at 30 and 0.72 (0.94) at 300.
"""


class LabelsReadFromRecords(UserWarning):
    """The set of labels was read from the records, so epsilon does not cover it."""


class BoundsTooWide(UserWarning):
    """Most features fill only a small part of their bounds, so that the noise outweighs them."""


class FeaturesFarFromUnitScale(UserWarning):
    """Without bounds, most records are cut hard by the clip, or vanish beside the noise."""


def _earlier_fits(number: int) -> list[str]:
    if number == 0:
        return []
    fits = "an earlier fit" if number == 1 else f"{number} earlier fits"
    return [
        f"the choice of settings, if it rests on the scores of {fits} on some of these records in "
        "this process; tune on public records, or divide epsilon among the fits"
    ]


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn classifier trained with differential privacy; `claim` describes the guarantee.

    Args:
        mechanism: any mechanism that reads features: its name ("dp-sgd"), its class, or an
            instance. None means prior descent.
        epsilon: target for one privacy unit. None for mechanisms without a target (`NonPrivate`,
            `SwagPpm`).
        delta: additive term of the (epsilon, delta) guarantee; choose it well below 1/n.
        bounds: public (lowest, highest) of the features, as numbers or one per feature. Features
            are clipped to the bounds and scaled to [-1, 1]. The noise is scaled to the bounds, so
            bounds much wider than the data cost accuracy (and cause a warning). Choose them from
            public knowledge about each feature, never from the records. None uses the features
            unchanged; raw scales far from 1 can cost all accuracy (and cause a warning).
        classes: public labels. None uses the labels in y and warns that epsilon does not cover
            them.
        titles: public text of each label, by label; for features, their vectors [classes, width].
            The head starts from them, at no privacy cost. None starts at zero.
        encoder: for texts, the name of a model on the Hugging Face hub, or a folder.
        words: whether the head also reads similarities between words of a text and words of the
            titles (`mechanisms.model.lexicon`), if both are texts.
        records_per_unit: largest number of records per privacy unit. The caller must ensure that no
            unit has more.
        privacy_unit: name of the privacy unit.
        unprotected_inputs: other ways in which records influenced the call, such as tuning. They
            are listed in the claim.
        random_state: seed of shuffling and initial values; it does not affect privacy.
        key: 32-byte noise key, for tests only. Anyone who knows it can remove the noise. None draws
            a key from the operating system at every fit.
        folder: private folder from which an interrupted fit resumes. None restarts the fit.

    Examples:
        >>> import numpy as np
        >>> X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 500, axis=0)
        >>> y = np.repeat(["fall", "burn"], 500)
        >>> model = PrivateClassifier(epsilon=1, delta=1e-5, classes=["burn", "fall"]).fit(X, y)
        >>> model.predict([[1.0, 0.0]]).tolist()
        ['fall']
        >>> model.claim.epsilon <= 1, model.claim.guarantee_kind
        (True, 'formal')
    """

    def __init__(
        self,
        mechanism: Mechanism | type[Mechanism] | str | None = None,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        bounds: tuple[Any, Any] | None = None,
        classes: Sequence[Any] | np.ndarray | None = None,
        titles: Mapping[Any, str] | Sequence[Sequence[float]] | np.ndarray | None = None,
        encoder: str = PACKAGED,
        words: bool = True,
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
        self.words = words
        self.records_per_unit = records_per_unit
        self.privacy_unit = privacy_unit
        self.unprotected_inputs = unprotected_inputs
        self.random_state = random_state
        self.key = key
        self.folder = folder

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Plans the noise for the number of records, classes and features, fits once, and sets the
        claim.

        Args:
            X: numbers [n, features], dense or sparse, or n texts.
            y: n labels.

        Raises:
            MechanismError: an invalid argument, text or label. Everything is checked before texts
                are encoded, and no message quotes a cell.
            ValueError: input that scikit-learn refuses (MechanismError is a subclass).
        """
        mechanism = self._checked(unsupported)
        texts = inputs.texts_of(X)
        if texts is not None:
            inputs.require_labels(y, len(texts), self.classes)
            inputs.require_delta_below(self.delta, len(texts))
            y = column_or_1d(y, warn=True)
            check_classification_targets(y)
            self._require_titles(y)
        self.lexicon_ = (
            None
            if texts is None
            else self._lexicon(np.unique(y if self.classes is None else self.classes))
        )
        features, y = self._features(
            X if texts is None else texts, y, mechanism=mechanism, fitting=True
        )
        inputs.require_labels(y, len(y), self.classes)
        inputs.require_delta_below(self.delta, len(y))
        if self.classes is None:
            warnings.warn(_WARNING, LabelsReadFromRecords, stacklevel=2)
        mechanism = mechanism.with_defaults(_defaults(len(y)))
        labels = self._labels(y)
        self.mechanism_ = mechanism
        width, classes = features.shape[1], len(self.classes_)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        start = self._start(width)

        def untrained() -> Classifier:
            classifier = classifiers.build(
                ModelConfig(pooling="none"), num_labels=classes, seed=seed, width=width
            )
            classifier.flat.zero_()
            if start is not None:
                prior.start(classifier, start[None], torch.ones(classes, dtype=torch.bool))
            return classifier

        task = Task(
            records=len(y),
            classes=classes,
            records_per_unit=self.records_per_unit,
            target_epsilon=self.epsilon,
            delta=self.delta,
            features=width,
        )
        run = Run(
            classes=classes, seed=seed, classifier=untrained, key=self.key, folder=self.folder
        )
        self.plan_ = mechanism.plan(task)
        fitted, self.claim_ = fit_once(
            self.plan_,
            Records(FeatureInputs(features), labels),
            run,
            task,
            privacy_unit=self.privacy_unit,
            unprotected_inputs=(
                *self.unprotected_inputs,
                *([] if self.classes is not None else [_LABELS]),
                *([_KEY] if self.key is not None else []),
                *([_VOCABULARY] if issparse(X) else []),
                *_earlier_fits(earlier_fits.count_and_add(features.numpy())),
            ),
        )
        self.model_, self.figures_ = fitted.model, dict(fitted.figures)
        return self

    @property
    def claim(self) -> Claim:
        """The claim of this fit: epsilon, delta, the kind of guarantee, and the assumptions behind
        it.
        """
        check_is_fitted(self)
        return self.claim_

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities [n, classes], in the order of `classes_`."""
        check_is_fitted(self)
        return (
            self.model_.log_probabilities(
                FeatureInputs(self._features(X, mechanism=self.mechanism_)[0])
            )
            .exp()
            .numpy()
        )

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each record [n]."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def _checked(self, unsupported: Collection[str]) -> Mechanism:
        if "sample_weight" in unsupported:
            raise MechanismError(
                "sample_weight is not supported: a weight changes how much one "
                "record can move the model, and so epsilon. Leave it out. "
                "DpSgd(class_weights=…) weighs classes.",
                kind="sample-weight",
            )
        if unsupported:
            raise TypeError(f"fit() has no argument {', '.join(unsupported)}")
        mechanism = inputs.mechanism_of(self.mechanism)
        inputs.require_settings(
            mechanism,
            epsilon=self.epsilon,
            delta=self.delta,
            bounds=self.bounds,
            records_per_unit=self.records_per_unit,
            key=self.key,
            classes=self.classes,
        )
        return mechanism

    def _labels(self, y: np.ndarray) -> Tensor:
        """Sets `classes_` and returns the index of each label, int64 [n]."""
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise MechanismError(
                "y has only one class. Provide records of at least two classes, or pass classes=.",
                kind="single-class",
            )
        return torch.from_numpy(np.searchsorted(self.classes_, y).astype(np.int64))

    def _features(
        self, X: Any, y: Any = None, *, mechanism: Mechanism, fitting: bool = False
    ) -> tuple[Tensor, np.ndarray]:
        """Features float32 [n, width], and y as validated by scikit-learn. The first call fixes the
        width.
        """
        texts = inputs.texts_of(X)
        if texts is not None:
            X = self._embed(texts).numpy()
        elif len(getattr(X, "shape", (0, 0))) == 1:
            raise MechanismError(
                "X has one dimension. Reshape your data to [records, features].",
                kind="one-dimension",
            )
        if fitting:
            X, y = validate_data(self, X, y, accept_sparse="csr")
            check_classification_targets(y)
        else:
            X = validate_data(self, X, reset=False, accept_sparse="csr")
        X = np.asarray(X.toarray() if issparse(X) else X, dtype=np.float64)
        if self.bounds is not None:
            low, high = (np.asarray(bound, dtype=np.float64) for bound in self.bounds)
            if fitting:
                _warn_of_wide_bounds(X, low, high)
            X = (np.clip(X, low, high) - low) / np.where(high > low, high - low, 1.0)
            X = 2 * X - 1
        elif fitting and texts is None:
            _warn_of_scale(X, getattr(mechanism, "l2_clip_norm", None))
        return torch.from_numpy(X.astype(np.float32)), cast(np.ndarray, y)

    def _embed(self, texts: list[str]) -> Tensor:
        encoded = _encoded(self.encoder, texts)
        return (
            encoded
            if self.lexicon_ is None
            else self.lexicon_.join(encoded, self.lexicon_.words(texts))
        )

    def _lexicon(self, classes: np.ndarray) -> Lexicon | None:
        if not (self.words and isinstance(self.titles, Mapping)):
            return None
        titles = [self.titles[label] for label in classes.tolist()]
        if not lexicon.vocabulary_of(titles):
            return None
        encoder = packaged.for_words(self.encoder)
        return lexicon.of_titles(
            titles,
            lambda words: _word_vectors(encoder, frozenset(words)),
            texts=titles,
            features=_encoded(self.encoder, titles),
            unit=lexicon.unit_of(self.encoder, partial(_encoded, self.encoder)),
        )

    def _require_titles(self, y: np.ndarray) -> None:
        if not isinstance(self.titles, Mapping):
            return
        labels = np.unique(y if self.classes is None else np.asarray(self.classes)).tolist()
        absent = [label for label in labels if not isinstance(self.titles.get(label), str)]
        if absent:
            raise MechanismError(
                f"titles has no text for {len(absent)} of the classes. Add them.",
                kind="titles-missing",
            )

    def _start(self, width: int) -> Tensor | None:
        if self.titles is None:
            return None
        if isinstance(self.titles, Mapping):
            self._require_titles(self.classes_)
            texts = [self.titles[label] for label in self.classes_.tolist()]
            vectors = self._embed(texts)
        else:
            vectors = torch.as_tensor(np.asarray(self.titles), dtype=torch.float32)
        if vectors.shape != (len(self.classes_), width):
            raise MechanismError(
                f"titles have the shape {list(vectors.shape)}, but the head has "
                f"[{len(self.classes_)}, {width}]. Pass one vector per class in "
                "the width of X. Texts of titles go with texts in X.",
                kind="titles-shape",
            )
        return vectors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.non_deterministic = self.key is None
        tags.input_tags.sparse = True
        return tags


def _encoded(encoder: str, texts: list[str]) -> Tensor:
    return prior.embed(
        ModelConfig(encoder=encoder, trainable="head", pooling="mean"), texts, device="cpu"
    )


@lru_cache(maxsize=2)
def _word_vectors(encoder: str, words: frozenset[str]) -> WordVectors:
    return word_vectors.of(encoder, words, partial(_encoded, encoder))


def _warn_of_wide_bounds(X: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Warns the caller, who holds the records, that the noise will outweigh their features."""
    width = np.where(high > low, high - low, 1.0)
    inside = np.clip(X, low, high)
    filled = float(np.median((inside.max(0) - inside.min(0)) / width))
    if filled < _LITTLE_OF_BOUNDS:
        share = "less than 1%" if filled < 0.01 else f"at most {filled:.0%}"
        warnings.warn(
            f"half of the features fill {share} of their bounds. The noise is scaled "
            "to the bounds, so that it outweighs such features: pass narrower public bounds.",
            BoundsTooWide,
            stacklevel=4,
        )


def _warn_of_scale(X: np.ndarray, clip: float | None) -> None:
    """Warns the caller, who holds the records. The median norm itself is not told, and nothing of
    the fit depends on it.
    """
    if clip is None:
        return
    low, high = (norm * clip for norm in _NORMS)
    if not low <= float(np.median(np.linalg.norm(X, axis=1))) <= high:
        warnings.warn(
            f"the features of half of the records have a norm outside {low:g} to {high:g}. There, "
            "clipping or noise hides the differences between classes. Pass public bounds=.",
            FeaturesFarFromUnitScale,
            stacklevel=4,
        )


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
    """Fits a plan, draws once if the model is a posterior, and computes the claim of the run.

    The draw from a SWAG posterior uses the operating system's entropy, or the key. Delta is also
    measured at the draw, and the larger value is claimed.
    """
    fitted = plan.fit(records, run)
    if plan.mechanism.draws and isinstance(fitted.model, Drawable):
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


def _drawn(fitted: Fitted, model: Drawable, records: Records, run: Run) -> Fitted:
    """The classifier at one draw that cannot be repeated. Its event includes Delta at the draw, in
    nats.
    """
    theta = model.draw(_normal_of(run))
    at_draw = model.sensitivity_at(theta, records)
    event = fitted.event
    if at_draw is not None:  # a proved bound holds at every draw and needs no update
        measured = event.model_dump()["sensitivity"]
        event = event.model_copy(update={"sensitivity": max(measured, at_draw)})
    classifier = run.classifier()
    classifier.flat.copy_(theta)
    return Fitted(
        ClassifierModel(classifier), event, dict(fitted.figures) | {"sensitivity_at_draw": at_draw}
    )


def _normal_of(run: Run) -> Normal:
    """Source of standard normals for the draw: the operating system's entropy, unless the run has a
    key.
    """
    if run.key is None:
        return system_normal
    stream, step = SecretStream(run.key), count()
    return lambda out: stream.normal_(out, purpose="draw", step=next(step))


def _defaults(records: int) -> dict[str, object]:
    return {
        "phase": OptimiserPhase(
            optimiser="adamw", learning_rate=0.05, epochs=20, batch_size=64, schedule="linear"
        ),
        "fine_tune": OptimiserPhase(
            optimiser="adamw", learning_rate=0.05, epochs=10, batch_size=64
        ),
        "collect": OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=20, batch_size=64),
        "pseudo_posterior": PseudoPosteriorConfig(risk_draws=100, sensitivity_draws=100),
        "epochs": 30,
        "batch_size": min(512, records),
    }
