"""Defines `autocoder sample`: rows of a coded table for people to code again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import command_line, say
from tasks.running.failures import private_errors


def sample(
    coded: Annotated[Path, typer.Argument(help="Table that `autocoder code` wrote.")],
    out: Annotated[Path, typer.Option(help="Sample to write: .csv, .parquet or .jsonl.")],
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Text column for the person who codes; repeatable.",
            show_default="the one with the longest texts",
        ),
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.0001, max=1, help="Share of all rows to select.")
    ] = 0.05,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=(
                "Number of rows to select, instead of --share. Rows with low scores are "
                "selected more often."
            ),
        ),
    ] = None,
    sensitive: Annotated[
        list[str] | None, typer.Option(help="Code of which all rows are selected; repeatable.")
    ] = None,
    prefix: options.Prefix = "",
    read: options.Read = None,
    as_json: options.AsJson = False,
) -> None:
    r"""Take a random sample of a coded table for people to code, without the model's codes.

    Each row has a weight, one over its chance of selection, for `autocoder estimate`. With --rows,
    rows with low scores are selected more often, because they affect the counts most (strata by
    code and score, Neyman's allocation).

    Examples

      autocoder sample coded.csv --out sample.csv --rows 400

      autocoder sample coded.csv --out sample.csv --share 0.05 --sensitive 1311
    """
    from tasks.coding.quality import draw, text_column

    reading = options.read_options(read)
    with private_errors("sample"):
        columns = text or [text_column(coded, prefix, reading)]
        drawn = draw(
            coded,
            out,
            columns=columns,
            seed=None,
            share=share,
            sensitive=sensitive or (),
            size=rows,
            prefix=prefix,
            read=reading,
        )
    if as_json:
        say(json.dumps(vars(drawn) | {"out": str(out), "columns": columns}))
        return
    say(
        f"{drawn.sampled:,} of {drawn.rows:,} rows in {out} ({drawn.sensitive:,} of sensitive "
        "codes), with the column "
        f"{' and '.join(columns)}"
    )
    say(f"to do: fill in the column {prefix}human_code")
    prefix_option = ("--prefix", prefix) if prefix else ()
    say(f"next: {command_line('estimate', coded, '--sample', out, *prefix_option)}")
