"""The reference of all parameters of a retrain, written from their models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from flows.commands.profiles import OPTIONS
from tasks.parameters import RetrainParameters

_HEAD = """# Parameters

<!-- Written by `python scripts/write_parameters.py`; not to be edited. -->

All parameters of `autocoder retrain`, `compare`, `audit` and `diagnose`, by the name that `--set name=value` takes and
a profile nests. Some have an option of their own. Prefect's form has the same fields by their titles, most of them
under *Advanced*. A default is the one of no profile; `deployments/profiles/` has others.
"""
_LIMITS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


def parameters_page() -> str:
    """Markdown: a section of the parameters a table, a parameter a row."""
    schema = RetrainParameters.model_json_schema()
    return _HEAD + "".join(_section(schema, schema, ""))


def _section(schema: dict[str, Any], own: dict[str, Any], path: str) -> Iterator[str]:
    rows, inner = [], []
    for name, entry in own.get("properties", {}).items():
        where = f"{path}{name}"
        target = _target(schema, entry)
        if target is not None:
            inner.append((f"{where}.", target))
            continue
        default = "required" if name in own.get("required", ()) else _value(entry.get("default"))
        option = f"<br>`{OPTIONS[where]}`" if where in OPTIONS else ""
        cells = (f"`{where}`{option}", entry.get("title", ""), _kind(entry), default, entry.get("description", ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n")
    if rows:
        title = own.get("title", "Retrain")
        yield f"\n## {title}{f' (`{path[:-1]}`)' if path else ''}\n\n"
        yield "| parameter | title | values | default | meaning |\n|---|---|---|---|---|\n"
        yield from rows
    for below, target in inner:
        yield from _section(schema, target, below)


def _target(schema: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any] | None:
    """The section that an entry is, also one that may be absent."""
    for one in (entry, *entry.get("anyOf", ()), *entry.get("allOf", ())):
        if "$ref" in one:
            return schema["$defs"][one["$ref"].rpartition("/")[2]]
    return None


def _kind(entry: dict[str, Any]) -> str:
    kinds = [one for one in entry.get("anyOf", [entry]) if one.get("type") != "null"]
    told = []
    for one in kinds:
        if "enum" in one:
            told.append(", ".join(f"`{value}`" for value in one["enum"]))
        elif "const" in one:
            told.append(f"`{one['const']}`")
        else:
            name = {"string": "text", "boolean": "true, false", "array": "list", "object": "mapping"}.get(
                one.get("type", ""), one.get("type", "any")
            )
            limits = " and ".join(f"{sign} {_number(one[key])}" for key, sign in _LIMITS if key in one)
            told.append(" ".join(part for part in (name, limits) if part))
    if len(kinds) < len(entry.get("anyOf", kinds)):
        told.append("null")
    return ", or ".join(told)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    text = re.sub(r"['\"]", "", str(value))
    return f"`{text}`" if text not in ("", "[]", "{}", "()") else "empty"
