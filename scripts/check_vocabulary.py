#!/usr/bin/env python
"""Refuses names that say nothing; `make check` runs it.

    python scripts/check_vocabulary.py

A name is a noun or a verb of the field.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("autocoder", "flows", "service", "tasks", "mechanisms", "storage")
NAMES = frozenset({"told", "found", "said", "kept", "at_hand", "made_with", "looked", "judged", "asked"}) | {
    "one",
    "at",
    "made",
    "held",
}


def names_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield from (*name.split("."), *([other] if other else []))


def faults(path: Path) -> Iterator[str]:
    """Yields the faults of one file, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path.stem in NAMES:
        yield f"{path}:1: the file's name is `{path.stem}`. Use a noun of the field."
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        for name in names_of(node):
            if name.lower().strip("_") in NAMES:
                yield f"{path}:{line}: the name is `{name}`. Use a noun for a value, a verb for a function."


def main() -> None:
    every = [fault for room in ROOMS for path in sorted(Path(room).rglob("*.py")) for fault in faults(path)]
    print("\n".join(every) or "names: nothing to change")
    sys.exit(bool(every))


if __name__ == "__main__":
    main()
