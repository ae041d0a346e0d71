"""The version of a stage's code: a digest of its module and of all project modules that it imports.

A task's own source is not enough, because it would miss the helpers that it calls. The whole tree
is too much, because a changed word in the ledger would invalidate a week of training.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("mechanisms", "storage", "tasks")
_ROOT = Path(__file__).parents[1]
EXCLUDED = ("tasks.running",)
"""Packages that determine how a stage runs but not its output."""
LIBRARIES = ("torch", "transformers", "peft")
"""Libraries with versions that may change a stage's numbers."""


@cache
def code_version(*modules: str) -> str:
    """A digest of the sources of `modules`, of every project module that they import, and of
    library versions.
    """
    digests: dict[str, str] = {}
    queue = [(name, _file(name)) for name in modules]
    while queue:
        name, path = queue.pop()
        if name in digests or path is None:
            continue
        content = path.read_bytes()
        digests[name] = hashlib.sha256(content).hexdigest()
        queue.extend((imported, _source(imported)) for imported in _imports(content))
    # The build tag (`+cpu`) is omitted, so that workers with and without a GPU share stages.
    libraries = [f"{name}=={_version(name)}" for name in LIBRARIES]
    text = "\n".join([*(f"{name} {sha}" for name, sha in sorted(digests.items())), *libraries])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _version(library: str) -> str:
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:  # in an installation that only codes
        return "none"


@cache
def _imports(content: bytes) -> tuple[str, ...]:
    """The names that a source imports. Cached, because stages share most of their modules."""
    names: list[str] = []
    for node in _run(ast.parse(content)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return tuple(names)


def _run(tree: ast.AST) -> Iterable[ast.AST]:
    """Yields every statement except those under `if TYPE_CHECKING`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            yield from _run(ast.Module(node.orelse, []))
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield node
            yield from _run(node)


@cache
def _source(module: str) -> Path | None:
    """The file of a project module; None for libraries, excluded packages, and names that are not
    modules.

    This uses paths because `find_spec` would import the parent module of a name that is not a
    module, and torch with it.
    """
    if module.partition(".")[0] not in PACKAGES or any(
        f"{module}.".startswith(f"{room}.") for room in EXCLUDED
    ):
        return None
    place = _ROOT.joinpath(*module.split("."))
    return next(
        (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None
    )


def _file(module: str) -> Path | None:
    """The file of any module, including a user's mechanism; None for names that are not modules."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is not None:
        return Path(loaded)
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None
