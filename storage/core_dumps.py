"""Prevents core dumps, which would contain narratives and posteriors and are where the system puts
them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec


def forbid() -> None:
    """Forbids core dumps in this process and its children, permanently.

    The limit is one byte: no file is that small, and a program that the system pipes dumps to gets
    none only at this limit, not at zero (Linux, core(5) and `do_coredump`).

    Windows has no such limit: it keeps no dump of a process unless its owner set that up.
    """
    if find_spec("resource") is None:
        return
    resource = import_module("resource")
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if hard != 0 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
