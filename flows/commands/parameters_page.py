"""Writes the reference of all parameters of a retrain from their models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from flows.commands.profiles import OPTIONS
from tasks.parameters import RetrainParameters

_HEAD = """# Parameters

<!-- Written by `python scripts/write_parameters.py`; not to be edited. -->

For whoever changes a setting: all parameters of `autocoder train`, `compare` and `audit`. The name is the
one of `--set name=value` and of a profile. Some have an option, too. Prefect's forms take them as YAML under
*Advanced*. The default applies where the profile sets nothing; `deployments/profiles/` has the profiles.
"""
_LIMITS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


def parameters_page() -> str:
    """Returns Markdown: a table per section, a row per parameter."""
    schema = RetrainParameters.model_json_schema()
    return _HEAD + "".join(_section(schema, schema, ""))


def _section(schema: dict[str, Any], section: dict[str, Any], path: str) -> Iterator[str]:
    rows, inner = [], []
    for name, entry in section.get("properties", {}).items():
        where = f"{path}{name}"
        target = _target(schema, entry)
        if target is not None:
            inner.append((f"{where}.", target))
            continue
        default = "required" if name in section.get("required", ()) else _value(entry.get("default"))
        option = f"<br>`{OPTIONS[where]}`" if where in OPTIONS else ""
        cells = (f"`{where}`{option}", entry.get("title", ""), _kind(entry), default, entry.get("description", ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n")
    if rows:
        title = section.get("title", "Retrain")
        yield f"\n## {title}{f' (`{path[:-1]}`)' if path else ''}\n\n"
        yield "| parameter | title | values | default | meaning |\n|---|---|---|---|---|\n"
        yield from rows
    for below, target in inner:
        yield from _section(schema, target, below)


def _target(schema: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the section of an entry, also an optional one; None for a parameter."""
    for one in (entry, *entry.get("anyOf", ()), *entry.get("allOf", ())):
        if "$ref" in one:
            return schema["$defs"][one["$ref"].rpartition("/")[2]]
    return None


def _kind(entry: dict[str, Any]) -> str:
    kinds = [one for one in entry.get("anyOf", [entry]) if one.get("type") != "null"]
    parts = []
    for one in kinds:
        if "enum" in one:
            parts.append(", ".join(f"`{value}`" for value in one["enum"]))
        elif "const" in one:
            parts.append(f"`{one['const']}`")
        else:
            name = {"string": "text", "boolean": "true, false", "array": "list", "object": "mapping"}.get(
                one.get("type", ""), one.get("type", "any")
            )
            limits = " and ".join(f"{sign} {_number(one[key])}" for key, sign in _LIMITS if key in one)
            parts.append(" ".join(part for part in (name, limits) if part))
    if len(kinds) < len(entry.get("anyOf", kinds)):
        parts.append("null")
    return ", or ".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    text = re.sub(r"['\"]", "", str(value))
    return f"`{text}`" if text not in ("", "[]", "{}", "()") else "empty"
