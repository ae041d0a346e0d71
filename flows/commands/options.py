"""Defines options that several commands share, and groups of them.

A command takes a group as one parameter, a dataclass; `expand_groups` turns it into options of typer.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from flows.commands.console import ConsoleListener
from flows.commands.terminal import say
from flows.server.settings import configure_prefect, home_of, workspace_of
from storage.errors import InputError
from storage.paths import Workspace

if TYPE_CHECKING:
    from pydantic import BaseModel

    from storage.ledger import Ledger
    from storage.ledger.heads import Head
    from storage.ledger.journal import Journal
    from storage.tables.options import ReadOptions
    from tasks.parameters import LedgerParameters, RetrainParameters
    from tasks.running.stage import Context

Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device; auto: CUDA where there is a GPU.")]
Home = Annotated[Path | None, typer.Option(help="Workspace folder.", show_default="$AUTOCODER_HOME or ./workspace")]
HomeOfPlan = Annotated[Path | None, typer.Option(help="Workspace folder.", show_default="that of the plan")]
Plan = Annotated[Path, typer.Argument(help="Plan that retrain or compare wrote (private/plans/*.json).")]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        help="Ledger's SQLAlchemy URL without a password.", show_default="$AUTOCODER_LEDGER_URL or the workspace's"
    ),
]
Requester = Annotated[str, typer.Option(help="Name for the ledger.")]
AllowUnlisted = Annotated[
    bool, typer.Option("--allow-unlisted", help="Count codes by people that the list lacks as codes of their own.")
]
PublishedList = Annotated[
    Path | None,
    typer.Option(
        "--codelist",
        help="Published classification, or a bundle's codelist.csv: other codes by people are refused.",
        show_default="the model's codes of the file",
    ),
]
Results = Annotated[
    Path | None, typer.Option(help="Also write aggregates and figures as Markdown to this file. For public data only.")
]
Engine = Annotated[
    str,
    typer.Option(
        envvar="AUTOCODER_ENGINE",
        show_envvar=False,
        help="Who computes the parts of large stages: a number of processes here, or a cluster at an address such as "
        "tls://host:8786.",
        show_default="$AUTOCODER_ENGINE, or this process",
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        help="What the columns begin with, of a table coded by several bundles: nature_.", show_default="none"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


_READING = {"skip": "skip-rows", "bad_rows": "on-bad-row"}
"""Options with another name than the setting of the reader."""
_reading = partial(typer.Option, rich_help_panel="Reading")


@dataclass(frozen=True)
class ReadingOptions:
    """Says how tables are read, where what they look like is not what they are."""

    separator: Annotated[
        str | None, _reading(help="Separator: one character, or tab.", show_default="that by which rows fit")
    ] = None
    quotes: Annotated[
        Literal["double", "backslash", "none"] | None,
        _reading(help='"" or \\" inside a quoted cell, or quotes as text.', show_default="by looking"),
    ] = None
    encoding: Annotated[str | None, _reading(help="Encoding.", show_default="utf-8, or cp1252")] = None
    sheet: Annotated[str | None, _reading(help="Sheet of a workbook.", show_default="the only one")] = None
    skip_rows: Annotated[int | None, _reading(min=0, help="Lines above the header.", show_default="titles alone")] = (
        None
    )
    names: Annotated[
        str | None, _reading(help="Columns of a file without a header, with commas.", show_default="its first row")
    ] = None
    missing: Annotated[
        list[str] | None, _reading(help="Mark of a missing value; repeatable.", show_default="NA, NULL, nan, . …")
    ] = None
    on_bad_row: Annotated[
        Literal["refuse", "skip"] | None, _reading(help="Refuse a file with a bad row, or skip and count it.")
    ] = None

    @property
    def named_reading(self) -> dict[str, Any]:
        """Returns the settings that were given, by the names of `ReadOptions`."""
        given = {
            "separator": self.separator,
            "quotes": self.quotes,
            "encoding": self.encoding,
            "sheet": self.sheet,
            "skip": self.skip_rows,
            "names": None if self.names is None else [name.strip() for name in self.names.split(",")],
            "missing": self.missing or None,
            "bad_rows": self.on_bad_row,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def read(self) -> ReadOptions:
        """Returns the settings of the reader; refuses one that it does not know."""
        from storage.tables.options import AS_IT_LOOKS, ReadOptions

        if not self.named_reading:
            return AS_IT_LOOKS
        try:
            return ReadOptions(**self.named_reading)
        except ValueError as error:
            faults = getattr(error, "errors", lambda **_: [])(include_input=False, include_url=False)
            problem = "; ".join(
                f"--{_READING.get(str(fault['loc'][0]), fault['loc'][0])}: {fault['msg'].removeprefix('Value error, ')}"
                for fault in faults
            )
        raise InputError(problem)


@dataclass(frozen=True)
class RunOptions(ReadingOptions):
    """Holds records, method and workspace of a run."""

    profile: Annotated[
        str | None,
        typer.Option(
            help="Required without a plan: formal (a proven epsilon, any records; start here), osha-formal, "
            "osha-formal-lora, "
            "osha-head and paper (estimated epsilon), demo-formal, demo, or a YAML file.",
            show_default=False,
        ),
    ] = None
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Records: CSV, XLSX, ODS, Parquet or JSON, also packed; repeatable for files of one layout."),
    ] = None
    codelist: Annotated[
        list[Path] | None,
        typer.Option(help="Classification: CSV or XLSX with codes and titles; of several --label one each, in order."),
    ] = None
    codelist_columns: Annotated[
        str | None, typer.Option(help="Its columns CODE,TITLE.", show_default="code and title, or with these words")
    ] = None
    text: Annotated[
        list[str] | None, typer.Option(help="Text column; may be repeated.", show_default="the profile's")
    ] = None
    label: Annotated[
        list[str] | None,
        typer.Option(help="Column of the code; `retrain` takes several, a release each.", show_default="the profile's"),
    ] = None
    date: Annotated[
        str | None, typer.Option(help='Column of the date, for cohorts; "" for none.', show_default="the profile's")
    ] = None
    population: Annotated[
        str | None,
        typer.Option(
            help="Name of the population that the records describe; it owns the budget.", show_default="the profile's"
        ),
    ] = None
    classification: Annotated[
        str | None,
        typer.Option(help='Classification of the code list, such as SOC; "" for none.', show_default="the profile's"),
    ] = None
    classification_version: Annotated[
        str | None, typer.Option(help="Version of it, such as 2010.", show_default="the profile's")
    ] = None
    prior: Annotated[
        Literal["none", "titles"] | None,
        typer.Option(
            help="Start of the heads: titles of the code list, which cost no epsilon, or random.",
            show_default="the profile's",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any parameter of retrain: key=value, such as fit.adamw.epochs=3. May be repeated."),
    ] = None
    home: Home = None
    device: Device = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"] | None,
        typer.Option(
            help="Precision of features, training and risk passes; auto: bfloat16 where the processor supports it.",
            show_default="the profile's, float32",
        ),
    ] = None

    @property
    def profile_name(self) -> str:
        """Returns the profile, which must be given: every one makes another claim, so none is the default."""
        if self.profile is None:
            raise InputError(
                "--profile: missing. Choose formal (a proven epsilon; start here), osha-head (SWAG-PPM, whose "
                "epsilon is an estimate that audits refuted), demo-formal (made-up reports), or another of --help."
            )
        return self.profile

    def _require_inputs(self) -> None:
        """Refuse a wrong workspace, missing files and a missing profile, before the imports, which take seconds."""
        home_of(self.home)
        for option, files in (("--data", self.data), ("--codelist", self.codelist)):
            for file in files or ():
                require_readable(option, file)
        _ = self.profile_name

    def parameters(self, *more: str) -> RetrainParameters:
        """Returns the parameters from profile, options, settings and `more`, in rising precedence."""
        self._require_inputs()
        if len(self.label or ()) > 1 or len(self.codelist or ()) > 1:
            raise InputError("--label and --codelist: this takes one column of codes. Give each once.")

        from flows.commands.profiles import parameters

        more_settings = [] if self.prior is None else [f"model.prior={self.prior}"]
        more_settings += [] if self.precision is None else [f"model.precision={self.precision}"]
        settings = [*(self.settings or []), *more_settings, *more]
        named = {
            "text": self.text or None,
            "label": self.label[0] if self.label else None,
            "date": self.date,
            "population": self.population,
            "classification": self.classification,
            "classification-version": self.classification_version,
            "codelist-columns": self.codelist_columns and [one.strip() for one in self.codelist_columns.split(",")],
        }
        named |= {_READING.get(name, name): value for name, value in self.named_reading.items()}
        codelist = self.codelist[0] if self.codelist else None
        chosen = parameters(self.profile_name, settings, data=self.data, codelist=codelist, named=named)
        if all(file.is_file() for file in chosen.data.sources):
            from storage.ingest import check_source

            check_source(chosen.data.sources, chosen.data.ingest, chosen.codelist_path)  # before what is slow to import
        return chosen

    def each_label(self) -> list[RunOptions]:
        """Returns the options of each column of codes, which know of the others: their texts are encoded together.

        Raises:
            InputError: a column is named twice, or there are code lists for some columns alone.
        """
        columns, lists = self.label or [], self.codelist or []
        if len(columns) < 2:
            return [self]
        if len(set(columns)) < len(columns):
            raise InputError("--label: a column is named twice. Name each once.")
        if lists and len(lists) != len(columns):
            raise InputError(f"--codelist: {len(lists)} lists for {len(columns)} --label. Give one for each, in order.")
        together = dict(zip(columns, map(str, lists) if lists else [None] * len(columns), strict=True))
        settings = [*(self.settings or []), f"data.labels={json.dumps(together, ensure_ascii=False)}"]
        return [
            replace(self, label=[column], codelist=lists[at : at + 1] or None, settings=settings)
            for at, column in enumerate(columns)
        ]

    @property
    def formal(self) -> bool:
        """Checks that the profile or a setting makes a formal release."""
        self._require_inputs()

        from flows.commands.profiles import apply_settings, load_profile

        return bool(apply_settings(load_profile(self.profile_name), self.settings or []).get("formal"))

    def context(self, **fields: Any) -> Context:
        """Returns the context of the run."""
        home = home_of(self.home)
        configure_prefect()
        from tasks.running.stage import Context

        return Context(home=str(home), device=self.device, **fields)


@dataclass(frozen=True)
class LedgerOptions:
    """Selects an existing ledger."""

    home: Home = None
    ledger_url: LedgerUrl = None

    @property
    def workspace(self) -> Workspace:
        """Returns the workspace of `home`."""
        return Workspace(home_of(self.home))

    @property
    def url(self) -> str:
        """Returns the URL of the option, the environment, or the workspace."""
        return self.ledger_url or os.environ.get("AUTOCODER_LEDGER_URL") or self.workspace.ledger_url

    def journals(self) -> Sequence[Journal]:
        """Returns the anchors of the workspace and of the witness; none for a ledger named by --ledger-url."""
        from storage.ledger.journal import journals_of

        has_journals = self.ledger_url is None and (
            self.workspace.private.is_dir() or self.url == self.workspace.ledger_url
        )
        return journals_of(self.workspace) if has_journals else ()

    def journal_heads(self) -> list[Head]:
        """Returns their newest marks as heads that the ledger must contain."""
        from storage.ledger.heads import state_head

        marks = [mark for journal in self.journals() if (mark := journal.last()) is not None]
        return [state_head(n, h) for mark in marks for n, h in ((1, mark.ledger), (mark.sequence, mark.hash))]

    def open(self) -> Ledger:
        """Open the ledger; never create one."""
        from storage.ledger import Ledger

        return Ledger.require_existing(self.url)

    def open_to_sign(self) -> Ledger:
        """Opens the ledger with the key of this machine, or of the workspace, to add rows that are signed."""
        from storage.bundle.seal import release_key
        from storage.ledger import Ledger

        Ledger.require_existing(self.url)
        return Ledger.open(self.url, journals=self.journals(), key=release_key(self.workspace))


def select_ledger(workspace: Path, url: str | None) -> tuple[Context, LedgerParameters]:
    """Returns the context of a workspace and the settings of its ledger, with Prefect configured."""
    configure_prefect()
    from tasks.parameters import LedgerParameters
    from tasks.running.stage import Context

    return Context(home=str(workspace)), LedgerParameters(ledger_url=url)


def home_of_plan(plan: Path, home: Path | None) -> Path:
    """Returns the workspace of a plan: the option, or the one that contains the plan.

    Refuses a plan that cannot be read, before anything large is imported.
    """
    try:
        json.loads(plan.expanduser().read_bytes())
    except OSError as error:
        raise InputError(f"plan {plan}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"plan {plan} is not a release plan: file: Invalid JSON") from None
    return home_of(home) if home else workspace_of(plan)


def require_plan_or_records(run: RunOptions) -> None:
    """Require records of a command without a plan, by an option, a setting or the profile."""
    from flows.commands.profiles import apply_settings, load_profile

    home_of(run.home)  # a wrong workspace is reported first
    content = {} if run.profile is None else load_profile(run.profile)
    section = apply_settings(content, run.settings or []).get("data")
    if run.data is None and not (isinstance(section, dict) and section.get("source")):
        raise InputError("PLAN: missing. Name the plan of a retrain, or give its records by --data.")


def refuse_with_plan(*groups: Any, **single: object) -> None:
    """Refuse options that a plan replaces."""
    values = [
        (option.name, getattr(group, option.name), option.default) for group in groups for option in fields(group)
    ]
    values += [(name, value, None) for name, value in single.items()]
    for name, value, default in values:
        if name not in ("home", "device") and value != default:
            option = {"settings": "set", "target_epsilon": "epsilon"}.get(name, name.replace("_", "-"))
            raise InputError(f"--{option}: a plan has its own settings. Leave out the option, or the plan.")


ESTIMATED = (
    "note: this ε is an estimate for these records and no guarantee; audits have refuted such claims. "
    "A guarantee: --profile formal"
)
"""One line about the kind of a claim that is not proven."""


@dataclass(frozen=True)
class OutputOptions:
    """Writes the answer on stdout and progress on stderr."""

    as_json: AsJson = False
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", help="Every stage by its name, with all its figures.")] = False

    def progress(self, *, bars: bool = True) -> ConsoleListener:
        """Returns a listener for the stages of its block; without `bars` it shows only their ends."""
        return ConsoleListener(quiet=self.quiet, bars=bars, verbose=self.verbose)

    def warn(self, sentences: Sequence[str]) -> None:
        """Print warnings on stderr."""
        for sentence in sentences:
            say(f"warning: {sentence}", err=True)

    def note_estimate(self, guarantee_kind: str) -> None:
        """Print on stderr what an estimated claim is, and how to make one that is proven."""
        if guarantee_kind == "asymptotic-local":
            say(ESTIMATED, err=True)

    def answer(self, result: BaseModel, text: str) -> None:
        """Print the result as JSON with --json, otherwise the text."""
        say(result.model_dump_json(indent=2) if self.as_json else text)


def listed_codes(codelist: Path | None) -> list[str]:
    """Returns the codes of a list; none without one."""
    from storage.codelist import read_codelist

    return [] if codelist is None else [code.code for code in read_codelist(codelist.expanduser(), option="--codelist")]


def require_readable(option: str, file: Path) -> None:
    """Refuse a file that does not exist, before anything large is imported."""
    if not file.expanduser().exists():
        raise InputError(f"{option}: the file {file} does not exist")


def require_figure(file: Path) -> None:
    """Refuse before work starts a figure of --plot that could not be written."""
    if file.suffix not in {".png", ".svg", ".pdf"}:
        raise InputError(f"--plot: {file.name} must end in .png, .svg or .pdf")
    require_writable("--plot", file)


def require_writable(option: str, file: Path) -> None:
    """Check before work starts that the file of an option can be written.

    Raises:
        InputError: its folder does not exist or is closed to this user, it is a folder itself, or no UTF-8.
    """
    if not file.parent.is_dir():
        raise InputError(f"{option}: the folder {file.parent} does not exist")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise InputError(f"{option}: the folder {file.parent} cannot be written to. Name another.")
    if file.is_dir():
        raise InputError(f"{option}: {file} is a folder. Name a file.")
    try:
        str(file).encode()
    except UnicodeEncodeError:  # the libraries that write tables take no such path
        raise InputError(f"{option}: {file} is not UTF-8. Name another file.") from None


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Returns the command for typer: groups become options, and paragraphs of its help one line each."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    spread: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            more_settings = get_type_hints(groups[name], include_extras=True)
            options = [(option.name, option.default, more_settings[option.name]) for option in fields(groups[name])]
        else:
            options = [(name, parameter.default, hints[name])]
        spread += [
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
            values[name] = group(**{option.name: values.pop(option.name) for option in fields(group)})
        command(**values)

    flat.__signature__ = inspect.Signature(spread)  # pyrefly: ignore[missing-attribute]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in spread}
    flat.__doc__ = unwrap(command.__doc__ or "")
    return flat


def unwrap(text: str) -> str:
    """Joins the lines of each paragraph, so that a terminal wraps it once; indented examples stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else part.replace("\n", " ") for part in paragraphs)
