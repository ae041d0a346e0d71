"""How many threads torch uses on a CPU, by the size of the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mechanisms.inputs import FeatureInputs, Inputs


@contextmanager
def fitting(inputs: Inputs) -> Iterator[None]:
    """One thread for a head on cached features, all of them for an encoder.

    A head's steps take a tenth of a millisecond: a second thread gains nothing there, and on a machine that is also
    doing something else it makes each step wait for the slower of two (measured: 3 to 40 times slower). A fixed number
    also keeps the order of summation, hence every bit, independent of the machine.
    """
    before = torch.get_num_threads()
    if isinstance(inputs, FeatureInputs):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
