"""Defines `autocoder estimate`: agreement and counts by code, from a coded table
and a manually coded sample.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from flows.commands import file_checks, options
from flows.commands.layout import Console
from flows.commands.terminal import say
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from tasks.coding.estimates import Estimates, Interval
    from tasks.coding.quality import Agreement

_SHOWN = 15


def estimate(
    coded: Annotated[Path, typer.Argument(help="Table that `autocoder code` wrote.")],
    sample: Annotated[
        Path, typer.Option(help="Sample from `autocoder sample`, with human_code filled in.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Table to write: .csv, .parquet or .jsonl.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="Columns that form groups, separated by commas: quarter,state.")
    ] = "",
    plot: Annotated[
        Path | None, typer.Option(help="Also plot the largest codes: .png, .svg or .pdf.")
    ] = None,
    codelist: options.PublishedList = None,
    allow_unlisted: options.AllowUnlisted = False,
    prefix: options.Prefix = "",
    read: options.Read = None,
    read_codelist: options.ReadCodelist = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    r"""Measure the agreement of people and model, and estimate the counts of codes, with 95%
    intervals.

    The model's own counts are biased, because its errors do not cancel. A random sample coded
    manually corrects them and shows how far off the result may be. The model's codes of all rows
    make the result more exact than the sample alone. Codes with fewer than five rows in the sample
    get no estimate. The table contains the counts of one file, so keep it as confidential as that
    file until you have applied your disclosure rules.

    Examples

      autocoder sample coded.csv --out sample.csv --rows 400

      autocoder estimate coded.csv --sample sample.csv --by quarter,state \
          --out counts.csv --plot counts.png
    """
    reading = options.read_options(read)
    if plot is not None:
        file_checks.require_figure(plot)
    for option, file in (("--out", out), ("--plot", plot)):
        if file is not None:
            file_checks.require_writable(option, file, overwrite=overwrite)
    with private_errors("estimate"):
        from tasks.coding import estimates as measure
        from tasks.coding.quality import agreement, read_double_coded

        table = read_double_coded(
            coded,
            sample,
            by=[name.strip() for name in by.split(",") if name.strip()],
            prefix=prefix,
            listed=options.listed_codes(codelist, read_codelist),
            allow_unlisted=allow_unlisted,
            read=reading,
        )
        agreed, counted = agreement(table), measure.estimate(table)
        if out is not None:
            measure.write_table(counted, out)
        if plot is not None:
            measure.plot(counted, plot)
    if as_json:
        say(json.dumps({"agreement": agreed.as_dict(), **counted.as_dict()}, indent=2))
    else:
        _show_agreement(agreed)
        _show(counted)
    say(counted.people, err=True)
    for line in counted.warnings():
        say(f"warning: {line}", err=True)


def _show_agreement(agreed: Agreement) -> None:
    low, high = agreed.share_interval
    say(f"same code: {agreed.share:.1%} of the table, 95% interval {low:.1%} to {high:.1%}")
    if agreed.kappa is None or agreed.kappa_interval is None:
        say("Cohen's kappa: undefined, because both gave one code throughout")
    else:
        low, high = agreed.kappa_interval
        say(f"Cohen's kappa: {agreed.kappa:.3f}, 95% interval {low:.3f} to {high:.3f}")


def _show(counted: Estimates) -> None:
    largest = sorted(counted.totals, key=lambda total: -total.machine)
    title = (
        f"{counted.sampled:,} rows coded manually of {largest[0].rows if largest else 0:,}; "
        "95% intervals"
    )
    table = Table(title=title)
    for name in ("code", "model's count", "estimate"):
        table.add_column(name, justify="left" if name == "code" else "right")
    for total in largest[:_SHOWN]:
        table.add_row(total.code, f"{total.machine:,}", _interval(total.estimate))
    Console().print(table)
    if len(largest) > _SHOWN:
        say(f"{len(largest) - _SHOWN} more codes: use --out FILE to see them")


def _interval(interval: Interval | None) -> str:
    return (
        "none"
        if interval is None
        else f"{interval.value:,.0f} ({interval.low:,.0f} to {interval.high:,.0f})"
    )
