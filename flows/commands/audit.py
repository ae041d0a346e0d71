"""`autocoder audit`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.settings import before_prefect, same_house
from flows.server.temporary import own_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.auditing.audited import AuditResult
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
    trial_draws: Annotated[
        int, typer.Option(help="Draws for risks and Delta in each rerun; at most the candidate's own.")
    ] = 50
    canaries: Annotated[int, typer.Option(help="Canaries of each family.")] = 32
    gradient_canaries: Annotated[
        int,
        typer.Option(
            help="Coins of a white-box test of DP-SGD's noise, in one more fit of each; at least 1000, or 0: none."
        ),
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
    plan: Annotated[
        Path | None,
        typer.Argument(help="Plan that retrain or compare wrote: audited with the settings that it was made with."),
    ] = None,
    *,
    run: options.RunOptions,
    chosen: BranchOptions,
    effort: EffortOptions,
    variation: VariationOptions,
    output: options.OutputOptions,
    shards: options.Shards = 1,
    results: options.Results = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with code 3 when a claim is contradicted.")] = False,
) -> None:
    """Measure what a release would leak, beside what it claims.

    A membership test of the candidate; reruns of the whole mechanism on records and canaries that take part by the
    toss of a coin; lower bounds on epsilon from both. The ledger keeps claim and measurement, and a bound above the
    claim blocks the release. Of a plan, what it releases is audited; without one, give the options of the retrain.

    [bold]Examples[/bold]

      autocoder audit workspace/private/plans/0123456789abcdef.json

      autocoder audit --data injuries.csv --codelist oiics201_nature.csv

      autocoder audit --data injuries.csv --trials 0 --json

      autocoder audit --data injuries.csv --all-branches --seeds 5 --vary fit.adamw.epochs=3 --results docs/truth.md
    """
    if plan is not None:
        options.refuse_beside_a_plan(run, chosen, variation, results=results)
        result = _of_plan(plan, run, effort, output, shards)
        say(result.model_dump_json(indent=2) if output.as_json else "\n".join(_told(plan, result)))
        raise typer.Exit(_CONTRADICTED if strict and result.contradicted else 0)
    options.require_plan_or_records(run)
    cases = _cases(run, chosen, effort, variation)
    if results is not None:
        options.require_place("--results", results)

    from tasks.parameters import FanOut

    context = run.context(fan_out=FanOut(shards=shards))

    import flows.audit as job
    from tasks.auditing.run import expected, seconds_of_reruns
    from tasks.auditing.settings import choose_branches
    from tasks.running.failures import private_errors

    seconds, measured, reruns = 0.0, True, 0
    with private_errors("audit"):
        for case in cases.values():  # a mistake in the last change is said before the first audit
            branches = choose_branches(case.branches, case.parameters, case.compare.known)
            estimate = expected(context, case.parameters, case.compare, case.settings, branches)
            seconds += seconds_of_reruns(estimate, case.settings, branches)
            measured, reruns = measured and estimate.measured, reruns + case.settings.trials * len(branches)
    with output.progress() as console, own_server():
        if reruns:
            console.expect(f"{reruns} reruns", seconds, measured=measured)
        audits = {
            change: job.audit_branches(
                parameters=case.parameters,
                compare=case.compare,
                settings=case.settings,
                branches=case.branches,
                home=context.home,
                device=run.device,
                fan_out=context.fan_out,
            )
            for change, case in cases.items()
        }
    if results is not None:
        from tasks.auditing.results import write

        audited, own = {change: result.branches for change, result in audits.items()}, cases[""]
        target = audits[""].target_epsilon
        of_run: dict[str, Any] = {"parameters": own.parameters, "settings": own.settings, "compare": own.compare}
        write(results, audited, **of_run, target=target, refused=audits[""].refused)
    say(_json(audits) if output.as_json else "\n".join(_lines(audits)))
    if strict and any(result.contradicted for result in audits.values()):
        raise typer.Exit(_CONTRADICTED)


def _of_plan(
    plan: Path, run: options.RunOptions, effort: EffortOptions, output: options.OutputOptions, shards: int
) -> AuditResult:
    """The audit of what a plan releases."""
    from flows.commands.profiles import checked

    workspace = options.plans_home(plan, run.home)
    same_house(plan, workspace)
    before_prefect(workspace, make_home=True)
    from tasks.auditing.settings import AuditParameters, check, choose_branches
    from tasks.branches.origin import Origin
    from tasks.parameters import FanOut

    settings = checked(AuditParameters, asdict(effort), at="audit: ")
    origin = Origin.of(plan)[1]
    check(origin.parameters, settings)

    import flows.audit as job
    from tasks.auditing.run import expected, seconds_of_reruns
    from tasks.running.failures import private_errors
    from tasks.running.stage import Context

    with private_errors("audit"):
        branches = choose_branches(origin.branch, origin.parameters, origin.compare.known)
        context = Context(home=str(workspace), device=run.device, fan_out=FanOut(shards=shards))
        estimate = expected(context, origin.parameters, origin.compare, settings, branches)
    with output.progress() as console, own_server():
        if settings.trials:
            seconds = seconds_of_reruns(estimate, settings, branches)
            console.expect(f"{settings.trials} reruns", seconds, measured=estimate.measured)
        return job.audit(
            plan=str(plan),
            settings=settings.model_dump(),
            home=str(workspace),
            device=run.device,
            fan_out=context.fan_out,
        )


def _told(plan: Path, result: AuditResult) -> list[str]:
    """Claim and measurement, and what comes next."""
    from tasks.auditing.findings import lines
    from tasks.releasing.gate import CONTRADICTED, INCONCLUSIVE

    (verdict,) = {one.verdict for one in result.branches}
    following = {
        CONTRADICTED: "the claim is refuted and its release blocked: a formal release, whose command "
        f"`autocoder plan show {plan}` prints, or `autocoder override`",
        INCONCLUSIVE: f"more --trials can show more; a policy with require_audit refuses `autocoder release {plan}`",
    }
    signed = f"autocoder release {plan} (a policy with approvals wants `autocoder approve` first)"
    return [*lines(result), f"next: {following.get(verdict, signed)}"]


def _lines(audits: Mapping[str, AuditResult]) -> list[str]:
    """Claim and measurement, of each change under its name."""
    from tasks.auditing.findings import lines

    return [
        line for change, result in audits.items() for line in ([f"with {change}:"] if change else []) + lines(result)
    ]


def _cases(
    run: options.RunOptions, chosen: BranchOptions, effort: EffortOptions, variation: VariationOptions
) -> dict[str, _Case]:
    """The audit that was asked for, by the name "", and one of each change.

    Raises:
        InputError: an option is out of range, or names what is not there.
    """
    from flows.commands.profiles import checked, own_branches, target

    aimed = run.formal and chosen.target_epsilon != "match"
    base = [f"formal.target_epsilon={target(chosen.target_epsilon)}"] if aimed else []
    own = run.parameters(*base)

    from tasks.auditing.settings import AuditParameters, check, choose_branches
    from tasks.branches.branch import CompareParameters

    def case(
        parameters: RetrainParameters, branches: str, seeds: int, trials: int, *, target_epsilon: str | None = None
    ) -> _Case:
        rivals = {
            "target_epsilon": target(target_epsilon or chosen.target_epsilon),
            "seeds": seeds,
            "branches": own_branches(run.profile),
        }
        settings = checked(AuditParameters, asdict(effort) | {"trials": trials}, at="audit: ")
        compare = checked(CompareParameters, rivals, at="audit: ")
        if parameters.formal is None:  # else looking them up brings Prefect, whose settings are not made yet
            choose_branches(branches, parameters, compare.known)
        check(parameters, settings)
        return _Case(parameters, compare, settings, branches)

    cases = {"": case(own, "swag,all" if chosen.all_branches else chosen.branches, chosen.seeds, effort.trials)}
    trials = effort.trials if variation.vary_trials is None else variation.vary_trials
    for change in variation.vary or []:
        settings = [part.strip() for part in change.split(";") if part.strip()]
        varied, seeds = run.parameters(*base, *settings), variation.vary_seeds or chosen.seeds
        # A target that is varied is the case's own, which `match` takes; --target-epsilon would overrule it.
        own_target = any(part.partition("=")[0].strip().endswith(".target_epsilon") for part in settings)
        by = "match" if own_target else None
        cases[change] = case(varied, variation.vary_branches, seeds, trials, target_epsilon=by)
    return cases


def _json(audits: Mapping[str, AuditResult]) -> str:
    """The result, with what was varied beside it."""
    models = {change: result.model_dump(mode="json") for change, result in audits.items()}
    return json.dumps(models.pop("") | {"varied": models}, indent=2)
