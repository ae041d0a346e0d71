"""Builds parameters from a profile (YAML), options and `--set key=value`. Errors
name the option.
"""

import copy
import difflib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flows.commands.value_faults import fault_of
from storage import strict_yaml
from storage.errors import Contradiction, Missing, OutOfRange, Unknown, Unreadable
from tasks.catalogue import PROFILES
from tasks.method import STANDARD
from tasks.parameters import DataParameters, RetrainParameters, moved

Model = TypeVar("Model", bound=BaseModel)
OPTIONS = {
    "data.source": "--data",
    "data.codelist": "--codelist",
    "data.ingest.text_columns": "--text",
    "data.ingest.label_column": "--label",
    "data.ingest.date_column": "--date",
    "data.population": "--population",
    "data.classification": "--classification",
    "data.classification_version": "--classification-version",
    "method.target_epsilon": "--epsilon",
    "method.delta": "--delta",
    "data.examples": "--examples",
    "release.enabled": "--release",
}
"""Parameters that have an option of their own."""
READ_OPTIONS = {
    "--read": "data.ingest.read",
    "--read-codelist": "data.ingest.codelist_read",
    "--read-examples": "data.examples_read",
}
"""Sections of parameters that an option sets as `key=value`."""


def option_of(parameter: str) -> str:
    """Returns the option that sets a parameter, or the parameter's name."""
    section, _, key = parameter.rpartition(".")
    for option, read in READ_OPTIONS.items():
        if section == read:
            return f"{option} {key}"
    return OPTIONS.get(parameter, parameter)


def profile_names() -> list[str]:
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(name: str) -> dict[str, Any]:
    """Loads a profile, which must be a mapping, by its name or by the path of a YAML file."""
    path = (
        Path(name).expanduser() if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"
    )
    if not path.is_file():
        raise Unknown(
            f"--profile: {name} is unknown. Choose from {', '.join(profile_names())}, or pass a "
            ".yaml file.",
            kind="unknown-profile",
        )
    try:
        content = strict_yaml.load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise Unreadable(
            f"--profile: {path} is not YAML{where}{f': {problem}' if problem else ''}",
            kind="profile-not-yaml",
        ) from None
    except OSError as error:
        raise Unreadable(
            f"--profile: {path}: {error.strerror}", kind="unreadable-profile"
        ) from None
    if not isinstance(content, dict):
        raise Unreadable(
            f"--profile: {path} must hold a mapping of parameters", kind="profile-not-a-mapping"
        )
    return content


