"""Numeric precision of an encoder: float32, or bfloat16 if the processor multiplies it faster.

bfloat16 has float32's range and eight bits of precision. Only matrix products use it
(`torch.autocast`). Weights, norms, sums and everything that is stored remain float32. A processor
without bfloat16 instructions computes the same numbers more slowly, so a run can be continued on
another machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import nn

Precision = Literal["float32", "bfloat16"]
Choice = Literal["auto", "float32", "bfloat16"]
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")


def resolved(choice: Choice, device: torch.device | str | None = None) -> Precision:
    """Resolves a choice for a device. Without a device, this is the GPU if available, otherwise the
    CPU.

    `auto` selects bfloat16 if the device has instructions for it, based on its capabilities and
    never on a timing.
    """
    if choice != "auto":
        return choice
    import torch

    if torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if any(capabilities.get(name, False) for name in _INSTRUCTIONS) else "float32"


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Computes matrix products inside the block, in this thread, in this precision and by the
    fastest method.
    """
    import torch

    from mechanisms.model.linear import fast_linear

    if precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return fast_linear(device)


@contextmanager
def rounded_once(module: nn.Module, precision: Precision) -> Iterator[None]:
    """Keeps the frozen weights of linear layers in this precision inside the block.

    `computing` rounds them before each product anyway and does not remember them, since it keeps
    only weights with a gradient. So the results are the same, bit for bit, and many passes round
    millions of weights once.
    """
    import torch
    from torch import nn

    if precision == "float32":
        yield
        return
    linear = [layer for layer in module.modules() if type(layer) is nn.Linear]
    elsewhere = {
        id(weight)
        for layer in module.modules()
        if type(layer) is not nn.Linear
        for weight in layer.parameters(recurse=False)
    }
    frozen = [
        (weight, weight.data)
        for layer in linear
        for weight in layer.parameters(recurse=False)
        if not weight.requires_grad
        and id(weight) not in elsewhere
        # encoders of a process share weights: the block that rounded one restores it
        and weight.dtype != torch.bfloat16
    ]
    for weight, values in frozen:
        weight.data = values.to(torch.bfloat16)
    try:
        yield
    finally:
        for weight, values in frozen:
            weight.data = values
