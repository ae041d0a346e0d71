#!/usr/bin/env python
"""Prints the table of attacks that the tests declare.

    python scripts/list_attacks.py

Each module of tests/attacks, and the fuzzing, has a text `DECLARES`. Its rows are separated by an
empty line and have three cells: promise, attacks tried, and what is not promised. A cell begins
with `|`. Nothing is imported, so the tests' libraries are not needed.
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
        ValueError: a module declares nothing, or rows of another number of cells than three.
    """
    for file in [*sorted((_TESTS / "attacks").glob("test_*.py")), _TESTS / "fuzz" / "test_fuzz.py"]:
        if file.name in _NO_ATTACK:
            continue
        assigned = [
            ast.literal_eval(node.value)
            for node in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign)
            and [ast.unparse(target) for target in node.targets] == ["DECLARES"]
        ]
        if len(assigned) != 1 or not assigned[0]:
            raise ValueError(
                f"{file.name} declares no promise. Add DECLARES = promise\\n| attacks\\n| not "
                "promised"
            )
        place = f"`{file.stem}`" if file.parent.name == "attacks" else "`tests/fuzz`"
        for row in assigned[0].strip().split("\n\n"):
            promise, attacks, beyond = (" ".join(cell.split()) for cell in row.split("|"))
            yield promise, attacks, place, beyond or "–"


if __name__ == "__main__":
    print(HEAD + "".join(f"| {' | '.join(row)} |\n" for row in declared()))
