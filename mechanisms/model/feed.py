"""Brings batches of records to the device that trains on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mechanisms.model.inputs import Batch, FeatureInputs, Inputs, TokenInputs


@dataclass(frozen=True)
class Feed:
    """Records, and the same records in the memory of a card.

    A training step of an encoder takes a card less time than a processor needs to pad a few
    narratives and to copy them. With the records on the card, batches are padded there, and what is
    copied is one list of indices for many steps.
    """

    inputs: Inputs
    device: torch.device
    resident: TokenInputs | FeatureInputs | None
    """The records on the card. None on a processor, or if the card has too little memory."""

    @staticmethod
    def of(inputs: Inputs, device: torch.device) -> Feed:
        return Feed(inputs, device, _on_card(inputs, device))

    def batches(self, indices: Sequence[Tensor]) -> Iterator[tuple[Tensor, Batch]]:
        """Yields each index (int64 [b], on the processor) and its records, both on the device."""
        if self.resident is None or not indices:
            for index in indices:
                yield index.to(self.device), self.inputs.batch(index, self.device)
            return
        lengths = self.inputs.lengths
        there = torch.cat([*indices]).to(self.device).split([len(index) for index in indices])
        for index, place in zip(indices, there, strict=True):
            # read on the processor, which need not wait for the card then
            longest = 0 if lengths is None else int(lengths[index].max())
            yield place, self.resident.gather(place, longest)


def _on_card(inputs: Inputs, device: torch.device) -> TokenInputs | FeatureInputs | None:
    """The records on the card, if they take at most half of the memory that is free there."""
    if device.type == "cpu" or not isinstance(inputs, TokenInputs | FeatureInputs):
        return None
    tensors = {name: values for name, values in vars(inputs).items() if isinstance(values, Tensor)}
    needed = sum(values.nbytes for values in tensors.values())
    if device.type == "cuda" and 2 * needed > torch.cuda.mem_get_info(device)[0]:
        return None
    resident: dict[str, Any] = {name: values.to(device) for name, values in tensors.items()}
    if isinstance(inputs, FeatureInputs):
        return FeatureInputs(**resident)
    return replace(inputs, **resident)
