"""Options that several commands have, each written once: name, help and default text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Data = Annotated[
    Path | None, typer.Option("--data", help="Records: CSV, ZIP holding one CSV, or Parquet.", show_default=False)
]
Codelist = Annotated[
    Path | None,
    typer.Option("--codelist", help="Published classification, CSV with code and title.", show_default=False),
]
Profile = Annotated[
    str, typer.Option("--profile", help="demo, osha-head, paper, table, images, or the path of a YAML file.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any parameter of retrain: key=value, such as fit.adamw.epochs=3. May be repeated."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Where to compute; auto: CUDA where there is a GPU.")
]
Home = Annotated[
    Path | None, typer.Option("--home", help="Workspace folder. [default: $AUTOCODER_HOME or ./workspace]")
]
PlansHome = Annotated[Path | None, typer.Option("--home", help="Workspace folder. [default: the plan's own]")]
Plan = Annotated[Path, typer.Argument(help="Plan that retrain or compare wrote (private/plans/*.json).")]
LedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger-url", help="Ledger's SQLAlchemy URL without a password. [default: the workspace's]"),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        help="Also write aggregates and figures as Markdown to this file. For public data only.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


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
