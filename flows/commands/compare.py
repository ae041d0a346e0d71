"""Defines `autocoder compare`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.ledger_text import KINDS, spent
from flows.commands.terminal import Column, fitted_table
from flows.server.run_flow import run_command
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from flows.compare import ProtocolResult


_RIVALS = "rivals."
"""What `--set` of a rivals' setting begins with, such as rivals.epochs=10."""


@dataclass(frozen=True)
class SharedOptions:
    """Holds the settings of all branches."""

    target_epsilon: Annotated[
        str,
        options.privacy("--epsilon", help="A number, or, for study, `match`: the epsilon of SWAG-PPM, rounded up."),
    ] = "match"
    delta: Annotated[
        float | None,
        options.more(
            help="Delta of the formal claims.",
            show_default="the profile's, or 1e-5, less for over 10,000 records or by policy",
        ),
    ] = None
    epsilons: Annotated[
        str, options.privacy(help="Further targets by comma, such as 1,2,5: accuracy at each ε, on the decision page.")
    ] = ""
    protocols: Annotated[
        str,
        options.more(
            help="Records: `paper`, `all-records`, or both by comma, for two tables in one report.",
            show_default="the profile's",
        ),
    ] = ""
    seeds: Annotated[int, options.more(help="Runs per branch, from fit.seed on.")] = 5


def compare(
    run: options.RunOptions,
    shared: SharedOptions,
    output: options.OutputOptions,
    branches: Annotated[str, typer.Option(help="Names by comma, or `all`.")] = "all",
    results: Annotated[
        Path | None,
        options.more(help="Also write aggregates and figures as Markdown to this file. For public data only."),
    ] = None,
    engine: options.Engine = "",
) -> None:
    r"""Compare branches on the same records. Nothing is released; the report is internal.

    Each branch with a claim gets a release plan, which `autocoder release` takes. A branch whose epsilon is taken from
    the records (`--epsilon match`) is for study and gets none. The page `decision.html` next to the report shows
    accuracy and audits of each branch by epsilon, with a recommendation.

    `--set rivals.epochs=10` sets what the rivals have in common: epochs, batch_size, slots.

    Examples

      autocoder compare --profile osha-formal --epsilon 5 \
          --data injuries.zip --codelist oiics201_nature.csv \
          --branches non-private-titles,prior-descent --epsilons 1,2

      autocoder compare --profile osha-head --data injuries.csv \
          --codelist oiics201_nature.csv --branches non-private,swag-ppm
    """
    if results is not None:
        options.require_writable("--results", results)
    of_rivals = [setting.removeprefix(_RIVALS) for setting in run.settings or () if setting.startswith(_RIVALS)]
    run = replace(run, settings=[setting for setting in run.settings or () if not setting.startswith(_RIVALS)])
    parameters = run.parameters()

    from flows.commands.profiles import apply_settings, parse_target, profile_branches, validate
    from tasks.branches.branch import CompareParameters, choose

    values = asdict(shared) | {
        "target_epsilon": parse_target(shared.target_epsilon),
        "branches": profile_branches(run.profile_name),
    }
    values |= {"epsilons": _parts(shared.epsilons), "protocols": _parts(shared.protocols)}
    values = apply_settings(values, of_rivals, model=CompareParameters)
    settings = validate(CompareParameters, values, at="compare: ")
    chosen = choose(branches, model=parameters.model, data=parameters.data, branches=settings.all_branches)

    context = run.context(engine=engine)

    import flows.compare as job
    from tasks.comparing.run import estimate_seconds, refuse_early

    taken = job.under_each(parameters, settings)
    with private_errors("compare"):
        estimates = [refuse_early(context, one, settings, chosen, slots=settings.slots) for one in taken]
        seconds = sum(estimate_seconds(estimate, settings, chosen) for estimate in estimates)
    with output.progress() as console:
        measured = all(estimate.measured for estimate in estimates)
        console.expect(f"{len(chosen)} branches, {settings.seeds} seeds", seconds, measured=measured)
        result = run_command(
            partial(job.compare, parameters, settings, branches),
            context,
            name="compare",
            label=parameters.data.population,
            parameters={"retrain": parameters, "settings": settings, "branches": branches},
        )
    if results is not None:
        from tasks.comparing.protocols import protocol_title
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
            others=[(protocol_title(under), other.branches) for under, other in zip(taken[1:], others, strict=True)],
        )
    plans = [f"release plan of {name}: {plan}" for name, plan in result.plans.items()]
    if study := [branch.name for branch in chosen if branch.takes_target_from_records(settings)]:
        plans.append(
            f"no release plan of {', '.join(study)}: their epsilon was taken from these records. To release one, give "
            "--epsilon a number."
        )
    sentences = [
        f"{name}: {outcome.recommendation}" if len(result.protocols) > 1 else outcome.recommendation
        for name, outcome in result.protocols.items()
    ]
    tables = [line for outcome in result.protocols.values() for line in ("", *_table(outcome), "")]
    output.answer(result, "\n".join([*sentences, *tables, result.decision, result.report, *plans]))


def _table(outcome: ProtocolResult) -> list[str]:
    """Returns what each branch claims and how well it codes, at each target; the best first."""
    every = [*outcome.branches, *(one for group in outcome.further.values() for one in group)]
    ranked = sorted(every, key=lambda one: -one.mean["weighted_f1"])

    def score(name: str) -> list[str]:
        errors = (f" ± {one.spread[name]:.3f}" if one.seeds > 1 else "" for one in ranked)
        return [f"{one.mean[name]:.3f}{error}" for one, error in zip(ranked, errors, strict=True)]

    return fitted_table(
        [
            Column("method", [one.title for one in ranked], wraps=True),
            Column("ε", [spent(None if one.epsilon is None else Decimal(one.epsilon)) for one in ranked], right=True),
            Column("kind", [KINDS.get(one.guarantee_kind, one.guarantee_kind) for one in ranked]),
            Column("weighted F1", score("weighted_f1"), right=True),
            Column("macro F1", score("macro_f1"), rank=1, right=True),
        ]
    )


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
