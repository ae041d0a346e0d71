"""Strictly reads JSON, drawings and safetensors headers, and validates JSON against the allow-list
of fields.
"""

from __future__ import annotations

import json
import math
import operator
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from storage.bundle.folder import UnsoundBundle
from storage.errors import Fault

_MAX_HEADER = 16 << 20
_BYTES = {"F32": 4, "BF16": 2}
"""Types that may be released. The libraries do not save position ids and other buffers."""
_MOST_AXES, _LONGEST_AXIS = 8, 1 << 40
"""Limits of a shape, before its numbers are multiplied: a header has room for thousands of numbers
of thousands of digits, whose product takes hours.
"""

Shapes = dict[str, tuple[int, ...]]


def strict_json(name: str, content: bytes) -> Any:
    """Parses JSON in UTF-8. Refuses repeated keys, which most readers accept, and numbers that are
    not finite, among them 1e999.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, object]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            raise UnsoundBundle(name, "is not strict JSON: a key is repeated", kind="repeated-key")
        return mapping

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        # guard: test_numbers_that_are_none
        if not math.isfinite(number):
            raise ValueError("a number is beyond every float")
        return number

    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=once,
            parse_constant=refuse,
            parse_float=finite,
        )
    except json.JSONDecodeError as error:
        fault = Fault(f"is not JSON: {error.msg}, line {error.lineno}", kind="not-json")
    except UnicodeDecodeError:
        fault = Fault("is not UTF-8", kind="document-not-utf-8")
    except (ValueError, RecursionError) as error:
        fault = Fault(f"is not strict JSON: {error}", kind="not-strict-json")
    raise UnsoundBundle(name, fault.text, kind=fault.kind)


def check_schema(name: str, value: Any, schema: str) -> None:
    """Validates a parsed document against its part of `storage/schemas/bundle.schema.json`. Errors
    quote no value.
    """
    for place, problem in faults({"$ref": f"#/$defs/{schema}"}, value):
        raise UnsoundBundle(
            name,
            f"field {'.'.join(place)}: {problem}" if place else problem,
            kind="schema-violation",
        )


def faults(
    schema: Any, value: Any, place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the place and the description of each violation of a JSON schema. Supports only the
    rules that the bundle schema uses.
    """
    if schema is False:
        shown = place[-1] if len(place[-1]) <= 60 else "(a long name)"
        yield place[:-1], f"field `{shown}` is not on the list of fields that may be released"
        return
    for rule, limit in schema.items():
        kind, holds = _RULES.get(rule, ("", None))
        if holds is not None and (kind is None or _is(value, kind)) and not holds(value, limit):
            yield place, f"does not match the schema ({rule})"
    if "$ref" in schema:
        yield from faults(_definition(schema["$ref"]), value, place)
    if "items" in schema and isinstance(value, list):
        for number, entry in enumerate(value):
            yield from faults(schema["items"], entry, (*place, str(number)))
    if isinstance(value, dict):
        if not _FIELDS.isdisjoint(schema):
            for field, entry in value.items():
                yield from _faults_of_field(schema, field, entry, (*place, field))
        for field in schema.get("required", ()):
            if field not in value:
                yield place, f"'{field}' is a required property"


