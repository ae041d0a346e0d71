"""Defines `autocoder codelist`: converts published classifications to code lists."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import file_checks
from flows.commands.terminal import say
from storage.errors import OutOfRange


def codelist(
    file: Annotated[
        Path,
        typer.Argument(
            help="Classification in SKOS or XKOS (.ttl, .nt, .rdf, .xml or .owl), ClaML, SDMX or "
            "FHIR."
        ),
    ],
    out: Annotated[Path, typer.Option(help="CSV to write: code, title, description, parent.")],
    language: Annotated[
        str | None,
        typer.Option(help="Language of the titles, such as fr.", show_default="the only one"),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            help="Concept scheme: its address or the end of it.", show_default="the only one"
        ),
    ] = None,
    notation: Annotated[
        str | None,
        typer.Option(
            help=(
                "Code to use if a concept has several: dotted, plain, or the end of its data "
                "type's address."
            )
        ),
    ] = None,
) -> None:
    r"""Write the code list of a classification in SKOS, XKOS, ClaML, SDMX or FHIR as CSV, in one
    language.

    Codes are removed from the front of titles, notes become descriptions, and deprecated concepts
    are
    left out.

    Example

      autocoder codelist nace.rdf --language fr --out codes.csv
    """
    from storage.durable import replace_atomically
    from storage.skos import import_codes
    from storage.tables.writer import csv_lines

    if out.suffix.lower() != ".csv":
        raise OutOfRange(f"--out: {out.name} must end in .csv", kind="not-a-csv-name")
    file_checks.require_writable("--out", out)
    imported = import_codes(file.expanduser(), language=language, scheme=scheme, notation=notation)
    with replace_atomically(out) as fresh:
        text = csv_lines([("code", "title", "description", "parent"), *imported.rows])
        fresh.write_text(text, encoding="utf-8", newline="")
    summary = (
        f"{len(imported.rows):,} "
        f"codes{f' in {imported.language}' if imported.language else ''} written to {out}"
    )
    say(
        f"{summary}: {imported.deprecated:,} deprecated concepts and "
        f"{imported.without_notation:,} without a notation "
        "left out"
    )
    if imported.without_title:
        say(
            (
                f"warning: {imported.without_title:,} codes have no title in "
                f"{imported.language or 'the file'}"
            ),
            err=True,
        )
