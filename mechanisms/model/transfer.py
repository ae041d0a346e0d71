"""Copies between the processor and a device during which the processor goes on.

CUDA copies from and to pinned memory by itself. From other memory, each copy makes the processor
wait until the device has done everything before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor of the processor to a device."""
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class Returning:
    """A tensor on its way to the processor. On a processor it is there already."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._arrival: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrival = torch.cuda.Event()
            self._arrival.record(torch.cuda.current_stream(values.device))

    def wait(self) -> Tensor:
        """The tensor on the processor, once it has arrived."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._values.cpu()


def brought_back(passes: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the index and the values of each pass, with the values on the processor.

    A device gets its next pass before the processor waits for the values of this one, so it always
    has work.
    """
    waiting: tuple[Tensor, Returning] | None = None
    for index, values in passes:
        started = index, Returning(values)
        if waiting is not None:
            yield waiting[0], waiting[1].wait()
        waiting = started
    if waiting is not None:
        yield waiting[0], waiting[1].wait()
