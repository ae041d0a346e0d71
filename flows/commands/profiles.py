"""Parameters from a profile (YAML), options and `--set key=value`, checked as a whole; errors name the option."""

from __future__ import annotations

import copy
import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from storage import strict_yaml
from storage.errors import InputError
from tasks.parameters import RetrainParameters

Model = TypeVar("Model", bound=BaseModel)
NAMED = {
    "text": "data.ingest.text_columns",
    "label": "data.ingest.label_column",
    "date": "data.ingest.date_column",
    "population": "data.population",
    "classification": "data.classification",
    "classification-version": "data.classification_version",
}
"""Options that have a name of their own, and the parameters that they set."""
OPTIONS = {
    "data.source": "--data",
    "data.codelist": "--codelist",
    "model.prior": "--prior",
    "release.enabled": "--release",
    "formal.target_epsilon": "--target-epsilon",
    "pseudo_posterior.target_epsilon": "--target-epsilon",
} | {parameter: f"--{option}" for option, parameter in NAMED.items()}
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

    What is a text stays the text that was typed (`2.010`), and one text serves where a list of them is wanted.

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
        section[last] = _read(key, value)
    return content


def _read(key: str, value: str) -> Any:
    """A value as its parameter wants it."""
    kinds = set(_kinds(RetrainParameters, key.split(".")))
    text = str in kinds and not kinds & {tuple, dict, int, float, bool}
    try:
        read = strict_yaml.load(value)
    except yaml.YAMLError:
        if text:
            return value  # a path or a column's name that is no YAML
        raise InputError(f"--set: the value of {key} is no YAML; quote it") from None
    if read is None and type(None) in kinds:
        return None
    if text:
        return read if isinstance(read, str) else value.strip()
    if tuple in kinds and not isinstance(read, list | dict):
        return [read if isinstance(read, str) else value.strip()]
    return read


