"""Defines `autocoder successor`: compares a bundle with its possible successor."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import file_checks, options
from flows.commands.console import ConsoleListener
from flows.commands.terminal import say
from storage.durable import write_atomically
from tasks.running.failures import private_errors


def successor(
    old: Annotated[Path, typer.Argument(help="Bundle in use.")],
    new: Annotated[Path, typer.Argument(help="Possible successor.")],
    labelled: Annotated[
        Path, typer.Option(help="Records coded by people, on which neither model was trained.")
    ],
    unlabelled: Annotated[Path, typer.Option(help="Records of the period to code, without codes.")],
    html: Annotated[
        Path | None, typer.Option(help="Page to write for the person who decides.")
    ] = None,
    label: options.Label = None,
    text: options.Text = None,
    template: options.Template = None,
    allow_unlisted: options.AllowUnlisted = False,
    by: Annotated[str, typer.Option(help="Column of --labelled that forms groups.")] = "",
    read: options.Read = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    r"""Compare a bundle with its successor: where the new one is better or worse, and what changes.

    Differences have 95% paired bootstrap intervals and McNemar's exact test. Tests by code are
    adjusted for their number. The page also shows the manual work at each accuracy, and the
    counts that change.

    Examples

      autocoder successor bundles/2025 bundles/2026 --labelled coded_by_hand.csv \
          --unlabelled 2026q3.csv --text Narrative --html successor.html
    """
    if html is not None:
        file_checks.require_writable("--html", html, overwrite=overwrite)
    reading = options.read_options(read)
    with private_errors("successor"):
        from storage.bundle.archive import open_folder
        from storage.tables.narratives import Narratives
        from tasks.coding import successor as measure
        from tasks.coding.coder import open_bundle

        with open_folder(old.expanduser()) as before, open_folder(new.expanduser()) as after:
            records = Narratives(tuple(text or ("Final Narrative",)), template)
            earlier, later = open_bundle(before), open_bundle(after)
        measure.require_same_classification(earlier, later)
        with ConsoleListener() as console:
            console.started("successor")
            coded = measure.answers(
                earlier,
                later,
                labelled,
                records,
                option="--labelled",
                label=label or "Nature",
                by=by,
                allow_unlisted=allow_unlisted,
                read=reading,
                report=lambda line: say(line, err=True),
            )
            uncoded = measure.answers(
                earlier, later, unlabelled, records, option="--unlabelled", read=reading
            )
        compared = measure.compare(earlier.release, later.release, coded, uncoded)
        if html is not None:
            write_atomically(html, compared.page().encode())
    say(json.dumps(compared.as_dict(), indent=2) if as_json else compared.sentence)
