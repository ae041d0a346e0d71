"""Tells which device a run computes on, before torch is imported where that can be told."""

import ctypes
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec


def kind_of(name: str) -> str:
    """Returns the kind of a device by its name, such as `cuda` of `cuda:1`; `auto` is CUDA where
    there is a device for it, else the CPU.

    >>> kind_of("cpu"), kind_of("cuda:1")
    ('cpu', 'cuda')
    """
    if name == "auto":
        return "cuda" if has_cuda() else "cpu"
    kind, colon, number = name.partition(":")
    return kind if number.isdecimal() == bool(colon) else ""


def has_cuda() -> bool:
    """Asks torch whether it finds a CUDA device. Where it cannot find one, no one waits for its
    import.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or find_spec("torch") is None:
        return False
    if "torch" not in sys.modules and not _is_possible():
        return False
    import torch

    return torch.cuda.is_available()


def _is_possible() -> bool:
    """Checks that torch is not built for processors only, and that CUDA has its driver."""
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
