"""Reads a finished bundle whole before it joins the released ones, and refuses the unexpected.

Nothing is recognised in a text. Every document is compared byte by byte with what the plan and the release's row render
to, the model's files with the public encoder's, and texts on no published list have to be among those that the signed
plan lists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.egress.allow_list import CONTENT, GRAPH, LEXICON, check_codes, encoder_place, read_files
from storage.egress.documents import Shapes


@dataclass(frozen=True)
class Expected:
    """Holds what the bundle must agree with, from sources outside it."""

    codes: tuple[Code, ...]
    tokenizer: str
    """`tokenizer_digest` of the encoder's tokenizer."""
    tensors: dict[str, Shapes]
    """Names and shapes of the inference weights, by file."""
    golden_texts: tuple[str, ...]
    settings: frozenset[str]
    """The texts that the encoder's configuration may contain."""
    unsigned_texts: tuple[str, ...] = ()
    """Texts of the bundle on no published list, that the plan does not list."""
    lexicon: dict[str, Any] | None = None
    """`lexicon.json` as the code list's words and public scales make it; None where the model reads no words."""

    graph: str | None = None
    """SHA-256 of `model.onnx` as the model's configuration makes it; None where the bundle has none."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """The text of every file of `OWN_FILES`, by its place in the bundle."""


def inspect(folder: Path, expected: Expected) -> None:
    """Reads every file of a bundle as its kind and compares it with what made it."""
    if expected.unsigned_texts:
        raise UnsoundBundle(
            bundle.CODELIST,
            f"the bundle contains {len(expected.unsigned_texts)} texts that neither the plan lists nor an approver "
            "signed. Plan again",
        )
    contents = read_files(folder, allowed=CONTENT)
    if check_codes(contents) != tuple(code.code for code in expected.codes):
        raise UnsoundBundle(bundle.CODELIST, "lists other codes than the records' code list")
    if [row[1] for row in contents[bundle.CODELIST]] != [code.title for code in expected.codes]:
        raise UnsoundBundle(bundle.CODELIST, "has another title than the records' code list")
    if tuple(answer["text"] for answer in contents[bundle.GOLDEN]) != expected.golden_texts:
        raise UnsoundBundle(bundle.GOLDEN, "contains other texts than the generator writes")
    _check_model(contents, expected)
    for name in sorted(contents):
        if Path(name).name in bundle.OWN_FILES:
            # guard: a document is what was rendered
            if (folder / name).read_bytes() != expected.documents.get(name, "").encode():
                raise UnsoundBundle(name, "differs from what this release's plan and row render to")
        else:
            _check_settings(name, folder / name, expected)


def _check_model(contents: dict[str, Any], expected: Expected) -> None:
    for name in sorted({name for name in contents if name.endswith(".safetensors")} | set(expected.tensors)):
        if contents.get(name, {}) != expected.tensors.get(name, {}):
            raise UnsoundBundle(name, "contains other tensors than the model's inference weights")
    tokenizer = f"{encoder_place(contents)}tokenizer.json"
    if tokenizer_digest(contents[tokenizer]) != expected.tokenizer:
        raise UnsoundBundle(tokenizer, "differs from the encoder's tokenizer")
    if contents.get(GRAPH) != expected.graph:
        raise UnsoundBundle(GRAPH, "differs from the graph of the model's configuration")
    if contents.get(LEXICON) != expected.lexicon:
        raise UnsoundBundle(LEXICON, "differs from what the public words make")


def _check_settings(name: str, path: Path, expected: Expected) -> None:
    """Refuses texts that the encoder's configuration does not have. Quotes none: they may be a record's."""
    if path.name in ("tokenizer.json", LEXICON, GRAPH) or path.suffix == ".safetensors":
        return  # compared whole
    content = json.loads(path.read_text(encoding="utf-8"))
    if strange := {leaf for leaf in _leaves(content) if leaf not in expected.settings}:
        raise UnsoundBundle(name, f"contains {len(strange)} texts that the encoder's configuration does not have")


def _leaves(value: Any) -> Iterator[str]:
    """Yields keys that no schema fixes, and texts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)


def tokenizer_digest(tokenizer: dict[str, Any]) -> str:
    """Returns a digest of all that turns text into tokens, without truncation and padding."""
    rest = {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
