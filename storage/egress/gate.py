"""The gate: a finished bundle is read whole before it may be moved to where bundles lie; the unexpected is refused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.artifacts import digest
from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.egress import leaks
from storage.egress.allowed import (
    CODELIST_COLUMNS,
    TOKENIZER,
    check_codes,
    content_of,
    encoder_place,
    kind_of,
    model_files,
    read_files,
)
from storage.egress.decoding import readings
from storage.egress.published import advice, known_as
from storage.egress.sequences import SequenceFilter
from storage.egress.tensors import Shapes
from storage.tables.formulas import quoted, unquoted


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
    lists = {name: folder / name / bundle.CODELIST for name in expected.codes}
    _check_lists({name: _cells(path) for name, path in lists.items()}, expected.golden_texts, expected)
    if found[bundle.STATEMENT] != expected.statement:
        raise UnsoundBundle(bundle.STATEMENT, "is not the statement of this release's row")
    read = {path.relative_to(folder).as_posix() for path in lists.values()}
    _check_model(folder, {name: one for name, one in found.items() if name not in read}, expected)


def inspect_model(folder: Path, expected: Expected) -> None:
    """The same for the model's own files alone, before there is a bundle.

    Raises:
        UnsoundBundle: names the first file at fault.
    """
    _check_lists({name: cells_of(own) for name, own in expected.codes.items()}, {}, expected)
    bundle.check_allowed(folder, content_of(expected.fields))
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for name in sorted((model_files(paths, expected.fields) | set(expected.tensors)) - set(paths)):
        raise UnsoundBundle(name, "is missing")
    kinds = {name: kind for name in paths if (kind := kind_of(name)) is not None}
    _check_model(folder, {name: kind.read(name, paths[name]) for name, kind in kinds.items()}, expected)


def cells_of(codes: Sequence[Code], classification: str = "", version: str = "") -> list[tuple[str, ...]]:
    """The rows of `codelist.csv` as a bundle has them, its header first."""
    rows = ((entry.code, entry.title, classification, version) for entry in codes)
    return [CODELIST_COLUMNS, *(tuple(map(quoted, row)) for row in rows)]


def faults_of_lists(
    lists: Mapping[str, Sequence[Sequence[str]]],
    golden_texts: Mapping[str, Sequence[str]],
    *,
    identities: tuple[str, ...],
    narratives: SequenceFilter | None,
) -> list[UnsoundBundle]:
    """What the gate refuses of code lists, and of the golden texts made of them, one a file at most.

    No model is needed for it, so that it is asked before training, too; of a golden file the answers alone are not read
    then.

    Args:
        lists: the rows of each field's list, as `cells_of` has them.
        golden_texts: of each field; of one that is not named, none.
        narratives: None before the records are read: what is refused then is refused whatever they say.
    """
    codes = {name: [Code(*map(unquoted, row[:2])) for row in rows[1:]] for name, rows in lists.items()}
    faults: list[UnsoundBundle] = []
    for name, rows in lists.items():
        place = f"{name}/" if name else ""
        entries = [(str(column), cell) for row in rows for column, cell in enumerate(row)]
        faults += _faults(f"{place}{bundle.CODELIST}", _in_columns(entries), codes[name], identities, narratives)
        texts = golden_texts.get(name, ())
        answers = [{"id": n, "text": text, "codes": [], "scores": []} for n, text in enumerate(texts)]
        leaves = [leaf for answer in answers for leaf in _leaves(answer)]
        faults += _faults(f"{place}{bundle.GOLDEN}", _in_columns(leaves), codes[name], identities, narratives)
    titles = ["\n".join(entry.title for entry in own) for own in codes.values()]
    together = ["\n".join(titles)] if len(lists) > 1 else []  # one sentence may be cut over the lists of two fields
    unknown = next((own for own in codes.values() if known_as(own) is None), ())
    return faults or _told(bundle.CODELIST, together, unknown, narratives)


def _check_lists(
    lists: Mapping[str, Sequence[Sequence[str]]], golden_texts: Mapping[str, Sequence[str]], expected: Expected
) -> None:
    for fault in faults_of_lists(lists, golden_texts, identities=expected.identities, narratives=expected.narratives):
        raise fault


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
        return _check_narratives(name, ("\n".join(_printable(path)),), expected.narratives, decode=True)
    columns = _columns(path)
    if name in TOKENIZER:  # the vocabulary is as public as its digest says; it is long, and decodes to nothing
        return _check_narratives(name, columns[:1], expected.narratives, decode=False, short=False)
    if name != bundle.LICENCE or not expected.licence_is_public:  # a public one holds such marks
        leaks.check_text(name, columns[0], identities=expected.identities, scores=path.name not in _SCORED)
    try:
        _check_narratives(name, columns, expected.narratives, decode=True)
    except UnsoundBundle as fault:
        if path.name not in (bundle.CODELIST, bundle.GOLDEN):
            raise
        raise _advised(fault, expected.codes.get(name.rpartition("/")[0], ())) from None


_SCORED = frozenset({bundle.THRESHOLDS, bundle.GOLDEN})
"""Files that hold scores."""


def _faults(
    name: str,
    columns: Sequence[str],
    codes: Sequence[Code],
    identities: tuple[str, ...],
    narratives: SequenceFilter | None,
) -> list[UnsoundBundle]:
    """What is wrong with a file made of a code list, with what to do, if anything is."""
    try:
        leaks.check_text(name, columns[0], identities=identities, scores=name.rpartition("/")[2] not in _SCORED)
    except UnsoundBundle as fault:
        return [UnsoundBundle(name, f"{fault.problem}, or what reads like it{_entry_of(codes, identities)}")]
    return _told(name, columns, codes, narratives)


def _told(
    name: str, texts: Iterable[str], codes: Sequence[Code], narratives: SequenceFilter | None
) -> list[UnsoundBundle]:
    try:
        if narratives is not None:
            _check_narratives(name, texts, narratives, decode=True)
    except UnsoundBundle as fault:
        return [_advised(fault, codes)]
    return []


def _advised(fault: UnsoundBundle, codes: Sequence[Code]) -> UnsoundBundle:
    """A refusal of what is made of a code list, with what to do."""
    return UnsoundBundle(fault.file, f"{fault.problem}; {advice(codes)}")


def _entry_of(codes: Sequence[Code], identities: tuple[str, ...]) -> str:
    """Which of a list reads like a trace, which is no matter of records, and what to do."""
    for number, entry in enumerate(codes, start=1):
        try:
            leaks.check_text(bundle.CODELIST, f"{entry.code}\n{entry.title}", identities=identities)
        except UnsoundBundle:
            return f", in entry {number} of the code list; give that code another title"
    return "; give the entries of the code list that say so other titles"


def _check_narratives(
    name: str, texts: Iterable[str], narratives: SequenceFilter, *, decode: bool, short: bool = True
) -> None:
    for text in texts:
        for reading in readings(text) if decode else (text, text[::-1]):
            if narratives.count(reading, short=short):
                raise UnsoundBundle(name, "holds a part of a private narrative, plainly or encoded")


def tokenizer_digest(tokenizer: dict[str, Any]) -> str:
    """Digest of all that makes tokens out of text; how long and how padded is the caller's business."""
    kept = {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")}
    return digest(json.loads(json.dumps(kept)))


def _columns(path: Path) -> list[str]:
    """All text of a file in its order; then, of JSON and CSV, that of each field over all entries."""
    if path.suffix == ".csv":
        return _in_columns([(str(column), cell) for row in _cells(path) for column, cell in enumerate(row)])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return _in_columns(list(_leaves(json.loads(text))))
    if path.suffix == ".jsonl":
        return _in_columns([leaf for line in text.rstrip("\n").split("\n") for leaf in _leaves(json.loads(line))])
    return [text]


def _cells(path: Path) -> list[list[str]]:
    """The rows of a CSV."""
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))


def _in_columns(entries: Sequence[tuple[str, str]]) -> list[str]:
    fields: dict[str, list[str]] = {}
    for field, value in entries:
        fields.setdefault(field, []).append(value)
    return ["\n".join(value for _, value in entries), *("\n".join(own) for own in fields.values() if len(fields) > 1)]


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
