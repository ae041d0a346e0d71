"""Parameters of a run as the options of a command give them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.commands import profiles
from tasks.parameters import RetrainParameters

PARAMETER_OF = {option.removeprefix("--"): name for name, option in profiles.OPTIONS.items()}


def parameters(
    profile: str,
    settings: Sequence[str] = (),
    *,
    data: Path | Sequence[Path] | None = None,
    codelist: Path | None = None,
    named: Mapping[str, Any] | None = None,
) -> RetrainParameters:
    """Those of a profile, `--set`, files, and other options by their names."""
    files = [data] if isinstance(data, Path) else data or ()
    values: dict[str, Any] = {"data.source": [str(file) for file in files]} if files else {}
    if codelist is not None:
        values["data.codelist"] = str(codelist)
    values |= {PARAMETER_OF[option]: value or None for option, value in (named or {}).items()}
    return profiles.parameters(profile, settings, values)
