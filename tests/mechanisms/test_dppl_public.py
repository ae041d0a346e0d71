"""DPPL-Public: what one record adds to a utility, the probabilities of a choice, and that codes without a record keep
their titles."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from small_heads import KEY, claim, head_of
from torch import Tensor, nn

from mechanisms.dppl_public import DpplPublic, utilities
from mechanisms.mechanism import ClassifierModel, Plan, Records, Run, Task
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.noise import SecretStream

WIDTH, CLASSES = 8, 4
CENTRE = torch.full((WIDTH,), 0.7)
SCALE = 18.0


def titled() -> Classifier:
    part = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        part.weight.copy_(SCALE * torch.eye(CLASSES, WIDTH))
        part.bias.copy_(-(part.weight @ CENTRE))
    return head_of(part)


def planned(epsilon: float, n: int) -> Plan:
    return DpplPublic().plan(Task(records=n, classes=CLASSES, target_epsilon=epsilon, delta=1e-5))


def crossed(n: int) -> tuple[Tensor, Tensor]:
    """Records of class 0 and 1 that lie at each other's titles; 2 and 3 have none."""
    labels = torch.arange(n) % 2
    return CENTRE + torch.eye(CLASSES, WIDTH)[1 - labels], labels


def test_a_record_adds_between_nothing_and_one_to_one_row() -> None:
    """On every neighbour of 60 records, however long; and one comes to 1, so that the bound binds."""
    g = torch.Generator().manual_seed(1)
    about, labels = torch.randn(60, WIDTH, generator=g), torch.arange(60) % CLASSES
    about *= torch.logspace(-3, 3, 60)[:, None]
    titles = torch.eye(CLASSES, WIDTH)
    whole, largest = utilities(about, labels, titles, 0.5), 0.0
    for i in range(60):
        kept = torch.arange(60) != i
        moved = whole - utilities(about[kept], labels[kept], titles, 0.5)
        assert (moved.abs().sum(1) > 1e-12).sum() <= 1
        assert float(moved.min()) > -1e-9
        largest = max(largest, float(moved.max()))
    assert largest == pytest.approx(1)


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (0.5, False), (2.0, False)])
def test_choices_have_the_exponential_mechanisms_probabilities(factor: float, accepted: bool) -> None:
    """20,000 choices among four: by chi-square at level 1e-6 they follow exp(scores), and not half or twice these."""
    scores = torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=torch.float64)
    noise = SecretStream(KEY).gumbel(80_000, purpose="choices", step=0)
    drawn = (scores + noise.view(-1, 4)).argmax(1)
    expected = 20_000 * (factor * scores).softmax(0).numpy()
    found = torch.bincount(drawn, minlength=4).numpy()
    assert (float(stats.chisquare(found, expected).pvalue) > 1e-6) == accepted


def test_neighbours_probabilities_differ_by_no_more_than_epsilon() -> None:
    """Exactly, of every class's choice on every neighbour: e^epsilon holds, and e^(0.6 epsilon) does not."""
    epsilon = 1.5
    features, labels = crossed(9)
    features[0] = CENTRE + torch.eye(CLASSES, WIDTH)[2]
    titles, base = torch.eye(CLASSES, WIDTH), torch.eye(CLASSES, dtype=torch.float64)

    def chances(kept: Tensor) -> Tensor:
        says = utilities(features[kept] - CENTRE, labels[kept], titles, 0.5)
        return (epsilon * says + 2 * base).log_softmax(1)

    everything = torch.ones(9, dtype=torch.bool)
    moves = []
    for i in range(9):
        kept = everything.clone()
        kept[i] = False
        moves.append(float((chances(everything) - chances(kept)).abs().max()))
    assert max(moves) <= epsilon + 1e-9
    assert max(moves) > 0.6 * epsilon


def test_records_choose_and_codes_without_one_keep_their_own() -> None:
    """At epsilon 5 two classes swap titles, weights and biases alike; at 0.001 everyone keeps their own."""
    features, labels = crossed(40)
    fitted = [
        planned(epsilon, 40).fit(Records(FeatureInputs(features), labels), Run(CLASSES, 0, titled, key=KEY))
        for epsilon in (5.0, 0.001)
    ]
    learned, blind = (f.model.classifier.flat for f in fitted if isinstance(f.model, ClassifierModel))
    rows = learned[: CLASSES * WIDTH].view(CLASSES, WIDTH)
    torch.testing.assert_close(rows, SCALE * torch.eye(CLASSES, WIDTH)[[1, 0, 2, 3]])
    torch.testing.assert_close(blind, titled().flat)


def test_the_claim_is_the_target_and_of_a_unit() -> None:
    event = planned(2.0, 10).event
    made, three = claim(event, delta=1e-5), claim(event, delta=1e-5, m=3)
    assert (made.guarantee_kind, made.epsilon, three.epsilon) == ("formal", 2.0, 6.0)
    assert (made.delta, made.delta_text) == (0.0, "0 by proof")
