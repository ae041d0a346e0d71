"""Makes options of typer out of a command's groups of options, which are data classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

from flows.commands.help import unwrap


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Returns the command for typer: groups become options, and examples in its help keep their
    lines.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    flattened: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            inner = get_type_hints(groups[name], include_extras=True)
            options = [
                (option.name, option.default, inner[option.name]) for option in fields(groups[name])
            ]
        else:
            options = [(name, parameter.default, hints[name])]
        flattened += [
            inspect.Parameter(
                option,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is MISSING else default,
                annotation=annotation,
            )
            for option, default, annotation in options
        ]

    @wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(
                **{option.name: values.pop(option.name) for option in fields(group)}
            )
        command(**values)

    flat.__signature__ = inspect.Signature(flattened)  # pyrefly: ignore[missing-attribute]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in flattened}
    flat.__doc__ = unwrap(command.__doc__ or "")
    return flat
