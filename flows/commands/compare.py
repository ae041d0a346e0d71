"""`autocoder compare`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from flows.commands import options
from flows.server.temporary import own_server


@dataclass(frozen=True)
class SharedOptions:
    """What all branches have in common."""

    target_epsilon: Annotated[
        str, typer.Option(help="A number, or, for study, `match`: what SWAG-PPM came out with, rounded up.")
    ] = "match"
    delta: Annotated[float, typer.Option(help="Of the formal claims.")] = 1e-4
    seeds: Annotated[int, typer.Option(help="Runs of each branch, from fit.seed on.")] = 5
    epochs: Annotated[int, typer.Option(help="Of the non-private and DP-SGD fits.")] = 30
    batch_size: Annotated[int, typer.Option(help="Of DP-SGD in the paper's setting.")] = 512
    slots: Annotated[int, typer.Option(help="Branches at once.")] = 1


def compare(
    run: options.RunOptions,
    shared: SharedOptions,
    output: options.OutputOptions,
    branches: Annotated[str, typer.Option(help="Names by comma, or `all`.")] = "all",
    results: options.Results = None,
) -> None:
    """Compare SWAG-PPM with its rivals on the same records. Nothing is released; the report is internal.

    For each branch that has a claim it leaves a release plan, which `autocoder release` takes. Branches whose epsilon
    was taken from the records (`--target-epsilon match`) are for study and get none.

    [bold]Example[/bold]

      autocoder compare --data injuries.csv --codelist oiics201_nature.csv --branches non-private,swag-ppm,formal-head
    """
    from flows.commands.profiles import checked, own_branches, target

    parameters = run.parameters()

    from tasks.branches.branch import CompareParameters, choose

    values = asdict(shared) | {"target_epsilon": target(shared.target_epsilon), "branches": own_branches(run.profile)}
    settings = checked(CompareParameters, values, at="compare: ")
    chosen = choose(branches, model=parameters.model, known=settings.known)
    if results is not None:
        options.require_place("--results", results)
    context = run.context()

    import flows.compare as job
    from flows.server.form import RetrainForm
    from tasks.comparing.run import expected, refuse_early
    from tasks.running.failures import private_errors

    with private_errors("compare"):
        estimate = refuse_early(context, parameters, settings, chosen)
        seconds = expected(estimate, settings, chosen)
    with output.progress(bars=settings.slots == 1) as console, own_server():
        console.expect(f"{len(chosen)} branches, {settings.seeds} seeds", seconds, measured=estimate.measured)
        result = job.compare(
            parameters=RetrainForm.of(parameters),
            settings=settings.model_dump(),
            branches=branches,
            home=context.home,
            device=run.device,
        )
    if results is not None:
        from tasks.comparing.results import write

        report, target_epsilon = result.report, result.target_epsilon
        write(results, report, result.branches, parameters=parameters, settings=settings, target=target_epsilon)
    plans = [f"release plan of {name}: {plan}" for name, plan in result.plans.items()]
    if study := [branch.name for branch in chosen if branch.takes_target_from_records(settings)]:
        plans.append(
            f"no release plan of {', '.join(study)}: their epsilon was taken from these records; to release one, give "
            "--target-epsilon a number"
        )
    output.answer(result, "\n".join([result.report, *plans]))
