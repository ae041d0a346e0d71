"""`autocoder retrain`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.temporary import own_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage.ledger import Row
    from tasks.parameters import RetrainParameters
    from tasks.retraining.run import Preview
    from tasks.running.stage import Context


def retrain(
    run: options.RunOptions,
    output: options.OutputOptions,
    target_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Epsilon to reach. A formal profile adds the noise that it takes; with SWAG-PPM c and k are searched "
            "for it, or, with mechanism censored or both, it is the bound."
        ),
    ] = None,
    shards: options.Shards = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Folder or s3://bucket/prefix where machines share finished stages.", show_default="$AUTOCODER_STORAGE"
        ),
    ] = None,
    release: Annotated[
        bool | None,
        typer.Option(
            "--release/--plan-only",
            help="Go on from the plan to its release, unaudited; or stop at the plan.",
            show_default="--plan-only; of the profile demo --release",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Read records and code list, and show stages, population, charge, budget, expected time and disk.",
        ),
    ] = False,
) -> None:
    """Run the whole method on a file of records and plan its release: one draw, or one formally private fit.

    It ends with a plan, and says what comes next: `autocoder audit PLAN`, then `autocoder release PLAN`. Interrupted or
    killed, the same command goes on where it stopped. Finished stages are reused.

    [bold]Examples[/bold]

      autocoder demo-data --out demo

      autocoder retrain --profile demo --data demo/injuries.csv --codelist demo/codelist.csv

      autocoder retrain --profile osha-formal --data injuries.zip --codelist oiics201_nature.csv --target-epsilon 5

      autocoder retrain --data injuries.zip --codelist oiics201_nature.csv --target-epsilon 4

      autocoder retrain --data jobs.csv --codelist soc2010.csv --text "Job title" --label Code --date "" \
