"""`autocoder calibrate`: temperature and thresholds from records that one has coded oneself."""

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
        str, typer.Option(help="Of a bundle of several fields: the one that --label-column is of.", show_default="none")
    ] = "",
    column: Annotated[
        list[str] | None, typer.Option(help="Text column; may be repeated.", show_default="Final Narrative")
    ] = None,
    template: Annotated[str | None, typer.Option(help="How several columns are joined.")] = None,
    name: Annotated[str, typer.Option(help="What the records are; told to readers.")] = "own coded records",
    accuracy: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01, max=0.999, help="Accuracy to find a score for; repeatable.", show_default="0.8, 0.9, 0.95"
        ),
    ] = None,
) -> None:
    """Fit the scores of a bundle on records that you have coded, such as those of `autocoder qa`.

    The file is made from your records: keep it in your house, like them. Records that the model was trained on would
    make its scores look better than they are. The more there are, the more thresholds come out: 90 % take
    some hundred records, 95 % often thousands.

    [bold]Examples[/bold]

      autocoder calibrate --data coded_by_hand.csv --label-column Nature --out thresholds.json

      autocoder code --data new.csv --out coded.csv --thresholds thresholds.json --accuracy 0.9
    """
    from storage.errors import InputError
    from tasks.running.failures import private_errors

    options.require_place("--out", out)
    if out.exists():
        raise InputError(f"--out: {out} is there; name another file")
    with private_errors("calibrate"):
        from flows.commands.console import ConsoleListener
        from mechanisms.model.calibration import TARGETS
        from storage.durable import write_atomically
        from storage.tables.narratives import Narratives
        from tasks.bundle.thresholds import reached, thresholds_on_table
        from tasks.coding.joint import open_bundle

        narratives = Narratives(tuple(column or ["Final Narrative"]), template)
        with released.opened() as folder:
            coder = open_bundle(folder)
        if field not in coder.fields:
            there = f"one of {', '.join(coder.fields)}" if coder.model.spans else "none: the bundle codes one field"
            raise InputError(f"--field: name {there}")
        released.require_standing(coder)
        with ConsoleListener() as console:
            console.started("calibrate")
            fitted = thresholds_on_table(
                coder.fields[field].model,
                data,
                columns=narratives.columns,
                join=narratives.texts,
                label=label_column,
                name=name,
                field=field,
                targets=accuracy or TARGETS,
            )
        own = coder.fields[field]
        fitted |= {"release": own.release, "bundle_digest": own.digest}  # no other model's scores mean the same
        write_atomically(out, json.dumps(fitted, indent=2).encode() + b"\n")
    say(f"{fitted['records']:,} records, temperature {fitted['temperature']}; written to {out}")
    for entry in fitted["thresholds"]:
        line = f"  {100 * entry['target_accuracy']:g} % right: "
        if entry["threshold"] is None:
            say(line + "no score reaches it with confidence")
        else:
            say(line + f"score {entry['threshold']:.3f} and above, {entry['coverage']:.0%} of the records")
    say(f"  {reached(fitted)}")