def _kinds(annotation: Any, path: Sequence[str]) -> Iterator[Any]:
    """The types that a parameter may have, by its path from a model; nothing of one that is not there."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _kinds(get_args(annotation)[0], path)
    elif origin in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from _kinds(one, path)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if path and path[0] in annotation.model_fields:
            yield from _kinds(annotation.model_fields[path[0]].annotation, path[1:])
    elif not path:
        yield from map(type, get_args(annotation)) if origin is Literal else (origin or annotation,)


def parameters(
    profile: str,
    settings: Sequence[str],
    *,
    data: Path | None = None,
    codelist: Path | None = None,
    named: Mapping[str, Any] | None = None,
) -> RetrainParameters:
    """Parameters of a run from profile, options and settings, in rising precedence.

    Args:
        named: values of the options in `NAMED`; None: not given.

    Raises:
        InputError: an unknown key, a value out of range or a contradiction; all of them in one text. Columns other
            than the profile's want a population and a classification of their own.
    """
    content = load_profile(profile)
    content.pop("branches", None)
    own = copy.deepcopy(content)
    section = content.setdefault("data", {})
    if not isinstance(section, dict):
        raise InputError(f"--profile: {profile}: data is a section, with source, codelist and so on")
    if data is not None:
        section["source"] = str(data)
    if codelist is not None:
        section["codelist"] = str(codelist)
    given = {option: value for option, value in (named or {}).items() if value is not None}
    _apply(content, given, settings)
    content = override(content, settings)
    if not isinstance(content["data"], dict):
        raise InputError("--set: data is a section, such as data.source=FILE")
    _own_names(
        content, own, {setting.partition("=")[0] for setting in settings} | {NAMED[name] for name in given}, profile
    )
    if not content["data"].get("source"):
        raise InputError("--data: name the file of records (CSV, ZIP holding one CSV, Parquet or JSON Lines)")
    return checked(RetrainParameters, content, at="parameters: ")


def _apply(content: dict[str, Any], given: Mapping[str, Any], settings: Sequence[str]) -> None:
    """Put the values of options where their parameters are.

    Raises:
        InputError: one is given by its option and by --set.
    """
    set_too = {setting.partition("=")[0] for setting in settings}
    for option, value in given.items():
        key = NAMED[option]
        if key in set_too:
            raise InputError(f"--{option}: --set {key} is given too; leave one out")
        section = content
        *path, last = key.split(".")
        for part in path:
            section = section.setdefault(part, {})
        section[last] = None if key.endswith("date_column") and not value else value


def _section(content: dict[str, Any], name: str) -> dict[str, Any]:
    """What stands there where it is a section; what else may stand there is refused when all is checked."""
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _columns_of_fields(ingest: dict[str, Any]) -> dict[str, Any]:
    """The code column of each of several fields, as far as it is said in the form that it should have."""
    return {name: _section(_section(ingest, "fields"), name).get("label_column") for name in _section(ingest, "fields")}


def _own_names(content: dict[str, Any], profile: dict[str, Any], said: set[str], name: str) -> None:
    """No profile lends its population and classification to other records than its own.

    Raises:
        InputError: the columns are others, and whose they are is not said.
    """
    theirs, now = _section(profile, "data"), _section(content, "data")
    own, ingest = _section(theirs, "ingest"), _section(now, "ingest")
    other = [key for key in ("text_columns", "label_column") if key in own and ingest.get(key) != own[key]]
    if _columns_of_fields(ingest) != _columns_of_fields(own):
        other.append("fields")
    if not other and now.get("population") == theirs.get("population"):
        return
    if "release.enabled" not in said and isinstance(content.get("release"), dict):
        content["release"].pop("enabled", None)
    if not other:
        return
    lacking = [
        f"--{option} ({meaning}; {name} has {theirs[key]})"
        for option, key, meaning in (
            ("population", "population", "whose records they are"),
            ("classification", "classification", 'what they are coded by, "" for nothing published'),
        )
        if theirs.get(key) and f"data.{key}" not in said
    ]
    if lacking:
        option = OPTIONS.get(f"data.ingest.{other[0]}", f"--set data.ingest.{other[0]}")
        raise InputError(f"{option}: other columns than profile {name}'s; give {' and '.join(lacking)}")
    for key in ("classification_version", "public"):
        if f"data.{key}" not in said:
            now.pop(key, None)


def checked(model: type[Model], values: Mapping[str, Any], *, at: str) -> Model:
    """Values as a model; `at` begins the error's text.

    Raises:
        InputError: all that is wrong with them, in one text.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        shown = not model.model_config.get("hide_input_in_errors", False)
        faults = "; ".join(_explain(entry, model) for entry in error.errors(include_input=shown))
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


def _explain(entry: Mapping[str, Any], model: type[BaseModel]) -> str:
    """One error of pydantic in one phrase: where, what, and what was given."""
    where = ".".join(str(part) for part in entry["loc"])
    where = f"{OPTIONS[where]} ({where})" if where in OPTIONS else where
    message = str(entry["msg"]).removeprefix("Value error, ")
    if entry["type"] == "string_type" and isinstance(entry.get("input"), int | float):
        message = "a text; quote it in YAML"
    if entry["type"] == "extra_forbidden":
        message = f"no such parameter{_meant(where, list(_names(model)))}"
    value = entry.get("input")
    secret = where.endswith("ledger_url")
    plain = "input" in entry and isinstance(value, int | float | str | bool | None)
    shown = f" (got {value!r})" if plain and not secret else ""
    return f"{where}: {message}{shown}" if where else message


def _names(annotation: Any, path: str = "") -> Iterator[str]:
    """Dotted names of all parameters of a model; what a mapping holds has names of its own."""
    if get_origin(annotation) is dict:
        return
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield f"{path}{name}"
            yield from _names(field.annotation, f"{path}{name}.")
    else:
        for one in get_args(annotation):
            yield from _names(one, path)


def _meant(wrong: str, names: Sequence[str]) -> str:
    """The parameters that a misspelt name, or one without its section, can stand for; else where all of them stand."""
    section, _, last = wrong.rpartition(".")
    found = [name for name in names if f".{name}".endswith(f".{last}")][:3]
    beside = [name for name in names if name.rpartition(".")[0] == section]
    found = found or difflib.get_close_matches(wrong, beside, n=1) or difflib.get_close_matches(wrong, names, n=1)
    return f"; did you mean {' or '.join(found)}?" if found else " (docs/parameters.md has all)"
