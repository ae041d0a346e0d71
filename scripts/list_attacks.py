#!/usr/bin/env python
"""Prints the table of attacks that the tests declare.

    python scripts/list_attacks.py

Each module of tests/attacks, and the fuzzing, has a constant `DECLARES`: rows of promise, attacks tried, what is not
promised. Nothing is imported: a page can be written without the tests' libraries.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HEAD = "| promise | attack tried | where | not promised |\n|---|---|---|---|\n"
_TESTS = Path(__file__).parents[1] / "tests"
_NO_ATTACK = {"test_the_attacks_bite.py"}


def declared() -> Iterator[tuple[str, str, str, str]]:
    """Yields each declared row: promise, attacks, place and what is not promised.

    Raises:
        ValueError: a module declares nothing, or something else than rows of three texts.
    """
    for file in [*sorted((_TESTS / "attacks").glob("test_*.py")), _TESTS / "fuzz" / "test_fuzz.py"]:
        if file.name in _NO_ATTACK:
            continue
        assigned = [
            ast.literal_eval(node.value)
            for node in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["DECLARES"]
        ]
        if len(assigned) != 1 or not assigned[0]:
            raise ValueError(f"{file.name} declares no promise. Add DECLARES = ((promise, attacks, not promised),)")
        place = f"`{file.stem}`" if file.parent.name == "attacks" else "`tests/fuzz`"
        for promise, attacks, beyond in assigned[0]:
            if "|" in promise + attacks + beyond or "\n" in promise + attacks + beyond:
                raise ValueError(f"{file.name}: a text has a bar or a line end. Leave it out")
            yield promise, attacks, place, beyond or "–"


if __name__ == "__main__":
    print(HEAD + "".join(f"| {' | '.join(row)} |\n" for row in declared()))
