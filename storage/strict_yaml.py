"""Strictly reads settings from YAML: safe types only, unique keys, and keys as they are written."""

from __future__ import annotations

import re
from typing import Any

import yaml

_MOST_CHARACTERS, _DEEPEST, _MOST_VALUES = 1 << 20, 40, 100_000


class _Loader(yaml.CSafeLoader):  # libyaml's loader is ten times faster
    pass


def load(text: str) -> Any:
    """The parsed document, with string keys.

    Raises:
        yaml.YAMLError: the document cannot be read, is too large or too deep, repeats a key (in
            which case YAML would silently use the last one), has a key that is not a string, or
            contains itself.
    """
    if len(text) > _MOST_CHARACTERS:
        raise yaml.YAMLError(f"it is longer than {_MOST_CHARACTERS:,} characters")
    try:
        _check_size(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506  (a safe one)
    # a date that does not exist, or a number with thousands of digits
    except (ValueError, RecursionError):
        raise yaml.YAMLError("a value cannot be read") from None


def _check_size(text: str) -> None:
    """Counts the document's values as if each alias were expanded, without expanding any."""
    sizes: dict[str, int] = {}
    open_at: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=_Loader):
        anchor, size = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_at.append((anchor, 1))
            if len(open_at) > _DEEPEST + 1:
                raise yaml.YAMLError(f"it is nested deeper than {_DEEPEST} levels")
            continue
        if isinstance(event, yaml.AliasEvent):
            # guard: test_yaml_that_unfolds
            anchor, size = None, sizes.get(str(anchor), 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_at.pop()
        if anchor is not None:
            sizes[anchor] = size
        name, inner = open_at.pop()
        open_at.append((name, inner + size))
        if inner + size > _MOST_VALUES:
            raise yaml.YAMLError(f"it has more than {_MOST_VALUES:,} values, aliases written out")


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, object]:
    mapping: dict[str, object] = {}
    for key_node, value_node in node.value:
        number = key_node.tag.endswith((":int", ":float"))
        key = None if number else loader.construct_object(key_node, deep=True)
        if key_node.tag.endswith(":int") and re.fullmatch("0|-?[1-9][0-9]*", key_node.value):
            key = key_node.value  # a year or a code, kept as it is written
        if not isinstance(key, str):
            problem = f"key {str(key_node.value)[:40]!r} is not a string in YAML. Put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        if key in mapping:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} given twice", key_node.start_mark
            )
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    """A decimal number. YAML would read 1:30 as 90, 010 as 8 and 1_0 as 10, which is never
    intended.
    """
    if re.search(r"[:_]|\A[-+]?0[0-9box]", node.value):
        problem = (
            f"number {node.value[:40]!r} is read otherwise in YAML. Write plain digits, or "
            "put it in quotes"
        )
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    is_integer = node.tag.endswith(":int")
    return loader.construct_yaml_int(node) if is_integer else loader.construct_yaml_float(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
