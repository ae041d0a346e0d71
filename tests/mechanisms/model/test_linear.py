"""Linear layers through oneDNN: the same numbers as torch's own, forward and backward, and only
where they belong.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mechanisms.model import linear
from mechanisms.model.linear import fast_linear

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not linear.available(), reason="needs a CPU with AVX-512 and oneDNN"
)


@pytest.fixture(autouse=True)
def another_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "worthwhile", lambda: True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    seen: list[tuple[int, ...]] = []
    plain = linear._product

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append((*x.shape, weight.shape[0]))
        return plain(x, weight, bias)

    monkeypatch.setattr(linear, "_product", product)
    return seen


def gradients(layer: nn.Linear, x: Tensor) -> list[Tensor]:
    layer.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    y = layer(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
    return [
        t
        for t in (
            y.detach(),
            x.grad,
            layer.weight.grad,
            layer.bias.grad if layer.bias is not None else None,
        )
        if t is not None
    ]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(300,), (8, 61), (2, 3, 50)])
def test_values_and_gradients(calls: list[Any], shape: tuple[int, ...], bias: bool) -> None:
    """Against float64, off by float32 rounding and no more than torch's own product
    is, twice over.
    """
    torch.manual_seed(0)
    layer, x = nn.Linear(192, 160, bias=bias), torch.randn(*shape, 192)
    own = gradients(layer, x)
    assert not calls
    with fast_linear(CPU):
        ours = gradients(layer, x)
    assert len(calls) == 3
    exact = gradients(layer.double(), x.double())
    for a, b, truth in zip(ours, own, exact, strict=True):
        scale = float(truth.abs().max())
        assert float((a - truth).abs().max()) <= 2 * float((b - truth).abs().max()) + 1e-6 * scale


def test_same_bits_every_time() -> None:
    """A resumed run depends on it."""
    torch.manual_seed(0)
    layer, x = nn.Linear(192, 160), torch.randn(8, 61, 192)
    with fast_linear(CPU):
        first, again = gradients(layer, x), gradients(layer, x)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_frozen_weights_get_no_gradient(calls: list[Any]) -> None:
    """Adapters beside a frozen layer: its product for the weight is not computed."""
    layer, x = nn.Linear(192, 160).requires_grad_(False), torch.randn(300, 192, requires_grad=True)
    with fast_linear(CPU):
        layer(x).sum().backward()
    assert len(calls) == 2
    assert layer.weight.grad is None
    assert x.grad is not None


def test_small_other_types_and_autocast_are_torchs_own(calls: list[Any]) -> None:
    """Small products, other types, a bfloat16 pass, other functions and all that is outside the
    block.
    """
    layer, x = nn.Linear(192, 160), torch.randn(300, 192)
    with fast_linear(CPU):
        layer(x[:4])
        nn.Linear(192, 160, dtype=torch.float64)(x.double())
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        torch.nn.functional.relu(x @ layer.weight.T)
    layer(x)
    assert not calls
    with torch.inference_mode(), fast_linear(CPU):
        layer(x)
    assert len(calls) == 1


def test_other_devices_are_left_alone() -> None:
    """A GPU multiplies by itself."""
    with fast_linear(torch.device("cuda")) as mode:
        assert mode is None
