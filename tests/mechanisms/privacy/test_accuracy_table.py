"""The noisy table of the held-out records: what one record adds, what it costs, and what is read
from it.
"""

import math

import numpy as np
import pytest
from small_heads import KEY

from mechanisms.errors import MechanismError
from mechanisms.privacy import accuracy_table, claims, gaussian_cost
from mechanisms.privacy.accuracy_table import SCORES, Layout, cumulative, draw, events_of
from mechanisms.privacy.events import (
    ComposedEvent,
    DpSgdEvent,
    Event,
    GaussianReleaseEvent,
    NoiseSegment,
    ParallelEvent,
    decode,
    is_exact,
)
from mechanisms.privacy.noise import SecretStream
from mechanisms.privacy.stated_accuracy import counts_of, state

CODES, GROUPS, DELTA = 12, 4, 1e-5


def records(number: int, *, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, CODES, number)
    logits = rng.standard_normal((number, CODES))
    logits[np.arange(number), labels] += rng.normal(2.5, 1.5, number)
    return sharpness * logits, labels


def vectors(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the records add to both vectors, at temperature 1."""
    layout, group = Layout(GROUPS), np.arange(CODES) % GROUPS
    counts = accuracy_table._counts(logits, labels, group, layout)
    return accuracy_table._temperature_vector(logits, labels), layout.matrix @ counts


def full_batch(noise: float) -> DpSgdEvent:
    segment = NoiseSegment(steps=4, noise_multiplier=noise, l2_clip_norm=1.0)
    return DpSgdEvent(sampling_prob=1.0, segments=(segment,), exact=True)


def sampled(noise: float) -> DpSgdEvent:
    segment = NoiseSegment(steps=50, noise_multiplier=noise, l2_clip_norm=1.0)
    return DpSgdEvent(sampling_prob=0.05, segments=(segment,))


def parallel(training: Event, mu: float, split: str = "record") -> ParallelEvent:
    return ParallelEvent.model_validate(
        {"training": training, "evaluation": events_of(mu), "split": split}
    )


def epsilon(event: Event, records_per_unit: int = 1) -> float:
    return gaussian_cost.cost(event, delta=DELTA, records_per_unit=records_per_unit).epsilon


@pytest.mark.parametrize("sharpness", [0.0, 0.1, 1.0, 30.0, 1e4])
def test_no_record_adds_more_than_the_stated_norm(sharpness: float) -> None:
    """Of 100 records at any sharpness none has a larger vector; the stated norms are reached, so
    that they are not idle.
    """
    logits, labels = records(100, sharpness=sharpness)
    each = [vectors(logits[n : n + 1], labels[n : n + 1]) for n in range(100)]
    for place, norm in enumerate((Layout(1).temperature_norm, Layout(GROUPS).accuracy_norm)):
        largest = max(float(np.linalg.norm(vector[place])) for vector in each)
        assert largest <= norm
    in_first = np.zeros(Layout(GROUPS).matrix.shape[1], np.int64)
    in_first[[0, 2 * len(SCORES), 2 * len(SCORES) + 3 * GROUPS]] = 1
    reached = float(np.linalg.norm(Layout(GROUPS).matrix @ in_first))
    assert reached == pytest.approx(Layout(GROUPS).accuracy_norm, rel=1e-12)


def test_vectors_are_sums_over_records() -> None:
    """A record adds what it adds alone, to the last unit."""
    logits, labels = records(40)
    parts = [vectors(logits[n : n + 1], labels[n : n + 1]) for n in range(40)]
    whole = vectors(logits, labels)
    for place in (0, 1):
        assert np.array_equal(sum(part[place] for part in parts), whole[place])


def test_cumulative_counts_have_little_noise() -> None:
    """The error of every prefix sum is at most 1 + ln(B) / pi + 0.1 times that of one count: of 24
    bins 2.1, where summing them has 4.9.
    """
    matrix = cumulative(24).astype(float)
    norm = np.linalg.norm(matrix[:, 0])
    prefix = np.tril(np.ones((24, 24))) @ np.linalg.inv(matrix)
    error = norm * np.linalg.norm(prefix, axis=1).max()
    assert error <= 1 + math.log(24) / math.pi + 0.1
    assert error < math.sqrt(24) / 2


def test_both_vectors_together_cost_their_mu() -> None:
    assert gaussian_cost.gaussian_rate(ComposedEvent(events=events_of(0.7))) == pytest.approx(0.7)
    assert all(event.exact for event in events_of(0.7))


def test_almost_without_noise_the_counts_are_those_of_the_records() -> None:
    logits, labels = records(500)
    group = [code % GROUPS for code in range(CODES)]
    events = events_of(1e6)
    table = draw(logits, labels, group, groups=GROUPS, events=events, stream=SecretStream(KEY))
    counts = counts_of(table.accuracy.astype(float), GROUPS)
    right = logits.argmax(1) == labels
    assert counts[: len(SCORES)].sum() == pytest.approx(right.sum(), abs=0.01)
    own = np.bincount(np.asarray(group)[labels[right]], minlength=GROUPS)
    first = 2 * len(SCORES)
    assert counts[first : first + GROUPS] == pytest.approx(own, abs=0.01)
    stated = state(table, events, targets=(0.8,), coverages=(0.9,))
    assert stated is not None
    best = np.argsort(-logits, axis=1)[:, :3]
    among = (best == labels[:, None]).any(1).mean()
    assert stated.among_best.estimate == pytest.approx(among, abs=1e-3)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_temperature_makes_scores_as_large_as_the_accuracy(factor: float) -> None:
    """Scores of logits that are divided by the temperature have the accuracy as their mean; logits
    times f have f times the temperature.
    """
    logits, labels = records(4000, sharpness=factor)
    vector = accuracy_table._temperature_vector(logits, labels)
    found = accuracy_table.temperature_of(vector, events_of(1e6)[0])
    scores = np.exp(logits / found - (logits / found).max(1, keepdims=True))
    confidence = (1 / scores.sum(1)).mean()
    assert confidence == pytest.approx((logits.argmax(1) == labels).mean(), abs=0.01)


def test_noise_that_explains_the_difference_leaves_the_temperature_at_one() -> None:
    logits, labels = records(100, sharpness=0.7)
    vector = accuracy_table._temperature_vector(logits, labels)
    assert accuracy_table.temperature_of(vector, events_of(0.01)[0]) == 1.0
    assert accuracy_table.temperature_of(vector, events_of(100.0)[0]) != 1.0


def test_an_event_of_a_smaller_sensitivity_draws_nothing() -> None:
    logits, labels = records(10)
    first, second = events_of(1.0)
    smaller = second.model_copy(update={"l2_sensitivity": second.l2_sensitivity / 2})
    with pytest.raises(ValueError, match="events"):
        draw(
            logits,
            labels,
            [0] * CODES,
            groups=1,
            events=(first, smaller),
            stream=SecretStream(KEY),
        )


def test_a_table_of_the_same_mu_costs_nothing_more() -> None:
    training = full_batch(8.0)
    event = parallel(training, 0.25)
    for unit in (1, 3):
        assert epsilon(event, unit) == epsilon(training, unit)
    figures = [gaussian_cost.cost(each, delta=DELTA) for each in (event, training)]
    assert figures[0].epsilon_replace_one == figures[1].epsilon_replace_one
    assert is_exact(event)
    assert decode(event.model_dump(mode="json")) == event


def test_the_larger_part_is_the_claim() -> None:
    """Whichever it is, also where training samples its records."""
    small, large = events_of(0.1), events_of(3.0)
    for training in (full_batch(8.0), sampled(1.0)):
        assert epsilon(parallel(training, 0.1)) == epsilon(training)
        assert epsilon(parallel(training, 3.0)) == pytest.approx(
            epsilon(ComposedEvent(events=large))
        )
        assert epsilon(training) > epsilon(ComposedEvent(events=small))


def test_a_replaced_record_may_leave_its_half() -> None:
    """The stated figure is at least what both parts cost together for one record."""
    training = sampled(1.0)
    event = parallel(training, 0.6)
    together = epsilon(ComposedEvent(events=(training, *event.evaluation)))
    replaced = gaussian_cost.cost(event, delta=DELTA).epsilon_replace_one
    assert replaced is not None
    assert replaced >= together


def test_a_table_of_a_coupled_split_has_no_claim() -> None:
    with pytest.raises(MechanismError):
        claim(parallel(full_batch(8.0), 0.5, "coupled"))


def test_units_in_both_halves_of_sampled_training_have_no_claim() -> None:
    """With records of a unit in both halves, nothing is known where training samples them; of
    Gaussian training the maximum holds.
    """
    with pytest.raises(MechanismError):
        claim(parallel(sampled(1.0), 0.1), records_per_unit=3)
    assert claim(parallel(sampled(2.0), 0.1, "unit"), records_per_unit=3).epsilon is not None
    both = parallel(full_batch(8.0), 0.25)
    assert claim(both, records_per_unit=3).epsilon == epsilon(full_batch(8.0), 3)


def claim(event: Event, records_per_unit: int = 1) -> claims.Claim:
    return claims.claim_of(
        event,
        delta=DELTA,
        privacy_unit="record",
        max_records_per_unit=records_per_unit,
        unprotected_inputs=(),
    )


def test_what_is_planned_is_what_a_rate_allows() -> None:
    for target in (0.5, 1.0, 5.0):
        mu = gaussian_cost.rate_of_epsilon(target, DELTA)
        assert gaussian_cost.epsilon_of_rate(mu, DELTA) <= target
        assert gaussian_cost.epsilon_of_rate(mu * (1 + 1e-6), DELTA) > target


def test_norms_are_the_same_for_any_number_of_groups() -> None:
    norms = {Layout(groups).accuracy_norm for groups in (1, 7, 64)}
    assert len(norms) == 1
    assert isinstance(events_of(1.0)[1], GaussianReleaseEvent)
