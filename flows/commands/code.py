"""`autocoder code`: codes for new narratives from a released bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.settings import home_of


def code(
    narratives: Annotated[
        list[str] | None, typer.Argument(help="Narratives, each in quotes.", show_default=False)
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="CSV of narratives.", show_default=False)] = None,
    column: Annotated[str, typer.Option("--column", help="Text column of --data.")] = "Final Narrative",
    out: Annotated[Path | None, typer.Option("--out", help="CSV to write; needed with --data.")] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Bundle folder. [default: the newest release in the workspace]")
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=50, help="Codes a narrative.")] = 1,
    home: Annotated[Path | None, typer.Option("--home", help="Workspace folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a narrative on stdout.")] = False,
) -> None:
    """Code narratives with a released model.

    [bold]Examples[/bold]

      autocoder code "Employee fell from a ladder and fractured his wrist."

      autocoder code --data new.csv --column Narrative --out coded.csv --top-k 3
    """
    from storage.errors import InputError

    if bool(narratives) == (data is not None):
        raise InputError("give narratives as arguments, or a file with --data")
    if data is not None and out is None:
        raise InputError("--out: name the CSV to write")
    from tasks.failures import private_errors

    with private_errors("code"):
        _code(narratives or [], data, column, out, bundle, top_k, home, as_json)


def _code(
    narratives: list[str],
    data: Path | None,
    column: str,
    out: Path | None,
    bundle: Path | None,
    top_k: int,
    home: Path | None,
    as_json: bool,
) -> None:
    from tasks.coding import Coder, code_file, newest_bundle

    folder = bundle.expanduser() if bundle is not None else newest_bundle(home_of(home))
    coder = Coder.open(folder)
    if data is not None and out is not None:
        rows = code_file(coder, data.expanduser(), out.expanduser(), column=column, top_k=top_k)
        typer.echo(json.dumps({"rows": rows, "out": str(out)}) if as_json else f"{rows:,} rows coded into {out}")
        return
    for text, answers in zip(narratives, coder.code(narratives, top_k=top_k), strict=True):
        if as_json:
            typer.echo(json.dumps({"bundle": coder.bundle, "codes": [answer.as_dict() for answer in answers]}))
            continue
        typer.echo(text if len(text) <= 100 else text[:97] + "...")
        for answer in answers:
            typer.echo(f"  {answer.code:<6} {answer.score:5.1%}  {answer.title}")
