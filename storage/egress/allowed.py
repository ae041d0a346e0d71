"""The list of files that may leave, and what each of them has to be, from its first byte to its last."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.egress.documents import check_schema, strict_json
from storage.egress.leaks import check_pickle
from storage.egress.tensors import shapes
from storage.tables.formulas import unquoted

_MB = 1 << 20
ENCODER = "0_Transformer/"
"""Where a mean-pooled model's encoder lies; in bundles from before, it lay at the top."""
LABELS = "labels.json"
"""Codes in the order of the scores, beside an encoder that names none; of several fields, their names."""
CODELIST_COLUMNS = ("code", "title", "classification", "version")


@dataclass(frozen=True)
class Kind:
    """How a file is read and what it must not exceed."""

    read: Callable[[str, Path], Any]
    max_bytes: int


def _json(schema: str, max_bytes: int = _MB) -> Kind:
    def read(name: str, path: Path) -> Any:
        value = strict_json(name, path.read_bytes())
        check_schema(name, value, schema)
        return value

    return Kind(read, max_bytes)


def _text(name: str, path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise UnsoundBundle(name, "is not UTF-8 text") from None
    if re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text):
        raise UnsoundBundle(name, "holds control characters: it is no text")
    return text


def _card(name: str, path: Path) -> str:
    text = _text(name, path)
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    if found is None:
        raise UnsoundBundle(name, "has no metadata at its head")
    try:
        metadata = yaml.safe_load(found[1])
    except yaml.YAMLError:
        raise UnsoundBundle(name, "its metadata are no YAML") from None
    check_schema(name, metadata, "card")
    return text


def _codelist(name: str, path: Path) -> list[tuple[str, ...]]:
    rows = [tuple(row) for row in csv.reader(io.StringIO(_text(name, path), newline=""))]
    if not rows or rows[0] != CODELIST_COLUMNS:
        raise UnsoundBundle(name, f"has other columns than {', '.join(CODELIST_COLUMNS)}")
    if any(len(row) != len(CODELIST_COLUMNS) for row in rows):
        raise UnsoundBundle(name, "a row has more or fewer fields than its header")
    return [tuple(map(unquoted, row)) for row in rows[1:]]


def _golden(name: str, path: Path) -> list[dict[str, Any]]:
    answers = [strict_json(name, line.encode()) for line in _text(name, path).rstrip("\n").split("\n")]
    for answer in answers:
        check_schema(name, answer, "golden")
    return answers


def _signature(name: str, path: Path) -> Any:
    value = strict_json(name, path.read_bytes())
    if not isinstance(value, dict):
        raise UnsoundBundle(name, "is no signature")
    return value


FILES: dict[str, Kind] = {
    "config.json": _json("config", 16 * _MB),
    "model.safetensors": Kind(shapes, 8 << 30),
    "tokenizer.json": _json("tokenizer", 64 * _MB),
    "tokenizer_config.json": _json("tokenizer_config"),
    LABELS: _json("labels", 16 * _MB),
    f"{ENCODER}config.json": _json("encoder_config"),
    f"{ENCODER}model.safetensors": Kind(shapes, 8 << 30),
    f"{ENCODER}tokenizer.json": _json("tokenizer", 64 * _MB),
    f"{ENCODER}tokenizer_config.json": _json("tokenizer_config"),
    f"{ENCODER}sentence_bert_config.json": _json("sentence_bert_config"),
    "modules.json": _json("modules"),
    "config_sentence_transformers.json": _json("config_sentence_transformers"),
    "sentence_bert_config.json": _json("sentence_bert_config"),
    "1_Pooling/config.json": _json("pooling"),
    "2_Dense/config.json": _json("dense"),
    "2_Dense/model.safetensors": Kind(shapes, 1 << 30),
    bundle.STATEMENT: _json("privacy_statement"),
    bundle.PAGE: Kind(_text, _MB),
    bundle.CARD: Kind(_card, _MB),
    bundle.CODELIST: Kind(_codelist, 16 * _MB),
    bundle.THRESHOLDS: _json("thresholds"),
    bundle.GOLDEN: Kind(_golden, 4 * _MB),
    bundle.MATERIALS: _json("bom"),
    bundle.LICENCE: Kind(_text, _MB),
    bundle.PROOF: _json("ledger_proof"),
    bundle.SIGNATURE: Kind(_signature, _MB),
}
"""Every file that a bundle of one field may hold."""

