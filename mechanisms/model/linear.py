"""Matrix products with oneDNN on AVX-512 CPUs that are not made by Intel.

torch multiplies float32 matrices with MKL, which uses only half the speed of AVX-512 processors of
other makers (on an AMD EPYC: 105 against 230 GFLOPS per core). oneDNN is also included in torch and
uses the full speed. On Intel processors MKL is as fast forward and 10 to 33 % faster backward, so
it is kept. The choice depends only on the processor and on shapes, never on a timing, so that a
resumed run makes the same choice.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

_SMALLEST = 1 << 22
"""Number of multiplications below which the call overhead exceeds the gain."""


def available() -> bool:
    return (
        torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


@cache
def worthwhile() -> bool:
    return available() and not str(torch.cpu.get_capabilities().get("cpu_name", "")).startswith(
        "Intel"
    )


def fast_linear(device: torch.device) -> AbstractContextManager[Any]:
    """Uses oneDNN for linear layers inside the block, in this thread, if it is faster."""
    return _Mode() if device.type == "cpu" and worthwhile() else nullcontext()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [n, in] times the transpose of weight [out, in], plus bias [out]."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        flat = x.reshape(-1, x.shape[-1])
        return _product(flat, weight, bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        flat = grad.reshape(-1, grad.shape[-1])
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            _product(flat, weight.t()).view(x.shape) if for_x else None,
            _product(flat.t(), x.reshape(-1, x.shape[-1]).t()) if for_weight else None,
            flat.sum(0) if for_bias else None,
        )


class _Mode(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if (
            func is torch.nn.functional.linear
            and not kwargs
            and len(args) == 3
            and _fits(args[0], args[1])
        ):
            return _Linear.apply(*args)
        return func(*args, **(kwargs or {}))


def _fits(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.numel() * weight.shape[0] >= _SMALLEST
        and not torch.is_autocast_enabled("cpu")
    )
