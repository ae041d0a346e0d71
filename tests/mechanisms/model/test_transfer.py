"""Copies to a device and back: the same values, and the next pass begins before a value is read."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mechanisms.model.transfer import Returning, brought_back, to_device

CPU = torch.device("cpu")


def test_values_stay_as_they_are() -> None:
    values = torch.randn(3, 2)
    assert torch.equal(Returning(to_device(values, CPU)).wait(), values)


def test_a_pass_begins_before_the_one_before_it_is_read() -> None:
    """In order, each once, with its own values; an empty list of passes gives nothing."""
    seen: list[str] = []

    def passes(count: int) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(count):
            seen.append(f"begins {number}")
            yield torch.tensor([number]), torch.full((2,), float(number))

    for index, values in brought_back(passes(3)):
        seen.append(f"read {int(index)}")
        assert values.tolist() == [int(index)] * 2
    assert seen == ["begins 0", "begins 1", "read 0", "begins 2", "read 1", "read 2"]
    assert list(brought_back(passes(0))) == []