OF_A_FIELD = frozenset(
    {LABELS, "2_Dense/config.json", "2_Dense/model.safetensors", bundle.CODELIST, bundle.THRESHOLDS, bundle.GOLDEN}
)
"""Of these each of several fields has its own, in a folder of its name."""
_FIELD = re.compile(r"([a-z][a-z0-9_]{0,30})/(.+)")


def kind_of(name: str) -> Kind | None:
    """How a file of this name is read; None where no bundle may hold it, whatever its fields."""
    within = _FIELD.fullmatch(name)
    if within is None:
        return FILES.get(name)
    return FILES[within[2]] if within[2] in OF_A_FIELD else None


def files_of(fields: Sequence[str]) -> frozenset[str]:
    """Every file that a bundle of these fields may hold; of none, that of one field."""
    if not fields:
        return frozenset(FILES)
    own = {f"{name}/{file}" for name in fields for file in OF_A_FIELD}
    return (frozenset(FILES) - (OF_A_FIELD - {LABELS})) | own


def content_of(fields: Sequence[str]) -> frozenset[str]:
    """The same before the ledger's row is committed."""
    return files_of(fields) - bundle.SEAL


def fields_in(folder: Path) -> tuple[str, ...]:
    """The fields that a bundle's labels name; none where it is of one field.

    Raises:
        UnsoundBundle: they name none that can be.
    """
    path = folder / LABELS
    if not path.is_file() or path.is_symlink():
        return ()
    if path.stat().st_size > FILES[LABELS].max_bytes:
        raise UnsoundBundle(LABELS, f"is larger than {FILES[LABELS].max_bytes >> 20} MB")
    try:
        return tuple(FILES[LABELS].read(LABELS, path).get("fields", ()))
    except RecursionError:
        raise UnsoundBundle(LABELS, "is nested too deeply") from None


def places_in(found: Mapping[str, Any]) -> dict[str, str]:
    """Where the files of each field lie in a bundle that was read, by its name; "" for the only one, at the top."""
    names = found[LABELS].get("fields") if LABELS in found else None
    return {"": ""} if names is None else {name: f"{name}/" for name in names}


TOKENIZER = frozenset(
    f"{place}{name}" for place in ("", ENCODER) for name in ("tokenizer.json", "tokenizer_config.json")
)
"""Files that come from the public encoder."""
CONTENT = frozenset(FILES) - bundle.SEAL
"""What may be there of one field before the ledger's row is committed."""

