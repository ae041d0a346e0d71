"""docs/testing.md names tests that are there, and the command that runs them."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROW = re.compile(r"^\| .* \| (?P<tests>.*`.*) \| (?P<where>[tslc](?:, [tslc])*) \|$", re.MULTILINE)


def marks(test: str) -> set[str]:
    """Commands that run a test, by the marks on it, on its parameters and on its file."""
    path, _, name = test.partition("::")
    text = (TESTS / path).read_text()
    found = re.search(rf"((?:^ *@.*\n(?:^ .*\n|^ *[)\]].*\n)*)*)^ *(?:async )?def {name}\(", text, re.MULTILINE)
    assert found, f"{test} is not there"
    on_test, on_file = found[1], re.findall(r"^pytestmark = .*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    if "mark.containers" in "".join(on_file):
        return {"c"}
    letters = {"long": "l", "servers": "s", "postgres": "s"}
    for mark, letter in letters.items():
        if re.search(rf"^ *@pytest\.mark\.{mark}$", on_test, re.MULTILINE):
            return {letter}
    of_file = "s" if re.search(r"mark\.(servers|postgres)", "".join(on_file)) else "t"
    return {of_file, *(letter for mark, letter in letters.items() if f"mark.{mark}" in on_test)}


def test_every_promise_names_a_test_that_runs_where_it_says() -> None:
    """A renamed, removed or moved test has to be moved on that page too."""
    rows = ROW.findall((TESTS.parent / "docs" / "testing.md").read_text())
    assert len(rows) > 60
    for tests, where in rows:
        letters, runs = set(where.split(", ")), set[str]()
        file = ""
        for path, name in re.findall(r"`(\S*)::(test_\w+)`", tests):
            file = path or file
            test = f"{file}::{name}"
            assert marks(test) & letters, f"{test} runs elsewhere than by `{where}`"
            runs |= marks(test)
        assert not runs or letters <= runs, f"no test of {tests} runs by each of `{where}`"