--population job-titles --classification SOC --classification-version 2010 --dry-run
    """
    section = "formal" if run.formal else "pseudo_posterior"
    target = () if target_epsilon is None else (f"{section}.target_epsilon={target_epsilon}",)
    wanted = () if release is None else (f"release.enabled={str(release).lower()}",)
    parameters = run.parameters(*target, *wanted)
    if storage is not None:
        os.environ["AUTOCODER_STORAGE"] = storage

    from tasks.parameters import FanOut

    context = run.context(make_home=not dry_run, fan_out=FanOut(shards=shards))

    import flows.retrain as job
    from flows.server.form import RetrainForm
    from tasks.releasing import code_lists
    from tasks.retraining import run as retraining
    from tasks.running.failures import private_errors

    if dry_run:
        _show_dry_run(retraining.dry_run(parameters, context), parameters, context, output)
        return
    with private_errors("retrain"):  # the flow looks too, but only once Prefect's server has started
        estimate = retraining.refuse_early(context, parameters)
        missing = retraining.to_compute(context, parameters)
        form = RetrainForm.of(parameters)
        words = code_lists.of_parameters(context, parameters)
    output.warn([word.warning for word in words if word.warning is not None])
    with output.progress() as console, own_server():
        console.expect("this retrain", estimate.of_labels(missing), measured=estimate.measured)
        result = job.retrain(parameters=form, home=context.home, device=run.device, fan_out=context.fan_out)
    output.warn((*result.warnings, *(result.release.warnings if result.release is not None else ())))
    output.answer(result, _next(parameters, result.plan) if result.release is None else result.release.bundle)


def _next(parameters: RetrainParameters, plan: str) -> str:
    """The plan, and the two commands that lead from it to a release."""
    if parameters.data.ingest.kind != "text":
        return f"plan: {plan}\nnext: autocoder audit {plan} --trials 0"
    return f"plan: {plan}\nnext: autocoder audit {plan}\nthen: autocoder release {plan}"


def _show_dry_run(
    preview: Preview, parameters: RetrainParameters, context: Context, output: options.OutputOptions
) -> None:
    """Stages, each with whether its output is there; whose records and codes; the charge; time and disk."""
    from tasks.branches.search import searches

    search = _search(parameters) if parameters.formal is None and searches(parameters) else None
    stages = {step.label: reused for step, reused in preview.steps}
    data, looked, charge, estimate = parameters.data, preview.looked, preview.charge, preview.estimate
    seconds = estimate.of_labels([label for label, reused in stages.items() if not reused])
    row, listed = preview.row, None not in data.codelists.values()
    if output.as_json:
        content = {
            "stages": [{"stage": label, "reused": reused} for label, reused in stages.items()],
            "search": search,
            "release": None if row is None else {"release_id": row.release_id, "state": row.state},
            "population": data.population,
            "classification": " ".join((data.classification, data.classification_version)).strip(),
            "codes": {"listed": looked.codes if listed else None, "observed": looked.codes_observed},
            "code_lists": [
                {"field": word.field, "verdict": word.verdict, "known_as": word.known_as, "said": word.said}
                for word in preview.lists
            ],
            "records": {"read": looked.rows, "usable": looked.usable, **looked.sampled},
            "cohorts": list(looked.cohorts),
            "charge": {"guarantee_kind": charge.guarantee_kind, "epsilon": charge.epsilon, "delta": charge.delta},
            "budget": [
                {
                    "population": one.population or data.population,
                    "cohort": one.cohort,
                    "spent": str(one.spent),
                    "cap": None if one.cap is None else str(one.cap),
                }
                for one in charge.accounts
            ],
            "other_names": list(charge.others),
            **({} if preview.separately is None else {"separate_releases": asdict(preview.separately)}),
            "estimated_seconds": round(seconds),
            "estimated_disk_bytes": estimate.disk_bytes,
        }
        say(json.dumps(content, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    from flows.commands.console import duration
    from flows.commands.terminal import Console

    table = Table("stage", "output", title=f"Plan in {context.home}")
    for label, reused in stages.items():
        table.add_row(label, Text("there, reused", "cyan") if reused else "to compute")
    if search is not None:
        table.add_row("search", search)
    table.add_row("release", _release(parameters, row))
    console = Console()
    console.print(table)
    for name, line in _facts(preview, parameters):
        console.print(f"{name:<15} {line}", soft_wrap=True)
    by = "by what stages took in this workspace" if estimate.measured else "rough: nothing was timed in this workspace"
    fits = "; with a search that needs two fits" if search else ""
    disk = f"{estimate.disk_bytes / 1e6:,.0f} MB in all"
    console.print(f"{'to compute':<15} about {duration(seconds)} ({by}{fits}), {disk}", soft_wrap=True)


def _facts(preview: Preview, parameters: RetrainParameters) -> Iterator[tuple[str, str]]:
    """Whose records, coded by what, at what cost: what a release says for good."""
    from storage.ledger.siblings import other_names
    from tasks.bundle.thresholds import NONE_FOR_OTHERS, are_generated_for

    data, looked, charge = parameters.data, preview.looked, preview.charge
    dropped = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in looked.dropped.items())
    yield "population", f"{data.population}; cohorts {_listed(looked.cohorts)}"
    named = " ".join(part for part in (data.classification, data.classification_version) if part)
    lists = data.codelists.values()
    listed = "; no list" if None in lists else f"; {looked.codes:,} codes on the list{'s' if len(lists) > 1 else ''}"
    yield "classification", f"{named or 'none named'}{listed}, {looked.codes_observed:,} observed"
    for word in preview.lists:
        yield "code list", f"{word.field}: {word.said}" if word.field else word.said
    yield "records", f"{looked.rows:,} read, {looked.usable:,} usable{f' (not: {dropped})' if dropped else ''}"
    left_out = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in looked.left_out.items())
    halves = ", ".join(f"{name} {count:,}" for name, count in looked.sampled.items())
    yield "sampled", f"{halves}{f' (left out: {left_out})' if left_out else ''}"
    if parameters.data.ingest.kind == "text" and not are_generated_for(data.classification):
        yield "thresholds", f"none in the bundle: {NONE_FOR_OTHERS}"
    if preview.row is not None:
        yield "charge", "nothing more; it is in the ledger"
    else:
        yield "charge", charge.line + (", to each cohort" if len(charge.accounts) > 1 else "")
    for line in charge.budget:
        yield "budget", line
    if charge.by_name_alone:
        yield "", "by name alone: releases of these records under another name are found once they are ingested"
    if charge.others:
        yield "other names", other_names(charge.others, data.population)
    if preview.separately is not None:
        count, apart = len(data.ingest.fields), preview.separately
        yield (
            "fields",
            (
                f"{', '.join(data.ingest.fields)} in one release at this ε; {count} releases that cost as "
                f"much together would have ε {apart.each_epsilon:.2f} each, and {count} at this ε each would cost ε "
                f"{apart.together_epsilon:.2f} together"
            ),
        )
    elif data.ingest.fields:
        yield (
            "fields",
            f"{', '.join(data.ingest.fields)} in one release: one Δ, measured on a record's fields together; releases "
            "one by one would each be charged a Δ of their own",
        )
    if preview.row is None and charge.exceeds:
        yield "", "that is not enough: the release would be refused"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _search(parameters: RetrainParameters) -> str:
    """What is not known before the first fit."""
    from mechanisms.posterior.target import MAX_FITS

    config = parameters.pseudo_posterior
    names, constants = ("weighted and reweighted", "c and k") if config.reweight else ("weighted", "c")
    return (
        f"{constants} for epsilon {config.target_epsilon:g}: {names} fits, decided one by one, at most {MAX_FITS}; "
        "finished ones are reused"
    )


def _release(parameters: RetrainParameters, row: Row | None) -> str:
    if row is None and not parameters.release.enabled:
        return "not by this command: it stops at the plan"
    if row is None:
        return f"at once, unaudited, label `{parameters.release.label}`"
    if row.state == "committed":
        return f"there: {row.release_id}; nothing more is drawn or spent"
    if row.state == "burned":
        return f"burned: {row.release_id}; another release.label spends again"
    return f"{row.state}: {row.release_id}; goes on without spending again"
