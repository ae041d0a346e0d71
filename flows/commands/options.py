"""Options that several commands have, each written once: name, help and default text; and groups of them.

A command takes a group as one parameter, a dataclass; `grouped` spreads it into the options that typer knows.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from flows.commands.terminal import say
from flows.server.settings import before_prefect, home_of, workspace_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from flows.commands.console import ConsoleListener
    from storage.bundle.trust import Trust
    from storage.ledger import Ledger
    from storage.ledger.heads import Head
    from storage.ledger.journal import Outside
    from storage.paths import Workspace
    from tasks.coding.coder import AnyCoder
    from tasks.parameters import RetrainParameters
    from tasks.running.stage import Context

Data = Annotated[Path | None, typer.Option("--data", help="Records: CSV, ZIP holding one CSV, Parquet or JSON Lines.")]
Codelist = Annotated[Path | None, typer.Option("--codelist", help="Published classification, CSV with code and title.")]
Text = Annotated[
    list[str] | None,
    typer.Option("--text", help="Column that the coder reads; repeated, several.", show_default="the profile's"),
]
Label = Annotated[str | None, typer.Option("--label", help="Column of the code.", show_default="the profile's")]
Date = Annotated[
    str | None,
    typer.Option("--date", help='Column that tells the cohort; "" for none.', show_default="the profile's"),
]
Population = Annotated[
    str | None,
    typer.Option("--population", help="Whose records these are: budgets are theirs.", show_default="the profile's"),
]
Classification = Annotated[
    str | None,
    typer.Option(
        "--classification",
        help='Name of what the code list is of, such as SOC; "" for none.',
        show_default="the profile's",
    ),
]
ClassificationVersion = Annotated[
    str | None, typer.Option("--classification-version", help="Such as 2010.", show_default="the profile's")
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        help="demo, demo-formal, osha-formal, osha-formal-lora, osha-head, osha-fields, paper, table, images, digits, "
        "or a YAML file.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any parameter of retrain: key=value, such as fit.adamw.epochs=3. May be repeated."),
]
Prior = Annotated[
    Literal["none", "titles"] | None,
    typer.Option(
        "--prior",
        help="Where heads start: at the titles of the code list, which costs nothing, or at random.",
        show_default="the profile's",
    ),
]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(
        "--precision",
        help="Of the encoder's passes; auto: bfloat16 where the processor has instructions for it and the bundle's "
        "golden texts get the codes of float32 so.",
    ),
]
ModelPrecision = Annotated[
    Literal["auto", "float32", "bfloat16"] | None,
    typer.Option(
        "--precision",
        help="Of features, training steps and risk passes; auto: bfloat16 where the processor has instructions for it.",
        show_default="the profile's, float32",
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Where to compute; auto: CUDA where there is a GPU.")
]
Home = Annotated[
    Path | None, typer.Option("--home", help="Workspace folder.", show_default="$AUTOCODER_HOME or ./workspace")
]
PlansHome = Annotated[Path | None, typer.Option("--home", help="Workspace folder.", show_default="the plan's own")]
Plan = Annotated[Path, typer.Argument(help="Plan that retrain or compare wrote (private/plans/*.json).")]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger-url",
        help="Ledger's SQLAlchemy URL without a password.",
        show_default="$AUTOCODER_LEDGER_URL or the workspace's",
    ),
]
Requester = Annotated[str, typer.Option("--requester", help="Who does this; kept in the ledger.")]
Results = Annotated[
    Path | None,
    typer.Option("--results", help="Also write aggregates and figures as Markdown to this file. For public data only."),
]
Shards = Annotated[
    int,
    typer.Option(
        "--shards",
        min=1,
        max=10_000,
        help="Parts of each pass over draws, and of an audit's reruns, that workers compute; needs PREFECT_API_URL and "
        "`autocoder deploy`.",
    ),
]
Revocations = Annotated[
    Path | None, typer.Option("--revocations", help="The agency's signed list of revoked releases.")
]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="Root of the agency's keys (N.root.json), had once from a safe place."),
]
Repository = Annotated[
    Path | None,
    typer.Option("--repository", help="With --root: folder from the agency with newer roots and its signed list."),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", help="With --root: where the newest list that was seen is remembered.", show_default="~/.local/state"
    ),
]
Thresholds = Annotated[
    list[Path] | None,
    typer.Option("--thresholds", help="File from `autocoder calibrate`, in place of the bundle's own; one a field."),
]
Target = Annotated[
    str, typer.Option("--target-epsilon", help="Of the rivals: a number, or `match` what SWAG-PPM came out with.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


@dataclass(frozen=True)
class RunOptions:
    """What a run is made of and where it works."""

    data: Data = None
    codelist: Codelist = None
    text: Text = None
    label: Label = None
    date: Date = None
    population: Population = None
    classification: Classification = None
    classification_version: ClassificationVersion = None
    profile: Profile = "osha-head"
    prior: Prior = None
    settings: Settings = None
    home: Home = None
    device: Device = "auto"
    precision: ModelPrecision = None

    def parameters(self, *more: str) -> RetrainParameters:
        """Profile, options and settings in rising precedence; `more` are settings above them all."""
        from flows.commands.profiles import parameters

        home_of(self.home)  # a wrong one is said before what is wrong with the parameters
        own = [] if self.prior is None else [f"model.prior={self.prior}"]
        own += [] if self.precision is None else [f"model.precision={self.precision}"]
        settings = [*(self.settings or []), *own, *more]
        named = {
            "text": self.text or None,
            "label": self.label,
            "date": self.date,
            "population": self.population,
            "classification": self.classification,
            "classification-version": self.classification_version,
        }
        return parameters(self.profile, settings, data=self.data, codelist=self.codelist, named=named)

    @property
    def formal(self) -> bool:
        """Whether the profile or a setting asks for a formal release."""
        from flows.commands.profiles import load_profile, override

        return bool(override(load_profile(self.profile), self.settings or []).get("formal"))

    def context(self, *, make_home: bool = True, **fields: Any) -> Context:
        """Where the run works; Prefect is imported by it, for the first time."""
        home = home_of(self.home)
        before_prefect(home, make_home=make_home)
        from tasks.running.stage import Context

        return Context(home=str(home), device=self.device, **fields)


@dataclass(frozen=True)
class BundleOptions:
    """The bundle that codes."""

    bundle: Annotated[
        Path | None,
        typer.Option(help="Bundle: folder or .tar.zst.", show_default="the newest release in the workspace"),
    ] = None
    home: Home = None
    allow_revoked: Annotated[
        bool, typer.Option("--allow-revoked", help="Use a bundle that was revoked in this workspace all the same.")
    ] = False

    def opened(self) -> AbstractContextManager[Path]:
        """Its folder, unpacked for as long as the block lasts where it is packed."""
        from storage.bundle.archive import opened
        from tasks.coding.coder import newest_bundle

        return opened(self.bundle.expanduser() if self.bundle is not None else newest_bundle(home_of(self.home)))

    def require_standing(self, coder: AnyCoder) -> None:
        """Refuse what was revoked in this workspace, unless it is wanted all the same.

        Raises:
            StorageError: it was, or the ledger that would know cannot be read.
        """
        from tasks.coding.coder import require_standing

        if not self.allow_revoked:
            otherwise = "name a newer one with --bundle, or give --allow-revoked"
            require_standing(coder, home_of(self.home), otherwise=otherwise)


@dataclass(frozen=True)
class LedgerOptions:
    """A ledger that is there already."""

    home: Home = None
    ledger_url: LedgerUrl = None

    @property
    def workspace(self) -> Workspace:
        """Of `home`."""
        from storage.paths import Workspace

        return Workspace(home_of(self.home))

    @property
    def url(self) -> str:
        """Of the option, else of this machine, else of the workspace."""
        return self.ledger_url or os.environ.get("AUTOCODER_LEDGER_URL") or self.workspace.ledger_url

    def journals(self) -> Sequence[Outside]:
        """What the workspace and the machine's witness keep of their ledger; of one named by --ledger-url nothing."""
        from storage.ledger.journal import journals_of

        there = self.ledger_url is None and (self.workspace.private.is_dir() or self.url == self.workspace.ledger_url)
        return journals_of(self.workspace) if there else ()

    def kept_heads(self) -> list[Head]:
        """The newest of them as heads that the ledger must go through."""
        from storage.ledger.heads import state_head

        marks = [mark for journal in self.journals() if (mark := journal.last()) is not None]
        return [state_head(n, h) for mark in marks for n, h in ((1, mark.ledger), (mark.sequence, mark.hash))]

    def open(self) -> Ledger:
        """Make none where there is none."""
        from storage.ledger import Ledger

        return Ledger.existing(self.url)


