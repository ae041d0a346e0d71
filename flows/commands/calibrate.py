"""Defines `autocoder calibrate`: temperature and thresholds from records coded by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say


def calibrate(
    data: Annotated[Path, typer.Option(help="Coded records: CSV, Parquet or JSON Lines.")],
    out: Annotated[Path, typer.Option(help="File to write, for `autocoder code --thresholds`.")],
    released: options.BundleOptions,
    label_column: Annotated[str, typer.Option(help="The code that a person gave.")] = "Nature",
    field: Annotated[
        str, typer.Option(help="Field of --label-column, for a bundle of several fields.", show_default="none")
    ] = "",
    column: Annotated[
        list[str] | None, typer.Option(help="Text column; may be repeated.", show_default="Final Narrative")
    ] = None,
    template: Annotated[str | None, typer.Option(help="Template that joins several columns.")] = None,
    name: Annotated[str, typer.Option(help="Description of the records, for readers.")] = "own coded records",
    accuracy: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01, max=0.999, help="Accuracy to find a score for; repeatable.", show_default="0.8, 0.9, 0.95"
        ),
    ] = None,
    sets: Annotated[
        bool, typer.Option("--sets", help="Also find the limits of sets, for `autocoder code --coverage`.")
    ] = False,
) -> None:
    r"""Fit the scores of a bundle on records that you have coded, such as those of `autocoder qa`.

    The file depends on your records, so keep it as confidential as they are. Do not use records that the model was
    trained on: its scores would look too good. More records give more thresholds: 90 % takes some hundred records,
    95 % often thousands.

    [bold]Examples[/bold]

      autocoder calibrate --data coded_by_hand.csv --label-column Nature \
          --out thresholds.json

      autocoder code --data new.csv --out coded.csv \
          --thresholds thresholds.json --accuracy 0.9

    With --sets, `autocoder code --coverage 0.9` gives each row the codes that hold the right one with that probability
    (split conformal prediction). It holds for rows exchangeable with your records: draw them at random from what you
    code.
    """
    from storage.errors import InputError
    from tasks.running.failures import private_errors

    options.require_writable("--out", out)
    if out.exists():
        raise InputError(f"--out: {out} exists. Name another file.")
    with private_errors("calibrate"):
        from flows.commands.console import ConsoleListener
        from mechanisms.model.config import TARGETS
        from mechanisms.model.conformal import Sets
        from storage.durable import write_atomically
        from tasks.bundle.thresholds import best_accuracy, thresholds_on_table
        from tasks.coding.joint import open_bundle
        from tasks.coding.records import Records, declared_columns

        with released.opened() as folder:
            records = Records.of(declared_columns(folder), column or (), template, usual="Final Narrative")
            coder = open_bundle(folder)
        if field not in coder.fields:
            remedy = (
                f"Name one of {', '.join(coder.fields)}" if coder.model.spans else "Leave it out: there is one field"
            )
            raise InputError(f"--field: the bundle has no field {field!r}. {remedy}.")
        released.require_not_revoked(coder)
        with ConsoleListener() as console:
            console.started("calibrate")
            fitted = thresholds_on_table(
                coder.fields[field].model,
                data,
                columns=records.columns,
                join=records.texts,
                label=label_column,
                name=name,
                field=field,
                targets=accuracy or TARGETS,
                sets=sets,
            )
        coder_of_field = coder.fields[field]
        fitted |= {
            "release": coder_of_field.release,
            "bundle_digest": coder_of_field.digest,
        }
        write_atomically(out, json.dumps(fitted, indent=2).encode() + b"\n")
    say(f"{fitted['records']:,} records, temperature {fitted['temperature']}; written to {out}")
    for entry in fitted["thresholds"]:
        line = f"  {100 * entry['target_accuracy']:g} % right: "
        if entry["threshold"] is None:
            say(line + "no score reaches it with confidence")
        else:
            say(line + f"score {entry['threshold']:.3f} and above, {entry['coverage']:.0%} of the records")
    say(f"  {best_accuracy(fitted)}")
    for entry in fitted["sets"]["coverages"] if sets else ():
        say(f"  {Sets.of(entry).statement}")
