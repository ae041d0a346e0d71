"""Options that several commands share, and groups of them.

A command takes a group as one parameter, a dataclass. `expand_groups` turns it into Typer options.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from flows.commands.help import MORE, unwrap
from flows.commands.terminal import say
from flows.server.settings import configure_prefect, home_of
from storage.errors import Contradiction, Missing, Unreadable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from flows.commands.console import ConsoleListener
    from storage.tables.options import ReadOptions
    from tasks.parameters import DataParameters, RetrainParameters
    from tasks.running.stage import Context

data = partial(typer.Option, rich_help_panel="Data")
privacy = partial(typer.Option, rich_help_panel="Privacy")
more = partial(typer.Option, rich_help_panel=MORE)

Home = Annotated[
    Path | None,
    typer.Option(help="Workspace folder.", show_default="$AUTOCODER_HOME or ./workspace"),
]
HomeOfPlan = Annotated[Path | None, more(help="Workspace folder.", show_default="the plan's")]
Plan = Annotated[
    Path, typer.Argument(help="Plan that `train` or `compare` wrote (private/plans/*.json).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], more(help="Device. `auto` uses CUDA if there is a GPU.")
]
Engine = Annotated[
    str,
    more(
        envvar="AUTOCODER_ENGINE",
        show_envvar=False,
        help=(
            "Where the parts of large stages are computed: a number of local "
            "processes, or the address of a cluster such as tls://host:8786."
        ),
        show_default="$AUTOCODER_ENGINE, or this process",
    ),
]
Processes = Annotated[
    int,
    more(
        min=1,
        max=64,
        help=(
            "Number of processes that train one encoder together, one per GPU if there are GPUs."
        ),
    ),
]
Prefix = Annotated[
    str,
    more(
        help=(
            "Prefix of the columns to read from a table that several bundles coded, "
            "such as nature_."
        )
    ),
]
PublishedList = Annotated[
    Path | None,
    data(
        "--codelist",
        help=(
            "Published classification, or a bundle's codelist.csv. Manual codes "
            "that are not on it are refused."
        ),
        show_default="the model's codes in the file",
    ),
]
Read = Annotated[
    list[str] | None,
    more(
        help=(
            "Corrects how a table is read if the detection is wrong: separator=;, "
            "encoding=cp1252, sheet=2024, skip=2 (docs/how-to/prepare-data.md). "
            "Repeatable."
        )
    ),
]
ReadCodelist = Annotated[
    list[str] | None,
    more(
        "--read-codelist",
        help=(
            "Corrects how a code list is read, as --read does for tables: sheet=…, "
            "names=[code,title], widths=[8,60]. Repeatable."
        ),
    ),
]
ReadCorrespondence = Annotated[
    list[str] | None,
    more("--read-correspondence", help="How the correspondence is read, as --read. Repeatable."),
]
AllowUnlisted = Annotated[
    bool,
    more(
        "--allow-unlisted",
        help="Count manual codes that are not on the list as errors of the model.",
    ),
]
Overwrite = Annotated[bool, more("--overwrite", help="Replace existing outputs.")]
Text = Annotated[
    list[str] | None, data("--text", help="Text column. Repeat it to join several columns.")
]
Template = Annotated[
    str | None,
    more(help="Template that joins several columns, as in training: '{Job title}: {Narrative}'."),
]
Label = Annotated[str | None, data("--label", help="Column of the code.")]


def read_options(given: Sequence[str] | None, option: str = "--read") -> ReadOptions:
    """Returns the settings of an option on how a table is read. Refuses a setting
    that the reader does not know.
    """
    from storage.tables.options import AS_IT_LOOKS, ReadOptions

    if not given:
        return AS_IT_LOOKS
    from flows.commands.profiles import apply_settings, validate

    _require_single(given, option)
    return validate(
        ReadOptions,
        apply_settings({}, given, option=option, model=ReadOptions),
        where=f"{option}: ",
    )


def _require_single(given: Sequence[str], option: str) -> None:
    counts = Counter(setting.partition("=")[0] for setting in given)
    if twice := next((key for key, count in counts.items() if count > 1), None):
        raise Contradiction(
            f"{option}: {twice} is set twice. Set it once, because a later value "
            "does not replace an earlier one.",
            kind="key-repeated",
            option=option,
        )


def _look(data: DataParameters) -> None:
    if all(file.is_file() for file in data.sources):
        from storage.ingest import check_early

        check_early(data.sources, data.ingest, data.codelist_path)


@dataclass(frozen=True)
class RunOptions:
    profile: Annotated[
        str | None,
        data(
            help="Required: formal (a proven epsilon, any records; start here), osha-formal, "
            "osha-formal-lora, osha-head and paper (estimated epsilon), demo-formal, demo, or a "
            "YAML file.",
            show_default=False,
        ),
    ] = None
    data: Annotated[
        list[Path] | None,
        data(
            help=(
                "Records: CSV, XLSX, ODS, Parquet or JSON, also compressed. For several "
                "files of one layout, repeat it or pass their folder."
            )
        ),
    ] = None
    text: Text = None
    label: Annotated[
        list[str] | None,
        data(help=("Column of the code. `train` accepts several and plans one release for each.")),
    ] = None
    codelist: Annotated[
        list[Path] | None,
        data(
            help=(
                "Classification: CSV or XLSX with codes and titles. With several "
                "--label, pass one for each, in order."
            )
        ),
    ] = None
    examples: Annotated[
        Path | None,
        more(
            "--examples",
            help=(
                "Published coding index (columns text and code), such as job titles: "
                "public examples that training starts from, at no cost in ε. No entry "
                "may come from the records."
            ),
        ),
    ] = None
    date: Annotated[str | None, more(help='Column of the date, for cohorts; "" for none.')] = None
    population: Annotated[
        str | None,
        data(help="Name of the dataset (population). Each population has its own budget."),
    ] = None
    classification: Annotated[
        str | None, data(help='Classification of the code list, such as SOC; "" for none.')
    ] = None
    classification_version: Annotated[
        str | None, more(help="Version of the classification, such as 2010.")
    ] = None
    settings: Annotated[
        list[str] | None,
        more(
            "--set",
            help=(
                "Set any parameter (docs/reference/parameters.md): key=value, such as "
                "method.steps=40. Repeatable."
            ),
        ),
    ] = None
    read: Read = None
    read_codelist: ReadCodelist = None
    read_examples: Annotated[
        list[str] | None,
        more(
            "--read-examples",
            help=("Corrects how the coding index is read, as --read does for tables. Repeatable."),
        ),
    ] = None
    home: Home = None
    device: Device = "auto"

    @property
    def profile_name(self) -> str:
        """The profile. It is required, because each profile makes a different claim."""
        if self.profile is None:
            raise Missing(
                "--profile: missing. Choose formal (a proven epsilon, the one to "
                "start with), osha-head (SWAG-PPM; its epsilon is an estimate "
                "that audits contradicted), demo-formal (synthetic reports), or "
                "another one.",
                kind="no-profile",
            )
        return self.profile

    def _require_inputs(self) -> None:
        from flows.commands import file_checks

        home_of(self.home)
        for option, files in (("--data", self.data), ("--codelist", self.codelist)):
            for file in files or ():
                file_checks.require_readable(option, file)
        _ = self.profile_name

    def parameters(self, values: Mapping[str, object] = MappingProxyType({})) -> RetrainParameters:
        """Returns the parameters from the profile, --set, these options, and other values.

        Args:
            values: values by dotted parameter names; None means that a value is not set.
        """
        self._require_inputs()
        if len(self.label or ()) > 1 or len(self.codelist or ()) > 1:
            raise Contradiction(
                "--label and --codelist: this takes one column of codes. Use each option once.",
                kind="several-columns",
            )

        from flows.commands.profiles import parameters

        option_values = {**self._own_values(), **values}
        present = {name: value for name, value in option_values.items() if value is not None}
        if self.date is not None:
            present["data.ingest.date_column"] = self.date or None
        _require_single(self.settings or (), "--set")
        present |= self._read_values()
        run = parameters(self.profile_name, self.settings or (), present, look=_look)
        from tasks.parameters import require_index

        require_index(run)
        return run

    def _own_values(self) -> dict[str, str | list[str] | None]:
        """Returns the values of these options by dotted parameter names; None means not set."""
        return {
            "data.source": list(map(str, self.data or ())) or None,
            "data.codelist": str(self.codelist[0]) if self.codelist else None,
            "data.examples": None if self.examples is None else str(self.examples),
            "data.ingest.text_columns": self.text or None,
            "data.ingest.label_column": self.label[0] if self.label else None,
            "data.population": self.population,
            "data.classification": self.classification,
            "data.classification_version": self.classification_version,
        }

    def _read_values(self) -> dict[str, object]:
        """Returns the values of --read and similar options by dotted parameter names."""
        from flows.commands.profiles import READ_OPTIONS, apply_settings
        from storage.tables.options import ReadOptions

        values: dict[str, object] = {}
        texts_by_option = (self.read, self.read_codelist, self.read_examples)
        for (option, section), texts in zip(READ_OPTIONS.items(), texts_by_option, strict=True):
            _require_single(texts or (), option)
            read = apply_settings({}, texts or (), option=option, model=ReadOptions)
            values |= {f"{section}.{name}": value for name, value in read.items()}
        if self.read_examples and self.examples is None:
            raise Missing("--read-examples: requires --examples", kind="examples-missing")
        return values

    def each_label(self) -> list[tuple[RunOptions, dict[str, object]]]:
        """Returns the options for each column of codes, with values that tell each run about the
        other columns, so that their texts are encoded together.
        """
        columns, lists = self.label or [], self.codelist or []
        if len(columns) < 2:
            return [(self, {})]
        if len(set(columns)) < len(columns):
            raise Contradiction(
                "--label: a column is listed twice. List each once.", kind="repeated-label"
            )
        if lists and len(lists) != len(columns):
            raise Contradiction(
                f"--codelist: {len(lists)} lists for {len(columns)} --label. Pass one for each, "
                "in order.",
                kind="lists-and-labels",
            )
        together = dict(
            zip(columns, map(str, lists) if lists else [None] * len(columns), strict=True)
        )
        return [
            (
                replace(self, label=[column], codelist=lists[n : n + 1] or None),
                {"data.labels": together},
            )
            for n, column in enumerate(columns)
        ]

    def context(self, **fields: Any) -> Context:
        home = home_of(self.home)
        configure_prefect()
        from tasks.running.stage import Context

        return Context(home=str(home), device=self.device, **fields)


def approval_text(given: str) -> str:
    """Returns a signed approval: the text itself, or the content of the file with this name."""
    if len(given) >= 250 or not Path(given).is_file():
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise Unreadable(
            f"--approval {given}: it cannot be read as text. Pass a file from `autocoder approve`.",
            kind="unreadable-approval",
        ) from None


ESTIMATED = (
    "note: this ε is an estimate for these records and not a guarantee; audits have contradicted "
    "such claims. For a guarantee use --profile formal"
)
"""A line on a claim that is not proven."""


@dataclass(frozen=True)
class OutputOptions:
    """Prints the answer to stdout and progress to stderr."""

    as_json: AsJson = False
    verbose: Annotated[
        bool, more("--verbose", help="Print every stage by its name, with all its figures.")
    ] = False

    def progress(self, *, bars: bool = True) -> ConsoleListener:
        """Returns a listener for the stages of its block. Without `bars` it only
        shows their ends.
        """
        from flows.commands.console import ConsoleListener

        return ConsoleListener(bars=bars, verbose=self.verbose)

    def warn(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            say(f"warning: {sentence}", err=True)

    def note_estimate(self, guarantee_kind: str) -> None:
        """Print on stderr that a claim is an estimate, and how to get a proven one."""
        if guarantee_kind == "asymptotic-local":
            say(ESTIMATED, err=True)

    def answer(self, result: BaseModel, text: str) -> None:
        """Print the result as JSON with --json, otherwise the text."""
        say(result.model_dump_json(indent=2) if self.as_json else text)


def listed_codes(codelist: Path | None, read: Sequence[str] | None) -> list[str]:
    """Returns the codes of a published list, or an empty list without one. `read`
    requires a list.
    """
    if codelist is None:
        if read:
            raise Missing("--read-codelist requires --codelist", kind="codelist-missing")
        return []
    from storage.codelist import read_codelist

    reading = read_options(read, "--read-codelist")
    listed = read_codelist(codelist.expanduser(), option="--codelist", read=reading)
    return [code.code for code in listed]


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Returns the command for Typer, with groups expanded to options. Examples in
    its help keep their line breaks.
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
