#!/usr/bin/env python
"""Lists source files that nobody finds the tests of, for `make check`.

A source file of more than 80 lines has a test file in the mirrored folder: `test_<name>.py`, with the folder's name in
front or `command` behind. Where its tests lie elsewhere, a line of tests/coverage.toml names their file. A line of a
file that is mirrored or gone is refused too, and so are two test files of one name.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("mechanisms", "tasks", "storage", "flows", "service")
LINES = 80
COVERAGE = Path("tests/coverage.toml")


def mirrored(source: Path) -> bool:
    """Returns whether a test file of this name lies where the mirror has it."""
    folder, name = Path("tests", *source.parent.parts), source.stem
    if source.parent.name == "commands":
        folder = folder.parent
    names = (name, f"{source.parent.name}_{name}", f"{name}_command", f"{name}_commands")
    return any((folder / f"test_{one}.py").is_file() for one in names)


def sources() -> Iterator[Path]:
    """Yields the files that need a test file."""
    for room in ROOMS:
        for path in sorted(Path(room).rglob("*.py")):
            if path.name != "__init__.py" and len(path.read_text(encoding="utf-8").splitlines()) > LINES:
                yield path


def faults(lines: dict[str, str]) -> Iterator[str]:
    """Yields what is wrong, a message each."""
    needed = {str(path) for path in sources() if not mirrored(path)}
    for path in sorted(needed - set(lines)):
        mirror = Path("tests", *Path(path).parent.parts, f"test_{Path(path).name}")
        yield f"{path}: has no test file. Add {mirror}, or a line that names the file with its tests"
    for path, test in lines.items():
        if path not in needed:
            yield f"{path}: needs no line: it is mirrored, short or gone. Remove it"
        if not Path(test).is_file():
            yield f"{path}: {test} does not exist. Name the file with its tests"
    names = Counter(path.name for path in Path("tests").rglob("test_*.py"))
    for name in sorted(name for name, count in names.items() if count > 1):
        yield f"{name}: two test files have this name, which pytest refuses. Put the folder's name in front of one"


def main() -> int:
    """Prints the faults."""
    wrong = list(faults(tomllib.loads(COVERAGE.read_text(encoding="utf-8"))))
    for message in wrong:
        print(f"{COVERAGE}: {message}", file=sys.stderr)
    print(f"tests: {'nothing to change' if not wrong else f'{len(wrong)} to change'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
