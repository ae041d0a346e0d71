"""Would win: a membership that no noise hides, where one record moves a sum by far more than noise
was solved for.
"""

import copy

import pytest
import torch
from small_heads import clipped_sum, head_of
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.descent import exact_sums
from mechanisms.mechanism import ClassifierModel, Records, Run, Task, kinds
from mechanisms.model import classifier as classifiers
from mechanisms.model.config import ModelConfig
from mechanisms.model.custom_module import CustomModule, copy_of
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.noise import SecretStream

DECLARES = """
one record moves a sum by its clip alone
| masks that follow neighbours, sums in half precision, gradients of the first record, heads of
their own, norms that cancel
| hardware that computes wrongly
"""

CPU, CE = torch.device("cpu"), nn.functional.cross_entropy
LAYERS = {
    "one layer": (nn.Dropout(0.1), nn.Linear(8, 3)),
    "two layers": (nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)),
}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecretStream, "add_rounded_normal_", lambda self, out, **_: out)


def one_step(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What a step over all records adds up to, without its noise."""
    mechanism = dp_sgd.DpSgd(
        target_epsilon=5.0, optimiser="sgd", learning_rate=1.0, epochs=1, sampling_prob=1.0
    )
    plan = mechanism.plan(Task(records=300, classes=3))
    made = CustomModule(copy.deepcopy(module), CE, device=CPU)
    start = made.flat.clone()
    plan.fit(
        Records(FeatureInputs(x), y),
        Run(classes=3, seed=0, classifier=lambda: made, resampled=True),
    )
    return (made.flat - start) * 300


@pytest.mark.parametrize("name", LAYERS)
def test_masks_that_go_to_places(quiet: None, name: str) -> None:
    """By the dropout of all who was behind it: one record less gave each of them its neighbour's
    mask.
    """
    x, y = torch.randn(300, 8, generator=torch.Generator().manual_seed(1)), torch.arange(300) % 3
    module = nn.Sequential(*LAYERS[name])
    assert (one_step(module, x, y) - one_step(module, x[1:], y[1:])).norm() <= 1 + 1e-4


SIZES = torch.tensor([0.7, 1.6e-5])
"""Of a record's gradient in each direction: large ones, and ones that float32 doubles above 256 and
keeps below.
"""


def scaled_by_target(output: Tensor, target: Tensor) -> Tensor:
    return (output[..., 0] * SIZES[target]).sum() + 1e6


SUMS = {"closed form": nn.Linear(2, 1), "normalisation": nn.LayerNorm(2)}


@pytest.mark.parametrize("name", SUMS)
def test_micro_batches_in_the_next_binade(quiet: None, name: str) -> None:
    """Each micro-batch of 512 sums 366 large gradients to just above 256, then 146 small ones. One
    record less shifts them all by one place, to just below: in float32 each of 100 micro-batches
    then rounds its small ones otherwise.
    """
    n = 51_200
    y = (torch.arange(n) % 512 >= 366).long()
    x = torch.eye(2)[0].expand(n, -1).contiguous()
    module = nn.Sequential(copy.deepcopy(SUMS[name]))
    mechanism = dp_sgd.DpSgd(
        target_epsilon=5.0, optimiser="sgd", learning_rate=1.0, epochs=1, sampling_prob=1.0
    )
    plan = mechanism.plan(Task(records=n, classes=2))

    def total(x: Tensor, y: Tensor) -> Tensor:
        made = CustomModule(copy.deepcopy(module), scaled_by_target, device=CPU)
        start = made.flat.clone()
        plan.fit(
            Records(FeatureInputs(x), y),
            Run(classes=2, seed=0, classifier=lambda: made, resampled=True),
        )
        return (made.flat.double() - start.double()) * n

    assert (
        total(x, y) - total(x[1:], y[1:])
    ).norm() <= 1 + 1e-2  # rounded to float32 in the parameters


def test_masks_of_a_standard_head(quiet: None, tiny_roberta: str) -> None:
    """RoBERTa's own head, on ordinary features, at a public seed."""
    config = ModelConfig(encoder=str(tiny_roberta), trainable="head", pooling="first")
    x = torch.randn(300, 16, generator=torch.Generator().manual_seed(1))
    y = torch.arange(300) % 3
    mechanism = dp_sgd.DpSgd(
        target_epsilon=5.0, optimiser="sgd", learning_rate=1.0, epochs=1, sampling_prob=1.0
    )
    plan = mechanism.plan(Task(records=300, classes=3))

    def total(x: Tensor, y: Tensor) -> Tensor:
        made = classifiers.build(config, num_labels=3, seed=0)
        start = made.flat.clone()
        plan.fit(
            Records(FeatureInputs(x), y),
            Run(classes=3, seed=0, classifier=lambda: made, resampled=True),
        )
        return (made.flat - start) * 300

    assert (total(x, y) - total(x[1:], y[1:])).norm() <= 1 + 1e-3


def _cancelling(null: Tensor, size: float, rest: float, seed: int) -> Tensor:
    """Two positions that take each other away except for a little, out of sight of the layer."""
    g = torch.Generator().manual_seed(seed)
    big, left = (
        scale * (torch.randn(len(null), generator=g) @ null) / len(null) ** 0.5
        for scale in (size, rest)
    )
    return torch.stack([big, -big + left])


def test_a_norm_that_cancels_to_nothing() -> None:
    """Pairs of positions whose products cancel in float32: the norm read 0, and 4,000 clips went
    in.
    """
    torch.manual_seed(0)
    width, hidden, positions = 64, 32, 2
    half = nn.Linear(hidden, 2)
    first, last = nn.Linear(width, hidden), nn.Linear(positions * hidden, 2)
    module = nn.Sequential(first, nn.Flatten(1, -1), last)
    with torch.no_grad():
        last.weight.copy_(
            half.weight.repeat(1, positions)
        )  # an average over positions, a usual start
    null = torch.linalg.svd(first.weight.detach().double())[2][hidden:].float()
    others, y = torch.randn(8, positions, width), torch.arange(9) % 2

    def total(x: Tensor, y: Tensor) -> Tensor:
        model = copy_of(module, CE, x, y, device=CPU)
        return clipped_sum(
            model, {"features": x}, y, lambda norms: (1 / norms.clamp(min=1e-30)).clamp(max=1)
        )[1]

    base, worst = total(others, y[1:]), 0.0
    for size in (1e3, 1e5, 1e6, 1e7, 1e12):
        for share in (0.0, 1e-4, 4e-4, 1e-3):
            for seed in range(20):
                crafted = _cancelling(null, size, share * size, seed)
                worst = max(
                    worst, float((total(torch.cat([crafted[None], others]), y) - base).norm())
                )
    assert worst <= 1.05


def _row_gradient(features: Tensor, labels: Tensor, clip: float, rows: Tensor) -> Tensor:
    """Prior descent's sum of clipped gradients, float64 [classes, width + 1]."""
    records = exact_sums.GridRecords(exact_sums.on_grid(features), labels)
    total = torch.zeros(rows.shape, dtype=torch.float64)
    exact_sums.clipped_sum(records, rows, norm=clip, out=total)
    return total * 2.0**-exact_sums.SUM_BITS


def test_sums_of_gradients_do_not_hang_on_the_others() -> None:
    """Of 20,000 records half are tiny. Float32 rounds above a power of two otherwise than below it,
    and would do so at every later addition.
    """
    n, clip = 20_000, 1.0
    g = torch.Generator().manual_seed(0)
    z = torch.randn(n, 4, generator=g)
    z[::2] *= 1e-4
    y, rows = torch.zeros(n, dtype=torch.int64), torch.zeros(3, 5)
    whole = _row_gradient(z, y, clip, rows)
    assert whole.dtype == torch.float64
    without = _row_gradient(z[1:], y[1:], clip, rows)
    alone = _row_gradient(z[:1], y[:1], clip, rows)
    assert torch.equal(whole - without, alone)
    assert float(alone.norm()) <= clip


def test_a_clip_is_not_rounded_up() -> None:
    """Norms and factors in float32 let in up to 1.0000002 clips of a record; integers let in less
    than 1.
    """
    g = torch.Generator().manual_seed(3)
    z, y, rows = (
        torch.randn(2000, 7, generator=g),
        torch.arange(2000) % 3,
        torch.randn(3, 8, generator=g),
    )
    model = CustomModule(nn.Linear(7, 3), CE, device=CPU)
    largest = 0.0
    for some in torch.arange(len(z)).split(1):
        out = clipped_sum(model, {"features": z[some]}, y[some], lambda n: 0.1 / n.clamp(min=0.1))[
            1
        ]
        row = _row_gradient(z[some], y[some], 0.1, rows)
        largest = max(largest, float(out.norm()), float(row.norm()))
    assert 0.1 * (1 - 1e-5) <= largest <= 0.1


@pytest.mark.parametrize("kind", ["dp-sgd", "prior-descent"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e38])
def test_features_beyond_float32_are_nobody_elses(kind: str, value: float) -> None:
    """One record without finite features leaves the released parameters numbers."""
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    x[3, 1] = value
    mechanism = kinds()[kind].model_validate(
        {"target_epsilon": 5.0} | ({"batch_size": 30} if kind == "dp-sgd" else {})
    )
    plan = mechanism.plan(Task(records=30, classes=3))
    fitted = plan.fit(
        Records(FeatureInputs(x), y),
        Run(classes=3, seed=0, classifier=lambda: head_of(nn.Linear(4, 3))),
    )
    assert isinstance(fitted.model, ClassifierModel)
    assert bool(fitted.model.classifier.flat.isfinite().all())


@pytest.mark.parametrize("label", [0, 1])
def test_a_record_beyond_float32_ends_no_run(label: int) -> None:
    """Nothing times infinity, where its code is the predicted one: it adds nothing, and the others'
    sum stays.
    """
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
    x[3], y[3] = 1e25, label
    module = nn.Linear(4, 2)

    def total(own: Tensor) -> Tensor:
        model = CustomModule(copy.deepcopy(module), CE, device=CPU)
        return clipped_sum(model, {"features": x[own]}, y[own], lambda n: 1 / n.clamp(min=1))[1]

    everybody = torch.arange(12)
    torch.testing.assert_close(
        total(everybody), total(everybody[everybody != 3]), rtol=1e-5, atol=1e-6
    )


def test_weights_stay_with_their_records() -> None:
    """One that is not finite is left out, and the factors of the others are still theirs."""
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
    x[2] = 3e38
    weights = torch.tensor([1.0, 0.5, 1.0, 0.25, 0.1, 0.9])

    def total(own: Tensor) -> Tensor:
        model = CustomModule(copy.deepcopy(module), CE, device=CPU)
        return clipped_sum(
            model, {"features": x[own]}, y[own], lambda n: weights[own] / n.clamp(min=1)
        )[1]

    everybody = torch.arange(6)
    torch.testing.assert_close(
        total(everybody), total(everybody[everybody != 2]), rtol=1e-3, atol=1e-5
    )
