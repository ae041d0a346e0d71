"""Runs a command in a process that says which slow packages it imported."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import environment

PROGRAM = """
import sys

sys.argv = ["autocoder", *sys.argv[1:]]
from flows.cli import main

try:
    main()
finally:
    print("imported:", *sorted(SLOW & set(sys.modules)))
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


def command(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `autocoder` in a process of its own; its last line names the slow packages that it
    imported.
    """
    return subprocess.run(
        [sys.executable, "-c", f"SLOW = {SLOW}\n{PROGRAM}", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
    )
