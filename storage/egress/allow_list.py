"""Lists the files that may be released and validates each of them completely."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from storage.artifacts import file_digest
from storage.bundle import folder as bundle
from storage.bundle.folder import UnsoundBundle
from storage.egress.documents import check_schema, read_drawing, read_shapes, strict_json
from storage.tables.formulas import unquote

_MB = 1 << 20
ENCODER = "0_Transformer/"
"""Folder of a mean-pooled model's encoder."""
LABELS = "labels.json"
"""File with the codes in the order of the scores, for an encoder whose configuration does not
contain them.
"""
LEXICON = "lexicon.json"
"""File with the vocabulary that a model reads in addition to its encoder, if any."""
GRAPH, INT8 = "model.onnx", "model.int8.onnx"
MOST_ANSWERS = 256
"""Maximum number of test vectors in a bundle, because every partner recomputes them. A release
writes 48.
"""
CODELIST_COLUMNS = ("code", "title", "classification", "version")


@dataclass(frozen=True)
class Kind:
    """How a file is read, and its maximum size."""

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
        raise UnsoundBundle(name, "is not UTF-8 text", kind="not-utf-8") from None
    if re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text):
        raise UnsoundBundle(
            name, "contains control characters, so it is not text", kind="control-characters"
        )
    return text


def _codelist(name: str, path: Path) -> list[tuple[str, ...]]:
    rows = [tuple(row) for row in csv.reader(io.StringIO(_text(name, path), newline=""))]
    if not rows or rows[0] != CODELIST_COLUMNS:
        raise UnsoundBundle(
            name, f"has other columns than {', '.join(CODELIST_COLUMNS)}", kind="other-code-columns"
        )
    if any(len(row) != len(CODELIST_COLUMNS) for row in rows):
        raise UnsoundBundle(
            name, "a row has more or fewer fields than its header", kind="ragged-row"
        )
    return [tuple(map(unquote, row)) for row in rows[1:]]


class GoldenAnswer(TypedDict):
    """A test vector: a public text, and the model's best codes with their probabilities."""

    id: int
    text: str
    codes: list[str]
    scores: list[float]


def _golden(name: str, path: Path) -> list[GoldenAnswer]:
    lines = _text(name, path).rstrip("\n").split("\n")
    # guard: test_more_test_vectors_than_a_release_writes
    if len(lines) > MOST_ANSWERS:
        raise UnsoundBundle(
            name, f"has more than {MOST_ANSWERS} test vectors", kind="too-many-answers"
        )
    answers = [strict_json(name, line.encode()) for line in lines]
    for answer in answers:
        check_schema(name, answer, "golden")
    return answers


def _strict(name: str, path: Path) -> Any:
    return strict_json(name, path.read_bytes())


FILES: dict[str, Kind] = {
    "config.json": _json("config", 16 * _MB),
    "model.safetensors": Kind(read_shapes, 8 << 30),
    "tokenizer.json": _json("tokenizer", 64 * _MB),
    "tokenizer_config.json": _json("tokenizer_config"),
    LABELS: _json("labels", 16 * _MB),
    LEXICON: _json("lexicon", 16 * _MB),
    GRAPH: Kind(lambda _, path: file_digest(path), 64 * _MB),
    INT8: Kind(lambda _, path: file_digest(path), 1 << 30),
    f"{ENCODER}config.json": _json("encoder_config"),
    f"{ENCODER}model.safetensors": Kind(read_shapes, 8 << 30),
    f"{ENCODER}tokenizer.json": _json("tokenizer", 64 * _MB),
    f"{ENCODER}tokenizer_config.json": _json("tokenizer_config"),
    f"{ENCODER}sentence_bert_config.json": Kind(_strict, _MB),
    "modules.json": _json("modules"),
    "1_Pooling/config.json": _json("pooling"),
    "2_Dense/config.json": _json("dense"),
    "2_Dense/model.safetensors": Kind(read_shapes, 1 << 30),
    bundle.STATEMENT: _json("privacy_statement"),
    bundle.PAGE: Kind(_text, _MB),
    bundle.CARD: Kind(_text, _MB),
    bundle.CODELIST: Kind(_codelist, 16 * _MB),
    bundle.THRESHOLDS: _json("thresholds"),
    bundle.ACCURACY: _json("accuracy"),
    bundle.RELIABILITY: Kind(read_drawing, _MB),
    bundle.GOLDEN: Kind(_golden, 4 * _MB),
    bundle.MATERIALS: Kind(_strict, _MB),
    bundle.LICENCE: Kind(_text, _MB),
    bundle.RECORD: Kind(_strict, _MB),
    bundle.ANSWERS: Kind(_text, _MB),
    bundle.PROOF: _json("ledger_proof"),
    bundle.SIGNATURE: Kind(_strict, _MB),
}
"""Every file that a bundle may contain."""

CONTENT = frozenset(FILES) - bundle.SEAL
"""Files of a bundle before the ledger's row is committed."""

