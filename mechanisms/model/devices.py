"""Determines the device of a run, without importing torch if possible."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec


def kind_of(name: str) -> str:
    """The kind of a device from its name, such as `cuda` for `cuda:1`. `auto` is CUDA if a CUDA
    device is available, otherwise the CPU.

    >>> kind_of("cpu"), kind_of("cuda:1")
    ('cpu', 'cuda')
    """
    if name == "auto":
        return "cuda" if has_cuda() else "cpu"
    kind, colon, number = name.partition(":")
    return kind if number.isdecimal() == bool(colon) else ""


def has_cuda() -> bool:
    """Whether torch finds a CUDA device. torch is imported only if it could find one."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or find_spec("torch") is None:
        return False
    if "torch" not in sys.modules and not _is_possible():
        return False
    import torch

    return torch.cuda.is_available()


@contextmanager
def own_card(number: int) -> Iterator[None]:
    """Makes `cuda` mean one card in this thread inside the block: the one of a process's number, in
    turn if there are more processes than cards. Without a card it does nothing.
    """
    if not has_cuda():
        yield
        return
    import torch

    with torch.cuda.device(number % torch.cuda.device_count()):
        yield


def _is_possible() -> bool:
    """Whether torch is built with CUDA and the CUDA driver is installed."""
    build = version("torch").partition("+")[2]
    if build == "cpu":
        return False
    if sys.platform != "linux" or build.startswith("rocm"):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
