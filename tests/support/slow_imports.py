"""Runs commands in a process that says which slow packages they imported."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs import environment

PROGRAM = """
import contextlib
import io
import json
import sys

from flows.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["autocoder", *words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main() or 0
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, said.getvalue(), sorted(SLOW & set(sys.modules))]))
"""
SLOW = {
    *(
        "torch",
        "transformers",
        "sentence_transformers",
        "tokenizers",
        "peft",
        "opacus",
        "prefect",
        "dp_accounting",
    ),
    *("scipy", "sklearn", "pandas", "matplotlib", "fastapi", "uvicorn", "model_signing", "boto3"),
}
"""Packages whose import takes from a tenth of a second to seconds."""


@dataclass(frozen=True)
class Done:
    """What became of a command."""

    code: int
    said: str
    """On stdout and stderr."""
    imported: tuple[str, ...]
    """The slow packages that it, and those before it in its process, imported."""


def run(commands: Sequence[Sequence[str]], folder: Path) -> list[Done]:
    """Runs `autocoder` with each of these words, one after another in a process of their own."""
    given = json.dumps([list(words) for words in commands])
    done = subprocess.run(
        [sys.executable, "-c", f"SLOW = {SLOW}\n{PROGRAM}", given],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=folder,
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
    )
    lines = map(json.loads, done.stdout.splitlines())
    return [Done(code, said, tuple(imported)) for code, said, imported in lines]