_ALWAYS = frozenset(
    {
        bundle.CARD,
        bundle.CODELIST,
        bundle.STATEMENT,
        bundle.PAGE,
        bundle.GOLDEN,
        bundle.MATERIALS,
        bundle.LICENCE,
    }
)
_AT_THE_TOP = frozenset(
    {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
)
_DENSE = frozenset({"2_Dense/config.json", "2_Dense/model.safetensors"})
_LAYERS = frozenset(
    {"modules.json", "1_Pooling/config.json", f"{ENCODER}sentence_bert_config.json"}
)
"""Files of a model that sentence-transformers can open. It would ignore the words of a lexicon."""
_BELOW = frozenset(f"{ENCODER}{name}" for name in _AT_THE_TOP) | {LABELS} | _DENSE


def encoder_place(names: Iterable[str]) -> str:
    """Folder of the encoder's configuration, weights and tokenizer; "" for the top level."""
    return ENCODER if any(name == LABELS or name.startswith(ENCODER) for name in names) else ""


def model_files(names: Iterable[str]) -> frozenset[str]:
    """The files that a model with this layout requires.

    Files of two layouts together are refused, because a library might read the other layout.
    """
    present = frozenset(names)
    if not encoder_place(present):
        required, conflicting = _AT_THE_TOP, _LAYERS | _DENSE | {LEXICON}
    else:
        required, conflicting = (
            (_BELOW, _LAYERS) if LEXICON in present else (_BELOW | _LAYERS, frozenset())
        )
        conflicting |= _AT_THE_TOP
    for name in sorted(present & conflicting):
        raise UnsoundBundle(
            name,
            "conflicts with the other files of the model, which have another layout",
            kind="conflicting-layout",
        )
    return required


def list_files(folder: Path, *, allowed: frozenset[str]) -> dict[str, Path]:
    """Lists the files of a bundle by name, using only their status; no file is opened."""
    bundle.check_allowed(folder, allowed)
    present = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    for name, path in present.items():
        if name not in FILES:
            raise UnsoundBundle(
                name, "is not on the list of files that may be released", kind="unlisted-file"
            )
        if path.stat().st_size > FILES[name].max_bytes:
            raise UnsoundBundle(
                name, f"is larger than {FILES[name].max_bytes >> 20} MB", kind="file-too-large"
            )
    return present


def read_files(folder: Path, *, allowed: frozenset[str]) -> dict[str, Any]:
    """Reads every file of a bundle according to its kind; returns the contents by name."""
    present = list_files(folder, allowed=allowed)
    for name in sorted((_ALWAYS | model_files(present)) - set(present)):
        raise UnsoundBundle(name, "is missing", kind="no-file")
    contents: dict[str, Any] = {}
    for name, path in present.items():
        try:
            contents[name] = FILES[name].read(name, path)
        except RecursionError:
            raise UnsoundBundle(name, "is nested too deeply", kind="nested-too-deeply") from None
    return contents


def check_codes(contents: dict[str, Any]) -> tuple[str, ...]:
    """The codes in the order of the scores. Model, code list and test vectors must contain the same
    codes.
    """
    labels = contents.get(LABELS)
    codes = _configured(contents["config.json"]) if labels is None else tuple(labels["codes"])
    if codes != tuple(row[0] for row in contents[bundle.CODELIST]):
        raise UnsoundBundle(
            bundle.CODELIST,
            "lists other codes than the model, or in another order",
            kind="other-codes",
        )
    for answer in contents[bundle.GOLDEN]:
        if not set(answer["codes"]) <= set(codes):
            raise UnsoundBundle(
                bundle.GOLDEN,
                f"narrative {answer['id']} has a code that is not on the list",
                kind="unlisted-code",
            )
    return codes


def _configured(config: dict[str, Any]) -> tuple[str, ...]:
    labels, places = config["id2label"], config["label2id"]
    codes = tuple(labels.get(str(n), "") for n in range(len(labels)))
    if "" in codes or places != {code: n for n, code in enumerate(codes)}:
        raise UnsoundBundle(
            "config.json",
            "id2label and label2id do not name the same codes",
            kind="different-labels",
        )
    return codes


def check_layers(contents: dict[str, Any]) -> None:
    """Verifies that the layers above the encoder match the shapes of their tensors and the number
    of codes.
    """
    if LABELS not in contents:
        return
    encoder, lexicon = contents[f"{ENCODER}config.json"], contents.get(LEXICON)
    width = encoder.get("hidden_size", encoder.get("dim"))
    if lexicon is None:
        layers = ["0_Transformer", "1_Pooling", "2_Dense"]
        if [module["path"] for module in contents["modules.json"]] != layers:
            raise UnsoundBundle(
                "modules.json", "has other layers than the model", kind="other-layers"
            )
    else:
        if lexicon["kind"] == "titles" and lexicon["columns"] != len(lexicon["vocabulary"]):
            raise UnsoundBundle(
                LEXICON, "has another number of stems than columns", kind="wrong-number-of-stems"
            )
        width += lexicon["columns"]
    codes = len(contents[bundle.CODELIST])
    config = contents["2_Dense/config.json"]
    if (config["in_features"], config["out_features"]) != (width, codes):
        raise UnsoundBundle(
            "2_Dense/config.json",
            "does not map the encoder's features to the codes",
            kind="wrong-width",
        )
    if contents["2_Dense/model.safetensors"] != {
        "linear.weight": (codes, width),
        "linear.bias": (codes,),
    }:
        raise UnsoundBundle(
            "2_Dense/model.safetensors",
            "contains other tensors than its configuration declares",
            kind="other-tensors",
        )
