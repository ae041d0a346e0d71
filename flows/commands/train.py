"""Defines `autocoder train`."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.dry_run import show_dry_run
from flows.commands.plan import offered, summary_of
from flows.commands.release import ending
from flows.commands.terminal import command_line, nearby, say
from flows.server.run_flow import run_command
from storage.errors import Contradiction, Missing
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from flows.retrain import RetrainResult
    from tasks.parameters import RetrainParameters
    from tasks.running.stage import Context


def train(
    run: options.RunOptions,
    output: options.OutputOptions,
    target_epsilon: Annotated[
        float | None,
        options.privacy(
            "--epsilon",
            help="Target ε for one record (or unit). Smaller values protect more and cost "
            "accuracy. SWAG-PPM searches for the c that achieves it.",
        ),
    ] = None,
    delta: Annotated[
        float | None,
        options.privacy(
            help="Delta of a formal claim, far below one over the number of records.",
            show_default=(
                "the profile's, or the smallest of 1e-5, a tenth over their number and the "
                "policy's cap"
            ),
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help=(
                "Read the records and the code list, and show stages, population, "
                "charge, budget, expected time and disk space. Trains nothing."
            ),
        ),
    ] = False,
    release: Annotated[
        bool | None,
        options.more(
            "--release/--plan-only",
            help="Release the plan at once without an audit, or stop at the plan.",
            show_default="--plan-only; for profile demo --release",
        ),
    ] = None,
    deploy: Annotated[
        str | None,
        options.more(
            help=(
                "Do not run now. Check these parameters and register them under this "
                "name as a deployment of the Prefect server (PREFECT_API_URL)."
            )
        ),
    ] = None,
    cron: Annotated[
        str | None,
        options.more(help="With --deploy: schedule of the runs, as a cron line of five fields."),
    ] = None,
    time_zone: Annotated[
        str, options.more(help="Time zone of --cron, such as Europe/Paris.")
    ] = "UTC",
    engine: options.Engine = "",
    processes: options.Processes = 1,
) -> None:
    r"""Train on a file of records, and plan the release: one formally private model, or one
    posterior sample.

    It ends with a plan and the next commands: `autocoder audit PLAN`, then `autocoder release
    PLAN`. Each --label makes its own plan, from one encoding of the texts. After an interruption,
    run the same command to resume. Finished stages are reused.

    Examples

      autocoder demo-data --out demo

      autocoder train --profile demo-formal --epsilon 5 \
          --data demo/injuries.csv --codelist demo/codelist.csv

      autocoder train --profile osha-formal --epsilon 5 \
          --data injuries.zip --codelist oiics201_nature.csv

      autocoder train --profile formal --epsilon 5 \
          --data jobs.csv --codelist soc2010.csv --text "Job title" \
          --label Code --population job-titles \
          --classification SOC --classification-version 2010 --dry-run

      autocoder train --profile formal --epsilon 5 \
          --data jobs.csv --text "Job title" --label Code \
          --population job-titles --classification "" \
          --deploy jobs --cron "0 6 1 */3 *"
    """
    runs = run.each_label()
    if deploy is not None or cron is not None:
        if len(runs) > 1:
            raise Contradiction(
                "--deploy: a deployment plans one release. Use --label once.", kind="deploys-one"
            )
        _require_server(deploy)
        from flows.server import schedules

        schedules.schedule_of(cron, time_zone)  # checked before the file is read
    values = {
        "method.target_epsilon": target_epsilon,
        "method.delta": delta,
        "release.enabled": release,
    }
    planned = [(labelled, labelled.parameters(labels | values)) for labelled, labels in runs]

    context = run.context(engine=engine, processes=processes)
    if len(planned) > 1 and not dry_run:
        for _, parameters in planned:
            # a plan lists all fits of its records, so all are fitted before the first plan is
            # written
            if not parameters.release.enabled:
                _fit(parameters, context, output)
    for labelled, parameters in planned:
        if deploy is not None:
            _deploy(
                labelled, output, parameters, context, name=deploy, cron=cron, time_zone=time_zone
            )
        elif dry_run:
            from tasks.retraining import run as retraining

            show_dry_run(retraining.dry_run(parameters, context), parameters, context, output)
        else:
            _show(_fit(parameters, context, output), parameters, context, output)


def _fit(
    parameters: RetrainParameters, context: Context, output: options.OutputOptions
) -> RetrainResult:
    import flows.retrain as job
    from tasks.releasing import code_lists
    from tasks.retraining import run as retraining

    with private_errors("retrain"):  # the flow checks too, but only after the progress has started
        estimate = retraining.refuse_early(context, parameters)
        missing = retraining.unfinished_stages(context, parameters)
        verdict = code_lists.assess_parameters(context, parameters)
    notes = [verdict.warning] if verdict is not None and verdict.warning is not None else []
    output.warn(notes)
    with output.progress() as console:
        if missing:
            console.expect("training", estimate.of_labels(missing), measured=estimate.measured)
        result = run_command(
            partial(job.retrain, parameters),
            context,
            name="retrain",
            label=parameters.data.population,
            parameters={"retrain": parameters},
        )
    warnings = (*result.warnings, *(result.release.warnings if result.release is not None else ()))
    output.warn([warning for warning in warnings if warning not in notes])
    return result


def _show(
    result: RetrainResult,
    parameters: RetrainParameters,
    context: Context,
    output: options.OutputOptions,
) -> None:
    if result.release is not None:
        from tasks.releasing.ledger_access import open_ledger

        output.note_estimate(result.release.guarantee_kind)
        ledger = open_ledger(context, parameters.release)
        output.answer(result, ending(result.release, context.home, ledger))
        return
    output.note_estimate(parameters.method.guarantee_kind)
    output.answer(result, "" if output.as_json else _next(parameters, result.plan, context.home))


def _require_server(deploy: str | None) -> None:
    if deploy is None:
        raise Missing(
            "--cron: nothing is registered. Specify the deployment, such as --deploy own.",
            kind="schedule-without-deployment",
        )
    if "PREFECT_API_URL" not in os.environ:
        raise Missing(
            "--deploy: no server is configured. Set PREFECT_API_URL, such as "
            "http://127.0.0.1:4200/api. `make stack` and `prefect server start` "
            "start one.",
            kind="no-deployment-server",
        )


def _deploy(
    run: options.RunOptions,
    output: options.OutputOptions,
    parameters: RetrainParameters,
    context: Context,
    *,
    name: str,
    cron: str | None,
    time_zone: str,
) -> None:
    from flows.server import schedules
    from flows.server.form import WorkerSettings
    from tasks.retraining import run as retraining

    with private_errors("retrain"):
        schedules.check_name(name)
        schedule = schedules.schedule_of(cron, time_zone)
        parameters = schedules.with_absolute_paths(parameters)
        retraining.refuse_early(context, parameters)
        home = {} if run.home is None else {"home": context.home}
        worker = WorkerSettings(
            device=run.device, engine=context.engine, processes=context.processes, **home
        )
        pool = "gpu" if run.device == "cuda" else "cpu"
        registered = schedules.register_retrain(
            name, parameters, worker, schedule=schedule, pool=pool
        )
    output.note_estimate(parameters.method.guarantee_kind)
    if output.as_json:
        say(
            json.dumps(
                {"deployment": registered, "cron": cron, "time_zone": time_zone, "pool": pool}
            )
        )
        return
    when = "manually" if cron is None else f"at {cron} ({time_zone})"
    say(f"deployment {registered}: runs {when} on pool {pool}")
    if schedule is not None:
        runs = ", ".join(f"{run:%Y-%m-%d %H:%M}" for run in schedules.next_runs(schedule))
        say(f"next runs: {runs} ({time_zone})")
    say(f"next: prefect deployment run {registered}")


def _next(parameters: RetrainParameters, plan: str, home: str) -> str:
    summary = summary_of(plan, home, parameters.release)
    read = f"read: {command_line('plan', nearby(plan))}"
    audit = command_line("audit", nearby(plan))
    following = offered([audit, *summary.to_release]) if summary.to_release else []
    return "\n".join((*summary.lines, f"plan: {nearby(plan)}", read, *following))
