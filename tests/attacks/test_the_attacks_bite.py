"""Would win: everything, if an attack's test passed whatever the code does. Without its guard each has to fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

ROOT = Path(__file__).parents[2]


class Mutation(BaseModel, extra="forbid", frozen=True):
    """One guard, and the attack that it is there for."""

    point: int
    """Of the issue that the guards came from."""
    guard: str
    file: str
    before: str
    after: str
    test: str

    def __str__(self) -> str:
        return f"{self.point}, {self.guard}"


MUTATIONS = [
    Mutation.model_validate(entry)
    for entry in yaml.safe_load(Path(__file__).with_name("mutations.yaml").read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_guard_and_attack_are_there(mutation: Mutation) -> None:
    """Once each: a guard that moved, or a test that was renamed, is missed here."""
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.before) == 1
    file, _, name = mutation.test.partition("::")
    content = (Path(__file__).parent / file).read_text(encoding="utf-8")
    assert f"def {name.partition('[')[0]}(" in content or not name


def test_every_point_has_one() -> None:
    """Of the seventeen."""
    assert {mutation.point for mutation in MUTATIONS} == set(range(1, 18))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, where guards may be taken out."""
    folder = tmp_path_factory.mktemp("mutated")
    for name in ("mechanisms", "storage", "tasks", "flows", "service", "deployments", "tests", "pyproject.toml"):
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
    file.write_text(content.replace(mutation.before, mutation.after), encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-o", "timeout=200", f"tests/attacks/{mutation.test}"],
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
        f"E   {kind}" in done.stdout for kind in ("NameError", "SyntaxError", "IndentationError", "ImportError")
    )
