"""Per-record gradients of modules that are someone's own, and the modules that have none."""

from collections.abc import Callable
from typing import Any

import own_modules
import pytest
import torch
from own_modules import Attention, one_by_one
from refusals import of_kind
from small_heads import clipped_sum
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.custom_module import (
    CustomModule,
    Loss,
    RecordInputs,
    copy_of,
    inputs_of,
    records_of,
)
from mechanisms.model.inputs import FeatureInputs

CE = nn.functional.cross_entropy
CPU = torch.device("cpu")


def clipped(
    module: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, clip: float
) -> tuple[Tensor, Tensor]:
    model = copy_of(module, loss, x, y, device=CPU)
    norms, total = clipped_sum(model, {"features": x}, y, lambda norms: (clip / norms).clamp(max=1))
    return total.float(), norms


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_opacus_has_the_same_gradients() -> None:
    """On layers with biases and a norm, parameter by parameter, before they are clipped."""
    from opacus.grad_sample import GradSampleModule

    module, x, y = own_modules.made("layered")
    model = copy_of(module, CE, x, y, device=CPU)
    sampled: Any = GradSampleModule(module, loss_reduction="sum")
    CE(sampled(x), y, reduction="sum").backward()
    theirs = torch.cat([p.grad_sample.flatten(1) for p in sampled.parameters()], dim=1)
    for record in range(len(x)):
        only = torch.zeros(len(x))
        only[record] = 1.0
        total = clipped_sum(model, {"features": x}, y, lambda _, only=only: only)[1]
        torch.testing.assert_close(total.float(), theirs[record], rtol=1e-4, atol=5e-5)


def test_a_record_without_a_finite_gradient_adds_nothing() -> None:
    """Its neighbours' sum is what it would be without it: an infinite norm has no clip."""
    module, x, y = own_modules.made("layered")

    def breaking(output: Tensor, target: Tensor) -> Tensor:
        return (
            CE(output, target, reduction="none") * torch.where(target == 2, float("inf"), 1.0)
        ).sum()

    kept = y != 2
    found, norms = clipped(module, breaking, x, y, clip=0.5)
    assert not norms[~kept].isfinite().any()
    torch.testing.assert_close(
        found, one_by_one(module, CE, x[kept], y[kept], clip=0.5)[0], rtol=1e-4, atol=5e-5
    )


def test_no_gradient_hangs_on_a_place() -> None:
    """Dropout is taken and off: equal records have equal gradients. What draws random numbers of
    its own is refused, for a record would get others in another place.
    """
    x, y = torch.ones(20, 1, 6), torch.zeros(20, dtype=torch.int64)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 24), nn.Dropout(0.5), nn.Linear(24, 3))
    norms = clipped(module, CE, x, y, clip=1.0)[1]
    assert len(norms.unique()) == 1
    noisy = Own(lambda own, x: own.linear(x + torch.randn_like(x)))
    with pytest.raises(MechanismError, check=of_kind("mixed-records")):
        copy_of(noisy, CE, torch.ones(20, 6), y, device=CPU)


class Own(nn.Module):
    seen: Tensor

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))
        self._how = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._how(self, x)


def _counting(own: Own, x: Tensor) -> Tensor:
    own.seen += 1
    return own.linear(x)


def _remembering(own: Own, x: Tensor) -> Tensor:
    if own.training:
        own.seen = 0.9 * own.seen + x.detach().mean()
    return own.linear(x)


BAD: dict[str, tuple[Callable[[], Any], of_kind]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)),
        of_kind("changing-buffer"),
    ),
    "batch norm of the batch": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        of_kind("fails-on-synthetic-records"),
    ),
    "a mean over the batch": (
        lambda: Own(lambda own, x: own.linear(x - x.mean(0))),
        of_kind("mixed-records"),
    ),
    "softmax over the batch": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=0)),
        of_kind("mixed-records"),
    ),
    "a counter": (lambda: Own(_counting), of_kind("changing-buffer", saying="`seen`")),
    "a running mean": (lambda: Own(_remembering), of_kind("changing-buffer", saying="`seen`")),
    "another width": (lambda: nn.Linear(7, 3), of_kind("fails-on-synthetic-records")),
    "no parameter": (
        lambda: nn.Linear(6, 3).requires_grad_(False),
        of_kind("nothing-to-train"),
    ),
    "doubles": (
        lambda: nn.Linear(6, 3).double(),
        of_kind("parameter-type", saying=("`weight`", "torch.float64")),
    ),
    "two outputs": (
        lambda: Own(lambda own, x: (own.linear(x), x)),
        of_kind("fails-on-synthetic-records"),
    ),
}


