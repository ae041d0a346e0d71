"""Sets the number of torch's threads on a CPU, by the size of the work."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from mechanisms.model.inputs import FeatureInputs, Inputs


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Let torch use so many threads an operation inside the block, also in threads that are started
    there.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def fitting(inputs: Inputs) -> Iterator[None]:
    """One thread for a head on cached features, all of them for an encoder.

    A head's steps take a tenth of a millisecond: a second thread gains nothing there, and on a
    machine that is also doing something else it makes each step wait for the slower of two
    (measured: 3 to 40 times slower). A fixed number also keeps the order of summation, hence every
    bit, independent of the machine.
    """
    with using(1 if isinstance(inputs, FeatureInputs) else torch.get_num_threads()):
        yield


_SIDE_BY_SIDE = 8
"""Batches at a time, at most: beyond that Python's lock is what they wait for."""


@contextmanager
def forward_passes(inputs: Inputs, device: torch.device) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` for forward passes over batches.

    An encoder's batches on a CPU run side by side, each on its own threads, rather than one after
    the other on all of them: no core waits for another at each of a model's hundreds of operations
    (a quarter faster on two idle cores, many times on busy ones). Modes such as `inference_mode`
    belong to a thread: set them inside `work`.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or isinstance(inputs, FeatureInputs) or threads == 1:
        with fitting(inputs):
            yield map
        return
    workers = min(threads, _SIDE_BY_SIDE)
    with (
        using(threads // workers),
        ThreadPoolExecutor(workers, thread_name_prefix="forward") as pool,
    ):
        yield pool.map


def forward_batch_size(inputs: Inputs, device: torch.device) -> int:
    """Records a batch in forward passes.

    On a CPU the activations of 16 narratives stay in a core's cache; 128 take twice as long a
    record. A GPU's kernels take time to start; beyond 512 padding costs more. A head computes for
    less time than its calls take.
    """
    if isinstance(inputs, FeatureInputs):
        return 1024
    return 16 if device.type == "cpu" else 512


def block_tokens(device: torch.device) -> int:
    """Tokens of an encoder's block, padding and dummies included.

    On a CPU the activations of 384 stay in a core's cache, and products of as many rows are within
    a tenth of the fastest. Larger blocks of a GPU hold more dummies than they save starts of
    kernels.
    """
    return 384 if device.type == "cpu" else 4096
