"""Reads a finished bundle whole before it joins the released ones, and refuses the unexpected.

Nothing is recognised in a text. What a bundle contains is compared with what made it, and every word of its documents
has to come from a template, a published list, a licence or the texts that the plan lists (`storage.egress.words`).
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.egress.allow_list import GRAPH, LEXICON, allowed_content, check_codes, encoder_place, read_files
from storage.egress.documents import Shapes
from storage.egress.words import unknown_words


@dataclass(frozen=True)
class Expected:
    """Holds what the bundle must agree with, from sources outside it."""

    codes: Mapping[str, tuple[Code, ...]]
    """Code list of each field by its name; of a single field by the name ""."""
    tokenizer: str
    """`tokenizer_digest` of the encoder's tokenizer."""
    tensors: dict[str, Shapes]
    """Names and shapes of the inference weights, by file."""
    golden_texts: Mapping[str, tuple[str, ...]]
    """The golden texts of each field, in order."""
    statement: dict[str, Any]
    known: frozenset[str]
    """The words that its documents may contain."""
    settings: frozenset[str]
    """The texts that the encoder's configuration may contain."""
    unsigned_texts: tuple[str, ...] = ()
    """Texts of the bundle on no published list, that the plan does not list."""
    lexicon: dict[str, Any] | None = None
    """`lexicon.json` as the code list's words and public scales make it; None where the model reads no words."""

    graph: str | None = None
    """SHA-256 of `model.onnx` as the model's configuration makes it; None where the bundle has none."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """The record for a registry and its answers by their file, from the policy in force; compared whole."""


def inspect(folder: Path, expected: Expected) -> None:
    """Reads every file of a bundle as its kind and compares it with what made it."""
    if expected.unsigned_texts:
        raise UnsoundBundle(
            bundle.CODELIST,
            f"the bundle contains {len(expected.unsigned_texts)} texts that neither the plan lists nor an approver "
            "signed. Plan again",
        )
    contents = read_files(folder, allowed=allowed_content([name for name in expected.codes if name]))
    if check_codes(contents) != {name: tuple(one.code for one in codes) for name, codes in expected.codes.items()}:
        raise UnsoundBundle(bundle.CODELIST, "lists other codes than the records' code list")
    for name, codes in expected.codes.items():
        place = f"{name}/" if name else ""
        titles = [row[1] for row in contents[f"{place}{bundle.CODELIST}"]]
        if titles != [entry.title for entry in codes]:
            raise UnsoundBundle(f"{place}{bundle.CODELIST}", "has another title than the records' code list")
        if tuple(answer["text"] for answer in contents[f"{place}{bundle.GOLDEN}"]) != expected.golden_texts[name]:
            raise UnsoundBundle(f"{place}{bundle.GOLDEN}", "contains other texts than the generator writes")
    if contents[bundle.STATEMENT] != expected.statement:
        raise UnsoundBundle(bundle.STATEMENT, "differs from the statement in this release's row")
    _check_model(contents, expected)
    for name in sorted(contents):
        if name not in expected.documents:
            _check_words(name, folder / name, expected)
        elif (folder / name).read_text(encoding="utf-8") != expected.documents[name]:
            raise UnsoundBundle(name, "differs from what the policy and this release's row say")


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
        raise UnsoundBundle(LEXICON, "differs from what the words of the code list's titles and descriptions make")


def _check_words(name: str, path: Path, expected: Expected) -> None:
    """Refuses words that no template, list, licence, plan or encoder has. Quotes none: they may be a record's."""
    file = path.name
    if file in ("tokenizer.json", LEXICON, GRAPH) or path.suffix == ".safetensors":
        return  # compared whole
    text = path.read_text(encoding="utf-8")
    if file in _DOCUMENTS:
        if strange := unknown_words("\n".join(_texts(file, text)), expected.known):
            raise UnsoundBundle(
                name, f"contains {len(strange)} words of no template, published list, licence or signed text"
            )
    elif strange := {leaf for leaf in _leaves(json.loads(text)) if leaf not in expected.settings}:
        raise UnsoundBundle(name, f"contains {len(strange)} texts that the encoder's configuration does not have")


_DOCUMENTS = bundle.OWN_FILES
"""Files whose words are checked; the texts of the others are checked whole."""


def _texts(file: str, text: str) -> Iterator[str]:
    """Yields the pieces of a document that are text, without the marks of its format."""
    if file.endswith(".csv"):
        yield from (cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row)
    elif file.endswith(".json"):
        yield from _leaves(json.loads(text))
    elif file.endswith(".jsonl"):
        for line in text.rstrip("\n").split("\n"):
            yield from _leaves(json.loads(line))
    else:
        yield html.unescape(text)


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