def apply_settings(
    content: dict[str, Any],
    settings: Sequence[str],
    *,
    option: str = "--set",
    model: type[BaseModel] = RetrainParameters,
) -> dict[str, Any]:
    """Apply `dotted.key=value` settings. Values are read as YAML (`3`, `0.1`, `true`, `null`, `[a,
    b]`).

    A text setting keeps its spelling (`2.010`), and a single text may replace a list of texts.
    """
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise OutOfRange(
                f"{option}: `{setting}` is not key=value", kind="setting-form", option=option
            )
        put(content, key, _read(key, value, model))
    return content


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value of a dotted name and creates missing sections."""
    *path, last = key.split(".")
    for part in path:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            raise Contradiction(
                f"--set: {key}: {part} is not a section", kind="not-a-section", option=key
            )
    content[last] = value


def _read(key: str, value: str, model: type[BaseModel]) -> Any:
    types_of = set(_types(dict(_fields(model)).get(key)))
    text = str in types_of and not types_of & {tuple, dict, int, float, bool}
    try:
        read = strict_yaml.load(value)
    except yaml.YAMLError:
        if not text and tuple not in types_of:
            raise Unreadable(
                f"--set: the value of {key} is not YAML. Quote it.",
                kind="value-not-yaml",
                option=key,
            ) from None
        read = value  # a path or the name of a column
    plain = types_of <= {
        str,
        tuple,
        type(None),
    }  # such a text may have any form, such as a path that looks like a mapping
    if (
        (read is None and type(None) in types_of)
        or isinstance(read, list)
        or (isinstance(read, dict) and not plain)
    ):
        return read
    if text or tuple in types_of:
        text_value = read if isinstance(read, str) else value.strip()
        return text_value if text else [text_value]
    return read


def _fields(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, info in model.model_fields.items():
        yield f"{path}{name}", info.annotation
        for inner in _types(info.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _fields(inner, f"{path}{name}.")


def _types(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _types(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for allowed in get_args(annotation):
            yield from _types(allowed)
    elif origin is Literal:
        yield from map(type, get_args(annotation))
    else:
        yield origin or annotation


def parameters(
    profile: str,
    settings: Sequence[str],
    values: Mapping[str, object] = MappingProxyType({}),
    *,
    look: Callable[[DataParameters], None] | None = None,
    where: str = "parameters: ",
    options: Mapping[str, str] = OPTIONS,
) -> RetrainParameters:
    """Returns the parameters of a run from a profile, `key=value` texts, and values.

    Args:
        settings: texts such as those of `--set`.
        values: values by dotted name; a value may be set only once, so that none overrides another.
        look: checks the records before the method is read, which takes seconds.
        where: beginning of the sentence about invalid values.
        options: option of a parameter by its name, for that sentence.
    """
    content = load_profile(profile)
    content.pop("branches", None)
    unlisted: list[str] = content.pop("without_codelist", [])
    profile_content = copy.deepcopy(content)
    section = content.setdefault("data", {})
    if not isinstance(section, dict):
        raise Contradiction(
            f"--profile: {profile}: data must be a section, with source, codelist and so on",
            kind="data-not-a-section",
        )
    keys = {setting.partition("=")[0] for setting in settings}
    content = apply_settings(content, settings)
    if not isinstance(content["data"], dict):
        raise Contradiction(
            "--set: data is a section. Set a parameter of it, such as data.source=FILE.",
            kind="section-set",
        )
    for key, value in values.items():
        if key in keys:
            raise Contradiction(
                f"{option_of(key)}: --set {key} is used too. Leave one out.",
                kind="set-twice",
                option=key,
            )
        put(content, key, value)
    keys |= set(values)
    _require_population(content, profile_content, keys, profile)
    if not content["data"].get("codelist") and not _section(content["data"], "ingest").get(
        "codes_are_names"
    ):
        content = apply_settings(
            content, [setting for setting in unlisted if setting.partition("=")[0] not in keys]
        )
    if not content["data"].get("source"):
        raise Missing(
            "--data: missing. Specify the file of records (CSV, ZIP holding one CSV, Parquet or "
            "JSON Lines).",
            kind="no-data",
        )
    if look is not None and not moved(content):
        look(validate(_Records, content, where=where, options=options).data)
    return validate(RetrainParameters, content, where=where, options=options)


class _Records(BaseModel, extra="ignore"):
    """The parameters that are known without the method."""

    data: DataParameters


def _section(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _require_population(
    content: dict[str, Any], profile: dict[str, Any], given: set[str], name: str
) -> None:
    """Require a population and a classification if the columns differ from the profile's.

    Settings that apply only to the profile's own records are dropped: release at once, the day of
    the split, the sentences, and that the records are public.
    """
    theirs, now = _section(profile, "data"), _section(content, "data")
    profile_ingest, ingest = _section(theirs, "ingest"), _section(now, "ingest")
    labels = _section(now, "labels") or {
        ingest.get("label_column"): None
    }  # columns that are planned together have equal settings
    differing = (
        ["text_columns"]
        if "text_columns" in profile_ingest
        and ingest.get("text_columns") != profile_ingest["text_columns"]
        else []
    )
    differing += (
        ["label_column"]
        if "label_column" in profile_ingest and set(labels) != {profile_ingest["label_column"]}
        else []
    )
    if not differing and now.get("population") == theirs.get("population"):
        return
    for key in (
        *("release.enabled", "data.ingest.train_before", "model.prior_sentence"),
        "data.public",
    ):
        if key not in given:
            *path, last = key.split(".")
            section = content
            for part in path:
                section = _section(section, part)
            section.pop(last, None)
    if not differing:
        return
    lacking = [
        f"--{option} (data.{key}: {meaning}; {name} has {theirs[key]})"
        for option, key, meaning in (
            ("population", "population", "that the records describe"),
            ("classification", "classification", 'of the codes, "" for nothing published'),
        )
        if theirs.get(key) and f"data.{key}" not in given
    ]
    if lacking:
        option = OPTIONS.get(f"data.ingest.{differing[0]}", f"--set data.ingest.{differing[0]}")
        raise Contradiction(
            f"{option}: the columns differ from those of profile {name}. Specify "
            f"{' and '.join(lacking)}.",
            kind="columns-of-another-profile",
            option=option,
        )
    if "data.classification_version" not in given:
        now.pop("classification_version", None)


def validate(
    model: type[Model],
    values: Mapping[str, object],
    *,
    where: str,
    options: Mapping[str, str] = OPTIONS,
) -> Model:
    """Returns values as a model. All faults are reported in one error, which starts
    with `where` and calls parameters by their `options`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        shown = not model.model_config.get("hide_input_in_errors", False)
        entries = error.errors(include_input=shown)
        names = [name for name, _ in _fields(model)]
        if any(entry["loc"][:1] == ("method",) for entry in entries):
            names += _settings_of_method(values)
        faults = "; ".join(_explain(entry, names, options) for entry in entries)
        raise OutOfRange(where + faults, kind="invalid-settings") from None