def _faults_of_field(
    schema: Any, field: str, value: Any, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    if any(faults(schema.get("propertyNames", {}), field)):
        yield from faults(False, value, place)
    inner = [
        s for pattern, s in schema.get("patternProperties", {}).items() if re.search(pattern, field)
    ]
    if field in schema.get("properties", {}):
        inner.append(schema["properties"][field])
    for part in inner or [schema.get("additionalProperties", {})]:
        yield from faults(part, value, place)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _equal(value: Any, other: Any) -> bool:
    return type(value) is type(other) and value == other


def _least(value: Any, limit: int) -> bool:
    return len(value) >= limit


def _most(value: Any, limit: int) -> bool:
    return len(value) <= limit


_FIELDS = {"additionalProperties", "patternProperties", "properties", "propertyNames"}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": (int, float),
}
_TYPES |= {"object": dict, "string": str}
_RULES: dict[str, tuple[str | None, Callable[[Any, Any], Any]]] = {
    "type": (
        None,
        lambda value, kinds: any(
            _is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)
        ),
    ),
    "enum": (None, lambda value, entries: any(_equal(value, entry) for entry in entries)),
    "const": (None, _equal),
    "anyOf": (
        None,
        lambda value, schemas: not all(any(faults(schema, value)) for schema in schemas),
    ),
    "pattern": ("string", lambda value, pattern: re.search(pattern, value)),
    "minLength": ("string", _least),
    "maxLength": ("string", _most),
    "minItems": ("array", _least),
    "maxItems": ("array", _most),
    "uniqueItems": (
        "array",
        lambda value, _: len({json.dumps(entry, sort_keys=True) for entry in value}) == len(value),
    ),
    "maxProperties": ("object", _most),
    "minimum": ("number", operator.ge),
    "maximum": ("number", operator.le),
    "exclusiveMinimum": ("number", operator.gt),
    "exclusiveMaximum": ("number", operator.lt),
}
"""Rules of JSON Schema: the type of value to which each applies, and the test."""


@cache
def _definition(reference: str) -> Any:
    content = json.loads(
        (resources.files("storage") / "schemas" / "bundle.schema.json").read_text(encoding="utf-8")
    )
    for part in reference.removeprefix("#/").split("/"):
        content = content[part]
    return content


def read_shapes(name: str, path: Path) -> Shapes:
    """The shape of each tensor by name. Refuses metadata, types or bytes that inference weights do
    not need.
    """
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
            shape = tuple(entry["shape"])
            # guard: test_a_shape_that_never_ends
            if not _is_shape(shape):
                raise ValueError("no shape")
            if set(entry) != {"dtype", "shape", "data_offsets"} or entry["dtype"] not in _BYTES:
                raise UnsoundBundle(
                    name,
                    f"tensor {tensor[:80]} has another type than float32 or bfloat16",
                    kind="tensor-type",
                )
            if first != end or last - first != _BYTES[entry["dtype"]] * math.prod(shape):
                raise ValueError("gaps")
            tensors[tensor], end = shape, last
        if 8 + length + end != size:
            raise ValueError("further bytes")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UnsoundBundle(
            name, "is not a safetensors file with tensors and nothing else", kind="not-safetensors"
        ) from None
    if metadata not in ({}, {"format": "pt"}):
        raise UnsoundBundle(
            name, "its metadata contain more than the format", kind="extra-metadata"
        )
    return tensors


def _is_shape(shape: tuple[Any, ...]) -> bool:
    return len(shape) <= _MOST_AXES and all(
        type(axis) is int and 0 <= axis < _LONGEST_AXIS for axis in shape
    )


_SVG = "{http://www.w3.org/2000/svg}"
_DRAWN = {
    "svg": {"viewBox", "width", "height", "role", "aria-label"},
    "path": {"d", "fill", "stroke", "stroke-width", "stroke-dasharray"},
    "circle": {"cx", "cy", "r", "fill"},
    "text": {"x", "y", "fill", "text-anchor", "font-size", "font-family"},
}
"""The allowed elements of a drawing with their attributes. None of them can run or load
anything.
"""


def read_drawing(name: str, path: Path) -> str:
    """Reads an SVG that consists only of lines, dots and words."""
    content = path.read_bytes()
    # guard: test_a_drawing_that_acts (markup)
    if b"<!" in content or b"<?" in content:
        raise UnsoundBundle(name, "has more than elements", kind="drawing-elements")
    try:
        text = content.decode("utf-8")
        root = ElementTree.fromstring(text)
    except (ValueError, ElementTree.ParseError):
        raise UnsoundBundle(name, "is not an SVG in UTF-8", kind="not-a-drawing") from None
    for element in root.iter():
        allowed = _DRAWN.get(str(element.tag).removeprefix(_SVG), set())
        plain = all(re.fullmatch(r"[\w .,:;%#+-]*", value) for value in element.attrib.values())
        # guard: test_a_drawing_that_acts (elements)
        if not (allowed and set(element.attrib) <= allowed and plain):
            raise UnsoundBundle(name, "has more than lines, dots and words", kind="drawing-shapes")
    return text
