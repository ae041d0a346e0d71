"""What mechanisms for tables share: bins and back, unit records, projections, trees, and that they
learn.
"""

import doctest

import numpy as np
import pytest
import torch

from mechanisms.privacy.noise import SecretStream
from studies import balance, imbalance, linear, synthetic, transformer
from studies.linear import filled
from studies.tables import Columns, System, Table, projected

COLUMNS = Columns((1, 3, 1), bins=4)


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_codes_and_back() -> None:
    """A number is its quarter, a one-hot its place, and what is drawn for a code has that code."""
    features = torch.tensor([[0.0, 0, 1, 0, 1.0], [0.3, 1, 0, 0, 0.74]]).double()
    codes = COLUMNS.encode(features)
    assert codes.tolist() == [[0, 1, 3], [1, 0, 2]]
    assert torch.equal(
        COLUMNS.encode(COLUMNS.decode(codes.repeat(50, 1), draws())), codes.repeat(50, 1)
    )
    assert COLUMNS.sizes == (4, 3, 4)


def test_unit_records_have_norm_at_most_one_whatever_they_say() -> None:
    """Also where a one-hot has several ones, or none; and a corner reaches norm 1, so nothing is
    wasted.
    """
    odd = torch.tensor([[1.0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 0]], dtype=torch.float64)
    norms = COLUMNS.unit(odd).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(3, dtype=torch.float64))
    assert float(COLUMNS.unit(torch.full((1, 5), 0.5, dtype=torch.float64)).norm()) < 1
    assert Columns((3,)).unit(odd[:, 1:4]).dtype == torch.float64


def test_the_projection_is_the_nearest() -> None:
    """Against every point of a fine grid of the simplex; rows keep their own totals."""
    noisy, total = (
        torch.tensor([[3.0, -1.0, 0.5], [0.1, 0.2, 9.0]]).double(),
        torch.tensor([2.0, 4.0]).double(),
    )
    ours = projected(noisy, total) * total[:, None]
    assert torch.allclose(ours.sum(1), total)
    assert bool((ours >= 0).all())
    grid = (
        torch.tensor([[i, j, 40 - i - j] for i in range(41) for j in range(41 - i)]).double() / 40
    )
    for row, own, sum_ in zip(noisy, ours, total, strict=True):
        best = float((grid * sum_ - row).square().sum(1).min())
        assert float((own - row).square().sum()) <= best + 1e-9


@pytest.mark.parametrize("split", ["subsamples", "disjoint", "stratified"])
def test_a_record_is_in_a_bag_once_and_in_one_of_disjoint_bags(split: linear.Split) -> None:
    labels = (torch.arange(100) < 20).long()
    bags = filled(labels, 5, split, 19, draws())
    assert all(len(bag) == 19 == len(bag.unique()) for bag in bags)
    if split != "subsamples":
        everything = torch.cat(bags)
        assert len(everything) == len(everything.unique())
    if split == "stratified":
        assert all(int(labels[bag].sum()) == 4 for bag in bags)


def test_a_replaced_record_changes_one_disjoint_bag() -> None:
    """Bags do not look at labels or features: another label leaves every bag's members as they
    were.
    """
    one, other = torch.zeros(50, dtype=torch.int64), torch.zeros(50, dtype=torch.int64)
    other[7] = 1
    pairs = zip(
        filled(one, 5, "disjoint", 10, draws()),
        filled(other, 5, "disjoint", 10, draws()),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)


def problem(n: int, *, seed: int) -> Table:
    """A tenth of label 1, whose first number is large and whose category is the last."""
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=g) < 0.1).long()
    a = (0.25 + 0.5 * labels + 0.12 * torch.randn(n, generator=g)).clamp(0, 1)
    b = torch.where(
        torch.rand(n, generator=g) < 0.7, 2 * labels, torch.randint(3, (n,), generator=g)
    )
    features = torch.cat(
        [a[:, None], torch.nn.functional.one_hot(b, 3), torch.rand(n, 1, generator=g)], dim=1
    )
    return Table(features.double(), labels, Columns((1, 3, 1)))


