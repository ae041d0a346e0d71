"""Prevents core dumps, which would write narratives and posteriors to a place that the system
chooses.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec


def forbid() -> None:
    """Disables core dumps in this process and its children, permanently.

    The limit is one byte, which is smaller than any dump. Systems that pipe dumps to a program skip
    it only at a limit of one, not at zero (Linux, core(5) and `do_coredump`). Windows has no such
    limit and writes no dump unless its user configured that.
    """
    if find_spec("resource") is None:
        return
    resource = import_module("resource")
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if hard != 0 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
