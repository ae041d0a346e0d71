"""`autocoder audit`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.temporary import own_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.auditing.audited import Audited, AuditResult
    from tasks.auditing.settings import AuditParameters
    from tasks.branches.branch import CompareParameters
    from tasks.parameters import RetrainParameters

_CONTRADICTED = 3


@dataclass(frozen=True)
class EffortOptions:
    """How much an audit measures."""

    trials: Annotated[
        int, typer.Option(help="Reruns of the whole mechanism with canaries; 0: none, which satisfies no policy.")
    ] = 32
    trial_draws: Annotated[int, typer.Option(help="Draws for risks and Delta in each rerun.")] = 50
    canaries: Annotated[int, typer.Option(help="Canaries of each family.")] = 32
    gradient_canaries: Annotated[
        int, typer.Option(help="Coins of a white-box test of DP-SGD's noise, in one more fit of each; 0: none.")
    ] = 1000
    left_out: Annotated[
        int, typer.Option(help="Records that a SWAG posterior is refitted without, to compare densities; 0: none.")
    ] = 5
    power: Annotated[
        bool, typer.Option("--power/--no-power", help="Rerun formal mechanisms at half of their noise as well.")
    ] = True
    confidence: Annotated[float, typer.Option(help="Of all that is said of one claim.")] = 0.95


@dataclass(frozen=True)
class BranchOptions:
    """What is audited."""

    branches: Annotated[
        str, typer.Option(help="Names by comma, `all`, or `release`: what retrain would release from.")
    ] = "release"
    all_branches: Annotated[bool, typer.Option("--all-branches", help="Every branch, and SWAG without weights.")] = (
        False
    )
    seeds: Annotated[int, typer.Option(help="Candidates of each branch, from fit.seed on.")] = 1
    target_epsilon: Annotated[
        str, typer.Option(help="Of the rivals: a number, or `match` what SWAG-PPM came out with.")
    ] = "match"


@dataclass(frozen=True)
class VariationOptions:
    """Audits of the same under changed settings."""

    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Audit again with this changed: key=value, or several at once (key=value; key=value). May be repeated."
        ),
    ] = None
    vary_branches: Annotated[str, typer.Option(help="Branches that --vary is for.")] = "release"
    vary_seeds: Annotated[
        int | None, typer.Option(help="Candidates under each --vary.", show_default="as many as --seeds")
    ] = None
    vary_trials: Annotated[
        int | None, typer.Option(help="Reruns under each --vary.", show_default="as many as --trials")
    ] = None


@dataclass(frozen=True)
class _Case:
    """One audit to run."""

    parameters: RetrainParameters
    compare: CompareParameters
    settings: AuditParameters
    branches: str


def audit(
    run: options.RunOptions,
    chosen: BranchOptions,
    effort: EffortOptions,
    variation: VariationOptions,
    output: options.OutputOptions,
    results: options.Results = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with code 3 when a claim is contradicted.")] = False,
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
    cases = _cases(run, chosen, effort, variation)
    if results is not None:
        options.require_place("--results", results)
    context = run.context()

    import flows.audit as job
    from tasks.auditing.settings import choose_branches
    from tasks.comparing.run import refuse_early
    from tasks.running.failures import private_errors

    with private_errors("audit"):
        for case in cases.values():  # a mistake in the last change is said before the first audit
            branches = choose_branches(case.branches, case.parameters, case.compare.known)
            refuse_early(context, case.parameters, case.compare, branches)
    with output.progress(), own_server():
        audits = {
            change: job.audit(
                parameters=case.parameters,
                compare=case.compare,
                settings=case.settings,
                branches=case.branches,
                home=context.home,
                device=run.device,
            )
            for change, case in cases.items()
        }
    if results is not None:
        from tasks.auditing.results import write

        audited, own = {change: result.branches for change, result in audits.items()}, cases[""]
        target = audits[""].target_epsilon
        write(results, audited, parameters=own.parameters, settings=own.settings, compare=own.compare, target=target)
    lines = [line for change, result in audits.items() for line in _lines(change, result)]
    say(_json(audits) if output.as_json else "\n".join(lines))
    if strict and any(result.contradicted for result in audits.values()):
        raise typer.Exit(_CONTRADICTED)


def _cases(
    run: options.RunOptions, chosen: BranchOptions, effort: EffortOptions, variation: VariationOptions
) -> dict[str, _Case]:
    """The audit that was asked for, by the name "", and one of each change.

    Raises:
        InputError: an option is out of range, or names what is not there.
    """
    from flows.commands.profiles import checked, own_branches, target

    own = run.parameters()

    from tasks.auditing.settings import AuditParameters, check, choose_branches
    from tasks.branches.branch import CompareParameters

    def case(parameters: RetrainParameters, branches: str, seeds: int, trials: int) -> _Case:
        rivals = {
            "target_epsilon": target(chosen.target_epsilon),
            "seeds": seeds,
            "branches": own_branches(run.profile),
        }
        settings = checked(AuditParameters, asdict(effort) | {"trials": trials}, at="audit: ")
        compare = checked(CompareParameters, rivals, at="audit: ")
        choose_branches(branches, parameters, compare.known)
        check(parameters, settings)
        return _Case(parameters, compare, settings, branches)

    cases = {"": case(own, "swag,all" if chosen.all_branches else chosen.branches, chosen.seeds, effort.trials)}
    trials = effort.trials if variation.vary_trials is None else variation.vary_trials
    for change in variation.vary or []:
        settings = [part.strip() for part in change.split(";") if part.strip()]
        varied = run.parameters(*settings)
        cases[change] = case(varied, variation.vary_branches, variation.vary_seeds or chosen.seeds, trials)
    return cases


def _json(audits: Mapping[str, AuditResult]) -> str:
    """The result, with what was varied beside it."""
    models = {change: result.model_dump(mode="json") for change, result in audits.items()}
    return json.dumps(models.pop("") | {"varied": models}, indent=2)


def _lines(change: str, result: AuditResult) -> list[str]:
    """Claim and measurement, a line a branch and seed."""
    from tasks.releasing.gate import CONTRADICTED, INCONCLUSIVE, round_down

    lines = [f"with {change}:"] if change else []
    for audited in result.branches:
        claim = "nothing" if audited.epsilon is None else f"epsilon {audited.epsilon:.3g} ({audited.guarantee_kind})"
        if audited.epsilon_add_remove != audited.epsilon:
            claim += f", {audited.epsilon_add_remove:.3g} for one record more or less"
        said = audited.verdict
        if said == CONTRADICTED and audited.delta_refuted:
            said += f" for every delta up to {round_down(audited.delta_refuted)}"
        elif said == INCONCLUSIVE:
            said += f": {_shown(audited, result.trials)}"
        lines.append(
            f"{audited.branch}, seed {audited.seed}: claimed {claim}; measured at least "
            f"{audited.epsilon_lower_bound:.3g} at {100 * audited.confidence:.6g} % confidence{_uncounted(audited)}; "
            f"strongest membership test, {audited.attack.replace('_', ' ')}: AUC {audited.auc:.3f}, TPR "
            f"{audited.tpr_at_fpr_0001:.2%} at FPR 0.1 %; {said}"
        )
    return lines


def _shown(audited: Audited, trials: int) -> str:
    """Why an audit has no result."""
    return (
        f"{trials} reruns can show at most epsilon {audited.reach:.3g} at {100 * audited.confidence:.6g} %, the claim "
        f"is {audited.epsilon_add_remove:.3g}: not enough"
    )


def _uncounted(audited: Audited) -> str:
    """What natural reruns measured beyond the bound, where they claim as much for themselves and it does not count."""
    from tasks.auditing.findings import NATURAL, bound_of

    natural = bound_of(audited, NATURAL)
    if natural is None or natural["claimed_in_trials"] is None or natural["epsilon"] <= audited.epsilon_lower_bound:
        return ""
    return f" (reruns: {natural['epsilon']:.3g}, not counted, as one of them claims {natural['claimed_in_trials']:.3g})"
