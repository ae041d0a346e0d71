"""What is measured beside what is claimed: membership tests and reruns of the mechanism, for every branch.

Nothing leaves and nothing is charged. Each audit is a row of the ledger, which the gate of a release reads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from tasks.auditing import run as auditing
from tasks.auditing.audited import AuditResult
from tasks.auditing.settings import AuditParameters, choose_branches
from tasks.branches.branch import CompareParameters
from tasks.parameters import RetrainParameters
from tasks.running.failures import private_errors
from tasks.running.stage import Context, submit


@flow(
    name="audit",
    description="Measure what a release would leak, beside what it claims. Internal: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
    validate_parameters=False,
)
def audit(
    parameters: RetrainParameters,
    compare: CompareParameters,
    settings: AuditParameters,
    branches: str = "release",
    home: str = "workspace",
    device: str = "auto",
) -> AuditResult:
    """Audit branches at every seed; trials are run once a branch, at the first seed's settings.

    Args:
        parameters: those of the retrain whose candidate is audited.
        compare: seeds, the rivals' target, delta and common settings, and branches of one's own.
        branches: names by comma, `all`, or `release` for what the retrain releases from.

    Raises:
        InputError: an unknown branch, or trials that cannot be.
    """
    context = Context(home=str(Path(home).expanduser().resolve()), device=device)
    with private_errors("audit"):
        chosen = choose_branches(branches, parameters, compare.known)
        context.workspace.create()
        return auditing.run(
            context,
            parameters,
            compare,
            settings,
            chosen,
            do=partial(submit, context),
            prefect_run_id=str(flow_run.get_id() or "") or None,
        )
