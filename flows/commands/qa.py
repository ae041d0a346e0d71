"""Defines `autocoder qa`: a sample to code twice, and the agreement of human and model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from flows.commands import options
from flows.commands.next_steps import command_line
from flows.commands.terminal import Console, say
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from tasks.coding.quality import Agreement

app = typer.Typer(
    no_args_is_help=True, help="Have a sample of a coded table coded by a person, and compare.", rich_markup_mode="rich"
)


@app.command()
@options.expand_groups
def draw(
    coded: Annotated[Path, typer.Argument(help="Table that `autocoder code` wrote.")],
    out: Annotated[Path, typer.Option(help="Sample to write: .csv, .parquet or .jsonl.")],
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            help="Text column for the coder; may be repeated.",
            show_default="the one with the longest texts",
        ),
    ] = None,
    share: Annotated[float, typer.Option(min=0.0001, max=1, help="Share of all rows.")] = 0.05,
    sensitive: Annotated[
        list[str] | None,
        typer.Option(help="Code that is always sampled; may be repeated."),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="Hours of the human coders, in place of --share: strata by code and score, best allocation."
        ),
    ] = None,
    minutes_per_record: Annotated[float, typer.Option(min=0.01, help="Minutes to code a record, with --hours.")] = 3.0,
    prefix: options.Prefix = "",
    seed: Annotated[
        int | None, typer.Option(help="Seed that repeats a sample.", show_default="none: unpredictable")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    r"""Draw a random sample for double coding, without the model's codes.

    Each row has a weight, one over its chance to be drawn, for `qa agree` and `autocoder estimate`. With --hours, rows
    of low scores have more chance, since they say most about the counts (Neyman's allocation).

    Examples

      autocoder qa draw coded.csv --out sample.csv --share 0.05 --sensitive 1311

      autocoder qa draw coded.csv --out sample.csv --hours 20
    """
    from tasks.coding.quality import draw, text_column

    size = None if hours is None else int(hours * 60 / minutes_per_record)
    with private_errors("qa"):
        columns = column or [text_column(coded, prefix)]
        sample = draw(
            coded,
            out,
            columns=columns,
            seed=seed,
            share=share,
            sensitive=sensitive or (),
            size=size,
            prefix=prefix,
        )
    if as_json:
        say(json.dumps(vars(sample) | {"out": str(out), "columns": columns}))
    else:
        say(
            f"{sample.sampled:,} of {sample.rows:,} rows in {out} ({sample.sensitive:,} of sensitive codes), with the "
            f"column {' and '.join(columns)}"
        )
        say(f"to do: fill in the column {prefix}human_code")
        more = ("--prefix", prefix) if prefix else ()
        say(f"next: {command_line('qa', 'agree', coded, '--sample', out, *more)}")


@app.command()
@options.expand_groups
def agree(
    reading: options.ReadingOptions,
    coded: Annotated[Path, typer.Argument(help="The table that was sampled.")],
    sample: Annotated[Path, typer.Option(help="The sample, with human_code filled in.")],
    prefix: options.Prefix = "",
    codelist: options.PublishedList = None,
    allow_unlisted: options.AllowUnlisted = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare the human's codes with the model's: share, Cohen's kappa, codes.

    Examples

      autocoder qa agree coded.csv --sample sample.csv
    """
    from tasks.coding.quality import agreement, read_double_coded

    with private_errors("qa"):
        agreed = agreement(
            read_double_coded(
                coded,
                sample,
                prefix=prefix,
                listed=options.listed_codes(codelist),
                allow_unlisted=allow_unlisted,
                read=reading.read,
            )
        )
    if as_json:
        say(json.dumps(agreed.as_dict(), indent=2))
    else:
        _show(agreed)


def _show(agreed: Agreement) -> None:
    say(agreed.people)
    low, high = agreed.share_interval
    say(f"same code: {agreed.share:.1%} of the table, 95 % interval {low:.1%} to {high:.1%}")
    if agreed.kappa is None or agreed.kappa_interval is None:
        say("Cohen's kappa: not defined, both gave one code throughout")
    else:
        say(
            f"Cohen's kappa: {agreed.kappa:.3f}, 95 % interval {agreed.kappa_interval[0]:.3f} to "
            f"{agreed.kappa_interval[1]:.3f}"
        )
    table = Table(title=f"{agreed.rows:,} rows coded twice ({agreed.missing:,} came back without a code)")
    for name in ("code", "human", "model", "both", "F1"):
        table.add_column(name, justify="left" if name == "code" else "right")
    for code in agreed.codes:
        table.add_row(code.code, str(code.human), str(code.model), str(code.both), f"{code.f1:.2f}")
    Console().print(table)
