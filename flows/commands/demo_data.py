"""`autocoder demo-data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo_data(
    out: Annotated[Path, typer.Option("--out", help="Folder to write into.")] = Path("demo-data"),
    records: Annotated[int, typer.Option("--records", min=200, max=10_000_000, help="Narratives.")] = 1800,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same file.")] = 7,
) -> None:
    """Write invented injury narratives in OSHA's column layout, with their code list.

    Over 40 codes with a long tail, spelling noise, ambiguous and mislabelled cases, three years of dates.
    """
    from storage.demo_data import write_demo_data

    written = write_demo_data(out, records=records, seed=seed)
    typer.echo(f"{written.csv}\n{written.codelist}")
