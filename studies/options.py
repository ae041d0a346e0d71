"""Options that the studies' commands share, and parsing of comma-separated lists."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from mechanisms.errors import MechanismError

FOLDER = (
    "folder with the eight sets of Rosenblatt et al. as CSV, the label (0 or 1) in column `label`"
)
Out = Annotated[Path, typer.Option(help="folder for the results; a stopped run resumes there")]
Seeds = Annotated[int, typer.Option(help="number of splits and starts, from seed 0 on")]
Data = Annotated[Path, typer.Option(help=FOLDER)]
Sets = Annotated[str, typer.Option(help="names by comma")]
Epsilons = Annotated[str, typer.Option(help="numbers by comma")]
NarrativeFile = Annotated[Path | None, typer.Option(help="CSV of narratives")]
CodeList = Annotated[Path | None, typer.Option(help="CSV of code and title")]
Text = Annotated[str, typer.Option(help="column of the narrative")]
Label = Annotated[str, typer.Option(help="column of the code")]


def names(given: str, choices: Iterable[str], option: str) -> list[str]:
    """Returns the names in an option's comma-separated list; `all` stands for all choices."""
    all_names = list(choices)
    chosen = all_names if given == "all" else list(dict.fromkeys(given.split(",")))
    if unknown := [name for name in chosen if name not in all_names]:
        raise MechanismError(
            f"{option}: `{unknown[0]}` is unknown. Choose from {', '.join(all_names)}",
            kind="unknown-name",
            option=option,
        )
    return chosen


def numbers(given: str) -> list[float]:
    return [int(value) if value.is_integer() else value for value in map(float, given.split(","))]
