"""`autocoder code`: codes for new narratives from a released bundle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.commands import options
from flows.server.settings import home_of

if TYPE_CHECKING:
    from storage.tables.reading import Table
    from tasks.coding.coder import Coder, Coding
    from tasks.coding.job import CodingJob

BUNDLE = typer.Option("--bundle", help="Bundle: folder or .tar.zst. [default: the newest release in the workspace]")
_IN_FILES, _REVIEW = "Files", "Which answers to believe"


@dataclass(frozen=True)
class _File:
    data: Path
    out: Path
    columns: tuple[str, ...]
    template: str | None
    crosswalk: Path | None
    version_column: str | None
    append: bool
    overwrite: bool


def code(
    narratives: Annotated[
        list[str] | None, typer.Argument(help="Narratives, each in quotes.", show_default=False)
    ] = None,
    bundle: Annotated[Path | None, BUNDLE] = None,
    home: options.Home = None,
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=50, help="Codes a narrative.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout: an object a narrative or a job.")] = False,
    quiet: options.Quiet = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="CSV, ZIP of one CSV, Parquet, or JSON Lines (.jsonl).",
            show_default=False,
            rich_help_panel=_IN_FILES,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File to write: .csv, .parquet or .jsonl; needed with --data.",
            show_default=False,
            rich_help_panel=_IN_FILES,
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            help="Text column of --data; repeated, several are joined. [default: Final Narrative]",
            show_default=False,
            rich_help_panel=_IN_FILES,
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            help="How several columns are joined, as in training: '{Job title}: {Narrative}'.",
            rich_help_panel=_IN_FILES,
        ),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add to an --out of the same columns.", rich_help_panel=_IN_FILES)
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an --out that is there.", rich_help_panel=_IN_FILES)
    ] = False,
    version_column: Annotated[
        str | None,
        typer.Option(
            "--version-column",
            help="Column of --data that names each row's classification version; another version is refused.",
            rich_help_panel=_IN_FILES,
        ),
    ] = None,
    crosswalk: Annotated[
        Path | None,
        typer.Option(
            "--crosswalk",
            help="CSV from_code, to_code, from_version, to_version: adds the code of another version.",
            rich_help_panel=_IN_FILES,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            min=0,
            max=1,
            help="Score below which a person must look: adds needs_review, and the group of codes that is sure.",
            rich_help_panel=_REVIEW,
        ),
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option(
            "--accuracy",
            min=0,
            max=1,
            help="In place of --threshold: the one that reached this accuracy when thresholds were fitted.",
            rich_help_panel=_REVIEW,
        ),
    ] = None,
    thresholds: Annotated[
        Path | None,
        typer.Option(
            "--thresholds",
            help="File from `autocoder calibrate`, in place of the bundle's own.",
            rich_help_panel=_REVIEW,
        ),
    ] = None,
    groups: Annotated[
        Literal["auto", "digits", "none"],
        typer.Option(
            "--groups",
            help="Whether leading digits of a code name its groups; auto: where the classification is OIICS.",
            rich_help_panel=_REVIEW,
        ),
    ] = "auto",
) -> None:
    """Code narratives with a released model.

    A file of any size is read and written in pieces. Killed, the same command goes on where it stopped. Every row says
    which model, classification and bundle its code is from. In CSV, cells that a table program would take for formulas
    get an apostrophe.

    [bold]Examples[/bold]

      autocoder code "Employee fell from a ladder and fractured his wrist." --top-k 3

      autocoder code --data new.csv --column Narrative --out coded.csv --threshold 0.8

      autocoder code --data new.parquet --column Job --column Text --template '{Job}: {Text}' --out coded.jsonl
    """
    from storage.errors import InputError

    if bool(narratives) == (data is not None):
        raise InputError("give narratives as arguments, or a file with --data")
    if data is not None and out is None:
        raise InputError("--out: name the file to write, .csv, .parquet or .jsonl")
    if threshold is not None and accuracy is not None:
        raise InputError("--threshold and --accuracy: give one of them")
    if append and overwrite:
        raise InputError("--append and --overwrite: give one of them")
    if data is None and (out or append or overwrite or version_column or crosswalk or template or column):
        raise InputError("--out, --column and other options of files need --data")
    from tasks.running.failures import private_errors

    with private_errors("code"):
        from storage.bundle.archive import opened
        from tasks.coding.coder import Coder, newest_bundle

        file = table = None
        if data is not None and out is not None:
            columns = tuple(column or ["Final Narrative"])
            file = _File(
                data.expanduser(), out.expanduser(), columns, template, crosswalk, version_column, append, overwrite
            )
            table = _looked_through(file, quiet)
        folder = bundle.expanduser() if bundle is not None else newest_bundle(home_of(home))
        by_digits = {"auto": None, "digits": True, "none": False}[groups]
        with opened(folder) as found:
            coder = Coder.open(found, thresholds=thresholds, by_digits=by_digits)
        if accuracy is not None:
            threshold = coder.threshold_for(accuracy)
        if file is None or table is None:
            _code_arguments(coder, narratives or [], top_k, threshold, as_json)
        else:
            _code_file(coder, file, table, top_k, threshold, as_json, quiet)


def _looked_through(file: _File, quiet: bool) -> Table:
    """The input, read to its end: what is wrong with it shows before a model is loaded."""
    from flows.commands.console import ConsoleListener
    from storage.tables.reading import survey
    from storage.tables.writing import kind_of
    from tasks.running import progress

    kind_of(file.out)
    options.require_place("--out", file.out)
    with ConsoleListener(quiet=quiet) as listener, progress.listening(listener):
        progress.started("read the table through")
        return survey(file.data, text_columns=file.columns)


def _code_arguments(coder: Coder, texts: list[str], top_k: int, threshold: float | None, as_json: bool) -> None:
    for text, coding in zip(texts, coder.code(texts, top_k=top_k, threshold=threshold), strict=True):
        if as_json:
            typer.echo(json.dumps(coder.origin | coding.as_dict()))
            continue
        typer.echo(text if len(text) <= 100 else text[:97] + "...")
        for line in _lines(coding):
            typer.echo(f"  {line}")


def _lines(coding: Coding) -> list[str]:
    shown = [f"{answer.code:<6} {answer.score:5.1%}  {answer.title}" for answer in coding.answers]
    if not coding.answers:
        shown.append("no code: nothing was said")
    elif coding.needs_review:
        group = coding.group
        shown.append(
            f"needs review; sure only of {group.code} {group.title} ({group.score:.1%})" if group else "needs review"
        )
    return shown


def _code_file(
    coder: Coder, file: _File, table: Table, top_k: int, threshold: float | None, as_json: bool, quiet: bool
) -> None:
    from flows.commands.console import ConsoleListener
    from tasks.coding.job import run
    from tasks.running import progress

    with ConsoleListener(quiet=quiet) as listener, progress.listening(listener):
        progress.started("code")
        done = run(coder, _job(coder, file, table, top_k, threshold))
    if as_json:
        counts = {"rows": done.rows, "blank": done.blank, "needs_review": done.review, "resumed": done.resumed}
        typer.echo(json.dumps(counts | {"threshold": threshold, "out": str(file.out)} | coder.origin))
        return
    notes = [f"{done.blank:,} blank"] if done.blank else []
    if done.review is not None:
        notes.append(f"{done.review:,} need review")
    if done.resumed:
        notes.append(f"{done.resumed:,} were there from an earlier run")
    told = f" ({'; '.join(notes)})" if notes else ""
    typer.echo(f"{done.rows:,} rows coded into {file.out}{told}")


def _job(coder: Coder, file: _File, table: Table, top_k: int, threshold: float | None) -> CodingJob:
    from storage.crosswalk import read_crosswalk
    from storage.tables.narratives import Narratives
    from tasks.coding.columns import Added, check_version
    from tasks.coding.job import CodingJob

    narratives = Narratives(file.columns, file.template)
    walk = read_crosswalk(file.crosswalk.expanduser(), version=coder.version) if file.crosswalk else None
    if file.version_column is not None:
        check_version(table, file.version_column, coder)
    added = Added(min(top_k, len(coder.model.codes)), threshold, walk, coder.groups is not None)
    return CodingJob(table, file.out, narratives, added, append=file.append, overwrite=file.overwrite)
