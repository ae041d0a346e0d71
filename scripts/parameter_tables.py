"""Prints the tables of all parameters, from the models that validate them. `make docs` inserts them
into their page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flows.commands.profiles import OPTIONS
from mechanisms.mechanism import kinds
from tasks.parameters import RetrainParameters

_LIMITS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
_TYPES = {"string": "text", "boolean": "true, false", "array": "list", "object": "mapping"}


def parameter_tables() -> str:
    """Returns Markdown with a table per section and a row per parameter."""
    schema = RetrainParameters.model_json_schema()
    return "".join((*_section(schema["$defs"], schema, ""), *_mechanisms()))


def _mechanisms() -> Iterator[str]:
    """Yields the settings of each kind of mechanism, which are next to the name of the method."""
    for kind, mechanism in kinds().items():
        schema = mechanism.model_json_schema()
        schema["title"] = f"Settings of the kind `{kind}`"
        yield from _section(schema.get("$defs", {}), schema, "method.")


def _section(defined: dict[str, Any], section: dict[str, Any], path: str) -> Iterator[str]:
    rows, inner = [], []
    for name, entry in section.get("properties", {}).items():
        where, kinds = f"{path}{name}", entry.get("anyOf", entry.get("allOf", [entry]))
        if target := next((kind["$ref"] for kind in (entry, *kinds) if "$ref" in kind), None):
            inner.append((f"{where}.", defined[target.rpartition("/")[2]]))
            continue
        default = (
            "required" if name in section.get("required", ()) else _value(entry.get("default"))
        )
        option = f"<br>`{OPTIONS[where]}`" if where in OPTIONS else ""
        values = ", or ".join(_kind(kind) for kind in kinds)
        cells = (
            f"`{where}`{option}",
            entry.get("title", ""),
            values,
            default,
            entry.get("description", ""),
        )
        rows.append(
            "| "
            + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
            + " |\n"
        )
    if rows:
        yield f"\n## {section.get('title', 'Retrain')}{f' (`{path[:-1]}`)' if path else ''}\n\n"
        yield "| parameter | title | values | default | meaning |\n|---|---|---|---|---|\n"
        yield from rows
    for below, target in inner:
        yield from _section(defined, target, below)


def _kind(entry: dict[str, Any]) -> str:
    if values := entry.get("enum", [entry["const"]] if "const" in entry else None):
        return ", ".join(f"`{value}`" for value in values)
    limits = " and ".join(f"{sign} {_number(entry[key])}" for key, sign in _LIMITS if key in entry)
    kind = entry.get("type", "any")
    return f"{_TYPES.get(kind, kind)} {limits}".strip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _value(value: Any) -> str:
    if value is None:
        return "–"
    text = (
        str(value).lower()
        if isinstance(value, bool)
        else str(value).replace("'", "").replace('"', "")
    )
    return f"`{text}`" if text not in ("", "[]", "{}", "()") else "empty"


if __name__ == "__main__":
    print(parameter_tables())
