"""`autocoder code`: codes for new narratives from a released bundle."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.settings import before_prefect, home_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from storage.tables.reading import Table
    from tasks.coding.coder import Coder, Coding
    from tasks.coding.job import Coded, CodingJob
    from tasks.coding.joint import Case, JointCoder, Threshold

_file = partial(typer.Option, rich_help_panel="Files")
_review = partial(typer.Option, rich_help_panel="Which answers to believe")


@dataclass(frozen=True)
class FileOptions:
    """A table to code, and the one to write."""

    data: Annotated[Path | None, _file(help="CSV, ZIP of one CSV, Parquet, or JSON Lines (.jsonl).")] = None
    out: Annotated[Path | None, _file(help="File to write: .csv, .parquet or .jsonl; needed with --data.")] = None
    column: Annotated[
        list[str] | None,
        _file(help="Text column of --data; repeated, several are joined.", show_default="Final Narrative"),
    ] = None
    template: Annotated[
        str | None, _file(help="How several columns are joined, as in training: '{Job title}: {Narrative}'.")
    ] = None
    append: Annotated[bool, _file("--append", help="Add to an --out of the same columns.")] = False
    overwrite: Annotated[bool, _file("--overwrite", help="Replace an --out that is there.")] = False
    version_column: Annotated[
        str | None,
        _file(help="Column of --data that names each row's classification version; another version is refused."),
    ] = None
    crosswalk: Annotated[
        list[str] | None,
        _file(
            metavar="FILE",
            help="CSV from_code, to_code, from_version, to_version: adds the code of another version; of several "
            "fields, nature=FILE, one each.",
        ),
    ] = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Text columns of the table."""
        return tuple(self.column or ["Final Narrative"])


@dataclass(frozen=True)
class ReviewOptions:
    """What a person must look at."""

    threshold: Annotated[
        float | None,
        _review(
            min=0,
            max=1,
            help="Score below which a person must look: adds needs_review, and the group of codes that is sure.",
        ),
    ] = None
    accuracy: Annotated[
        float | None,
        _review(
            min=0,
            max=1,
            help="In place of --threshold: the one that reached this accuracy when thresholds were fitted.",
        ),
    ] = None
    thresholds: Annotated[
        list[Path] | None,
        _review(help="File from `autocoder calibrate`, in place of the bundle's own; of several fields, one each."),
    ] = None
    rules: Annotated[
        Path | None,
        _review(help="CSV field, code, other_field, other_code: what never occurs together wants a person's look."),
    ] = None
    groups: Annotated[
        Literal["auto", "digits", "none"],
        _review(help="Whether leading digits of a code name its groups; auto: where the classification is OIICS."),
    ] = "auto"


def code(
    released: options.BundleOptions,
    output: options.OutputOptions,
    files: FileOptions,
    review: ReviewOptions,
    narratives: Annotated[list[str] | None, typer.Argument(help="Narratives, each in quotes.")] = None,
    top_k: Annotated[int, typer.Option(min=1, max=50, help="Codes a narrative.")] = 1,
    precision: options.Precision = "auto",
    shards: Annotated[
        int,
        _file(
            min=1,
            max=10_000,
            help="Parts of --data that workers code, at the same paths; needs PREFECT_API_URL and `autocoder deploy`.",
        ),
    ] = 1,
) -> None:
    """Code narratives with a released model.

    A file of any size is read and written in pieces. Killed, the same command goes on where it stopped. Every row says
    which model, classification and bundle its code is from. In CSV, cells that a table program would take for formulas
    get an apostrophe.

    [bold]Examples[/bold]

      autocoder code "Employee fell from a ladder and fractured his wrist." --top-k 3

      autocoder code --data new.csv --column Narrative --out coded.csv --threshold 0.8

      autocoder code --data new.parquet --column Job --column Text --template '{Job}: {Text}' --out coded.jsonl

      autocoder code --data new.csv --out coded.csv --crosswalk nature=nature.csv --crosswalk part=part.csv

      autocoder code --data /narratives/2026q3.csv --out /narratives/coded.csv --shards 8
    """
    _require_sense(narratives, files, review, shards)
    files = replace(files, **{name: path.expanduser() for name, path in vars(files).items() if isinstance(path, Path)})
    if shards > 1:
        before_prefect(home_of(released.home), make_home=False)
    from tasks.running.failures import private_errors

    with private_errors("code"):
        from storage.crosswalk import crosswalk_files
        from tasks.coding.job import run
        from tasks.coding.joint import open_bundle

        if shards > 1:
            from tasks.coding.shards import preflight

            preflight()
        table = None if files.data is None else _survey(files.data, files, output)
        by_digits = {"auto": None, "digits": True, "none": False}[review.groups]
        with released.opened() as folder:
            # to try bfloat16 on the golden texts takes longer than to code a few; workers' processors may differ
            chosen = "float32" if precision == "auto" and (table is None or shards > 1) else precision
            coder = open_bundle(
                folder,
                thresholds=review.thresholds or (),
                by_digits=by_digits,
                precision=chosen,
                rules=review.rules,
            )
        released.require_standing(coder)
        threshold: Any = review.threshold if review.accuracy is None else coder.threshold_for(review.accuracy)
        if table is None or files.out is None:
            texts = narratives or []
            for text, coding in zip(texts, coder.code(texts, top_k=top_k, threshold=threshold), strict=True):
                say(json.dumps(coder.origin | coding.as_dict()) if output.as_json else _lines(text, coding))
            return
        walks = crosswalk_files(files.crosswalk or (), tuple(coder.fields))
        job = _job(coder, table, files.out, files, walks, top_k, threshold)
        with output.progress() as console:
            console.started("code")
            spread = _spread(coder, job, folder, walks, review, by_digits, shards) if shards > 1 else None
            coded = run(coder, job, spread=spread)
    if output.as_json:
        counts = {"rows": coded.rows, "blank": coded.blank, "needs_review": coded.review, "resumed": coded.resumed}
        how = {"threshold": threshold, "out": str(files.out), "precision": coder.model.precision}
        say(json.dumps(counts | how | coder.origin))
    else:
        say(f"{coded.rows:,} rows coded into {files.out}{_notes(coded)}")


