"""Defines `autocoder code`: codes new narratives with a released bundle, or from a code list."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from flows.commands import bundle_options, file_checks, options
from flows.commands.codelist_options import CodelistOptions
from flows.commands.console import ConsoleListener
from flows.commands.terminal import count_of, say
from flows.server.settings import home_of
from storage.errors import Contradiction, Missing
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from storage.bundle.adoption import AdoptedBundle
    from storage.narrative_look import NarrativeLook
    from storage.tables.narratives import Narratives
    from storage.tables.reader import Table
    from tasks.coding.bundles import Bundles
    from tasks.coding.coder import Coder, Coding
    from tasks.coding.groups import Levels
    from tasks.coding.job import CodingReport


@dataclass(frozen=True)
class FileOptions:
    data: Annotated[
        Path | None,
        options.data(
            help=(
                "Table of narratives to code: a file, a folder of files of one layout, "
                "or - for standard input."
            )
        ),
    ] = None
    text: options.Text = None
    template: options.Template = None
    out: Annotated[
        Path | None,
        options.data(help="File to write: .csv, .parquet or .jsonl. Required with --data."),
    ] = None
    append: Annotated[
        bool,
        options.data("--append", help="Append to an existing --out file with the same columns."),
    ] = False
    overwrite: options.Overwrite = False
    read: options.Read = None


@dataclass(frozen=True)
class ReviewOptions:
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help=(
                "Score below which a person must check the code. Adds needs_review, and "
                "the group of codes whose total score reaches it."
            ),
        ),
    ] = None
    accuracy: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help=(
                "Instead of --threshold: use the score that achieved this accuracy when "
                "thresholds were fitted."
            ),
        ),
    ] = None
    coverage: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help=(
                "Add the column set: codes that contain the right one with this "
                "probability, by the limits of the bundle or of `autocoder adopt "
                "--sets`."
            ),
        ),
    ] = None
    groups: Annotated[
        str,
        options.more(
            metavar="auto|digits|none|LIST",
            help=(
                "Groups of codes: `digits` (leading characters of a code), `none`, or a "
                "list with the columns code and parent. Default: digits for OIICS, "
                "otherwise none."
            ),
        ),
    ] = "auto"
    read_codelist: options.ReadCodelist = None

    def levels(self, *, of_list: bool) -> Levels:
        """Returns the rule of the groups, or the code above each code from a list, read with the
        list's options.

        Args:
            of_list: whether the codes come from a list too, so that the reading options may be for
                that one.
        """
        if self.groups in ("auto", "digits", "none"):
            if self.read_codelist and not of_list:
                raise Missing(
                    "--read-codelist requires a list as --groups", kind="reading-without-list"
                )
            return cast("Levels", self.groups)
        if self.read_codelist and of_list:
            raise Contradiction(
                "--read-codelist would apply both to --codelist and to the list "
                "of --groups. Save one of them as a plain CSV, or leave --groups "
                "or this out",
                kind="two-lists-to-read",
            )
        from storage.codelist import read_parents

        reading = options.read_options(self.read_codelist, "--read-codelist")
        return read_parents(Path(self.groups), option="--groups", read=reading)

    def threshold_of(self, coder: Coder, adopted: AdoptedBundle | None) -> float | None:
        """Returns the score below which a person must review: the option's, or the
        one for an accuracy.
        """
        accuracy = self.accuracy_of(adopted)
        return self.threshold if accuracy is None else coder.threshold_for(accuracy)

    def accuracy_of(self, adopted: AdoptedBundle | None) -> float | None:
        """Returns the accuracy whose threshold is used: the option's, or the one that the bundle
        was adopted with.
        """
        own_score = self.threshold is not None or self.accuracy is not None
        return self.accuracy if own_score or adopted is None else adopted.adoption.accuracy


def code(
    released: bundle_options.SeveralBundleOptions,
    files: FileOptions,
    review: ReviewOptions,
    start: CodelistOptions,
    narratives: Annotated[
        list[str] | None, typer.Argument(help="Narratives, each in quotes.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, max=50, help="Codes per narrative.")] = 1,
    engine: options.Engine = "",
    as_json: options.AsJson = False,
) -> None:
    r"""Code narratives with a released model, or by a published code list alone.

    With --codelist you need no bundle: the coder is the model from which training would start, made
    from the titles of the list. It has read no record, and every answer says so (model_kind:
    untrained).

    A file of any size is read and written in pieces. After an interruption, run the same command to
    resume. Every row lists its model, classification and bundle. In CSV, a cell that a spreadsheet
    would read as a formula gets an apostrophe in front.

    Examples

      autocoder code "Employee fell from a ladder." --top-k 3

      autocoder code --codelist soc2020.csv "I drive a school bus."

      autocoder code --data new.csv --text Narrative --out coded.csv \
          --threshold 0.8

      autocoder code --data new.parquet --text Job --text Text \
          --template '{Job}: {Text}' --out coded.jsonl

      autocoder code --bundle coder --data new.csv --out coded.csv \
          --coverage 0.9

      autocoder code --data new.csv --out coded.csv \
          --bundle nature=bundles/3f2a9c41d07b65e8 \
          --bundle part=bundles/90b1c2d3e4f50617

      autocoder code --data /narratives/2026q3.csv \
          --out /narratives/coded.csv --engine 8
    """
    _require_consistent(narratives, files, review)
    start.require_alone(bundle=bool(released.bundle))
    if start.codelist is not None and engine:
        raise Contradiction(
            "--engine: workers open a bundle, not a code list. Leave it out",
            kind="engine-for-codelist",
        )
    paths: dict[str, Any] = {
        name: path.expanduser() for name, path in vars(files).items() if isinstance(path, Path)
    }
    files = replace(files, **paths)
    by_prefix = released.each()
    first = next(iter(by_prefix.values()))
    columns, template = first.columns(files.text, files.template)
    with private_errors("code"), ExitStack() as opened:
        from storage.narrative_look import look_at, look_at_texts
        from storage.tables.narratives import Narratives
        from tasks.coding.bundles import Bundles

        if engine and files.data is not None:
            from tasks.running.engine import check

            check(engine)
        levels = review.levels(of_list=start.codelist is not None)
        folders: dict[str, Path] = {}
        if start.codelist is None:
            folders = {
                prefix: opened.enter_context(bundle.opened())
                for prefix, bundle in by_prefix.items()
            }
        records = Narratives(tuple(columns), template)
        table = None
        if files.data is not None and files.out is not None:
            data = opened.enter_context(_kept(files.data, files.out, engine))
            table = _survey(data, files, records, tuple(by_prefix))
        if start.codelist is None:
            models = _released(by_prefix, folders, review, levels, exact=table is None)
        else:
            models = _Models({"": _untrained(start, home_of(first.home), review, levels)})
        thresholds = {
            prefix: review.threshold_of(coder, models.adopted.get(prefix))
            for prefix, coder in models.coders.items()
        }
        coders = models.coders
        targets = list(_targets(models, review))
        bundles = Bundles(coders)
        look = look_at_texts(narratives or ()) if table is None else look_at(table, columns)
        notes = _notes_on(look, coders)
        for note in notes:
            say(f"warning: {note}", err=True)
        if table is None or files.out is None:
            for line in targets:
                say(line, err=True)
            _say_answers(narratives or (), bundles, thresholds, top_k, as_json=as_json)
            return
        from tasks.coding.coded_summary import write_summary
        from tasks.coding.columns import answer_columns
        from tasks.coding.distribute import distribute
        from tasks.coding.job import CodingJob, run
        from tasks.running import progress

        added = tuple(
            answer_columns(coder, top_k=top_k, threshold=thresholds[prefix], prefix=prefix)
            for prefix, coder in coders.items()
        )
        job = CodingJob(
            table, files.out, records, added, append=files.append, overwrite=files.overwrite
        )
        with ConsoleListener() as console:
            console.started("code")
            how: Any = {
                "engine": engine,
                "report": progress.reporter("code, by workers"),
                "levels": levels,
            }
            by_workers = None
            if engine:
                adopted = models.adopted.get(next(iter(folders)))
                place: Any = {
                    "bundle": next(iter(folders.values())),
                    "thresholds": None if adopted is None else adopted.thresholds,
                }
                by_workers = partial(distribute, bundles, job, **how, **place)
            coded = run(bundles, job, distribute=by_workers)
            try:
                page = str(write_summary(files.out, columns=columns, notes=notes, targets=targets))
            except OSError as error:  # the coded file is complete nevertheless
                page = None
                say(f"note: no summary: {error.strerror}. All rows are in {files.out}.", err=True)
    if as_json:
        counts = {
            "rows": coded.rows,
            "blank": coded.blank,
            "needs_review": coded.review,
            "resumed": coded.resumed,
        }
        chosen = {f"{prefix}threshold": score for prefix, score in thresholds.items()}
        how = {
            "out": str(files.out),
            "summary": page,
            "precision": bundles.precision,
            "warnings": notes,
            "targets": targets,
        }
        say(json.dumps(counts | chosen | how | bundles.origin))
    else:
        say(f"{count_of(coded.rows, 'row')} coded into {files.out}{_notes(coded)}")
        for line in targets:
            say(line)
        if page is not None:
            say(f"read: {page}")


@dataclass(frozen=True)
class _Models:
    coders: dict[str, Coder]
    adopted: dict[str, AdoptedBundle] = field(default_factory=dict)


def _targets(models: _Models, review: ReviewOptions) -> Iterator[str]:
    """Yields a sentence for each bundle whose threshold follows from an accuracy."""
    from tasks.bundle.thresholds import describe_target

    for prefix, coder in models.coders.items():
        accuracy = review.accuracy_of(models.adopted.get(prefix))
        if accuracy is not None and coder.thresholds is not None:
            name = prefix.rstrip("_")
            described = describe_target(coder.thresholds, accuracy)
            yield f"{name}: {described}" if name else described


def _untrained(start: CodelistOptions, home: Path, review: ReviewOptions, levels: Levels) -> Coder:
    read = options.read_options(review.read_codelist, "--read-codelist")
    with ConsoleListener() as console:
        console.started("read the titles")
        coder = start.coder(home, read=read, levels=levels)
    return coder if review.coverage is None else coder.with_sets(review.coverage)


def _released(
    each: Mapping[str, bundle_options.BundleOptions],
    folders: Mapping[str, Path],
    review: ReviewOptions,
    levels: Levels,
    *,
    exact: bool,
) -> _Models:
    """Opens the bundles and describes them.

    Args:
        exact: use float32 only, because testing eight bits would take longer than the narratives.
    """
    from tasks.coding.coder import open_bundle, require_not_revoked

    # the limits of sets were found in float32, and bundles with a shared encoder share its float32
    # pass
    exact = exact or review.coverage is not None or len(each) > 1
    models = _Models({})
    for prefix, bundle in each.items():
        adopted = bundle.adopted()
        if adopted is not None:
            models.adopted[prefix] = adopted
        coder = models.coders[prefix] = open_bundle(
            folders[prefix],
            thresholds=None if adopted is None else adopted.thresholds,
            levels=levels,
            precision="float32" if exact else "auto",
            coverage=review.coverage,
        )
        require_not_revoked(coder, home_of(bundle.home))
        say(f"{prefix.rstrip('_')}{': ' if prefix else ''}{coder.description}", err=True)
        if coder.sets is not None:
            say(coder.sets.statement, err=True)
    return models


def _require_consistent(
    narratives: list[str] | None, files: FileOptions, review: ReviewOptions
) -> None:
    if bool(narratives) == (files.data is not None):
        raise Contradiction(
            "no narratives, or two sources. Pass narratives as arguments, or a file with --data.",
            kind="one-source",
        )
    if files.data is not None and files.out is None:
        raise Missing(
            "--out: missing. Specify the file to write: .csv, .parquet or .jsonl.", kind="no-output"
        )
    if review.threshold is not None and review.accuracy is not None:
        raise Contradiction(
            "--threshold and --accuracy are mutually exclusive", kind="threshold-and-accuracy"
        )
    if files.append and files.overwrite:
        raise Contradiction(
            "--append and --overwrite are mutually exclusive", kind="append-and-overwrite"
        )
    if files.data is None and any(vars(files).values()):
        raise Missing(
            "--out, --text and other file options require --data", kind="file-options-without-data"
        )


def _survey(data: Path, files: FileOptions, records: Narratives, prefixes: Sequence[str]) -> Table:
    from storage.tables.reader import survey
    from storage.tables.writer import output_kind
    from tasks.coding.columns import USUAL, require_free

    if files.out is not None:
        output_kind(files.out)
        file_checks.require_writable("--out", files.out)
    with ConsoleListener() as console:
        console.started("read the table through")
        options_of = dict.fromkeys(records.columns, "--text")
        table = survey(
            data,
            text_columns=records.columns,
            column_options=options_of,
            read=options.read_options(files.read),
        )
    table.require_one_layout()
    require_free(table, {f"{prefix}{name}" for prefix in prefixes for name in USUAL})
    for line in table.reading:
        say(f"read {line}", err=True)
    return table


@contextmanager
def _kept(data: Path, out: Path, engine: str) -> Iterator[Path]:
    from storage.tables.inputs import is_stream, kept

    if is_stream(data):
        if engine:
            raise Contradiction(
                "--engine: workers cannot read standard input. Save it to a file first.",
                kind="engine-and-stream",
            )
        say("reading standard input", err=True)
    file_checks.require_writable("--out", out)
    with kept(data, out.parent) as file:
        yield file


def _notes_on(look: NarrativeLook, coders: Mapping[str, Coder]) -> list[str]:
    """Returns sentences on narratives that the models cannot read in full. A sentence that applies
    to all is given once.
    """
    return list(
        dict.fromkeys(note for coder in coders.values() for note in coder.reads.notes(look))
    )


def _say_answers(
    texts: Sequence[str],
    bundles: Bundles,
    thresholds: Mapping[str, float | None],
    top_k: int,
    *,
    as_json: bool,
) -> None:
    coded: dict[str, list[Coding]] = {}
    origins: dict[str, dict[str, str]] = {}
    for prefix, coder in bundles.coders.items():
        name = prefix.rstrip("_")
        coded[name] = coder.code(texts, top_k=top_k, threshold=thresholds[prefix])
        origins[name] = coder.origin
    for n, text in enumerate(texts):
        answers = {name: codings[n] for name, codings in coded.items()}
        if as_json:
            content = {name: origins[name] | coding.as_dict() for name, coding in answers.items()}
            say(json.dumps(content.get("", content)))
        else:
            say("\n  ".join(_answer_lines(text, answers)))


def _answer_lines(text: str, answers: Mapping[str, Coding]) -> list[str]:
    lines = [text if len(text) <= 100 else text[:97] + "..."]
    for name, coding in answers.items():
        if not name:
            lines += _answers(coding)
            continue
        lines.append(f"{name}:")
        lines += [f"  {line}" for line in _answers(coding)]
    return lines


def _answers(coding: Coding) -> list[str]:
    lines = [f"{answer.code:<6} {answer.score:5.1%}  {answer.title}" for answer in coding.answers]
    if not coding.answers:
        lines.append("no code: the narrative is blank")
    elif coding.needs_review:
        group = coding.group
        sure = f"; certain only of {group.code} {group.title} ({group.score:.1%})" if group else ""
        lines.append(f"needs review{sure}")
    if coding.members:
        lines.append(f"set: {'; '.join(coding.members)}")
    return lines


def _notes(coded: CodingReport) -> str:
    notes = [f"{coded.blank:,} blank"] if coded.blank else []
    if coded.review is not None:
        notes.append(f"{coded.review:,} need review")
    if coded.resumed:
        notes.append(f"{coded.resumed:,} were coded in an earlier run")
    return f" ({'; '.join(notes)})" if notes else ""
