"""Clipped gradient sums of any module, by `torch.func`: the gradient of each record alone, many of them at a time.

    g_i = grad over theta of loss(module_theta(x_i), y_i),    out += sum_i c_i g_i

The products and their sum have the precision of `out`: in float32 one record more moves how all others are rounded.

`vmap` runs the module on each record with a batch of one, so no layer can see a second record: what it does within
one is its own affair, and needs no rule here. The price is memory, b times the parameters, hence few records at a time;
where a closed form or ghost clipping is known to be right they are faster.

A module that draws random numbers is refused: what a record is given would hang on its place among the others.
A record whose gradient is not finite adds nothing: an infinite norm has no clip, and one such number would be
everybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechanisms.model.ghost import Coefficients
from mechanisms.model.inputs import Batch

_NUMBERS = 1 << 25
"""Per-record gradients in memory at once: 128 MiB of float32."""
_COLUMNS = 1 << 13
"""Parameters whose gradients are in the precision of the sum at once."""


class PerRecordClipping:
    """The same interface as `ghost.GhostClipping`.

    Args:
        spans: where each trainable parameter lies in the flat gradient, by its id.
        loss: output and target of one record, without the dimension of the batch, to a scalar.
    """

    def __init__(self, part: nn.Module, spans: Mapping[int, slice], loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._part, self._loss = part, loss
        self._trained = {name: p for name, p in part.named_parameters() if id(p) in spans}
        self._spans = {name: spans[id(p)] for name, p in self._trained.items()}
        size = sum(span.stop - span.start for span in self._spans.values())
        self.most_records = max(1, min(512, _NUMBERS // size))
        """How many records' gradients are held at once."""

    def __enter__(self) -> PerRecordClipping:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def add_clipped_sum(
        self, batch: Batch, labels: Tensor, *, coefficients: Coefficients, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add sum_i c_i grad(loss_i) over one micro-batch to `out`, float [P].

        Returns:
            Gradient norms before clipping, of the precision of `out`, and losses, float32, [b] each.
        """
        each = torch.func.vmap(torch.func.grad_and_value(self._of_one), in_dims=(None, 0, 0), randomness="error")
        parameters = {name: p.detach() for name, p in self._trained.items()}
        # torch's fused attention kernels would be called record by record
        with sdpa_kernel(SDPBackend.MATH), _recurrent_in_steps(self._part):
            gradients, losses = each(parameters, batch["features"], labels)
        flat = {name: gradient.flatten(1) for name, gradient in gradients.items()}
        squared = [torch.linalg.vector_norm(gradient, dim=1, dtype=out.dtype).square() for gradient in flat.values()]
        norms = torch.stack(squared).sum(0).sqrt_()
        finite = norms.isfinite()
        factors = torch.where(finite, coefficients(norms), 0.0).to(out.dtype)
        for name, gradient in flat.items():
            span = self._spans[name]
            for columns, total in zip(gradient.split(_COLUMNS, 1), out[span].split(_COLUMNS), strict=True):
                total += columns.where(finite[:, None], 0.0).to(out.dtype).t() @ factors
        return norms, losses.detach()

    def _of_one(self, parameters: Mapping[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        output = torch.func.functional_call(self._part, dict(parameters), (x[None],))
        return self._loss(output[0], target)


@contextmanager
def _recurrent_in_steps(part: nn.Module) -> Iterator[None]:
    """Recurrent layers by torch's own formulas for them, step by step: their fused kernels are no `vmap`'s."""
    if not any(isinstance(layer, nn.RNNBase) for layer in part.modules()):
        yield
        return
    fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.backends.cudnn.flags(enabled=False), enable_python_dispatcher():
            yield
    finally:
        torch._C._set_mkldnn_enabled(fused)
