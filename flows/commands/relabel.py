"""Defines `autocoder relabel`: converts a coded table to a revised classification."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import file_checks, options
from flows.commands.codelist_options import CodelistOptions
from flows.commands.console import ConsoleListener
from flows.commands.terminal import count_of, say
from flows.server.settings import home_of
from storage.errors import Missing
from tasks.running.failures import private_errors


def relabel(
    data: Annotated[Path, options.data(help="Table with the old codes and the texts.")],
    correspondence: Annotated[
        Path,
        options.data(
            help=("Correspondence table with the columns old and new, and one row per pair.")
        ),
    ],
    out: Annotated[Path, options.data(help="Table to write: .csv, .parquet or .jsonl.")],
    start: CodelistOptions,
    code: Annotated[str, options.data(help="Column of the old codes.")] = "code",
    text: options.Text = None,
    template: options.Template = None,
    threshold: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of the candidates' scores below which a person must choose.",
        ),
    ] = 0.8,
    read: options.Read = None,
    read_codelist: options.ReadCodelist = None,
    read_correspondence: options.ReadCorrespondence = None,
    home: options.Home = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    r"""Convert codes to a revised classification, with a correspondence table and the new titles.

    A code that became one code is replaced. If it became several, the untrained coder of the new
    list chooses the code with the title that fits the text best. If it is unsure, the row needs
    review. The
    column new_way shows how each row got its code.

    Example

      autocoder relabel --data coded.csv --code code --text Narrative \
          --correspondence soc2010-2020.csv --codelist soc2020.csv --out moved.csv
    """
    if start.codelist is None:
        raise Missing("--codelist: missing. Specify the list of the revision", kind="no-revision")
    start.require_alone(bundle=False)
    file_checks.require_readable("--data", data)
    file_checks.require_readable("--correspondence", correspondence)
    file_checks.require_writable("--out", out, overwrite=overwrite)
    reading = options.read_options(read)
    of_list = options.read_options(read_codelist, "--read-codelist")
    of_pairs = options.read_options(read_correspondence, "--read-correspondence")
    with private_errors("relabel"):
        from storage.codelist import read_codelist as listed_codes
        from storage.tables.narratives import Narratives
        from storage.tables.reader import survey
        from tasks.coding import relabel as relabelling

        narratives = Narratives(tuple(text or ("Final Narrative",)), template)
        table = survey(data, text_columns=[code, *narratives.columns], read=reading)
        table.require_one_layout()
        listed = listed_codes(start.codelist, option="--codelist", read=of_list)
        codes = [entry.code for entry in listed]
        pairs = relabelling.read_correspondence(correspondence, codes, of_pairs)
        with ConsoleListener() as console:
            console.started("read the titles")
            coder = start.coder(home_of(home), read=of_list)
            how = relabelling.Relabelling(coder, pairs, narratives, code, threshold)
            done = relabelling.relabel(table, out, how)
    if as_json:
        counts = {"rows": done.rows, "needs_review": done.review, "out": str(out)}
        say(json.dumps(counts | asdict(done) | coder.origin))
        return
    shares = "; ".join(f"{way} {count:,}" for way, count in done.ways.items() if count)
    say(f"{count_of(done.rows, 'row')} written to {out}: {shares}. {done.review:,} need review")
