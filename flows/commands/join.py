"""Defines `autocoder join`: adds the columns of a second file to records by an id."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.commands import file_checks, options
from flows.commands.terminal import count_of, say
from tasks.running.failures import private_errors


def join(
    first: Annotated[
        Path, typer.Argument(help="Table that has each id once, such as the reports.")
    ],
    second: Annotated[Path, typer.Argument(help="Table with more columns, such as the codes.")],
    on: Annotated[str, typer.Option(help="Column of the id, in both.")],
    out: Annotated[Path, typer.Option(help="Table to write: .csv, .parquet or .jsonl.")],
    several: Annotated[
        Literal["refuse", "first", "each"],
        typer.Option(help="Rows to use if the second table has an id in several rows."),
    ] = "refuse",
    read: options.Read = None,
    read_second: Annotated[
        list[str] | None,
        options.more(
            "--read-second",
            help="How SECOND is read, if differently from --read.",
            show_default="as --read",
        ),
    ] = None,
    overwrite: options.Overwrite = False,
) -> None:
    r"""Join two tables by an id: each row of the first with its row of the second.

    Rows without a match keep blank cells and are counted. The output is as confidential
    as the tables.

    Example

      autocoder join VAERSDATA.csv VAERSSYMPTOMS.csv --on VAERS_ID \
          --several first --out joined.csv
    """
    reading = options.read_options(read)
    of_second = options.read_options(read_second, "--read-second") if read_second else reading
    file_checks.require_writable("--out", out, overwrite=overwrite)
    with private_errors("join"):
        from storage.ingest.joining import join as write_joined

        done = write_joined(
            first, second, out, on=on, several=several, read=reading, read_second=of_second
        )
    say(
        f"{count_of(done.rows, 'row')} written to {out}. Rows of {first.name} without a row in "
        f"{second.name}: {done.without_second:,}. Rows of {second.name} that were not used: "
        f"{done.unused:,}"
    )
    if done.left_out:
        say(
            f"Rows of {second.name} that were left out because they have no id, or are not the "
            f"first with theirs: {done.left_out:,}"
        )