def trust(root: Path | None, repository: Path | None, state: Path | None) -> Trust | None:
    """Whom a partner trusts by roles; None where it trusts a key or nobody.

    Raises:
        InputError: one of them is given without the others that it needs.
    """
    from storage.bundle.trust import Trust
    from storage.errors import InputError

    if (root is None) != (repository is None):
        raise InputError("--root and --repository go together: the agency's root, and the folder that it sent")
    if root is None or repository is None:
        if state is not None:
            raise InputError("--state: it remembers what was seen with --root")
        return None
    if not repository.expanduser().is_dir():
        raise InputError(f"--repository: no folder {repository}")
    return Trust(root.expanduser(), repository.expanduser(), state.expanduser() if state else None)


def plans_home(plan: Path, home: Path | None) -> Path:
    """The workspace of a plan: the option, or the one that the plan lies in."""
    return home_of(home) if home else workspace_of(plan)


def require_plan_or_records(run: RunOptions) -> None:
    """Without a plan a command takes records; who gave neither most often forgot the plan.

    Raises:
        InputError: neither an option, nor a setting, nor the profile names records.
    """
    from flows.commands.profiles import load_profile, override
    from storage.errors import InputError

    home_of(run.home)  # a wrong one is said first
    section = override(load_profile(run.profile), run.settings or []).get("data")
    if run.data is None and not (isinstance(section, dict) and section.get("source")):
        raise InputError("PLAN: name the plan that a retrain ended with; or, without one, its records by --data")


