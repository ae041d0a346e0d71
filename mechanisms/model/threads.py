"""Sets the number of torch's CPU threads according to the size of the work."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from mechanisms.model.inputs import FeatureInputs, Inputs


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Limits torch to this number of threads per operation inside the block, including in threads
    started there.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def fitting(inputs: Inputs) -> Iterator[None]:
    """Uses one thread for a head on cached features, and all threads for an encoder.

    A step of a head takes a tenth of a millisecond, so a second thread gains nothing. On a busy
    machine it makes each step wait for the slower of the two (measured: 3 to 40 times slower). A
    fixed number also makes the order of summation, and hence every bit, independent of the machine.
    """
    with using(1 if isinstance(inputs, FeatureInputs) else torch.get_num_threads()):
        yield


_SIDE_BY_SIDE = 8
"""Maximum number of batches at a time. With more, they would only wait for Python's lock."""


@contextmanager
def forward_passes(inputs: Inputs, device: torch.device) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` for forward passes over batches.

    On a CPU, an encoder's batches run in parallel, each on its own threads, instead of one after
    another on all threads. Cores then never wait for each other at each of a model's hundreds of
    operations (a quarter faster on two idle cores, many times on busy ones). Modes such as
    `inference_mode` belong to a thread, so set them inside `work`.
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
    """Number of records per batch in forward passes.

    On a CPU, the activations of 16 narratives stay in a core's cache, and batches of 128 take twice
    as long per record. On a GPU, kernels take time to start, and beyond 512 the padding costs more.
    A head computes faster than its calls take, on a GPU by far.
    """
    if isinstance(inputs, FeatureInputs):
        return 1024 if device.type == "cpu" else 1 << 14
    return 16 if device.type == "cpu" else 512


def block_tokens(device: torch.device) -> int:
    """Number of tokens in an encoder's block, including padding and dummies.

    On a CPU, the activations of 384 tokens stay in a core's cache, and products with as many rows
    are within a tenth of the fastest. On a GPU, larger blocks lose more to dummies than they save
    in kernel starts.
    """
    return 384 if device.type == "cpu" else 4096
