"""Defines `autocoder audit`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.ledger_options import home_of_plan
from flows.commands.plan import commands_to_release, offered
from flows.server.run_flow import run_command
from flows.server.settings import configure_prefect, require_same_workspace
from storage.paths import Workspace
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from tasks.auditing.result import AuditResult

_CONTRADICTED = 3


def audit(
    plan: options.Plan,
    output: options.OutputOptions,
    trials: Annotated[
        int,
        typer.Option(
            help=(
                "Number of repeated training runs with canaries. 0 skips them and "
                "satisfies no policy that requires an audit."
            )
        ),
    ] = 32,
    canaries: Annotated[
        int, typer.Option(help="Records with a wrong code that each run includes at random.")
    ] = 32,
    gradient_canaries: Annotated[
        int,
        typer.Option(
            help=(
                "Number of canary records in one more training run, in which every "
                "noisy sum is checked. 0 skips it."
            )
        ),
    ] = 200,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="auto|FOLDER",
            help=(
                "Folder to write the model's probabilities of members and non-members "
                "to, for SACRO-ML and LeakPro; `auto` is a folder in the private "
                "workspace. The files are as confidential as the records."
            ),
        ),
    ] = None,
    home: options.HomeOfPlan = None,
    device: options.Device = "auto",
    engine: options.Engine = "",
) -> None:
    r"""Measure what the release of a plan would leak, and compare it with the claim.

    It collects two kinds of evidence: repeated training on records and canaries chosen at random,
    and one more training run with canary records, in which every noisy sum is checked. Both give a
    lower bound on epsilon. The ledger records the claim and the measurement. A bound above the
    claim, or a sum that differs from the claim, blocks the release, and the command exits with 3.

    Example

      autocoder audit workspace/private/plans/0123456789abcdef.json

      autocoder audit PLAN --trials 0 --gradient-canaries 0 --export auto
    """
    workspace = home_of_plan(plan, home)
    require_same_workspace(plan, workspace)
    configure_prefect()
    from flows.commands.profiles import validate
    from tasks.auditing import export as exports
    from tasks.auditing.settings import AuditParameters
    from tasks.branches.plan import Origin
    from tasks.releasing.plan import PlannedRelease
    from tasks.running.stage import Context

    place, candidate = None, PlannedRelease.load(plan).candidate
    if export is not None:
        exports.require_one_model(candidate)
        folder = None if export == "auto" else Path(export)
        place = exports.place_of(Workspace(workspace), plan, folder)
    context = Context(home=str(workspace), device=device, engine=engine)
    effort = {"trials": trials, "canaries": canaries, "gradient_canaries": gradient_canaries}
    settings = validate(AuditParameters, effort, where="audit: ")
    origin = Origin.of(plan)[1]

    import flows.audit as job
    from tasks.auditing.run import audit_seconds, estimate_stages
    from tasks.auditing.settings import choose_branches

    with private_errors("audit"):
        branches = choose_branches(origin.branch, origin.parameters, origin.terms.all_branches)
        estimate = estimate_stages(context, origin.parameters, origin.terms, settings, branches)
    with output.progress() as console:
        if trials or gradient_canaries:
            console.expect("attacks", audit_seconds(estimate, branches), measured=estimate.measured)
        result = run_command(
            partial(job.audit_plan, str(plan), settings),
            context,
            name="audit",
            label=plan.stem,
            parameters={"plan": str(plan), "settings": settings},
        )
    lines = [] if output.as_json else _summary(plan, workspace, result)
    if place is not None:
        with private_errors("audit"):
            exports.export(context, candidate, place)
        lines += [f"exported: {place}, as private as the records"]
    output.answer(result, "\n".join(lines))
    raise typer.Exit(_CONTRADICTED if result.contradicted else 0)


def _summary(plan: Path, home: Path, result: AuditResult) -> list[str]:
    from tasks.branches.plan import Origin
    from tasks.releasing.case import ReleaseCase
    from tasks.releasing.evidence import CONTRADICTED, INCONCLUSIVE
    from tasks.releasing.plan import PlannedRelease
    from tasks.running.stage import Context

    context, settings = Context(home=str(home)), Origin.of(plan)[1].parameters.release
    case = ReleaseCase.open(context, PlannedRelease.load(plan), settings, file=plan)
    row = case.released
    if row is not None:
        refuted = (
            (
                f" Its claim is contradicted: revoke it with `autocoder revoke {row.release_id} "
                "--reason WHY`."
            )
            if result.contradicted
            else ""
        )
        return [*result.lines, f"This plan is release {row.release_id} ({row.state}).{refuted}"]
    (verdict,) = {branch.verdict for branch in result.branches}
    following = {
        CONTRADICTED: "the claim is contradicted and its release blocked. Plan a release of a "
        "formal method, or use "
        "`autocoder approve --despite-audit`.",
        INCONCLUSIVE: (
            f"increase --trials; a policy with require_audit refuses `autocoder release {plan}`"
        ),
    }
    if verdict in following:
        return [*result.lines, f"to do: {following[verdict]}"]
    return [*result.lines, *offered(commands_to_release(case))]
