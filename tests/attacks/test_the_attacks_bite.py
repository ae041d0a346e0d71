"""Would win: everything, if an attack's test passed whatever the code does. Without its guard each
has to fail.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
PACKAGES = ("autocoder", "mechanisms", "storage", "tasks", "flows", "service", "deployments")


class Mutation(BaseModel, extra="forbid", frozen=True):
    """One guard, and the attack that it is there for."""

    guard: str
    file: str
    test: str
    condition: bool | None = None
    becomes: str | None = None
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        return self.guard

    def without_guard(self, source: str) -> str:
        """Returns the source as it would be without the guard.

        Raises:
            ValueError: the guard is not in it exactly once.
        """
        if self.before is not None:
            if source.count(self.before) != 1:
                raise ValueError(
                    f"{self.file}: {self.before!r} stands there {source.count(self.before)} times"
                )
            return source.replace(self.before, self.after or "")
        lines = source.splitlines(keepends=True)
        markers = [n for n, line in enumerate(lines, 1) if line.strip() == f"# guard: {self.guard}"]
        if len(markers) != 1:
            raise ValueError(
                f"{self.file}: `# guard: {self.guard}` stands there {len(markers)} times"
            )
        statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
        guarded = min(
            (one for one in statements if one.lineno > markers[0]), key=lambda one: one.lineno
        )
        first, last = guarded.lineno, _last_line_of_head(guarded, lines)
        if self.condition is not None:
            assert isinstance(guarded, ast.If)
            test, end = guarded.test, guarded.test.end_lineno or 0
            head = _bytes(lines[: test.lineno - 1], lines[test.lineno - 1], test.col_offset)
            tail = _bytes(lines[: end - 1], lines[end - 1], test.end_col_offset or 0)
            return (
                source.encode()[:head] + str(self.condition).encode() + source.encode()[tail:]
            ).decode()
        indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
        instead = textwrap.indent(self.becomes or "pass", indent) + "\n"
        return "".join([*lines[: first - 1], instead, *lines[last:]])


def _last_line_of_head(statement: ast.stmt, lines: Sequence[str]) -> int:
    """Returns where a statement ends, or its head if it has a body."""
    body = getattr(statement, "body", None)
    if not body:
        return statement.end_lineno or 0
    last: int = body[0].lineno - 1
    while lines[last - 1].strip().startswith("#"):
        last -= 1
    return last


def _bytes(before: Sequence[str], line: str, offset: int) -> int:
    return len("".join(before).encode()) + len(line.encode()[:offset])


MUTATIONS = [
    Mutation.model_validate(entry)
    for entry in yaml.safe_load(
        Path(__file__).with_name("mutations.yaml").read_text(encoding="utf-8")
    )
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_guard_and_attack_are_there(mutation: Mutation) -> None:
    """Once each: a guard that moved, or a test that was renamed, is missed here. Without the guard
    it is still code.
    """
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    mutant = mutation.without_guard(source)
    if mutation.file.endswith(".py"):
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source))
    file, _, name = mutation.test.partition("::")
    content = (Path(__file__).parent / file).read_text(encoding="utf-8")
    assert f"def {name.partition('[')[0]}(" in content or not name


def test_no_mutant_reads_a_name_that_does_not_exist(tmp_path: Path) -> None:
    """Such a mutant fails with a NameError whatever its attack is, so its test would prove
    nothing.
    """
    for number, mutation in enumerate(MUTATIONS):
        if mutation.file.endswith(".py"):
            source = (ROOT / mutation.file).read_text(encoding="utf-8")
            name = f"{number}_{Path(mutation.file).name}"
            (tmp_path / name).write_text(mutation.without_guard(source), encoding="utf-8")
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--isolated", "--select", "F821", "--output-format", "concise"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_marker_has_a_mutation() -> None:
    """No guard is marked in vain, and each is named after the test of its attack."""
    for mutation in MUTATIONS:
        name = mutation.test.partition("::")[2].partition("[")[0] or mutation.test.removesuffix(
            ".py"
        )
        assert mutation.before is not None or mutation.guard.partition(" ")[0] == name
    rooms = ("mechanisms", "storage", "tasks", "flows", "service")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    marked = {
        m
        for path in files
        for m in re.findall(r"^ *# guard: (.+)$", path.read_text(encoding="utf-8"), re.M)
    }
    assert marked == {mutation.guard for mutation in MUTATIONS if mutation.before is None}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutated")
    for name in (*PACKAGES, "scripts", "tests", "pyproject.toml", "LICENSE"):
        of = ROOT / name
        if of.is_dir():
            shutil.copytree(of, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(of, folder / name)
    return folder


@pytest.mark.long
@pytest.mark.timeout(900)  # what hangs without its guard has failed, too
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_without_its_guard_the_attack_succeeds(mutation: Mutation, copy: Path) -> None:
    """Its test fails; no error of the mutation itself, and nothing skipped, counts."""
    file = copy / mutation.file
    content = file.read_text(encoding="utf-8")
    file.write_text(mutation.without_guard(content), encoding="utf-8")
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-o",
                "timeout=200",
                f"tests/attacks/{mutation.test}",
            ],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        file.write_text(content, encoding="utf-8")
    last = done.stdout.strip().splitlines()[-1]
    if "skipped" in last and "failed" not in last:
        pytest.skip(last)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert " failed" in last, last
    assert not any(
        f"E   {kind}" in done.stdout
        for kind in ("NameError", "SyntaxError", "IndentationError", "ImportError")
    )
