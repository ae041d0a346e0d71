"""The threat model's table of promises names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "threat-model.md"
ROWS = re.findall(r"^\| (.+) \| `(tests/[^`]+)::(\w+)` \|$", PAGE.read_text(), re.MULTILINE)


def test_the_table_is_read() -> None:
    """Each promise once, each with a test of its own."""
    assert len(ROWS) > 20
    assert len({promise for promise, _, _ in ROWS}) == len(ROWS)
    assert len({name for _, _, name in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("promise", "file", "name"), ROWS, ids=[name for *_, name in ROWS])
def test_the_test_of_a_promise_is_there(promise: str, file: str, name: str) -> None:
    source = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = {one.name for one in source.body if isinstance(one, ast.FunctionDef)}
    assert name in functions, promise
