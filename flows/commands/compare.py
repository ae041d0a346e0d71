"""Defines `autocoder compare`."""

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.layout import Column, fitted_table
from flows.commands.terminal import count_of
from flows.server.run_flow import run_command
from tasks.running.failures import private_errors

_BASELINES = "baselines."
"""Prefix of `--set` for settings of the baselines, such as baselines.epochs=10."""


@dataclass(frozen=True)
class SharedOptions:
    target_epsilon: Annotated[
        float | None,
        options.privacy("--epsilon", help="Target epsilon for methods that calibrate their noise."),
    ] = None
    delta: Annotated[
        float | None,
        options.more(
            help="Delta of the formal claims.",
            show_default="the profile's, or 1e-5, less for over 10,000 records or by policy",
        ),
    ] = None
    epsilons: Annotated[
        str,
        options.privacy(help="Further target ε to compare at, separated by commas, such as 1,2,5."),
    ] = ""
    seeds: Annotated[int, options.more(help="Number of runs per branch, starting at `seed`.")] = 5


def compare(
    run: options.RunOptions,
    shared: SharedOptions,
    output: options.OutputOptions,
    branches: Annotated[
        str, typer.Option(help="Names of branches, separated by commas, or `all`.")
    ] = "all",
    engine: options.Engine = "",
) -> None:
    r"""Compare branches on the same records. Nothing is released; the results are internal.

    It writes results.json, a table and a plot with the claim, F1 with its errors, and seconds of
    each branch at each epsilon. Each branch with a claim gets a plan for `autocoder release`.

    `--set baselines.epochs=10` sets the common settings of the baselines: epochs, batch_size.

    Examples

      autocoder compare --profile osha-formal --epsilon 5 \
          --data injuries.zip --codelist oiics201_nature.csv \
          --branches non-private-titles,prior-descent --epsilons 1,2

      autocoder compare --profile osha-head --data injuries.csv \
          --codelist oiics201_nature.csv --branches non-private,swag-ppm
    """
    in_common = [
        setting.removeprefix(_BASELINES)
        for setting in run.settings or ()
        if setting.startswith(_BASELINES)
    ]
    run = replace(
        run,
        settings=[setting for setting in run.settings or () if not setting.startswith(_BASELINES)],
    )
    parameters = run.parameters()

    from flows.commands.profiles import apply_settings, profile_branches, validate
    from tasks.branches.branch import CompareParameters, choose

    values = asdict(shared) | {"branches": profile_branches(run.profile_name)}
    values |= {
        "epsilons": tuple(part.strip() for part in shared.epsilons.split(",") if part.strip())
    }
    values = apply_settings(values, in_common, model=CompareParameters)
    settings = validate(CompareParameters, values, where="compare: ")
    chosen = choose(branches, parameters, settings.all_branches)
    context = run.context(engine=engine)

    import flows.compare as job
    from tasks.comparing import results
    from tasks.comparing.run import estimate_seconds, refuse_early

    with private_errors("compare"):
        estimate = refuse_early(context, parameters, settings, chosen)
        seconds = estimate_seconds(estimate, seeds=settings.seeds)
    with output.progress() as console:
        console.expect(
            f"{count_of(len(chosen), 'method')}, {count_of(settings.seeds, 'seed')}",
            seconds,
            measured=estimate.measured,
        )
        result = run_command(
            partial(job.compare, parameters, settings, branches),
            context,
            name="compare",
            label=parameters.data.population,
            parameters={"retrain": parameters, "settings": settings, "branches": branches},
        )
    head, rows = results.table(result.branches)
    texts = ("branch", "claim")
    ranks = {"ε, one replaced": 3, "δ": 2, "seconds": 3, "minus the first": 1}
    columns = [
        Column(
            name, cells, rank=ranks.get(name, 0), wraps=name == "branch", right=name not in texts
        )
        for name, cells in zip(head, zip(*rows, strict=True), strict=True)
    ]
    plans = [f"release plan of {name}: {plan}" for name, plan in result.plans.items()]
    output.answer(
        result, "\n".join([*fitted_table(columns), "", f"{result.folder}/results.md", *plans])
    )
