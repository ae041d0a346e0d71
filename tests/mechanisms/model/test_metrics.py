"""The paper's metrics on a confusion matrix worked manually."""

import numpy as np
import pytest
from refusals import of_kind

from mechanisms.errors import MechanismError
from mechanisms.model import metrics

# True rows, predicted columns; class 3 is predicted once and never true, class 2 is never
# predicted.
#        0  1  2  3
#   0 [  3  1  0  0 ]   precision 3/4, recall 3/4, F1 3/4
#   1 [  1  2  0  1 ]   precision 2/5, recall 2/4, F1 4/9
#   2 [  0  2  0  0 ]   never predicted: F1 0
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
PREDICTED = np.array([0, 0, 0, 1, 0, 1, 1, 3, 1, 1])


def test_aggregates_of_a_worked_confusion_matrix() -> None:
    """Macro averages over the three classes with true instances, weighted over
    their ten records.
    """
    result = metrics.classification(LABELS, PREDICTED)
    assert result.macro_f1 == pytest.approx((3 / 4 + 4 / 9 + 0) / 3)
    assert result.weighted_f1 == pytest.approx((4 * 3 / 4 + 4 * 4 / 9 + 2 * 0) / 10)
    assert result.accuracy == pytest.approx(5 / 10)


def test_a_class_only_predicted_does_not_count() -> None:
    """scikit-learn's default takes in class 3 and comes out lower: the definition
    is not that one.
    """
    from sklearn.metrics import f1_score

    assert metrics.classification(LABELS, PREDICTED).macro_f1 > f1_score(
        LABELS, PREDICTED, average="macro"
    )


def test_balanced_accuracy_counts_codes_alike() -> None:
    """Mean recall, which is scikit-learn's where every predicted class is true somewhere; not the
    share of records.
    """
    codes = metrics.per_code(LABELS, PREDICTED)
    assert codes.balanced_accuracy == pytest.approx((3 / 4 + 2 / 4 + 0) / 3)
    assert codes.balanced_accuracy != pytest.approx(
        metrics.classification(LABELS, PREDICTED).accuracy
    )


def test_bins_are_of_training_records() -> None:
    """Codes 0, 1 and 2 with 4, 5 and 60 of them, class 3 with as many but no true instance: in no
    bin.
    """
    found = metrics.by_support(metrics.per_code(LABELS, PREDICTED), np.array([4, 5, 60, 60]))
    sizes = {name: one.codes for name, one in found.items()}
    assert sizes == {"0_4": 1, "5_9": 1, "10_19": 0, "0_19": 2, "20_49": 0, "50_up": 1}
    assert found["0_19"].macro_f1 == pytest.approx((3 / 4 + 4 / 9) / 2)
    assert found["0_4"].macro_f1 == pytest.approx(3 / 4)
    assert (found["5_9"].macro_f1, found["5_9"].macro_recall) == (
        pytest.approx(4 / 9),
        pytest.approx(1 / 2),
    )
    assert found["50_up"].macro_f1 == 0
    assert found["10_19"].macro_f1 is found["10_19"].macro_recall is None


def test_per_code_keeps_sizes() -> None:
    """F1, precision and recall go with the code and its true instances."""
    codes = metrics.per_code(LABELS, PREDICTED)
    assert codes.code.tolist() == [0, 1, 2]
    assert codes.size.tolist() == [4, 4, 2]
    assert codes.precision == pytest.approx([3 / 4, 2 / 5, 0])
    assert codes.recall == pytest.approx([3 / 4, 2 / 4, 0])
    assert codes.f1 == pytest.approx([3 / 4, 4 / 9, 0])


