"""YAML as settings are read: safe, and every key once."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    pass


def load(text: str) -> Any:
    """The document; keys are strings.

    Raises:
        yaml.YAMLError: it does not read, a key is given twice, where the last would win in silence, or a value holds
            itself.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  (a safe one)
    except (ValueError, RecursionError):  # a day that no month has, a number of thousands of digits, endless nesting
        raise yaml.YAMLError("a value does not read") from None


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} given twice", key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
