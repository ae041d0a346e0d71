"""Reads JSON and headers of safetensors strictly; checks JSON against the allow-list of fields."""

from __future__ import annotations

import json
import math
import struct
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from storage.bundle.folder import UnsoundBundle

_MAX_HEADER = 16 << 20
_BYTES = {"F32": 4, "BF16": 2}
"""Types that may be released: position ids and other buffers are not saved by the libraries."""

Shapes = dict[str, tuple[int, ...]]


def strict_json(name: str, content: bytes) -> Any:
    """Parses JSON in UTF-8; refuses repeated keys, which most readers accept, and NaN."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            raise ValueError("a key is repeated")
        return mapping

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg}, line {error.lineno}"
    except UnicodeDecodeError:
        problem = "is not UTF-8"
    except (ValueError, RecursionError) as error:
        problem = f"is not strict JSON: {error}"
    raise UnsoundBundle(name, problem)


def check_schema(name: str, value: Any, schema: str) -> None:
    """Checks a parsed document against its part of `storage/schemas/bundle.schema.json`; an error quotes no value."""
    error = best_match(_validator(schema).iter_errors(value))
    if error is None:
        return
    field = ".".join(str(part) for part in error.absolute_path)
    where = f"field {field}: " if field else ""
    extra: list[str] = []
    if "propertyNames" in error.absolute_schema_path:
        extra = [error.instance]
    elif error.validator == "additionalProperties":
        listed = set(error.schema.get("properties", {})) if isinstance(error.schema, dict) else set()
        extra = sorted(set(error.instance) - listed)
    if extra:
        shown = extra[0] if len(extra[0]) <= 60 else "(a long name)"
        raise UnsoundBundle(name, f"{where}field `{shown}` is not on the list of fields that may be released")
    if error.validator == "required":
        raise UnsoundBundle(name, f"{where}{error.message}")
    raise UnsoundBundle(name, f"{where}does not match the schema ({error.validator})")


@cache
def _validator(name: str) -> Draft202012Validator:
    file = resources.files("storage") / "schemas" / "bundle.schema.json"
    definitions = json.loads(file.read_text(encoding="utf-8"))["$defs"]
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


def read_shapes(name: str, path: Path) -> Shapes:
    """Returns the shape of each tensor by name; refuses other metadata, types or bytes than inference weights need."""
    size, end = path.stat().st_size, 0
    header: Any = None
    tensors: Shapes = {}
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if 2 <= length <= min(_MAX_HEADER, size - 8):
            header = strict_json(name, file.read(length))
    try:
        metadata = header.pop("__metadata__", {})
        for tensor, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            shape = tuple(int(n) for n in entry["shape"])
            if set(entry) != {"dtype", "shape", "data_offsets"} or entry["dtype"] not in _BYTES:
                raise UnsoundBundle(name, f"tensor {tensor[:80]} has another type than float32 or bfloat16")
            if first != end or last - first != _BYTES[entry["dtype"]] * math.prod(shape):
                raise ValueError("gaps")
            tensors[tensor], end = shape, last
        if 8 + length + end != size:
            raise ValueError("further bytes")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UnsoundBundle(name, "is not a safetensors file with tensors and nothing else") from None
    if metadata not in ({}, {"format": "pt"}):
        raise UnsoundBundle(name, "its metadata contain more than the format")
    return tensors
