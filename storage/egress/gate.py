"""The gate: a finished bundle is read whole before it may be moved to where bundles lie; the unexpected is refused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.artifacts import digest
from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.egress import leaks
from storage.egress.allowed import CONTENT, FILES, TOKENIZER, check_codes, read_files
from storage.egress.sequences import SequenceFilter
from storage.egress.tensors import Shapes


@dataclass(frozen=True)
class Expected:
    """What the bundle has to agree with, known from outside it."""

    codes: tuple[Code, ...]
    tokenizer: str
    """`tokenizer_digest` of the public encoder's own."""
    tensors: dict[str, Shapes]
    """Names and shapes of the inference weights, by file."""
    golden_texts: tuple[str, ...]
    """The generated narratives, in order."""
    statement: dict[str, Any]
    identities: tuple[str, ...]
    """Names and folders that nothing may hold; see `leaks.identities`."""
    narratives: SequenceFilter


def inspect(folder: Path, expected: Expected) -> None:
    """Read every file of a bundle as what it has to be, and look in each for what may not leave.

    Raises:
        UnsoundBundle: names the first file at fault.
    """
    found = read_files(folder, allowed=CONTENT)
    codes = check_codes(found)
    if codes != tuple(entry.code for entry in expected.codes):
        raise UnsoundBundle("config.json", "names other codes than the records' code list")
    if any(row[1] != entry.title for row, entry in zip(found[bundle.CODELIST], expected.codes, strict=True)):
        raise UnsoundBundle(bundle.CODELIST, "has another title than the records' code list")
    if found[bundle.STATEMENT] != expected.statement:
        raise UnsoundBundle(bundle.STATEMENT, "is not the statement of this release's row")
    if tuple(answer["text"] for answer in found[bundle.GOLDEN]) != expected.golden_texts:
        raise UnsoundBundle(bundle.GOLDEN, "holds other texts than the generator makes")
    _check_model(folder, found, expected)


def inspect_model(folder: Path, expected: Expected) -> None:
    """The same for the model's own files alone, before there is a bundle.

    Raises:
        UnsoundBundle: names the first file at fault.
    """
    bundle.check_allowed(folder, CONTENT)
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for name in sorted({"config.json", *TOKENIZER, *expected.tensors} - set(paths)):
        raise UnsoundBundle(name, "is missing")
    _check_model(folder, {name: FILES[name].read(name, path) for name, path in paths.items()}, expected)


def _check_model(folder: Path, found: dict[str, Any], expected: Expected) -> None:
    for name in ("model.safetensors", "2_Dense/model.safetensors"):
        if found.get(name, {}) != expected.tensors.get(name, {}):
            raise UnsoundBundle(name, "holds other tensors than the model's inference weights")
    if tokenizer_digest(found["tokenizer.json"]) != expected.tokenizer:
        raise UnsoundBundle("tokenizer.json", "is not the encoder's public tokenizer")
    for name in sorted(found):
        _check_content(name, folder / name, expected)


def _check_content(name: str, path: Path, expected: Expected) -> None:
    if path.suffix == ".safetensors":
        text = "\n".join(_printable(path))
    else:
        text = "\n".join(_strings(path))
        if name not in TOKENIZER | {bundle.LICENCE}:  # vocabularies and the licence hold such marks, publicly
            scored = {bundle.THRESHOLDS, bundle.GOLDEN}
            leaks.check_text(name, text, identities=expected.identities, scores=name not in scored)
    sequences = expected.narratives.count(text)
    if sequences:
        raise UnsoundBundle(name, f"holds {sequences} rare word sequences of the private narratives")


def tokenizer_digest(tokenizer: dict[str, Any]) -> str:
    """Digest of all that makes tokens out of text; how long and how padded is the caller's business."""
    kept = {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")}
    return digest(json.loads(json.dumps(kept)))


def _strings(path: Path) -> Iterator[str]:
    """Every string of a file, in its order: of JSON keys and values, of CSV cells, of other texts the whole."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        yield " ".join(_leaves(json.loads(text)))
    elif path.suffix == ".jsonl":
        for line in text.rstrip("\n").split("\n"):
            yield " ".join(_leaves(json.loads(line)))
    elif path.suffix == ".csv":
        for row in csv.reader(io.StringIO(text, newline="")):
            yield " ".join(row)
    else:
        yield text


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)


_PRINTABLE = bytes(0x20 <= byte <= 0x7E for byte in range(256))
_RUN = b"\1" * 24
_CHUNK, _OVERLAP = 16 << 20, 4096


def _printable(path: Path) -> Iterator[str]:
    """Runs of 24 or more printable bytes in a binary file, as `strings` shows them: text hidden among the weights."""
    with path.open("rb") as file:
        carried = b""
        while chunk := file.read(_CHUNK):
            block = carried + chunk
            marks = block.translate(_PRINTABLE)  # runs of ones: to find those is ten times faster than a pattern
            start = marks.find(_RUN)
            while start >= 0:
                end = marks.find(b"\0", start)
                end = len(block) if end < 0 else end
                yield block[start:end].decode("ascii")
                start = marks.find(_RUN, end)
            carried = block[-_OVERLAP:]