def test_quartiles_take_the_largest_and_the_smallest_codes() -> None:
    """Eight codes of sizes 1..8: the quartiles are the two largest and the two smallest."""
    codes = metrics.PerCode(
        code=np.arange(8),
        size=np.arange(1, 9),
        precision=np.zeros(8),
        recall=np.zeros(8),
        f1=np.arange(8) / 10,
    )
    top, bottom = metrics.quartiles(codes)
    assert top.macro_f1 == pytest.approx(0.65)
    assert top.weighted_f1 == pytest.approx((7 * 0.6 + 8 * 0.7) / 15)
    assert bottom.weighted_f1 == pytest.approx((1 * 0.0 + 2 * 0.1) / 3)


PROBABILITIES = np.array([[0.9, 0.1, 0.0], [0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.35, 0.25]])
TRUTH = np.array([0, 1, 1, 2])
RANKED = metrics.Ranked.of(TRUTH, PROBABILITIES)


def test_calibration_error_by_hand() -> None:
    """Two bins: (0.4; wrong) below one half, (0.9, 0.7, 0.6; right, wrong, right) above."""
    expected = (abs(0 - 0.4) + abs(2 - 2.2)) / 4
    assert metrics.expected_calibration_error(RANKED, bins=2) == pytest.approx(expected)


def test_perfect_calibration_is_zero() -> None:
    """A certain and right classifier has no calibration error; a certain and wrong one has all of
    it.
    """
    certain = np.eye(3)
    assert metrics.expected_calibration_error(metrics.Ranked.of(np.arange(3), certain)) == 0
    assert metrics.expected_calibration_error(metrics.Ranked.of(np.array([1, 2, 0]), certain)) == 1


def test_top_k() -> None:
    """One, then two of three codes offered: records 0 and 2, then record 1 too; record 3's code
    comes last.
    """
    assert [metrics.top_k_accuracy(RANKED, k=k) for k in (1, 2, 3)] == [
        0.5,
        0.75,
        1.0,
    ]
    tied = np.array([[0.5, 0.5], [0.5, 0.5]])
    assert metrics.top_k_accuracy(metrics.Ranked.of(np.array([0, 1]), tied), k=1) == 0.5, (
        "of two alike the first is offered"
    )
    with pytest.raises(MechanismError, check=of_kind("k-out-of-range", saying="k is 4")):
        metrics.top_k_accuracy(RANKED, k=4)


def test_the_ranks_of_blocks_are_those_of_all() -> None:
    """A true code's place is scikit-learn's, where ties go to the lower index; joined blocks keep
    every figure. A record with a probability that is no number finds its code nowhere.
    """
    from sklearn.metrics import top_k_accuracy_score

    random = np.random.default_rng(0)
    probabilities = random.integers(0, 5, size=(500, 7)) / 5  # with many ties
    labels = random.integers(0, 7, size=500)
    whole = metrics.Ranked.of(labels, probabilities)
    parts = [
        metrics.Ranked.of(labels[at : at + 33], probabilities[at : at + 33])
        for at in range(0, 500, 33)
    ]
    joined = metrics.Ranked.joined(parts)
    for name in ("confidence", "correct", "place"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name))
    reversed_with_one_more = np.pad(probabilities[:, ::-1], ((0, 0), (0, 1)), constant_values=-1)
    for k in range(1, 8):
        theirs = top_k_accuracy_score(6 - labels, reversed_with_one_more, k=k, labels=np.arange(8))
        assert metrics.top_k_accuracy(whole, k=k) == theirs
    probabilities[0, 3] = np.nan
    assert metrics.Ranked.of(labels, probabilities).place[0] == 7


def test_coverage_counts_the_threshold_itself() -> None:
    """At 0.7 the two surest records are coded, one of them rightly; at 0.95 none is."""
    assert metrics.coverage_at(RANKED, threshold=0.7) == (0.5, 0.5)
    assert metrics.coverage_at(RANKED, threshold=0.95) == (0, None)


@pytest.mark.parametrize(("labels", "predicted"), [([], []), ([0, 1], [0])])
def test_unusable_input_is_refused(labels: list[int], predicted: list[int]) -> None:
    with pytest.raises(MechanismError):
        metrics.classification(np.array(labels, dtype=int), np.array(predicted, dtype=int))
