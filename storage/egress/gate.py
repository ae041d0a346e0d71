"""The gate: a finished bundle is read whole before it may be moved to where bundles lie; the unexpected is refused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.artifacts import digest
from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.egress import leaks
from storage.egress.allowed import TOKENIZER, check_codes, content_of, encoder_place, kind_of, model_files, read_files
from storage.egress.decoding import readings
from storage.egress.sequences import SequenceFilter
from storage.egress.tensors import Shapes


@dataclass(frozen=True)
class Expected:
    """What the bundle has to agree with, known from outside it."""

    codes: Mapping[str, tuple[Code, ...]]
    """Of each field by its name; of the only one by the name ""."""
    tokenizer: str
    """`tokenizer_digest` of the public encoder's own."""
    tensors: dict[str, Shapes]
    """Names and shapes of the inference weights, by file."""
    golden_texts: Mapping[str, tuple[str, ...]]
    """The golden texts of each field, in order."""
    statement: dict[str, Any]
    identities: tuple[str, ...]
    """Names and folders that nothing may hold; see `leaks.identities`."""
    narratives: SequenceFilter
    licence_is_public: bool = True
    """Whether the licence is one by name, whose text may hold years and addresses."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of several fields; none where there is one."""
        return tuple(name for name in self.codes if name)


def inspect(folder: Path, expected: Expected) -> None:
    """Read every file of a bundle as what it has to be, and look in each for what may not leave.

    Raises:
        UnsoundBundle: names the first file at fault.
    """
    found = read_files(folder, allowed=content_of(expected.fields))
    if check_codes(found) != {name: tuple(one.code for one in own) for name, own in expected.codes.items()}:
        raise UnsoundBundle(bundle.CODELIST, "names other codes than the records' code list")
    for name, own in expected.codes.items():
        place = f"{name}/" if name else ""
        titles = [row[1] for row in found[f"{place}{bundle.CODELIST}"]]
        if titles != [entry.title for entry in own]:
            raise UnsoundBundle(f"{place}{bundle.CODELIST}", "has another title than the records' code list")
        if tuple(answer["text"] for answer in found[f"{place}{bundle.GOLDEN}"]) != expected.golden_texts[name]:
            raise UnsoundBundle(f"{place}{bundle.GOLDEN}", "holds other texts than the generator makes")
    if found[bundle.STATEMENT] != expected.statement:
        raise UnsoundBundle(bundle.STATEMENT, "is not the statement of this release's row")
    _check_model(folder, found, expected)


def inspect_model(folder: Path, expected: Expected) -> None:
    """The same for the model's own files alone, before there is a bundle.

    Raises:
        UnsoundBundle: names the first file at fault.
    """
    lists = ["\n".join(entry.title for entry in own) for own in expected.codes.values()]
    together = ["\n".join(lists)] if len(lists) > 1 else []  # one sentence may be cut over the lists of two fields
    _check_narratives(bundle.CODELIST, [*lists, *together], expected, decode=True)
    bundle.check_allowed(folder, content_of(expected.fields))
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for name in sorted((model_files(paths, expected.fields) | set(expected.tensors)) - set(paths)):
        raise UnsoundBundle(name, "is missing")
    kinds = {name: kind for name in paths if (kind := kind_of(name)) is not None}
    _check_model(folder, {name: kind.read(name, paths[name]) for name, kind in kinds.items()}, expected)


def _check_model(folder: Path, found: dict[str, Any], expected: Expected) -> None:
    for name in sorted({name for name in found if name.endswith(".safetensors")} | set(expected.tensors)):
        if found.get(name, {}) != expected.tensors.get(name, {}):
            raise UnsoundBundle(name, "holds other tensors than the model's inference weights")
    tokenizer = f"{encoder_place(found)}tokenizer.json"
    if tokenizer_digest(found[tokenizer]) != expected.tokenizer:
        raise UnsoundBundle(tokenizer, "is not the encoder's public tokenizer")
    for name in sorted(found):
        _check_content(name, folder / name, expected)


def _check_content(name: str, path: Path, expected: Expected) -> None:
    if path.suffix == ".safetensors":
        return _check_narratives(name, ("\n".join(_printable(path)),), expected, decode=True)
    columns = list(_columns(path))
    if name in TOKENIZER:  # the vocabulary is as public as its digest says; it is long, and decodes to nothing
        return _check_narratives(name, columns[:1], expected, decode=False, short=False)
    if name != bundle.LICENCE or not expected.licence_is_public:  # a public one holds such marks
        scored = {bundle.THRESHOLDS, bundle.GOLDEN}
        leaks.check_text(name, columns[0], identities=expected.identities, scores=path.name not in scored)
    return _check_narratives(name, columns, expected, decode=True)


def _check_narratives(name: str, texts: Iterable[str], expected: Expected, *, decode: bool, short: bool = True) -> None:
    for text in texts:
        for reading in readings(text) if decode else (text, text[::-1]):
            if expected.narratives.count(reading, short=short):
                advice = _PUBLISHED if name.split("/")[-1] in (bundle.CODELIST, bundle.GOLDEN) else ""
                raise UnsoundBundle(name, f"holds a part of a private narrative, plainly or encoded{advice}")


_PUBLISHED = (
    "; if it stands in a title and the list is published, have the list made known as such "
    "(`scripts/published_list.py`), else give that code another title"
)


def tokenizer_digest(tokenizer: dict[str, Any]) -> str:
    """Digest of all that makes tokens out of text; how long and how padded is the caller's business."""
    kept = {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")}
    return digest(json.loads(json.dumps(kept)))


def _columns(path: Path) -> Iterator[str]:
    """All text of a file in its order; then, of JSON and CSV, that of each field over all entries."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        entries = list(_leaves(json.loads(text)))
    elif path.suffix == ".jsonl":
        entries = [leaf for line in text.rstrip("\n").split("\n") for leaf in _leaves(json.loads(line))]
    elif path.suffix == ".csv":
        rows = csv.reader(io.StringIO(text, newline=""))
        entries = [(str(column), cell) for row in rows for column, cell in enumerate(row)]
    else:
        yield text
        return
    fields: dict[str, list[str]] = {}
    for field, value in entries:
        fields.setdefault(field, []).append(value)
    yield "\n".join(value for _, value in entries)
    if len(fields) > 1:
        yield from ("\n".join(values) for values in fields.values())


def _leaves(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Keys and texts with the field that they stand in; entries of a list, and of a mapping by number, share one."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"{field} keys", key
            yield from _leaves(inner, field if key.isdigit() else f"{field}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, field)


_PRINTABLE = bytes(0x20 <= byte <= 0x7E for byte in range(256))
_RUN = b"\1" * 24
_CHUNK, _OVERLAP = 16 << 20, 4096


def _printable(path: Path) -> Iterator[str]:
    """Runs of 24 or more printable bytes in a binary file, as `strings` shows them: text hidden among the weights.

    Every second and every fourth byte are read alone, too: UTF-16, and one letter a weight.
    """
    with path.open("rb") as file:
        carried = b""
        while chunk := file.read(_CHUNK):
            block = carried + chunk
            for step in (1, 2, 4):
                for start in range(step):
                    yield from _runs(block[start::step])
            carried = block[-_OVERLAP:]


def _runs(block: bytes) -> Iterator[str]:
    marks = block.translate(_PRINTABLE)  # runs of ones: to find those is ten times faster than a pattern
    start = marks.find(_RUN)
    while start >= 0:
        end = marks.find(b"\0", start)
        end = len(block) if end < 0 else end
        yield block[start:end].decode("ascii")
        start = marks.find(_RUN, end)