@pytest.mark.parametrize("which", BAD)
def test_a_module_that_has_no_gradient_a_record_is_refused(which: str) -> None:
    """Before a record is read, by name, with what to do instead."""
    build, refusal = BAD[which]
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    with pytest.raises(MechanismError, check=refusal):
        copy_of(build(), CE, x, y, device=CPU)


@pytest.mark.parametrize(
    ("loss", "refusal"),
    [
        (lambda output, target: CE(output, target) * torch.ones(2), of_kind("loss-not-one-number")),
        (
            lambda output, target: output.nonsense(),
            of_kind("fails-on-synthetic-records", saying="its loss"),
        ),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), of_kind("weight-cancels")),
        (nn.Linear(3, 1), of_kind("loss-with-parameters")),
    ],
)
def test_a_loss_that_is_none_of_a_record(loss: Any, refusal: of_kind) -> None:
    with pytest.raises(MechanismError, check=refusal):
        copy_of(nn.Linear(6, 3), loss, torch.randn(8, 6), torch.arange(8) % 3, device=CPU)


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, *pairs: Any) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Any:
        return self._pairs[index]


def test_records_of_any_data_set() -> None:
    """A pair of tensors, a TensorDataset, a data set or a list of pairs say the same."""
    x, y = torch.randn(5, 2, 3), torch.arange(5)
    pairs = [(x[i].numpy(), int(y[i])) for i in range(5)]
    for dataset in (
        (x, y),
        torch.utils.data.TensorDataset(x, y),
        Pairs(*pairs),
        pairs,
        (x.double(), y),
    ):
        found = records_of(dataset)
        torch.testing.assert_close(found[0], x)
        assert torch.equal(found[1], y)


@pytest.mark.parametrize(
    ("dataset", "refusal"),
    [
        ((torch.zeros(3, 2), torch.zeros(4)), of_kind("records-form")),
        ((torch.zeros(0, 2), torch.zeros(0)), of_kind("records-form")),
        (iter([1]), of_kind("records-form")),
        ([1, 2], of_kind("records-form")),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], of_kind("records-form")),
        ((torch.tensor([[1.0, float("nan")]]), torch.zeros(1)), of_kind("inputs-not-finite")),
    ],
)
def test_a_data_set_that_is_none(dataset: Any, refusal: of_kind) -> None:
    with pytest.raises(MechanismError, check=refusal):
        records_of(dataset)


def test_a_target_that_is_no_class() -> None:
    """The text has no value of a record."""
    with pytest.raises(
        MechanismError, check=of_kind("target-outside-classes", saying="2")
    ) as caught:
        copy_of(nn.Linear(6, 3), CE, torch.randn(8, 6), torch.full((8,), 7), device=CPU)
    assert "7" not in str(caught.value)


def test_large_modules_use_all_threads() -> None:
    """By their parameters; a likelihood is the same through either form of the records."""
    module, x, y = own_modules.made("attention")
    model = CustomModule(Attention(), CE, device=CPU)
    assert isinstance(inputs_of(x, module), FeatureInputs)
    with torch.device("meta"):
        assert isinstance(inputs_of(x, nn.Linear(1000, 1000)), RecordInputs)
    index = torch.tensor([3, 1])
    for form in (FeatureInputs(x), RecordInputs(x)):
        found = model.log_likelihood(form.batch(index, CPU), y[index])
        torch.testing.assert_close(found, -CE(model.part(x[index]), y[index], reduction="none"))