def refuse_beside_a_plan(*groups: Any, **single: object) -> None:
    """A plan says what is looked at; an option that says it too would be believed, and is not.

    Raises:
        InputError: names one that was given.
    """
    from storage.errors import InputError

    values = [
        (option.name, getattr(group, option.name), option.default) for group in groups for option in fields(group)
    ]
    values += [(name, value, None) for name, value in single.items()]
    for name, value, default in values:
        if name not in ("home", "device") and value != default:
            option = "set" if name == "settings" else name.replace("_", "-")
            raise InputError(
                f"--{option}: a plan is taken with what it was made with; leave the option out, or the plan"
            )


@dataclass(frozen=True)
class OutputOptions:
    """What the terminal gets: the answer on stdout, progress on stderr."""

    as_json: AsJson = False
    quiet: Quiet = False

    def progress(self, *, bars: bool = True) -> ConsoleListener:
        """Shows the stages of its block; without `bars` only their ends, for stages side by side."""
        from flows.commands.console import ConsoleListener

        return ConsoleListener(quiet=self.quiet, bars=bars)

    def warn(self, sentences: Sequence[str]) -> None:
        """What whoever ran the command has to know, on stderr."""
        for sentence in sentences:
            say(f"warning: {sentence}", err=True)

    def answer(self, result: BaseModel, text: str) -> None:
        """The result as JSON where that was asked for, else the text."""
        say(result.model_dump_json(indent=2) if self.as_json else text)


def require_place(option: str, file: Path) -> None:
    """Look, before work begins, whether the file that an option names can be written at its end.

    Raises:
        InputError: its folder is not there, or it is a folder itself.
    """
    from storage.errors import InputError

    if not file.parent.is_dir():
        raise InputError(f"{option}: no folder {file.parent}")
    if file.is_dir():
        raise InputError(f"{option}: {file} is a folder; name a file")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer wants it: each parameter that is a group spread into its options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    spread: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            own = get_type_hints(groups[name], include_extras=True)
            options = [(option.name, option.default, own[option.name]) for option in fields(groups[name])]
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

    flat.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in spread}
    return flat
