"""`autocoder override`: a signed decision to release what an audit contradicts, or leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.settings import before_prefect


def override(
    plan: options.Plan,
    key: Annotated[Path, typer.Option(help="Private key of an approver whom the policy names (PEM).")],
    reason: Annotated[str, typer.Option(help="Why; the ledger and the privacy statement keep it.")],
    ledger_url: options.LedgerUrl = None,
    home: options.PlansHome = None,
) -> None:
    """Let a plan pass the gate although an audit contradicts its claim, or was inconclusive under `require_audit`.

    Signed over the plan, the audit's row and what it measured: another audit later blocks again. The statement says who
    signed, why, and what was measured. A candidate that was never audited, or without reruns, has nothing to sign for.
    Nobody overrides for their own request.

    [bold]Example[/bold]

      autocoder override workspace/private/plans/0123456789abcdef.json --key officer/signing-key.pem \
--reason "partner is bound by the confidentiality act; see memo 12"
    """
    from storage.errors import InputError
    from storage.ledger.decisions import sign
    from storage.ledger.heads import load_private_key

    if not reason.strip():
        raise InputError("--reason: say why")
    workspace = options.plans_home(plan, home)
    before_prefect(workspace, make_home=False)
    from tasks.parameters import LedgerParameters
    from tasks.releasing import gate, publish
    from tasks.releasing.plan import PlannedRelease
    from tasks.running.stage import Context

    planned = PlannedRelease.load(plan.expanduser())
    ledger = publish.open_ledger(Context(home=str(workspace)), LedgerParameters(ledger_url=ledger_url))
    audit = gate.measured(ledger, planned)
    if audit is None:
        raise InputError("override: this plan's candidate was never audited; there is nothing to override")
    decision = sign(
        load_private_key(key),
        subject="override",
        decision="approve",
        digest=planned.digest,
        terms=gate.override_terms(planned, audit),
        reason=reason.strip(),
    )
    row = gate.override(ledger, planned, decision)
    say(f"{audit.line}\noverridden: ledger row {row.sequence}; `autocoder release` may go on")
