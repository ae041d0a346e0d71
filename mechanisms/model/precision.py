"""The numbers that an encoder computes with: float32, or bfloat16 where the processor multiplies
those faster.

bfloat16 keeps float32's range and eight bits of its precision. Only matrix products are done in it
(`torch.autocast`); weights, norms, sums and everything that is stored stay float32. On a processor
without instructions for it, bfloat16 gives the same numbers, only more slowly: what was begun on
one machine can be finished on another.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "bfloat16"]
Choice = Literal["auto", "float32", "bfloat16"]
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")


def resolved(choice: Choice, device: torch.device | str | None = None) -> Precision:
    """Resolves a choice on a device; without one, on the GPU where there is one, else on the
    processor.

    `auto` is bfloat16 where the device has instructions for it, by its flags and never by a timing.
    """
    if choice != "auto":
        return choice
    import torch

    if torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    known = torch.cpu.get_capabilities()
    return "bfloat16" if any(known.get(name, False) for name in _INSTRUCTIONS) else "float32"


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Inside the block, in this thread, matrix products are done in this precision, in the fastest
    way for it.
    """
    import torch

    from mechanisms.model.linear import fast_linear

    if precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return fast_linear(device)
