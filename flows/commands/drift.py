"""`autocoder drift`: whether a period's codes and scores still look like the reference's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say


def drift(
    coded: Annotated[Path, typer.Argument(help="Table of a period, from `autocoder code`.")],
    reference: Annotated[
        Path | None, typer.Option(help="Table of an earlier period, coded with the same bundle.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="In place of a reference: the bundle's golden texts, titles of its code list: rough."),
    ] = None,
    field: Annotated[str, typer.Option(help="Of several fields only this one.", show_default="all of them")] = "",
    plot: Annotated[Path | None, typer.Option(help="Also draw it: .png, .svg or .pdf.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare a period's codes and scores with a reference period; the first line is the verdict, of each field where
    there are several.

    Exit code 3 for `drift`, 0 otherwise.

    [bold]Examples[/bold]

      autocoder drift 2026q3.csv --reference 2026q2.csv --plot drift.png

      autocoder drift 2026q3.parquet --bundle bundles/3f2a9c41d07b65e8 --json
    """
    from storage.errors import InputError

    if (reference is None) == (bundle is None):
        raise InputError("give --reference or --bundle")
    if plot is not None and plot.suffix not in {".png", ".svg", ".pdf"}:
        raise InputError(f"--plot: {plot.name} ends in none of .png, .svg, .pdf")
    if plot is not None:
        options.require_place("--plot", plot)
    from tasks.running.failures import private_errors

    with private_errors("drift"):
        from storage.bundle.archive import opened
        from tasks.coding import drift as measure

        fields = measure.fields_in(coded, "CODED")
        if plot is not None and len(fields) > 1 and not field:
            raise InputError(f"--plot: it draws one field; name it with --field: {', '.join(fields)}")
        if field and field not in fields:
            raise InputError(f"--field: the table was coded in {', '.join(filter(None, fields)) or 'one field'}")
        chosen = (field,) if field else fields
        golden, periods = {}, {name: measure.read_period(coded, "CODED", field=name) for name in chosen}
        if bundle is not None:
            with opened(bundle.expanduser()) as folder:
                golden = measure.golden_periods(folder, "--bundle", like=periods)
            if missing := [name for name in chosen if name not in golden]:
                raise InputError(f"--bundle: it does not code {missing[0] or 'one field alone'}")
        found = {}
        for name in chosen:
            now = periods[name]
            before = golden.get(name) or measure.read_period(reference or Path(), "--reference", field=name)
            found[name] = measure.compare(now, before)
            if plot is not None:
                measure.plot(now, before, found[name], plot)
    if as_json:
        told = {name: one.as_dict() for name, one in found.items()}
        say(json.dumps(told.get("", told), indent=2))
    else:
        for name, one in found.items():
            of = f"{name}: " if name else ""
            say(f"{of}{one.line}")
            say(f"{of}{one.rows:,} rows against {one.reference_rows:,}; codes that moved most:")
            for code, was, share in one.moved:
                say(f"  {code:<12} {was:6.1%} -> {share:6.1%}")
        if bundle is not None:
            say("The reference is titles of the code list: a difference from them is no drift over time.")
    if any(one.verdict == "drift" for one in found.values()):
        raise typer.Exit(3)
