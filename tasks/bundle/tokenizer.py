"""Tests a bundle's tokenizer in a separate process with limits.

The libraries that read `tokenizer.json` compile its patterns and trust its tables. A file that
loops forever, exhausts memory or crashes the process is detected here, and not when a partner
codes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mechanisms.model.scorer import MOST_CHARACTERS
from storage.bundle.folder import UnsoundBundle
from storage.egress.allow_list import encoder_place

SECONDS = 60
"""Processor time that a tokenizer may use. A sound tokenizer needs about a second."""
_BYTES = 4 << 30
_PROGRAM = """
import json, sys
try:
    import resource
except ImportError:  # Windows: only the time is limited, by the caller
    pass
else:
    seconds, most = int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
for text in json.load(sys.stdin):
    tokenizer.encode(text)
"""
_REPEATED = ("a", " ", "0", "-", "aA1 ", "\\n", "é", "字")
"""Repeated texts on which a pattern with catastrophic backtracking takes forever."""


def check_tokenizer(folder: Path, texts: Sequence[str]) -> None:
    """Loads a bundle's tokenizer in a separate process and encodes texts, including long texts of
    one repeated character. Does nothing if no library is installed that would read the file.

    Raises:
        UnsoundBundle: it cannot be loaded, or exceeds the limits of time or memory.
    """
    if find_spec("tokenizers") is None:
        return
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    name = f"{encoder_place(names)}tokenizer.json"
    command = [sys.executable, "-I", "-c", _PROGRAM, str(folder / name), str(SECONDS), str(_BYTES)]
    long = [(sign * MOST_CHARACTERS)[:MOST_CHARACTERS] for sign in _REPEATED]
    try:
        # guard: test_a_tokenizer_that_never_ends
        subprocess.run(
            command,
            input=json.dumps([*texts, *long]),
            text=True,
            capture_output=True,
            timeout=2 * SECONDS,
            check=True,
            env={"TOKENIZERS_PARALLELISM": "false"},
        )
    except subprocess.SubprocessError:
        raise UnsoundBundle(
            name,
            f"cannot be loaded and used in {SECONDS} s of processor time and {_BYTES >> 30} GB",
            kind="unusable-tokenizer",
        ) from None
