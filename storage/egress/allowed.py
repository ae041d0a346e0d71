"""The list of files that may leave, and what each of them has to be, from its first byte to its last."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.egress.documents import check_schema, strict_json
from storage.egress.leaks import check_pickle
from storage.egress.tensors import shapes

_MB = 1 << 20
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
    return rows[1:]


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
"""Every file that a bundle may hold."""

TOKENIZER = frozenset({"tokenizer.json", "tokenizer_config.json"})
"""Files that come from the public encoder."""
CONTENT = frozenset(FILES) - bundle.SEAL
"""What may be there before the ledger's row is committed."""

_ALWAYS = frozenset(
    {"config.json", "model.safetensors", *TOKENIZER, bundle.CARD, bundle.CODELIST, bundle.STATEMENT}
    | {bundle.PAGE, bundle.GOLDEN, bundle.MATERIALS, bundle.LICENCE}
)
_WITH_MODULES = frozenset({"modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"})


def read_files(folder: Path, *, allowed: frozenset[str]) -> dict[str, Any]:
    """Read every file of a bundle as what it has to be; return what each holds, by name.

    Raises:
        UnsoundBundle: names the first file that is not allowed, missing, too large or not what it has to be.
    """
    bundle.check_allowed(folder, allowed)
    present = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    needed = _ALWAYS | (_WITH_MODULES if _WITH_MODULES & set(present) else set())
    for name in sorted(needed - set(present)):
        raise UnsoundBundle(name, "is missing")
    found: dict[str, Any] = {}
    for name, path in present.items():
        kind = FILES[name]
        if path.stat().st_size > kind.max_bytes:
            raise UnsoundBundle(name, f"is larger than {kind.max_bytes >> 20} MB")
        with path.open("rb") as file:
            check_pickle(name, file.read(8))
        try:
            found[name] = kind.read(name, path)
        except RecursionError:
            raise UnsoundBundle(name, "is nested too deeply") from None
    return found


def check_codes(found: dict[str, Any]) -> tuple[str, ...]:
    """The codes, which configuration and code list have to name alike; in the order of the scores.

    Raises:
        UnsoundBundle: they differ.
    """
    config, rows = found["config.json"], found[bundle.CODELIST]
    labels, places = config["id2label"], config["label2id"]
    codes = tuple(labels.get(str(at), "") for at in range(len(labels)))
    if "" in codes or places != {code: at for at, code in enumerate(codes)}:
        raise UnsoundBundle("config.json", "id2label and label2id do not name the same codes")
    if codes != tuple(row[0] for row in rows):
        raise UnsoundBundle(bundle.CODELIST, "names other codes than config.json, or in another order")
    for answer in found[bundle.GOLDEN]:
        if not set(answer["codes"]) <= set(codes):
            raise UnsoundBundle(bundle.GOLDEN, f"narrative {answer['id']} has a code that is not on the list")
    return codes


def check_layers(found: dict[str, Any]) -> None:
    """The layers above the encoder, whose configurations have to be of their tensors' shapes and the codes' number.

    Raises:
        UnsoundBundle: they differ.
    """
    if "modules.json" not in found:
        return
    width, tensors = found["1_Pooling/config.json"]["embedding_dimension"], found["2_Dense/model.safetensors"]
    dense, codes = found["2_Dense/config.json"], len(found["config.json"]["id2label"])
    if (dense["in_features"], dense["out_features"]) != (width, codes):
        raise UnsoundBundle("2_Dense/config.json", "is not between the encoder's features and the codes")
    if tensors != {"linear.weight": (codes, width), "linear.bias": (codes,)}:
        raise UnsoundBundle("2_Dense/model.safetensors", "holds other tensors than its configuration says")