QUICK: dict[str, System] = {
    **{name: system for name, (_, system) in imbalance.SYSTEMS.items()},
    "gem": synthetic.Gem(rounds=2, mixtures=50, steps=40),
    "ft-transformer": transformer.FtTransformer(
        width=8, depth=1, heads=2, epochs=2, learning_rate=0.02
    ),
    "plain-ft-transformer": transformer.PlainTransformer(
        width=8, depth=1, heads=2, epochs=40, learning_rate=0.02
    ),
}


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key of the noise for every fit, so that nothing here fails by chance."""
    for module in (linear, synthetic, transformer):
        monkeypatch.setattr(module, "new_key", lambda: bytes(range(32)))


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.usefixtures("_key")
def test_every_system_claims_its_epsilon_and_scores(name: str) -> None:
    """One record replaced costs the target at most, and nearly that much; scores are
    log-probabilities.
    """
    fit = QUICK[name](problem(300, seed=0), 2.0, 1e-5, 0)
    scores = fit.scores(problem(50, seed=1).features)
    assert scores.shape == (50, 2)
    assert bool(torch.isfinite(scores).all())
    torch.testing.assert_close(
        scores.exp().sum(1), torch.ones(50, dtype=torch.float64), atol=0.2, rtol=0
    )
    if name in imbalance.PLAIN:
        assert (fit.claim.guarantee_kind, fit.claim.epsilon) == ("none", None)
        return
    assert fit.claim.guarantee_kind == "formal"
    assert fit.claim.epsilon_replaced is not None
    assert 0.985 * 2 <= fit.claim.epsilon_replaced <= 2


@pytest.mark.parametrize("name", imbalance.PLAIN)
def test_without_privacy_every_system_ranks_the_rare_class_first(name: str) -> None:
    """AUC above 0.9 on records that it has not seen; weights raise recall of the rare class."""
    test = problem(1000, seed=1)
    scores = QUICK[name](problem(1000, seed=0), 0.0, 0.0, 0).scores(test.features)
    figures = imbalance.evaluate(test.labels.numpy(), scores)
    assert figures["auc"] > 0.9
    assert figures["g_mean"] == pytest.approx(
        (figures["recall"] * (2 * figures["balanced_accuracy"] - figures["recall"])) ** 0.5
    )
    if name in ("plain-logistic-weighted", "smote-logistic", "smote-logistic-weighted"):
        plain = QUICK["plain-logistic"](problem(1000, seed=0), 0.0, 0.0, 0).scores(test.features)
        assert figures["recall"] > imbalance.evaluate(test.labels.numpy(), plain)["recall"]


@pytest.mark.parametrize(
    "name", ["weighted-objective", "weighted-descent", "bayes-table", "privbayes"]
)
def test_it_learns_the_rare_class_and_not_without_budget(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At epsilon 5 well above chance for both classes; at epsilon 0.002 the worst of four keys is
    near chance or below: else the noise is not there.
    """
    train, test = problem(2000, seed=0), problem(2000, seed=1)

    def balanced(epsilon: float, key: int) -> float:
        for module in (linear, synthetic):
            monkeypatch.setattr(module, "new_key", lambda: bytes(range(key, key + 32)))
        said = QUICK[name](train, epsilon, 1e-6, 0).scores(test.features).argmax(1)
        return float(np.mean([(said[test.labels == c] == c).double().mean() for c in (0, 1)]))

    assert balanced(5.0, 0) > 0.8
    assert min(balanced(0.002, key) for key in range(4)) < 0.65


def test_what_is_done_for_the_rare_class() -> None:
    """SMOTE makes classes equal and adds rows of the rare one between its own; weights are of the
    classes as they were, also after SMOTE.
    """
    train = problem(400, seed=0)
    rare = int(train.labels.sum())
    same, ones = balance.balanced(train, "none", seed=0)
    assert same is train
    assert bool((ones == 1).all())
    more, weights = balance.balanced(train, "smote-weights", seed=0)
    assert torch.bincount(more.labels).tolist() == [400 - rare] * 2
    assert torch.equal(more.features[:400], train.features)
    low, high = (
        ends(train.features[train.labels == 1], 0).values for ends in (torch.min, torch.max)
    )
    new = more.features[400:]
    assert bool(((low - 1e-9 <= new) & (new <= high + 1e-9)).all())
    assert weights[more.labels == 1].unique().tolist() == [pytest.approx(400 / (2 * rare))]
    assert not doctest.testmod(balance).failed


def test_the_transformers_sum_is_of_gradients_clipped_one_by_one() -> None:
    """Against autograd, record by record; without the clip or the weights it would be another."""
    table = problem(6, seed=0)
    torch.manual_seed(0)
    network = transformer.Network(table.columns, depth=1, width=8, heads=2)
    weights, total = torch.linspace(0.2, 1, 6).double(), None
    for record in range(6):
        logits = network(table.features[[record]].float())
        loss = torch.nn.functional.cross_entropy(logits, table.labels[[record]])
        flat = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))]
        ).double()
        own = weights[record] * flat * min(1.0, 0.5 / float(flat.norm()))
        total = own if total is None else total + own
    assert total is not None
    found = transformer.clipped_sum(
        network, table.features.float(), table.labels, torch.arange(6), weights, clip=0.5
    )
    torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-6)


def test_a_record_moves_the_transformers_sum_by_its_own_gradient() -> None:
    """Of 1,200 records: in half precision, or by a rule that sees neighbours, one left out would
    move others.
    """
    torch.manual_seed(0)
    network = transformer.Network(Columns((1, 1, 1)), depth=1, width=8, heads=2)
    x, y = torch.rand(1200, 3), torch.zeros(1200, dtype=torch.int64)
    ones = torch.ones(1200, dtype=torch.float64)
    whole, without, alone = (
        transformer.clipped_sum(network, x, y, index, ones, clip=1.0)
        for index in (torch.arange(1200), torch.arange(1, 1200), torch.arange(1))
    )
    assert float((whole - without - alone).norm()) <= 1e-5


def test_class_weights_come_from_noisy_counts() -> None:
    """The rare class weighs 1, the other in proportion, whatever the noise; so both classes weigh
    the same in all.
    """
    labels = (torch.arange(1000) < 100).long()
    event, stream = linear.WeightedDescent().event(1.0), SecretStream(bytes(range(32)))
    weights, total = linear.class_weights(event, labels, stream)
    assert float(weights.max()) == float(weights[1]) == 1
    assert total == pytest.approx(200, abs=60)
    assert float(weights[0]) == pytest.approx(100 / 900, abs=0.04)
