"""Defines `autocoder demo-data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from storage.errors import InputError


def demo_data(
    output: options.OutputOptions,
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("demo-data"),
    records: Annotated[int, typer.Option(min=200, max=10_000_000, help="Narratives.")] = 1800,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same file.")] = 7,
) -> None:
    """Write invented injury narratives in OSHA's column layout, with their code list.

    Over 40 codes with a long tail, spelling noise, ambiguous and mislabelled cases, three years of dates.

    Example

      autocoder demo-data --out demo --records 5000
    """
    from storage.demo_data import write_demo_data

    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file. Name a folder.")
    with output.progress() as console:
        written = write_demo_data(out, records=records, seed=seed, progress=console.bar("writing narratives"))
    if output.as_json:
        say(json.dumps({"csv": str(written.csv), "codelist": str(written.codelist), "records": records}))
    else:
        say(f"{written.csv}\n{written.codelist}")
