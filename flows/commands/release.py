"""Defines `autocoder release`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.ledger_options import home_of_plan
from flows.commands.ledger_text import KINDS, cohorts, delta, relation, spent
from flows.commands.terminal import command_line, nearby
from flows.server.run_flow import run_command
from flows.server.settings import configure_prefect, require_same_workspace
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from storage.ledger import Ledger
    from tasks.releasing.publish import Released


def release(
    plan: options.Plan,
    policy: Annotated[
        Path | None, typer.Option(help="Budget policy (YAML).", show_default="the current one")
    ] = None,
    signing_key: Annotated[
        Path | None,
        typer.Option(help="Private key that signs the bundle.", show_default="the workspace's"),
    ] = None,
    accept_texts: Annotated[
        str | None,
        typer.Option(help="Digest of the texts on the plan's page, after they were read."),
    ] = None,
    approval: Annotated[
        list[str] | None,
        typer.Option(
            help="A signature, or a file with one (`autocoder approve --print`); repeatable."
        ),
    ] = None,
    home: options.HomeOfPlan = None,
    as_json: options.AsJson = False,
) -> None:
    """Release a plan: charge the budget, sample once, bundle, record, sign.

    If the plan was released before, this returns its bundle without another charge.

    Examples

      autocoder release workspace/private/plans/0123456789abcdef.json

      autocoder release PLAN.json --approval approval.txt
    """
    output = options.OutputOptions(as_json)
    workspace = home_of_plan(
        plan, home
    )  # a wrong file is reported before the imports, which take seconds
    require_same_workspace(plan, workspace)
    if policy is not None:
        from storage.ledger.policy import Policy

        Policy.load(policy.expanduser())

    from storage.ledger import Decision

    decisions = [Decision.read(options.approval_text(text)) for text in approval or ()]

    from flows.commands.profiles import validate
    from tasks.parameters import BundleParameters

    overrides = {"policy": policy and str(policy), "signing_key": signing_key and str(signing_key)}
    settings = validate(BundleParameters, overrides | {"accept_texts": accept_texts}, where="")
    configure_prefect()

    import flows.release as job
    from tasks.releasing import approval as approvals
    from tasks.releasing import publish
    from tasks.running import timings
    from tasks.running.progress import listening
    from tasks.running.stage import Context

    context = Context(home=str(workspace))
    with private_errors("release"):
        case = publish.open_case(context, plan, settings)
        for decision in decisions:
            if decision not in case.decisions:  # a repeated command resumes
                approvals.accept_decision(context, case, decision)
                case = case.reread(context)
    with output.progress() as console, ExitStack() as stack:
        if case.released is None:
            measured = timings.read(context.workspace.private).get("release")
            seconds = _ROUGH_SECONDS * (measured or 1.0)
            console.expect("release", seconds, measured=measured is not None)
            stack.enter_context(
                listening(
                    timings.WholeListener(context.workspace.private, {"release": _ROUGH_SECONDS})
                )
            )
        result = run_command(
            lambda context: job.release(case, context, settings=settings),
            context,
            name="release",
            label=plan.stem,
            parameters={"plan": str(plan), "ledger": settings},
        )
    output.warn(result.warnings)
    output.note_estimate(result.guarantee_kind)
    output.answer(result, "" if output.as_json else ending(result, str(workspace), case.ledger))


_ROUGH_SECONDS = 15.0
"""Seconds of a release with the packaged encoder, before one was timed in this workspace."""


def ending(result: Released, home: str, ledger: Ledger) -> str:
    """Describes what was released and charged, where the bundle is, and the next command."""
    from storage.ledger.wording import budget_after

    row = ledger.release(result.release_id)
    claimed = (
        f"{KINDS[row.guarantee_kind]}, ε {spent(row.epsilon)}, δ "
        f"{row.claim.delta_text or delta(row.exact.delta)}"
    )
    charges = {charge.account: charge for charge in ledger.charges(result.release_id)}
    tightest = min(charges.values(), key=lambda charge: charge.balance.left, default=None)
    remains = "" if tightest is None else f"; {budget_after(tightest)}"
    to_partner = ("--to", "PARTNER", "--out", "outbox")
    following = command_line("handover", result.release_id, *to_partner, home=home)
    return "\n".join(
        (
            f"released  {result.release_id}: {claimed}, {relation(row.claim)}",
            f"charged   {row.plan.population} {cohorts(row.plan.cohorts)}{remains}",
            f"bundle    {nearby(result.bundle)}",
            f"next      {following}",
        )
    )
