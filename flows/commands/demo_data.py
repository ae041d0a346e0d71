"""Defines `autocoder demo-data`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.console import ConsoleListener
from flows.commands.terminal import say
from storage.errors import Contradiction


def demo_data(
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("demo-data"),
    records: Annotated[
        int, typer.Option(min=200, max=10_000_000, help="Number of narratives.")
    ] = 1800,
) -> None:
    """Write synthetic injury narratives in OSHA's column layout, with their code list.

    The data have over 40 codes with a long tail, spelling noise, ambiguous and mislabelled cases,
    and three years of dates.

    Example

      autocoder demo-data --out demo --records 5000
    """
    from storage.demo_data import write_demo_data

    if out.exists() and not out.is_dir():
        raise Contradiction(f"--out: {out} is a file. Choose a folder.", kind="output-is-file")
    with ConsoleListener() as console:
        written = write_demo_data(
            out, records=records, seed=7, progress=console.bar("writing narratives")
        )
    say(f"{written.csv}\n{written.codelist}")
