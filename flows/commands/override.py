"""Defines `autocoder override`: a signed decision to release against an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.next_steps import command_line
from flows.commands.terminal import say
from storage.errors import InputError


def override(
    plan: options.Plan,
    key: Annotated[Path, typer.Option(help="Private key of an approver of the policy (PEM).")],
    reason: Annotated[str, typer.Option(help="Reason; the ledger and the privacy statement record it.")],
    ledger_url: options.LedgerUrl = None,
    home: options.HomeOfPlan = None,
) -> None:
    r"""Let a plan pass the gate although an audit contradicts its claim, or was inconclusive under `require_audit`.

    The signature covers the plan, the audit's row and its measurement: a later audit blocks again. The privacy
    statement names signer, reason and measurement. A candidate without an audit, or without reruns, cannot be
    overridden, and nobody can override for their own request.

    Example

      autocoder override PLAN.json --key officer/signing-key.pem \
          --reason "partner is bound by the confidentiality act; see memo 12"
    """
    from storage.ledger.decisions import sign
    from storage.ledger.heads import load_private_key

    if not reason.strip():
        raise InputError("--reason: it is empty. Give a reason.")
    context, settings = options.select_ledger(options.home_of_plan(plan, home), ledger_url)
    from tasks.releasing import gate, ledger_access
    from tasks.releasing.checked_plan import check
    from tasks.releasing.plan import PlannedRelease

    planned = PlannedRelease.load(plan.expanduser())
    ledger = ledger_access.open_ledger(context, settings)
    checked = check(planned, ledger)
    audit = checked.measurement
    if audit is None:
        raise InputError("override: the candidate of this plan was never audited. Run `autocoder audit PLAN` first.")
    decision = sign(
        load_private_key(key),
        subject="override",
        decision="approve",
        digest=planned.digest,
        terms=gate.override_terms(checked, audit),
        reason=reason.strip(),
    )
    row = gate.override(checked, decision)
    say(f"{audit.line}\noverridden: ledger row {row.sequence}; next: {command_line('release', plan)}")
