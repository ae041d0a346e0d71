"""Defines `autocoder audit`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.next_steps import command_line
from flows.commands.terminal import say
from flows.server.run_flow import run_command
from flows.server.settings import require_same_workspace
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from tasks.auditing.audit_result import AuditResult
    from tasks.auditing.settings import AuditParameters
    from tasks.branches.branch import Terms
    from tasks.parameters import RetrainParameters
    from tasks.running.stage import Context

_CONTRADICTED = 3


@dataclass(frozen=True)
class EffortOptions:
    """Sets the effort of an audit."""

    trials: Annotated[
        int, typer.Option(help="Reruns of the whole mechanism with canaries; 0: none, which satisfies no policy.")
    ] = 32
    trial_draws: Annotated[
        int, typer.Option(help="Draws for risks and Delta in each rerun; at most as many as the candidate.")
    ] = 50
    canaries: Annotated[int, typer.Option(help="Records with a wrong code that reruns toss coins for.")] = 32
    gradient_canaries: Annotated[
        int,
        typer.Option(
            help="Canaries of a white-box test of DP-SGD's noise, in one more fit each; at least 1000, or 0: none."
        ),
    ] = 1000
    confidence: Annotated[float, typer.Option(help="Confidence of all statements on one claim together.")] = 0.95


@dataclass(frozen=True)
class BranchOptions:
    """Selects what is audited."""

    branches: Annotated[
        str, typer.Option(help="Names by comma, `all`, or `release`: those that retrain would release from.")
    ] = "release"
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Candidates per branch, from fit.seed on.")] = 1
    target_epsilon: Annotated[
        str,
        typer.Option(
            "--epsilon",
            help="Epsilon of the other branches: a number, or `match` that of SWAG-PPM.",
        ),
    ] = "match"


@dataclass(frozen=True)
class _Case:
    """Holds the settings of one audit."""

    parameters: RetrainParameters
    terms: Terms
    settings: AuditParameters
    branches: str
    seeds: int


def audit(
    plan: Annotated[
        Path | None,
        typer.Argument(help="Plan from retrain or compare, audited with its own settings."),
    ] = None,
    *,
    run: options.RunOptions,
    chosen: BranchOptions,
    effort: EffortOptions,
    output: options.OutputOptions,
    engine: options.Engine = "",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 when a claim is contradicted.")] = False,
) -> None:
    r"""Measure what a release would leak, and compare it with the claim.

    Reruns the whole mechanism on records and canaries that coins choose, and puts gradient canaries into DP-SGD's sums;
    both bound epsilon from below. The ledger records claim and measurement. A bound above the claim blocks the release.
    With a plan, its release is audited; without one, give the options of the retrain.

    Examples

      autocoder audit workspace/private/plans/0123456789abcdef.json

      autocoder audit --profile osha-formal --epsilon 5 \
          --data injuries.csv --codelist oiics201_nature.csv

      autocoder audit --profile osha-head --data injuries.csv --trials 0 --json
    """
    if plan is not None:
        options.refuse_with_plan(run, chosen)
        result = _of_plan(plan, run, effort, output, engine)
        say(
            result.model_dump_json(indent=2)
            if output.as_json
            else "\n".join(_summary(plan, options.home_of_plan(plan, run.home), result))
        )
        raise typer.Exit(_CONTRADICTED if strict and result.contradicted else 0)
    options.require_plan_or_records(run)
    case = _requested(run, chosen, effort)

    context = run.context(engine=engine)

    import flows.audit as job

    reruns, seconds, measured = _expected(context, case)
    with output.progress() as console:
        if reruns:
            console.expect(f"{reruns} reruns", seconds, measured=measured)
        result = run_command(
            partial(
                job.audit_branches,
                case.parameters,
                case.terms,
                case.settings,
                branches=case.branches,
                seeds=case.seeds,
            ),
            context,
            name="audit",
            label=case.parameters.data.population,
            parameters={"case": case},
        )
    from tasks.auditing.findings import lines

    say(result.model_dump_json(indent=2) if output.as_json else "\n".join(lines(result)))
    if strict and result.contradicted:
        raise typer.Exit(_CONTRADICTED)


def _of_plan(
    plan: Path,
    run: options.RunOptions,
    effort: EffortOptions,
    output: options.OutputOptions,
    engine: str,
) -> AuditResult:
    """Audits what a plan releases."""
    workspace = options.home_of_plan(plan, run.home)
    require_same_workspace(plan, workspace)
    context = replace(run, home=workspace).context(engine=engine)
    from flows.commands.profiles import validate
    from tasks.auditing.settings import AuditParameters, check
    from tasks.branches.plan import Origin

    settings = validate(AuditParameters, asdict(effort), at="audit: ")
    origin = Origin.of(plan)[1]
    check(origin.parameters, settings)

    import flows.audit as job

    case = _Case(origin.parameters, origin.terms, settings, origin.branch, seeds=1)
    reruns, seconds, measured = _expected(context, case)
    with output.progress() as console:
        if reruns:
            console.expect(f"{reruns} reruns", seconds, measured=measured)
        return run_command(
            partial(job.audit_plan, str(plan), settings),
            context,
            name="audit",
            label=plan.stem,
            parameters={"plan": str(plan), "settings": settings},
        )


def _expected(context: Context, case: _Case) -> tuple[int, float, bool]:
    """Returns the number of reruns, their seconds, and whether these were measured; refuses a mistake."""
    from tasks.auditing.run import estimate_stages, rerun_seconds
    from tasks.auditing.settings import choose_branches

    with private_errors("audit"):
        branches = choose_branches(case.branches, case.parameters, case.terms.all_branches)
        estimate = estimate_stages(context, case.parameters, case.terms, case.settings, branches)
        return case.settings.trials * len(branches), rerun_seconds(estimate, branches), estimate.measured


def _summary(plan: Path, home: Path, result: AuditResult) -> list[str]:
    """Returns claim and measurement, and the next step."""
    from tasks.auditing.findings import lines
    from tasks.branches.plan import Origin
    from tasks.releasing.evidence import CONTRADICTED, INCONCLUSIVE
    from tasks.releasing.ledger_access import existing_ledger
    from tasks.releasing.plan import PlannedRelease
    from tasks.running.stage import Context

    ledger = existing_ledger(Context(home=str(home)), Origin.of(plan)[1].parameters.release)
    row = None if ledger is None else ledger.find(PlannedRelease.load(plan).plan.idempotency_key)
    if row:
        refuted = (
            f" Its claim is refuted: revoke it with `autocoder revoke {row.release_id} --reason WHY`."
            if result.contradicted
            else ""
        )
        return [*lines(result), f"This plan is release {row.release_id} ({row.state}).{refuted}"]
    (verdict,) = {one.verdict for one in result.branches}
    following = {
        CONTRADICTED: "the claim is refuted and its release blocked. Plan a release of a formal branch, or use "
        "`autocoder override`.",
        INCONCLUSIVE: f"give more --trials; a policy with require_audit refuses `autocoder release {plan}`",
    }
    if verdict in following:
        return [*lines(result), f"to do: {following[verdict]}"]
    return [
        *lines(result),
        "Where the policy asks for approvals, `autocoder approve` comes first.",
        f"next: {command_line('release', plan)}",
    ]


def _requested(run: options.RunOptions, chosen: BranchOptions, effort: EffortOptions) -> _Case:
    from flows.commands.profiles import parse_target, profile_branches, validate

    target = parse_target(chosen.target_epsilon)
    parameters = run.parameters(*([f"formal.target_epsilon={target}"] if run.formal and target != "match" else []))

    from tasks.auditing.settings import AuditParameters, check, choose_branches
    from tasks.branches.branch import Terms

    rivals = {"target_epsilon": target, "branches": profile_branches(run.profile_name)}
    settings = validate(AuditParameters, asdict(effort), at="audit: ")
    terms = validate(Terms, rivals, at="audit: ")
    if parameters.formal is None:  # a formal one would import Prefect before it is configured
        choose_branches(chosen.branches, parameters, terms.all_branches)
    check(parameters, settings)
    return _Case(parameters, terms, settings, chosen.branches, chosen.seeds)
