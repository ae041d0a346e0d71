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
    field: Annotated[str, typer.Option(help="Compare only this field.", show_default="all of them")] = "",
    plot: Annotated[Path | None, typer.Option(help="Also draw a figure: .png, .svg or .pdf.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare codes and scores of a period with a reference; the first line (per field) is the verdict.

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

        fields = measure.fields_in(coded)
        if plot is not None and len(fields) > 1 and not field:
            raise InputError(f"--plot: a figure shows one field. Name it with --field: {', '.join(fields)}.")
        if field and field not in fields:
            raise InputError(
                f"--field: no field {field}. The table has {', '.join(filter(None, fields)) or 'one field only'}."
            )
        chosen = (field,) if field else fields
        golden, periods = {}, {name: measure.read_period(coded, "CODED", field=name) for name in chosen}
        if bundle is not None:
            with open_folder(bundle.expanduser()) as folder:
                golden = measure.golden_periods(folder, like=periods)
            if missing := [name for name in chosen if name not in golden]:
                raise InputError(f"--bundle: it does not code {missing[0] or 'one field alone'}")
        comparisons = {}
        for name in chosen:
            now = periods[name]
            before = golden.get(name) or measure.read_period(reference or Path(), "--reference", field=name)
            comparisons[name] = measure.compare(now, before)
            if plot is not None:
                measure.plot(now, before, comparisons[name], plot)
    if as_json:
        content = {name: asdict(one) for name, one in comparisons.items()}
        say(json.dumps(content.get("", content), indent=2))
    else:
        for name, one in comparisons.items():
            of = f"{name}: " if name else ""
            say(f"{of}{one.line}")
            say(f"{of}{one.rows:,} rows against {one.reference_rows:,}; largest changes by code:")
            titles = measure.titles_of(coded, name)
            for code, was, share in one.moved:
                say(f"  {code:<12} {was:6.1%} -> {share:6.1%}  {titles.get(code, '')}".rstrip())
        if bundle is not None:
            say("The reference is titles of the code list: a difference from them does not show drift over time.")
    if any(one.verdict == "drift" for one in comparisons.values()):
        raise typer.Exit(3)
