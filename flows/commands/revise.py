"""Defines `autocoder revise`: takes a coded table or a bundle to the next version of the classification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from storage.errors import InputError
from tasks.running.failures import private_errors


def revise(
    coded: Annotated[Path, typer.Argument(help="Coded table, or bundle: folder or .tar.zst.", show_default=False)],
    table: Annotated[
        Path, typer.Option(help="Table of correspondence: CSV with old, new and perhaps share, or XKOS (.ttl, …).")
    ],
    out: Annotated[Path, typer.Option(help="Table to write; of a bundle, its crosswalk for `autocoder code`.")],
    version: Annotated[
        str | None, typer.Option(help="Name of the new version.", show_default="that in --table")
    ] = None,
    codelist: Annotated[
        Path | None, typer.Option(help="List of the new version, which must have every new code: CSV or SKOS.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column with the codes, where people coded.", show_default="code")
    ] = None,
    field: Annotated[str, typer.Option(help="Field to revise, of several.", show_default="none")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")] = False,
    as_json: options.AsJson = False,
) -> None:
    r"""Take a coded table to the next version of its classification, and mark what a person must decide.

    A code with one successor gets it. Where a code was split, all its successors are listed and the row is marked for
    review. Conformal sets become sets of new codes. Every row is accounted for.

    A bundle is signed as it is, and its model knows the old codes. Its crosswalk is written, for `autocoder code
    --crosswalk`.

    [bold]Examples[/bold]

      autocoder revise coded.csv --table oiics_201_to_300.csv --version 3.00 \
          --out revised.csv

      autocoder revise bundles/2026 --table nace.ttl --out crosswalk.csv
    """
    coded, table, out = coded.expanduser(), table.expanduser(), out.expanduser()
    options.require_writable("--out", out)
    if out.exists() and not overwrite:
        raise InputError(f"--out: {out} exists. Name another file, or replace it with --overwrite.")
    with private_errors("revise"):
        from storage.bundle.archive import SUFFIX, open_folder
        from storage.codelist import read_codelist
        from storage.correspondence import read_correspondence
        from tasks.coding import revise as stage

        listed = read_codelist(codelist.expanduser(), option="--codelist") if codelist else ()
        follows = stage.with_version(read_correspondence(table), version, listed={code.code for code in listed})
        if not coded.is_dir() and not coded.name.endswith(SUFFIX):
            revised = stage.revise_table(coded, out, follows, field=field, column=column)
        elif column is not None:
            raise InputError("--column: is for a table. Leave it out.")
        else:
            from tasks.coding.joint import open_bundle

            with open_folder(coded) as folder:
                coder = open_bundle(folder)
            if field not in coder.fields:
                names = ", ".join(filter(None, coder.fields)) or "one field only"
                raise InputError(f"--field: no field {field or 'of that name'}. The bundle codes {names}.")
            revised = stage.revise_bundle(coder.fields[field], out, follows)
    say(json.dumps(revised.as_dict() | {"out": str(out)}) if as_json else f"{revised.sentence} Written to {out}.")