def _require_sense(narratives: list[str] | None, files: FileOptions, review: ReviewOptions, shards: int) -> None:
    """Refuse options that contradict each other, or lack one."""
    from storage.errors import InputError

    if bool(narratives) == (files.data is not None):
        raise InputError("give narratives as arguments, or a file with --data")
    if files.data is not None and files.out is None:
        raise InputError("--out: name the file to write, .csv, .parquet or .jsonl")
    if review.threshold is not None and review.accuracy is not None:
        raise InputError("--threshold and --accuracy: give one of them")
    if files.append and files.overwrite:
        raise InputError("--append and --overwrite: give one of them")
    if files.data is None and any(vars(files).values()):
        raise InputError("--out, --column and other options of files need --data")
    if files.data is None and shards > 1:
        raise InputError("--shards: workers code parts of a file; give it with --data")


def _survey(data: Path, files: FileOptions, output: options.OutputOptions) -> Table:
    """The input, read to its end: what is wrong with it shows before a model is loaded."""
    from storage.tables.reading import survey
    from storage.tables.writing import kind_of

    if files.out is not None:
        kind_of(files.out)
        options.require_place("--out", files.out)
    with output.progress() as console:
        console.started("read the table through")
        return survey(data, text_columns=files.columns, said_by=dict.fromkeys(files.columns, "--column"))


def _lines(text: str, coding: Coding | Case) -> str:
    said = text if len(text) <= 100 else text[:97] + "..."
    from tasks.coding.joint import Case

    if not isinstance(coding, Case):
        return "\n  ".join([said, *_answers(coding)])
    lines = [said]
    for name, own in coding.codings.items():
        lines += [f"{name}:", *(f"  {line}" for line in _answers(own))]
    lines += [f"needs review: {rule}" for rule in coding.conflicts or ()]
    return "\n  ".join(lines)


def _answers(coding: Coding) -> list[str]:
    lines = [f"{answer.code:<6} {answer.score:5.1%}  {answer.title}" for answer in coding.answers]
    if not coding.answers:
        lines.append("no code: nothing was said")
    elif coding.needs_review:
        group = coding.group
        sure = f"; sure only of {group.code} {group.title} ({group.score:.1%})" if group else ""
        lines.append(f"needs review{sure}")
    return lines


def _job(
    coder: Coder | JointCoder,
    table: Table,
    out: Path,
    files: FileOptions,
    walks: Mapping[str, Path],
    top_k: int,
    threshold: Threshold | None,
) -> CodingJob:
    from storage.tables.narratives import Narratives
    from tasks.coding.columns import added_of, check_version, read_crosswalks
    from tasks.coding.job import CodingJob

    crosswalks = read_crosswalks(coder, walks)
    if files.version_column is not None:
        check_version(table, files.version_column, coder)
    added = added_of(coder, top_k=top_k, threshold=threshold, crosswalks=crosswalks)
    narratives = Narratives(files.columns, files.template)
    return CodingJob(table, out, narratives, added, append=files.append, overwrite=files.overwrite)


def _spread(
    coder: Coder | JointCoder,
    job: CodingJob,
    bundle: Path,
    walks: Mapping[str, Path],
    review: ReviewOptions,
    by_digits: bool | None,
    number: int,
) -> Callable[[], object]:
    """What has workers code the job's pieces."""
    from tasks.coding import shards
    from tasks.parameters import Spread
    from tasks.running import progress

    told = shards.told(
        coder,
        job,
        bundle=bundle,
        thresholds=review.thresholds or (),
        by_digits=by_digits,
        crosswalks=walks,
        rules=review.rules,
    )
    return partial(shards.finish, coder, job, told, Spread(shards=number), progress.reporter("code, by shards"))


def _notes(coded: Coded) -> str:
    notes = [f"{coded.blank:,} blank"] if coded.blank else []
    if coded.review is not None:
        notes.append(f"{coded.review:,} need review")
    if coded.resumed:
        notes.append(f"{coded.resumed:,} were there from an earlier run")
    return f" ({'; '.join(notes)})" if notes else ""
