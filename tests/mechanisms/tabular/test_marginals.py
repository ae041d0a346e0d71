"""What mechanisms for tables share: bins and back, unit records, projections, SMOTE, trees, and that they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.mechanism import Records, Run, Task, kinds
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.schema import FeatureColumn, FeatureSchema
from mechanisms.tabular import plain_trees, trees
from mechanisms.tabular.bagging import filled
from mechanisms.tabular.columns import Columns, projected

SCHEMA = FeatureSchema(
    columns=(
        FeatureColumn(name="a", kind="numeric", bounds=(0, 1)),
        FeatureColumn(name="b", kind="categorical", categories=("x", "y", "z")),
        FeatureColumn(name="c", kind="numeric", bounds=(0, 1)),
    )
)
COLUMNS = Columns.of(SCHEMA, 5, bins=4)


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_codes_and_back() -> None:
    """A number is its quarter, a one-hot its place, and what is drawn for a code has that code."""
    features = torch.tensor([[0.0, 0, 1, 0, 1.0], [0.3, 1, 0, 0, 0.74]])
    codes = COLUMNS.encode(features)
    assert codes.tolist() == [[0, 1, 3], [1, 0, 2]]
    assert torch.equal(COLUMNS.encode(COLUMNS.decode(codes.repeat(50, 1), draws())), codes.repeat(50, 1))
    assert COLUMNS.sizes == (4, 3, 4)


def test_a_schema_of_other_features_is_refused() -> None:
    with pytest.raises(MechanismError, match="plan again"):
        Columns.of(SCHEMA, 6, bins=4)


def test_unit_records_have_norm_at_most_one_whatever_they_say() -> None:
    """Also where a one-hot has several ones, or none; and a corner reaches norm 1, so nothing is wasted."""
    odd = torch.tensor([[1.0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 0]], dtype=torch.float64)
    norms = COLUMNS.unit(odd).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(3, dtype=torch.float64))
    assert float(COLUMNS.unit(torch.full((1, 5), 0.5, dtype=torch.float64)).norm()) < 1


def test_the_projection_is_the_nearest() -> None:
    """Against every point of a fine grid of the simplex; rows keep their own totals."""
    noisy, total = torch.tensor([[3.0, -1.0, 0.5], [0.1, 0.2, 9.0]]).double(), torch.tensor([2.0, 4.0]).double()
    ours = projected(noisy, total) * total[:, None]
    assert torch.allclose(ours.sum(1), total)
    assert bool((ours >= 0).all())
    grid = torch.tensor([[i, j, 40 - i - j] for i in range(41) for j in range(41 - i)]).double() / 40
    for row, own, sum_ in zip(noisy, ours, total, strict=True):
        best = float((grid * sum_ - row).square().sum(1).min())
        assert float((own - row).square().sum()) <= best + 1e-9


class TestSmote:
    def imbalanced(self) -> tuple[Tensor, Tensor]:
        g = draws()
        features = torch.rand(60, 3, generator=g, dtype=torch.float64)
        return features, (torch.arange(60) >= 48).long()

    def test_every_new_point_lies_where_imbalanced_learns_do(self) -> None:
        """Both make as many, of the same classes, each between a record and one of its five nearest of its class."""
        imblearn = pytest.importorskip("imblearn.over_sampling")
        features, labels = self.imbalanced()
        own = features[labels == 1]
        ours, ours_labels = plain_trees.smote(features, labels, neighbours=5, draws=draws())
        theirs, theirs_labels = imblearn.SMOTE(random_state=0).fit_resample(features.numpy(), labels.numpy())
        assert torch.bincount(ours_labels).tolist() == np.bincount(theirs_labels).tolist() == [48, 48]
        nearest = plain_trees.nearest_within(own, 5)
        for made in (ours[60:], torch.from_numpy(np.asarray(theirs))[60:]):
            assert all(between(point, own, nearest) for point in made)
        outside = torch.rand(20, 3, generator=draws(), dtype=torch.float64)
        assert not any(between(point, own, nearest) for point in outside)

    def test_a_class_of_one_is_repeated(self) -> None:
        made, labels = plain_trees.smote(
            torch.eye(4, dtype=torch.float64), torch.tensor([0, 0, 0, 1]), neighbours=5, draws=draws()
        )
        assert torch.bincount(labels).tolist() == [3, 3]
        assert bool((made[4:] == torch.eye(4)[3]).all())


def between(point: Tensor, own: Tensor, nearest: Tensor) -> bool:
    """Whether a point lies on a segment between a record and one of its neighbours."""
    start, end = own[:, None].expand(-1, nearest.shape[1], -1), own[nearest]
    along, from_start = end - start, point - start
    t = (along * from_start).sum(-1) / along.square().sum(-1).clamp(min=1e-12)
    missed = (from_start - t[..., None] * along).norm(dim=-1)
    return bool(((missed < 1e-6) & (t >= -1e-6) & (t <= 1 + 1e-6)).any())


@pytest.mark.parametrize("split", ["subsamples", "disjoint", "stratified"])
def test_a_record_is_in_a_bag_once_and_in_one_of_disjoint_bags(split: str) -> None:
    labels = (torch.arange(100) < 20).long()
    bags = filled(labels, 5, split, 19, draws())
    assert all(len(bag) == 19 == len(bag.unique()) for bag in bags)
    if split != "subsamples":
        everything = torch.cat(bags)
        assert len(everything) == len(everything.unique())
    if split == "stratified":
        assert all(int(labels[bag].sum()) == 4 for bag in bags)


@pytest.mark.parametrize("split", ["disjoint"])
def test_a_replaced_record_changes_one_disjoint_bag(split: str) -> None:
    """Bags do not look at labels or features: another label leaves every bag's members as they were."""
    one, other = torch.zeros(50, dtype=torch.int64), torch.zeros(50, dtype=torch.int64)
    other[7] = 1
    pairs = zip(filled(one, 5, split, 10, draws()), filled(other, 5, split, 10, draws()), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_without_xgboost_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the module is half there."""
    import sys

    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MechanismError, match=r"\.\[imbalance\]"):
        trees.library()


def problem(n: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """A tenth of label 1, whose first number is large and whose category is the last."""
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=g) < 0.1).long()
    a = (0.25 + 0.5 * labels + 0.12 * torch.randn(n, generator=g)).clamp(0, 1)
    b = torch.where(torch.rand(n, generator=g) < 0.7, 2 * labels, torch.randint(3, (n,), generator=g))
    features = torch.cat([a[:, None], torch.nn.functional.one_hot(b, 3), torch.rand(n, 1, generator=g)], dim=1)
    return features, labels


LEARNERS: dict[str, dict[str, Any]] = {
    "objective-perturbation": {"weights": "frequencies"},
    "weighted-descent": {},
    "bayes-table": {},
    "privbayes": {},
}


def balanced(kind: str, epsilon: float, *, key: bytes) -> float:
    """Balanced accuracy on other records."""
    features, labels = problem(2000, seed=0)
    test, truth = problem(2000, seed=1)
    task = Task(records=2000, classes=2, target_epsilon=epsilon, delta=1e-6, features=5, columns=3)
    plan = kinds()[kind].model_validate(LEARNERS[kind]).plan(task)
    run = Run(classes=2, seed=0, classifier=lambda: pytest.fail("no classifier"), schema=SCHEMA, key=key)
    said = (
        plan.fit(Records(FeatureInputs(features), labels), run).model.log_probabilities(FeatureInputs(test)).argmax(1)
    )
    return float(np.mean([(said[truth == label] == label).double().mean() for label in (0, 1)]))


@pytest.mark.parametrize("kind", LEARNERS)
def test_it_learns_the_rare_class_and_not_without_budget(kind: str) -> None:
    """At epsilon 5 well above chance for both classes; at epsilon 0.002 the worst of four keys is near chance or below:
    else the noise is not there."""

    def worst(epsilon: float, keys: int) -> float:
        accuracies = []
        for key in range(keys):
            accuracies.append(balanced(kind, epsilon, key=bytes(range(key, key + 32))))
        return min(accuracies)

    assert worst(5.0, 1) > 0.8
    assert worst(0.002, 4) < 0.65


def test_trees_are_kept_as_json(tmp_path: Path) -> None:
    """No pickle: the file is JSON text, and says the same again."""
    features, labels = problem(200, seed=0)
    grown = trees.grow(features, labels, classes=2, seed=0, settings=trees.TreeSettings(rounds=5))
    grown.save(tmp_path)
    assert (tmp_path / trees.FILE).read_text().startswith("{")
    inputs = FeatureInputs(features)
    assert torch.equal(trees.Trees.load(tmp_path).log_probabilities(inputs), grown.log_probabilities(inputs))
