"""Defines `autocoder drift`: compares codes and scores of a period with a reference."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from storage.errors import InputError
from tasks.running.failures import private_errors


def drift(
    coded: Annotated[Path, typer.Argument(help="Table of a period, from `autocoder code`.")],
    reference: Annotated[
        Path | None, typer.Option(help="Table of an earlier period, coded with the same bundle.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="In place of --reference: golden texts of this bundle (titles of its code list); rough."),
    ] = None,
    prefix: options.Prefix = "",
    plot: Annotated[Path | None, typer.Option(help="Also draw a figure: .png, .svg or .pdf.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare codes and scores of a period with a reference; the first line is the verdict.

    Exits with 3 for `drift`, with 0 otherwise.

    Examples

      autocoder drift 2026q3.csv --reference 2026q2.csv --plot drift.png

      autocoder drift 2026q3.parquet --bundle bundles/3f2a9c41d07b65e8 --json
    """
    if (reference is None) == (bundle is None):
        raise InputError("no reference, or two. Give --reference or --bundle.")
    if plot is not None:
        options.require_figure(plot)
    with private_errors("drift"):
        from storage.bundle.archive import open_folder
        from tasks.coding import drift as measure

        now = measure.read_period(coded, "CODED", prefix=prefix)
        if bundle is not None:
            with open_folder(bundle.expanduser()) as folder:
                before = measure.golden_period(folder, temperature=now.temperature)
        else:
            before = measure.read_period(reference or Path(), "--reference", prefix=prefix)
        result = measure.compare(now, before)
        if plot is not None:
            measure.plot(now, before, result, plot)
    if as_json:
        say(json.dumps(asdict(result), indent=2))
    else:
        say(result.line)
        say(f"{result.rows:,} rows against {result.reference_rows:,}; largest changes by code:")
        titles = measure.titles_of(coded, prefix)
        for code, was, share in result.moved:
            say(f"  {code:<12} {was:6.1%} -> {share:6.1%}  {titles.get(code, '')}".rstrip())
        if bundle is not None:
            say("The reference is titles of the code list: a difference from them does not show drift over time.")
    if result.verdict == "drift":
        raise typer.Exit(3)
