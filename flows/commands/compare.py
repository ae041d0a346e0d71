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
    delta: Annotated[
        float | None,
        typer.Option(help="Of the formal claims.", show_default="1e-5, or the policy's cap where that is less"),
    ] = None
    epsilons: Annotated[
        str, typer.Option(help="Further targets by comma, such as 1,2,5: what which ε costs, on the officer's page.")
    ] = ""
    protocols: Annotated[
        str,
        typer.Option(
            help="Which records: `paper`, `all-records`, or both by comma, for two tables of one report.",
            show_default="as the profile says",
        ),
    ] = ""
    seeds: Annotated[int, typer.Option(help="Runs of each branch, from fit.seed on.")] = 5
    epochs: Annotated[int, typer.Option(help="Of the non-private and DP-SGD fits.")] = 30
    batch_size: Annotated[int, typer.Option(help="Of DP-SGD in the paper's setting.")] = 512
    slots: Annotated[int, typer.Option(help="Branches at once.")] = 1


def compare(
    run: options.RunOptions,
    shared: SharedOptions,
    output: options.OutputOptions,
    branches: Annotated[str, typer.Option(help="Names by comma, or `all`.")] = "all",
    shards: options.Shards = 1,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread",
            help="Each branch at each seed on whichever worker is free; needs PREFECT_API_URL and `autocoder deploy`.",
        ),
    ] = False,
    results: options.Results = None,
) -> None:
    """Compare SWAG-PPM with its rivals on the same records. Nothing is released; the report is internal.

    For each branch that has a claim it leaves a release plan, which `autocoder release` takes. Branches whose epsilon
    was taken from the records (`--target-epsilon match`) are for study and get none. `decision.html` beside the report
    is for whoever decides: at which epsilon which branch loses what, audits beside it, and a recommendation.

    [bold]Example[/bold]

      autocoder compare --data injuries.csv --codelist oiics201_nature.csv --branches non-private,swag-ppm,formal-head

      autocoder compare --profile osha-formal --data injuries.zip --codelist oiics201_nature.csv \
--branches non-private-titles,prior-descent --protocols paper,all-records --target-epsilon 5 --epsilons 1,2
    """
    from flows.commands.profiles import checked, own_branches, target

    parameters = run.parameters()

    from tasks.branches.branch import CompareParameters, choose

    values = asdict(shared) | {"target_epsilon": target(shared.target_epsilon), "branches": own_branches(run.profile)}
    values |= {"epsilons": _parts(shared.epsilons), "protocols": _parts(shared.protocols)}
    settings = checked(CompareParameters, values, at="compare: ")
    chosen = choose(branches, model=parameters.model, data=parameters.data, known=settings.known)
    if results is not None:
        options.require_place("--results", results)

    from tasks.parameters import FanOut

    context = run.context(fan_out=FanOut(shards=shards))

    import flows.compare as job
    from flows.server.form import RetrainForm
    from tasks.comparing import protocols
    from tasks.comparing.run import expected, refuse_early
    from tasks.running.failures import private_errors

    taken = [protocols.under(parameters, name) for name in settings.protocols] or [parameters]

    with private_errors("compare"):
        estimates = [refuse_early(context, under, settings, chosen) for under in taken]
        seconds = sum(expected(estimate, settings, chosen) for estimate in estimates)
    with output.progress(bars=settings.slots == 1) as console, own_server():
        measured = all(estimate.measured for estimate in estimates)
        console.expect(f"{len(chosen)} branches, {settings.seeds} seeds", seconds, measured=measured)
        result = job.compare(
            parameters=RetrainForm.of(parameters),
            settings=settings.model_dump(),
            branches=branches,
            home=context.home,
            device=run.device,
            fan_out=context.fan_out,
            spread=spread,
        )
    if results is not None:
        from tasks.comparing.results import write

        others = list(result.protocols.values())[1:]
        write(
            results,
            result.report,
            result.branches,
            parameters=taken[0],
            settings=settings,
            target=result.target_epsilon,
            delta=result.delta,
            refused=[f"{name}: {why}" for found in result.protocols.values() for name, why in found.refused.items()],
            others=[(protocols.title(under), other.branches) for under, other in zip(taken[1:], others, strict=True)],
        )
    plans = [f"release plan of {name}: {plan}" for name, plan in result.plans.items()]
    if study := [branch.name for branch in chosen if branch.takes_target_from_records(settings)]:
        plans.append(
            f"no release plan of {', '.join(study)}: their epsilon was taken from these records; to release one, give "
            "--target-epsilon a number"
        )
    said = [
        f"{name}: {found.recommendation}" if len(result.protocols) > 1 else found.recommendation
        for name, found in result.protocols.items()
    ]
    said += [
        f"{name} is in no table: {why}" for found in result.protocols.values() for name, why in found.refused.items()
    ]
    output.answer(result, "\n".join([*said, result.decision, result.report, *plans]))


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
