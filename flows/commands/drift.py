"""Defines `autocoder drift`: compares codes and scores of a period with a reference."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import count_of, say
from tasks.running.failures import private_errors


def drift(
    coded: Annotated[Path, typer.Argument(help="Table of a period, from `autocoder code`.")],
    reference: Annotated[
        Path, typer.Option(help="Table of an earlier period, coded with the same bundle.")
    ],
    prefix: options.Prefix = "",
    read: options.Read = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare codes and scores of a period with a reference; the first line is the verdict.

    It exits with 3 for `drift`, and with 0 otherwise.

    Examples

      autocoder drift 2026q3.csv --reference 2026q2.csv
    """
    reading = options.read_options(read)
    with private_errors("drift"):
        from tasks.coding import drift as measure

        now = measure.read_period(coded, "CODED", prefix=prefix, read=reading)
        result = measure.compare(
            now, measure.read_period(reference, "--reference", prefix=prefix, read=reading)
        )
    if as_json:
        say(json.dumps(asdict(result), indent=2))
    else:
        say(result.line)
        rows = count_of(result.rows, "row")
        say(f"{rows} against {result.reference_rows:,}; largest changes by code:")
        titles = now.titles or {}
        for code, was, share in result.moved:
            say(f"  {code:<12} {was:6.1%} -> {share:6.1%}  {titles.get(code, '')}".rstrip())
    if result.verdict == "drift":
        raise typer.Exit(3)
