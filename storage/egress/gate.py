"""Compares a finished bundle with the expected content from its plan and row, before it is
published.

The gate does not try to recognise sensitive text. Every file except the trained tensors is compared
byte by byte: the model's settings, tokenizer and lexicon and a frozen encoder's weights with those
of the same model before training, and the bundle's own documents with their rendered text. The
latter only detects files that changed since. The content of documents is checked through their
texts, which must be listed in the signed plan unless a published list contains them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from storage.artifacts import file_digest
from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.egress.allow_list import CONTENT, check_codes, read_files
from storage.egress.documents import Shapes


@dataclass(frozen=True)
class Expected:
    """The content that the bundle must equal."""

    files: Mapping[str, str]
    """SHA-256 by name, of every file except those with trained tensors."""
    trained: Mapping[str, Shapes]
    """Names and shapes of the trained tensors, by file."""
    unsigned_texts: tuple[str, ...] = ()
    """Texts in the bundle that are neither on a published list nor in the plan."""


def inspect(folder: Path, expected: Expected) -> None:
    """Reads a bundle as its partner will, and compares every file with its expected content. Quotes
    none of its text.
    """
    # guard: test_the_gate_refuses_it_and_quotes_nothing (texts)
    if expected.unsigned_texts:
        raise UnsoundBundle(
            bundle.CODELIST,
            f"the bundle contains {len(expected.unsigned_texts)} texts that neither the plan "
            "lists nor an approver "
            "signed. Plan again",
            kind="unsigned-texts",
        )
    contents = read_files(folder, allowed=CONTENT)
    check_codes(contents)
    for name in sorted({*contents, *expected.files, *expected.trained}):
        if name not in contents:
            raise UnsoundBundle(name, "is missing", kind="no-file")
        if name in expected.trained:
            if contents[name] != expected.trained[name]:
                raise UnsoundBundle(
                    name,
                    "contains other tensors than the model's inference weights",
                    kind="other-weights",
                )
        # guard: test_the_gate_refuses_it_and_quotes_nothing (bytes)
        elif file_digest(folder / name) != expected.files.get(name):
            raise UnsoundBundle(
                name,
                "differs from what this release's plan and row render to",
                kind="differs-from-plan",
            )


def tokenizer_digest(tokenizer: Mapping[str, object]) -> str:
    """A digest of everything that turns text into tokens, except truncation and padding."""
    rest = {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
