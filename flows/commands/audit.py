"""`autocoder audit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.server.settings import before_prefect, home_of

if TYPE_CHECKING:
    from tasks.auditing.audited import Audited, AuditResult

_CONTRADICTED = 3


def audit(
    data: options.Data = None,
    codelist: options.Codelist = None,
    profile: options.Profile = "osha-head",
    settings: options.Settings = None,
    home: options.Home = None,
    device: options.Device = "auto",
    branches: Annotated[
        str,
        typer.Option("--branches", help="Names by comma, `all`, or `release`: what retrain would release from."),
    ] = "release",
    all_branches: Annotated[
        bool, typer.Option("--all-branches", help="Every branch, and SWAG without weights.")
    ] = False,
    trials: Annotated[
        int, typer.Option("--trials", help="Reruns of the whole mechanism with canaries; 0: membership test alone.")
    ] = 32,
    trial_draws: Annotated[int, typer.Option("--trial-draws", help="Draws for risks and Delta in each rerun.")] = 50,
    canaries: Annotated[int, typer.Option("--canaries", help="Canaries of each family.")] = 32,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the lower bound.")] = 0.95,
    seeds: Annotated[int, typer.Option("--seeds", help="Candidates of each branch, from fit.seed on.")] = 1,
    target: Annotated[
        str, typer.Option("--target-epsilon", help="Of the rivals: a number, or `match` what SWAG-PPM came out with.")
    ] = "match",
    results: options.Results = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            help="Audit again with this changed: key=value, or several at once (key=value; key=value). May be "
            "repeated.",
        ),
    ] = None,
    vary_branches: Annotated[str, typer.Option("--vary-branches", help="Branches that --vary is for.")] = "release",
    vary_seeds: Annotated[
        int | None, typer.Option("--vary-seeds", help="Candidates under each --vary. [default: as many as --seeds]")
    ] = None,
    vary_trials: Annotated[
        int | None, typer.Option("--vary-trials", help="Reruns under each --vary. [default: as many as --trials]")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with code 3 when a claim is contradicted.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what a release would leak, beside what it claims.

    A membership test of the candidate; reruns of the whole mechanism on records and canaries that take part by the
    toss of a coin; lower bounds on epsilon from both. The ledger keeps claim and measurement, and a bound above the
    claim blocks the release. The candidate is the one that `retrain` has planned with the same options.

    [bold]Examples[/bold]

      autocoder audit --data injuries.csv --codelist oiics201_nature.csv

      autocoder audit --data injuries.csv --trials 0 --json

      autocoder audit --data injuries.csv --all-branches --seeds 5 --vary fit.adamw.epochs=3 --results docs/truth.md
    """
    from pydantic import ValidationError

    from flows.commands.compare import _number
    from flows.commands.profiles import explain, own_branches, parameters
    from storage.errors import InputError

    workspace = home_of(home)
    chosen = parameters(profile, settings or [], data=data, codelist=codelist)

    from tasks.auditing.settings import AuditParameters, check, choose_branches
    from tasks.branches.branch import CompareParameters

    try:
        spent = AuditParameters(trials=trials, trial_draws=trial_draws, canaries=canaries, confidence=confidence)
        varied_trials = trials if vary_trials is None else vary_trials
        less = AuditParameters.model_validate(spent.model_dump() | {"trials": varied_trials})
        common = {"target_epsilon": target if target == "match" else _number(target), "branches": own_branches(profile)}
        shared = CompareParameters.model_validate(common | {"seeds": seeds})
        fewer = CompareParameters.model_validate(common | {"seeds": vary_seeds or seeds})
    except ValidationError as error:
        raise InputError("audit: " + "; ".join(explain(entry) for entry in error.errors())) from None
    names = "swag,all" if all_branches else branches
    wanted = {"": choose_branches(names, chosen, shared.known)}
    check(chosen, spent)
    varied = {"": chosen} | {
        change: parameters(profile, [*(settings or []), *_changes(change)], data=data, codelist=codelist)
        for change in vary or []
    }
    for change, one in list(varied.items())[1:]:
        wanted[change] = choose_branches(vary_branches, one, shared.known)
        check(one, less)
    if results is not None:
        options.require_place("--results", results)
    before_prefect(workspace, make_home=True)

    import flows.audit as job
    from flows.commands.console import ConsoleListener
    from tasks.comparing.run import refuse_early
    from tasks.running.failures import private_errors
    from tasks.running.progress import listening
    from tasks.running.stage import Context

    with private_errors("audit"):
        for change, one in varied.items():  # a mistake in the last change is told before the first audit
            context = Context(home=str(workspace), device=device)
            refuse_early(context, one, fewer if change else shared, wanted[change])
    with ConsoleListener(quiet=quiet) as listener, listening(listener):
        runs = {
            change: job.audit(
                parameters=one,
                compare=fewer if change else shared,
                settings=less if change else spent,
                branches=vary_branches if change else names,
                home=str(workspace),
                device=device,
            )
            for change, one in varied.items()
        }
    if results is not None:
        from tasks.auditing.results import write

        audited = {change: result.branches for change, result in runs.items()}
        target_epsilon = runs[""].target_epsilon
        write(results, audited, parameters=chosen, settings=spent, compare=shared, target=target_epsilon)
    typer.echo(_json(runs) if as_json else "\n".join(_lines(change, result) for change, result in runs.items()))
    if strict and any(result.contradicted for result in runs.values()):
        raise typer.Exit(_CONTRADICTED)


def _changes(vary: str) -> list[str]:
    """`a=1; b=2` as settings."""
    return [part.strip() for part in vary.split(";") if part.strip()]


def _json(runs: Mapping[str, AuditResult]) -> str:
    """The result, with what was varied beside it."""
    import json

    told = runs[""].model_dump(mode="json")
    told["varied"] = {change: result.model_dump(mode="json") for change, result in runs.items() if change}
    return json.dumps(told, indent=2)


def _lines(change: str, result: AuditResult) -> str:
    """Claim and measurement, a line a branch and seed."""
    lines = [f"with {change}:"] if change else []
    for one in result.branches:
        claimed = "nothing" if one.epsilon is None else f"epsilon {one.epsilon:.3g} ({one.guarantee_kind})"
        lines.append(
            f"{one.branch}, seed {one.seed}: claimed {claimed}; measured at least {one.epsilon_lower_bound:.3g} "
            f"at {100 * one.confidence:.6g} % confidence{_uncounted(one)}; AUC {one.auc:.3f}, "
            f"TPR {one.tpr_at_fpr_0001:.2%} at FPR 0.1 %; {one.verdict}"
        )
    return "\n".join(lines)


def _uncounted(one: Audited) -> str:
    """What natural reruns measured beyond the bound, where they claim as much for themselves and it does not count."""
    from tasks.auditing.findings import NATURAL, bound_of

    natural = bound_of(one, NATURAL)
    if natural is None or natural["epsilon"] <= one.epsilon_lower_bound:
        return ""
    return f" (reruns: {natural['epsilon']:.3g}, not counted, as one of them claims {natural['claimed_in_trials']:.3g})"
