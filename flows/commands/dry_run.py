"""Prints the result of `autocoder train --dry-run`: stages, records, model and expected charge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from flows.commands import options
from flows.commands.console import duration
from flows.commands.layout import Console, say_prose
from flows.commands.terminal import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mechanisms.model.config import ModelConfig
    from storage.ingest import SourcePreview
    from storage.ledger import ReleaseRow
    from storage.narrative_look import NarrativeLook
    from tasks.parameters import RetrainParameters
    from tasks.retraining.run import Preview
    from tasks.running.stage import Context


def show_dry_run(
    preview: Preview, parameters: RetrainParameters, context: Context, output: options.OutputOptions
) -> None:
    search = parameters.method.mechanism.search_text
    stages = {step.label: reused for step, reused in preview.steps}
    missing = [label for label, reused in stages.items() if not reused]
    seconds = preview.estimate.of_labels(missing) if missing or search else 0.0
    if output.as_json:
        content = _dry_run_json(preview, parameters, stages, search=search, seconds=seconds)
        say(json.dumps(content, indent=2, default=str))  # `default` is for amounts
    else:
        _print_stages(preview, parameters, context, stages, search)
        for name, line in _facts(preview, parameters):
            say_prose(line, name=name)
        computes = bool(missing or search)
        say_prose(_time_line(preview, seconds, computes, search), name="to compute")
        say_prose(f"{preview.estimate.disk_bytes / 1e6:,.0f} MB in all", name="disk")
    _end_over_budget(preview)


def _dry_run_json(
    preview: Preview,
    parameters: RetrainParameters,
    stages: Mapping[str, bool],
    *,
    search: str | None,
    seconds: float,
) -> dict[str, object]:
    data, survey, charge = parameters.data, preview.source, preview.charge
    release, code_list, units = preview.row, preview.code_list, survey.units
    listed = data.codelist is not None
    return {
        "stages": [{"stage": label, "reused": reused} for label, reused in stages.items()],
        "search": search,
        "release": release and _fields(release, "release_id", "state"),
        "population": data.population,
        "classification": " ".join((data.classification, data.classification_version)).strip(),
        "codes": {
            "listed": survey.codes if listed else None,
            "observed": survey.codes_observed,
        },
        "code_list": code_list and _fields(code_list, "verdict", "published_name", "description"),
        "records": {"read": survey.rows, "usable": survey.usable, **survey.sampled},
        "files": list(survey.reading),
        "notes": list(survey.notes),
        "language": survey.look.language,
        "narratives_cut": survey.look.longer_than(parameters.model.max_length),
        "units": None if units is None else _fields(units, "number", "largest"),
        "cohorts": list(survey.cohorts),
        "charge": _fields(charge, "guarantee_kind", "epsilon", "delta", "warning"),
        "budget": [
            {
                "population": line.account.population,
                "cohort": line.account.cohort,
                "spent": str(line.account.epsilon),
                "cap": None if line.cap is None else str(line.cap.epsilon),
            }
            for line in charge.accounts
        ],
        "other_names": list(charge.others),
        "estimated_seconds": round(seconds),
        "estimated_disk_bytes": preview.estimate.disk_bytes,
    }


def _print_stages(
    preview: Preview,
    parameters: RetrainParameters,
    context: Context,
    stages: Mapping[str, bool],
    search: str | None,
) -> None:
    table = Table("stage", "state", title=f"Plan in {context.home}", title_justify="left")
    missing = [label for label, reused in stages.items() if not reused]
    if len(missing) < len(stages):
        finished = f"{len(stages) - len(missing)} of {len(stages)} stages"
        table.add_row(finished, Text("finished, reused", "cyan"))
    for label in missing:
        table.add_row(label, "to compute")
    if search is not None:
        table.add_row("search", search)
    table.add_row("release", _release(parameters, preview.row))
    Console().print(table)


def _time_line(preview: Preview, seconds: float, computes: bool, search: str | None) -> str:
    if not computes:
        return "nothing: every stage is finished"
    by = (
        "from the time that stages took in this workspace"
        if preview.estimate.measured
        else "a rough guess: no such stage has run in this workspace yet"
    )
    fits = "; with a search that needs two fits" if search else ""
    return f"about {duration(seconds)} ({by}{fits})"


def _fields(of: object, *names: str) -> dict[str, object]:
    return {name: getattr(of, name) for name in names}


def _end_over_budget(preview: Preview) -> None:
    if preview.row is None and preview.charge.exceeds:
        raise typer.Exit(1)


def _facts(preview: Preview, parameters: RetrainParameters) -> Iterator[tuple[str, str]]:
    yield from _facts_of_list(preview, parameters)
    yield from _facts_of_records(preview.source, parameters)
    yield from _facts_of_model(preview.source, parameters)
    yield from _facts_of_charge(preview, parameters)


def _facts_of_list(preview: Preview, parameters: RetrainParameters) -> Iterator[tuple[str, str]]:
    data, survey = parameters.data, preview.source
    yield "population", f"{data.population}; cohorts {_listed(survey.cohorts)}"
    name = f"{data.classification} {data.classification_version}".strip() or "none named"
    listed = "no list" if data.codelist is None else f"{survey.codes:,} codes on the list"
    yield "classification", f"{name}; {listed}, {survey.codes_observed:,} observed"
    if data.codelist is None:
        for line in _advice_without_list(parameters):
            yield "advice", line
    if preview.code_list is not None:
        yield "code list", preview.code_list.description
    for line in survey.reading:
        yield "file", line
    for line in survey.notes:
        yield "note", line


def _facts_of_records(
    survey: SourcePreview, parameters: RetrainParameters
) -> Iterator[tuple[str, str]]:
    from tasks.retraining.run import warnings_of

    ingest = parameters.data.ingest
    dropped = f" (not: {_counted(survey.dropped)})" if survey.dropped else ""
    yield "records", f"{survey.rows:,} read, {survey.usable:,} usable{dropped}"
    if survey.units is not None:
        per = ingest.max_per_unit
        cap = f"at most {per:,} of each are used" if per else "there is no cap per unit"
        yield (
            "units",
            f"{survey.units.number:,}, with up to {survey.units.largest:,} records each; {cap}",
        )
    left_out = f" (left out: {_counted(survey.left_out)})" if survey.left_out else ""
    split = f"by the day {ingest.train_before}" if ingest.train_before else "at random"
    dates = "" if ingest.dates_from else "; no dates are read"
    yield "sampled", f"{_counted(survey.sampled)}{left_out}; split {split}{dates}"
    train, test = survey.sampled["train"], survey.sampled["test"]
    codes = survey.codes_observed
    for line in warnings_of(parameters.data, train=train, test=test, codes=codes):
        yield "warning", line


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())


def _facts_of_model(
    survey: SourcePreview, parameters: RetrainParameters
) -> Iterator[tuple[str, str]]:
    from mechanisms.model.scorer import MOST_CHARACTERS
    from storage.narrative_look import language_note, long_note
    from tasks.bundle.untold import REASONS
    from tasks.releasing.held_out_table import untold_by_settings

    model, index = parameters.model, parameters.data.coding_index
    yield "model", _model(model)
    if index is not None:
        yield (
            "coding index",
            f"{len(index.entries):,} public examples (SHA-256 {index.digest[:16]}…): the head "
            "starts at them, near the titles. No entry may come from the records",
        )
    stems = model.stems_language
    characters = None if stems is None else MOST_CHARACTERS
    cut = long_note(survey.look, model.max_length, characters=characters)
    if cut:
        yield "warning", cut
    encoder = model.encoder_language and model.encoder_language.lower()
    language = language_note(survey.look, encoder, stems)
    if language:
        if stems is not None and _changes_stems(stems, survey.look):
            language += f": --set model.lexical_language={survey.look.language} changes these"
        yield "warning", language
    untold = untold_by_settings(parameters)
    if untold is not None:
        yield "accuracy", f"the bundle reports none: {REASONS[untold]}"


def _facts_of_charge(preview: Preview, parameters: RetrainParameters) -> Iterator[tuple[str, str]]:
    from storage.ledger.registry import population_name_warning

    charge = preview.charge
    if preview.row is not None:
        yield "charge", "no further charge; it is already in the ledger"
    else:
        yield "charge", charge.line + (", to each cohort" if len(charge.accounts) > 1 else "")
    if charge.warning:
        yield "delta", charge.warning
    for line in charge.budget:
        yield "budget", line
    if charge.by_name_alone:
        yield (
            "",
            "by name only: releases of these records under other names appear only after ingest",
        )
    if charge.others:
        yield "other names", population_name_warning(charge.others, parameters.data.population)
    if preview.row is None and charge.exceeds:
        yield "", "the budget is too small: the release would be refused"


def _changes_stems(stems: str, look: NarrativeLook) -> bool:
    """Whether stems exist for the language of the texts that differ from the configured ones."""
    import snowballstemmer

    return look.language != stems and look.language in snowballstemmer.algorithms()


def _advice_without_list(parameters: RetrainParameters) -> Iterator[str]:
    if parameters.data.ingest.codes_are_names:
        yield "the names of the codes serve as their titles: continue only if every name is public"
        return
    yield (
        "use --codelist, a CSV of code and title: titles are public, and improve the codes at the "
        "same ε"
    )
    yield (
        "are the codes public names? Then --set data.ingest.codes_are_names=true makes each "
        "its own title"
    )
    if parameters.model.lexical == "hashed":
        yield (
            "are these injuries? Then --set model.lexical=titles --set "
            "model.lexical_titles=injuries reads words of OIICS's titles instead of hashed words"
        )


def _model(model: ModelConfig) -> str:
    start = "from the titles of the code list" if model.prior == "titles" else "at random"
    words = {
        "none": "",
        "titles": "; it reads the words of the titles",
        "hashed": "; it reads hashed words",
    }
    stems = f" by {model.stems_language} stems" if model.stems_language else ""
    english = f" ({model.encoder_language})" if model.encoder_language else ""
    return (
        f"{model.encoder}{english}, trains {model.trainable}; the head starts "
        f"{start}{words[model.lexical]}{stems}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _release(parameters: RetrainParameters, row: ReleaseRow | None) -> str:
    if row is None and not parameters.release.enabled:
        return "no: run `autocoder release` on the plan"
    if row is None:
        return f"at once, unaudited, label `{parameters.release.label}`"
    if row.state == "committed":
        return f"committed before: {row.release_id}; nothing more is released or charged"
    if row.state == "burned":
        return f"burned: {row.release_id}; another release.label is charged again"
    return f"{row.state}: {row.release_id}; resumes without another charge"
