"""Defines `autocoder calibrate`: temperature and thresholds from records coded by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import bundle_options, options
from flows.commands.console import ConsoleListener
from flows.commands.terminal import say
from storage.errors import InputError
from tasks.running.failures import private_errors


def calibrate(
    data: Annotated[Path, typer.Option(help="Coded records: CSV, Parquet or JSON Lines.")],
    out: Annotated[Path, typer.Option(help="File to write, for `autocoder code --thresholds`.")],
    released: bundle_options.BundleOptions,
    reading: options.ReadingOptions,
    label_column: Annotated[str, typer.Option("--label", help="The code that a person gave.")] = "Nature",
    column: Annotated[
        list[str] | None,
        typer.Option("--text", help="Text column; may be repeated.", show_default="Final Narrative"),
    ] = None,
    template: Annotated[str | None, typer.Option(help="Template that joins several columns.")] = None,
    name: Annotated[str, typer.Option(help="Description of the records, for readers.")] = "own coded records",
    accuracy: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01, max=0.999, help="Accuracy to find a score for; repeatable.", show_default="0.8, 0.9, 0.95"
        ),
    ] = None,
    allow_unlisted: options.AllowUnlisted = False,
    sets: Annotated[
        bool, typer.Option("--sets", help="Also find the limits of sets, for `autocoder code --coverage`.")
    ] = False,
) -> None:
    r"""Fit the scores of a bundle on records that you have coded, such as those of `autocoder qa`.

    The file depends on your records, so keep it as confidential as they are. Do not use records that the model was
    trained on: its scores would look too good. More records give more thresholds: 90 % takes some hundred records,
    95 % often thousands.

    Examples

      autocoder calibrate --data coded_by_hand.csv --label Nature \
          --out thresholds.json

      autocoder code --data new.csv --out coded.csv \
          --thresholds thresholds.json --accuracy 0.9

    With --sets, `autocoder code --coverage 0.9` gives each row the codes that hold the right one with that probability
    (split conformal prediction). It holds for rows exchangeable with your records: draw them at random from what you
    code.
    """
    options.require_writable("--out", out)
    if out.exists():
        raise InputError(f"--out: {out} exists. Name another file.")
    read = reading.read
    with private_errors("calibrate"):
        from storage.tables.narratives import Narratives
        from tasks.coding import calibrate as fitting
        from tasks.coding.coder import open_bundle

        columns, template = released.columns(column, template)
        with released.opened() as folder:
            coder = open_bundle(folder)
        released.require_not_revoked(coder)
        with ConsoleListener() as console:
            console.started("calibrate")
            fitted = fitting.calibrate(
                coder,
                data,
                Narratives(tuple(columns), template),
                out,
                label=label_column,
                name=name,
                targets=accuracy or (),
                sets=sets,
                allow_unlisted=allow_unlisted,
                read=read,
                report=lambda line: say(line, err=True),
            )
    say(f"{fitted['records']:,} records, temperature {fitted['temperature']}; written to {out}")
    for line in fitting.lines(fitted):
        say(f"  {line}")
