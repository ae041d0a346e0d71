"""Parameters from a profile (YAML) and `--set key=value`, checked as a whole; errors name the option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from storage import strict_yaml
from storage.errors import InputError
from tasks.parameters import RetrainParameters

Model = TypeVar("Model", bound=BaseModel)
PROFILES = Path(__file__).resolve().parents[2] / "deployments" / "profiles"


def available() -> list[str]:
    """Names of the profiles that ship."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(name: str) -> dict[str, Any]:
    """A profile by name, or by the path of a YAML file.

    Raises:
        InputError: no such profile, or it is no mapping.
    """
    path = Path(name).expanduser() if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"
    if not path.is_file():
        raise InputError(f"--profile: no profile {name}; there are {', '.join(available())}, or give a .yaml file")
    try:
        content = strict_yaml.load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"--profile: {path} is no YAML{where}{f': {problem}' if problem else ''}") from None
    except OSError as error:
        raise InputError(f"--profile: {path}: {error.strerror}") from None
    if not isinstance(content, dict):
        raise InputError(f"--profile: {path} must hold a mapping of parameters")
    return content


def override(content: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Apply `dotted.key=value` settings; values are read as YAML (`3`, `0.1`, `true`, `null`, `[a, b]`).

    Raises:
        InputError: a setting without `=`, or one that goes through a value that is no section.
    """
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise InputError(f"--set: `{setting}` is not of the form key=value, such as fit.adamw.epochs=3")
        section = content
        *path, last = key.split(".")
        for part in path:
            if not isinstance(section, dict):
                raise InputError(f"--set: {key}: {part} lies in a value that is no section")
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise InputError(f"--set: {key}: {part} is no section")
        try:
            section[last] = strict_yaml.load(value)
        except yaml.YAMLError:
            raise InputError(f"--set: the value of {key} is no YAML; quote it") from None
    return content


def parameters(
    profile: str, settings: Sequence[str], *, data: Path | None = None, codelist: Path | None = None
) -> RetrainParameters:
    """Parameters of a run from profile, options and settings, in rising precedence.

    Raises:
        InputError: an unknown key, a value out of range or a contradiction; all of them in one text.
    """
    content = load_profile(profile)
    content.pop("branches", None)
    section = content.setdefault("data", {})
    if not isinstance(section, dict):
        raise InputError(f"--profile: {profile}: data is a section, with source, codelist and so on")
    if data is not None:
        section["source"] = str(data)
    if codelist is not None:
        section["codelist"] = str(codelist)
    content = override(content, settings)
    if not isinstance(content["data"], dict):
        raise InputError("--set: data is a section, such as data.source=FILE")
    if not content["data"].get("source"):
        raise InputError("--data: name the file of records (CSV, ZIP holding one CSV, or Parquet)")
    return checked(RetrainParameters, content, at="parameters: ")


def checked(model: type[Model], values: Mapping[str, Any], *, at: str) -> Model:
    """Values as a model; `at` begins the error's text.

    Raises:
        InputError: all that is wrong with them, in one text.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        shown = not model.model_config.get("hide_input_in_errors", False)
        faults = "; ".join(_explain(entry) for entry in error.errors(include_input=shown))
        raise InputError(at + faults) from None


def own_branches(profile: str) -> dict[str, Any]:
    """Branches that a profile adds to the standard ones, as it has them.

    Raises:
        InputError: no such profile, or its branches are no mapping.
    """
    content = load_profile(profile).get("branches") or {}
    if not isinstance(content, dict):
        raise InputError(f"--profile: {profile}: branches must be a mapping from names to branches")
    return content


def target(text: str) -> float | str:
    """A target epsilon: a number, or `match`.

    Raises:
        InputError: it is neither.
    """
    if text == "match":
        return text
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 1000:
        raise InputError(f"--target-epsilon: {text} is neither `match` nor a number above 0 and up to 1000")
    return value


def _explain(entry: Mapping[str, Any]) -> str:
    """One error of pydantic in one phrase: where, what, and what was given."""
    where = ".".join(str(part) for part in entry["loc"])
    message = str(entry["msg"]).removeprefix("Value error, ")
    if entry["type"] == "extra_forbidden":
        message = "no such parameter"
    value = entry.get("input")
    secret = where.endswith("ledger_url")
    plain = "input" in entry and isinstance(value, int | float | str | bool | None)
    shown = f" (got {value!r})" if plain and not secret else ""
    return f"{where}: {message}{shown}" if where else message