_ALWAYS = frozenset(
    {bundle.CARD, bundle.CODELIST, bundle.STATEMENT, bundle.PAGE, bundle.GOLDEN, bundle.MATERIALS, bundle.LICENCE}
)
_AT_THE_TOP = frozenset({"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
_DENSE = frozenset({"2_Dense/config.json", "2_Dense/model.safetensors"})
_LAYERS = frozenset({"modules.json", "1_Pooling/config.json"}) | _DENSE
_BELOW = frozenset(f"{ENCODER}{name}" for name in _AT_THE_TOP) | {LABELS} | _LAYERS


def encoder_place(names: Iterable[str]) -> str:
    """Of a model's files: where the configuration, the encoder's weights and the tokenizer lie, "" for the top."""
    return ENCODER if any(name == LABELS or name.startswith(ENCODER) for name in names) else ""


def model_files(names: Iterable[str], fields: Sequence[str] = ()) -> frozenset[str]:
    """The files that a model of this layout needs.

    Args:
        fields: that it codes; none where it is one.

    Raises:
        UnsoundBundle: files of two layouts lie together, of which a library may read the other one.
    """
    present = frozenset(names)
    if not encoder_place(present):
        return _AT_THE_TOP | (_LAYERS if _LAYERS & present else frozenset())
    for name in sorted(present & (_AT_THE_TOP | {"sentence_bert_config.json"})):
        raise UnsoundBundle(name, f"lies beside another model, in {ENCODER}")
    own = {f"{name}/{file}" for name in fields for file in _DENSE | {LABELS}}
    return (_BELOW - _DENSE) | own if fields else _BELOW


def read_files(folder: Path, *, allowed: frozenset[str]) -> dict[str, Any]:
    """Read every file of a bundle as what it has to be; return what each holds, by name.

    Raises:
        UnsoundBundle: names the first file that is not allowed, missing, too large or not what it has to be.
    """
    bundle.check_allowed(folder, allowed)
    present = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    fields = fields_in(folder)
    each = _ALWAYS & OF_A_FIELD
    always = (_ALWAYS - each) | {f"{name}/{file}" for name in fields for file in each} if fields else _ALWAYS
    for name in sorted((always | model_files(present, fields)) - set(present)):
        raise UnsoundBundle(name, "is missing")
    found: dict[str, Any] = {}
    for name, path in present.items():
        kind = kind_of(name)
        if kind is None:
            raise UnsoundBundle(name, "is not on the list of files that may leave")
        if path.stat().st_size > kind.max_bytes:
            raise UnsoundBundle(name, f"is larger than {kind.max_bytes >> 20} MB")
        with path.open("rb") as file:
            check_pickle(name, file.read(8))
        try:
            found[name] = kind.read(name, path)
        except RecursionError:
            raise UnsoundBundle(name, "is nested too deeply") from None
    return found


def check_codes(found: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The codes of each field (of the only one by the name ""), which model and code list have to name alike; in the
    order of the scores.

    Raises:
        UnsoundBundle: they differ, or the statement is of other fields.
    """
    spaces: dict[str, tuple[str, ...]] = {}
    for field, place in places_in(found).items():
        labels = found.get(f"{place}{LABELS}")
        if labels is not None and "codes" not in labels:
            raise UnsoundBundle(f"{place}{LABELS}", "names no codes")
        codes = _configured(found["config.json"]) if labels is None else tuple(labels["codes"])
        if codes != tuple(row[0] for row in found[f"{place}{bundle.CODELIST}"]):
            raise UnsoundBundle(f"{place}{bundle.CODELIST}", "names other codes than the model, or in another order")
        for answer in found[f"{place}{bundle.GOLDEN}"]:
            if not set(answer["codes"]) <= set(codes):
                raise UnsoundBundle(
                    f"{place}{bundle.GOLDEN}", f"narrative {answer['id']} has a code that is not on the list"
                )
        thresholds = found.get(f"{place}{bundle.THRESHOLDS}")
        if thresholds is not None and thresholds.get("field", "") != field:
            raise UnsoundBundle(f"{place}{bundle.THRESHOLDS}", "is of another field")
        spaces[field] = codes
    if found[bundle.STATEMENT].get("fields", [""]) != list(spaces):
        raise UnsoundBundle(bundle.STATEMENT, "is of other fields than the model codes")
    return spaces


def _configured(config: dict[str, Any]) -> tuple[str, ...]:
    labels, places = config["id2label"], config["label2id"]
    codes = tuple(labels.get(str(at), "") for at in range(len(labels)))
    if "" in codes or places != {code: at for at, code in enumerate(codes)}:
        raise UnsoundBundle("config.json", "id2label and label2id do not name the same codes")
    return codes


def check_layers(found: dict[str, Any]) -> None:
    """The layers above the encoder, whose configurations have to be of their tensors' shapes and the codes' number.

    Raises:
        UnsoundBundle: they differ.
    """
    if "modules.json" not in found:
        return
    width, places = found["1_Pooling/config.json"]["embedding_dimension"], places_in(found)
    first = {module["path"] for module in found["modules.json"] if module["idx"] == 0}
    if first != {encoder_place(found).rstrip("/")}:
        raise UnsoundBundle("modules.json", "does not begin at the encoder")
    if (len(found["modules.json"]) == 3) != ("" in places):
        raise UnsoundBundle("modules.json", "has not the layers of a model of its fields")
    for place in places.values():
        dense, codes = f"{place}2_Dense/", len(found[f"{place}{bundle.CODELIST}"])
        told = found[f"{dense}config.json"]
        if (told["in_features"], told["out_features"]) != (width, codes):
            raise UnsoundBundle(f"{dense}config.json", "is not between the encoder's features and the codes")
        if found[f"{dense}model.safetensors"] != {"linear.weight": (codes, width), "linear.bias": (codes,)}:
            raise UnsoundBundle(f"{dense}model.safetensors", "holds other tensors than its configuration says")