def profile_branches(profile: str) -> Any:
    """Returns the methods that a profile adds to the standard ones, unvalidated."""
    return load_profile(profile).get("branches") or ()


def _settings_of_method(values: Mapping[str, object]) -> list[str]:
    """Returns the names of the settings of a run's method, which depend on its kind."""
    from mechanisms.mechanism import kinds
    from tasks.method import chosen

    method = chosen(values.get("method", {"name": STANDARD}))
    kind = method.get("kind") if isinstance(method, Mapping) else None
    mechanisms = kinds()
    if kind not in mechanisms:
        return []
    return [name for name, _ in _fields(mechanisms[kind], "method.")]


def _explain(entry: ErrorDetails, names: Sequence[str], options: Mapping[str, str]) -> str:
    where = ".".join(str(part) for part in entry["loc"])
    where = f"{options[where]} ({where})" if where in options else where
    raised = entry.get("ctx", {}).get("error")
    message = str(raised) if isinstance(raised, ValueError) else fault_of(entry)
    if entry["type"] == "string_type" and isinstance(entry.get("input"), int | float):
        message = "must be a text. Quote it in YAML"
    if entry["type"] == "extra_forbidden":
        option = where.startswith("-")
        meant = ": its method has none" if option else _meant(where, names)
        message = f"unknown parameter{meant}"
    value = entry.get("input")
    secret = where.endswith("ledger_url")
    plain = "input" in entry and isinstance(value, int | float | str | bool | None)
    shown = f" (got {value!r})" if plain and not secret else ""
    return f"{where}: {message}{shown}" if where else message


def _meant(wrong: str, names: Sequence[str]) -> str:
    section, _, last = wrong.rpartition(".")
    matches = [name for name in names if f".{name}".endswith(f".{last}")][:3]
    section_keys = [name for name in names if name.rpartition(".")[0] == section]
    matches = (
        matches
        or difflib.get_close_matches(wrong, section_keys, n=1)
        or difflib.get_close_matches(wrong, names, n=1)
    )
    return (
        f". Did you mean {' or '.join(matches)}?"
        if matches
        else " (see docs/reference/parameters.md)"
    )
