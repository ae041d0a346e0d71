"""Flows that the server's page offers. Each wraps the function behind a command; see
deployments/prefect.yaml.

They can also be called from Python, with a form in place of the page:

    from flows.deployed import formal
    from flows.server.form import FormalForm

    formal(
        FormalForm(
            source="/data/injuries.csv",
            codelist="/data/codes.csv",
            text_columns=["Narrative"],
            label_column="Code",
            population="injuries",
            target_epsilon=5,
        )
    )
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from flows import audit as auditing
from flows import compare as comparing
from flows import handover as handing
from flows import release as releasing
from flows.commands.ledger_options import LedgerOptions
from flows.compare import CompareResult
from flows.handover import HandedOver, Revoked
from flows.retrain import RetrainResult, retrain_form
from flows.server.form import (
    DeviceChoice,
    FormalForm,
    PlanFile,
    RecordsForm,
    Workspace,
    section,
    with_title,
)
from flows.server.prefect_run import PrefectRun, as_flow, named_by, named_by_plan
from flows.server.settings import home_of
from storage.worded_text import Worded
from tasks.auditing.result import AuditResult
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import CompareParameters
from tasks.parameters import BundleParameters
from tasks.releasing.publish import Released
from tasks.running.failures import private_errors
from tasks.running.stage import Context

AuditSection: Any = section(AuditParameters)
CompareSection: Any = section(CompareParameters)
_USUAL_AUDIT = AuditSection()
ReleaseId = Annotated[
    str, Worded("^[0-9a-f]{16}$", "the 16 hexadecimal digits of a release"), with_title("Release")
]
PartnerName = Annotated[str, Field(min_length=1, max_length=200), with_title("Partner")]
Reason = Annotated[str, Field(min_length=1), with_title("Reason")]
Outbox = Annotated[str, Worded("^[/~]", "an absolute path on the worker"), with_title("Folder")]
OUTBOX = "/outbox"
"""Folder in the releasing worker's container for files to partners."""


@as_flow(
    name="retrain",
    description="Train on your own records with a formal guarantee, and plan the release. The plan "
    "is audited, then approved and released.",
    flow_run_name=named_by(
        "population", "target_epsilon", of="parameters", words="{}, formal ε {}"
    ),
)
def formal(parameters: Annotated[FormalForm, with_title("Records and epsilon")]) -> RetrainResult:
    """Run the formal method. Finished stages are reused.

    Args:
        parameters: Records, code list, columns, population and epsilon; everything else as YAML.
    """
    return retrain_form(parameters, PrefectRun())


@as_flow(
    name="retrain",
    description="SWAG-PPM: one private sample. Its epsilon is an estimate, and is measured. The "
    "plan is audited, then approved and released.",
    flow_run_name=named_by("population", of="parameters", words="{}, SWAG-PPM"),
)
def estimated(parameters: Annotated[RecordsForm, with_title("Records")]) -> RetrainResult:
    """Run the published method. Finished stages are reused.

    Args:
        parameters: Records, code list, columns and population; everything else as YAML.
    """
    return retrain_form(parameters, PrefectRun())


@as_flow(
    name="compare",
    description=(
        "SWAG-PPM and other methods on the same records, for a fair comparison. Internal: nothing "
        "is released."
    ),
    flow_run_name=named_by("population", of="parameters"),
)
def compare(
    parameters: Annotated[RecordsForm, with_title("Records and SWAG-PPM")],
    settings: Annotated[CompareSection, with_title("Other methods")],
    branches: Annotated[str, with_title("Branches")] = "all",
) -> CompareResult:
    """Run every branch at every seed, write the report, and record each claim as internal.

    Args:
        parameters: Records, columns and population; model and SWAG-PPM's fit as YAML. The first
            seed is its seed.
        settings: Target, delta, seeds, the other methods' common settings, and further branches.
        branches: Names separated by commas, or `all`.
    """
    chosen = CompareParameters.model_validate(settings.model_dump())
    return comparing.compare_form(parameters, chosen, branches, PrefectRun())


@as_flow(
    name="audit",
    description=(
        "Measure what the release of a plan would leak, and compare it with the claim. "
        "Nothing is released."
    ),
    flow_run_name=named_by_plan,
)
def audit(
    plan: PlanFile,
    settings: Annotated[AuditSection, with_title("Effort")] = _USUAL_AUDIT,
    home: Workspace = None,
    device: DeviceChoice = "auto",
) -> AuditResult:
    """Audit the release of a plan, with its settings and records.

    Args:
        plan: Absolute path of the plan that `retrain` or `compare` wrote.
        settings: The amount of work.
        home: Workspace folder; empty: the worker's (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
    """
    effort = AuditParameters.model_validate(settings.model_dump())
    return auditing.audit_plan(plan, effort, _context(home, device))


@as_flow(
    name="release",
    description=(
        "Release a plan: wait for approvals, reserve the budget, sample once, bundle, commit."
    ),
    flow_run_name=named_by_plan,
)
def release(
    plan: PlanFile,
    home: Workspace = None,
    device: DeviceChoice = "auto",
    ledger: Annotated[BundleParameters | None, with_title("Ledger and bundle")] = None,
    wait_days: Annotated[
        int, Field(ge=1, le=365), with_title("Days to wait for approvals")
    ] = releasing.WAIT_DAYS,
) -> Released:
    """Release a plan. If it was released before, return that release; if a run died, resume it.

    Args:
        plan: Absolute path of the plan that `retrain` or `compare` wrote.
        home: Workspace folder; empty: the worker's (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        ledger: Which ledger, under which policy.
        wait_days: Days that a run waits for approvals before it fails.
    """
    return releasing.release_plan(
        plan, _context(home, device), settings=ledger or BundleParameters(), wait_days=wait_days
    )


@as_flow(
    name="handover",
    description=(
        "Hand a release over: check the bundle as the partner will, pack it, and record the "
        "handover in the ledger."
    ),
    flow_run_name=named_by("release", "partner", words="{} to {}"),
)
def handover(
    release: ReleaseId, partner: PartnerName, folder: Outbox = OUTBOX, home: Workspace = None
) -> HandedOver:
    """Pack a release for a partner.

    Args:
        release: Id of a release in this workspace.
        partner: Name of the recipient, as recorded in the ledger.
        folder: Absolute path of the folder for the archive, as the worker sees it.
        home: Workspace folder; empty: the worker's (AUTOCODER_HOME).
    """
    with private_errors("handover"):
        return handing.hand_over(
            release, partner, Path(folder).expanduser(), LedgerOptions(home_of(home))
        )


@as_flow(
    name="revoke",
    description=(
        "Revoke a release: a row of the ledger, and the next roots.json for partners. "
        "The spent budget is not refunded."
    ),
    flow_run_name=named_by("release"),
)
def revoke(
    release: ReleaseId, reason: Reason, folder: Outbox = OUTBOX, home: Workspace = None
) -> Revoked:
    """Revoke a release, and write the roots, which list all revocations.

    Args:
        release: Id of a release in this workspace.
        reason: Reason for the revocation, which partners can read.
        folder: Absolute path of the folder for roots.json, as the worker sees it.
        home: Workspace folder; empty: the worker's (AUTOCODER_HOME).
    """
    with private_errors("revoke"):
        roots = Path(folder).expanduser() / "roots.json"
        return handing.revoke(release, reason, roots, LedgerOptions(home_of(home)))


def _context(home: str | None, device: str) -> Context:
    return Context(home=str(home_of(home)), device=device, run=PrefectRun())
