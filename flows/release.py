"""Releasing what a retrain or a comparison has planned: one draw, bundled, recorded, once those who must have approved.

As a deployment the run suspends until the approvals that the policy asks for are there: it holds no worker meanwhile,
and starts from the top at each answer, which Prefect keeps. Called without a deployment it refuses instead.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Annotated, cast

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import FlowRun
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.input.actions import read_flow_run_input
from prefect.input.run_input import keyset_from_base_key
from prefect.runtime import deployment, flow_run
from pydantic import ConfigDict, Field, ValidationError

from flows.server.settings import home_of, same_house
from storage.errors import InputError, StorageError
from storage.ledger import Decision, Ledger
from storage.ledger.policy import DEFAULT_POLICY
from tasks.parameters import DEMO, BundleParameters
from tasks.releasing import approval, plan_page, prefect_page, preflight, publish
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.publish import Released
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, Device
from tasks.running.worker_metrics import MetricsListener


class SignedDecision(RunInput):
    """The form of a waiting release."""

    model_config = ConfigDict(extra="forbid", title="Signed decision")

    decision: str = Field(
        title="Signed decision",
        description="The line that `autocoder approve PLAN --key KEY.pem --print` (or `autocoder refuse …`) prints.",
        pattern=r"^\s*[A-Za-z0-9_=-]{300,}\s*$",
    )


@flow(
    name="release",
    description="Release what is planned: wait for approvals, reserve the budget, draw once, bundle, commit.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def release(
    plan: str,
    home: str | None = None,
    device: Device = "auto",
    ledger: BundleParameters | None = None,
    wait_days: Annotated[int, Field(ge=1, le=365)] = 30,
) -> Released:
    """Release a plan; one that is released already returns its release, one that died goes on.

    Args:
        plan: path of the plan that `retrain` or `compare` wrote.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        ledger: which ledger, under which policy.
        wait_days: how long a run waits for approvals before it fails.
    """
    context = Context(home=str(home_of(Path(home) if home else None)), device=device)
    settings = ledger or BundleParameters()
    measured = MetricsListener(context.workspace.private, "release")
    with private_errors("release"), listening(prefect_page.PrefectListener(), measured):
        same_house(Path(plan), Path(context.home))
        preflight.check_device(context)
        publish.check(context, settings)
        planned = PlannedRelease.load(Path(plan).expanduser())
        _wait_for_approvals(context, planned, publish.open_ledger(context, settings), plan=plan, days=wait_days)
        prefect_page.publish_budget(context, settings)
        return publish.release(context, planned, settings)


def _wait_for_approvals(context: Context, planned: PlannedRelease, ledger: Ledger, *, plan: str, days: int) -> None:
    """Return when the plan may be released; leave the process by Prefect's signal while it may not.

    Raises:
        StorageError: somebody refused, approvals are missing and this run cannot wait, or there is no policy.
    """
    problem = ""
    for number in count(1):
        _end_on_refusal(context, planned, ledger)
        stands = approval.standing(context, ledger, planned)
        if ledger.release_of(planned.plan) is not None:
            return
        if deployment.id and stands.policy.digest == DEFAULT_POLICY.digest and planned.plan.population != DEMO:
            raise StorageError(
                f"plan {plan}: no budget policy is in force, and without one a deployment releases the population "
                f"{DEMO} alone; record the agency's (`autocoder ledger change-policy`), then Retry"
            )
        if not stands.missing:
            return
        if not deployment.id:
            missing = f"{stands.missing} of {stands.policy.approvals.minimum} signed approvals are missing"
            raise StorageError("; ".join((f"plan {plan}: {missing} (`autocoder approve`)", *stands.problems)))
        answer = _answer(number)
        if answer is None:
            text = plan_page.plan_markdown(planned, ledger, stands, file=plan)
            prefect_page.publish_plan(text)
            said = f"**The last answer does not count.** {problem}\n\n" if problem else ""
            answer = _ask(number, said + text, days=days)
        if not answer:
            continue
        try:
            approval.admit(context, ledger, planned, Decision.read(answer))
            problem = ""
        except InputError as error:
            problem = str(error)
            get_run_logger().warning("The answer does not count: %s", problem)


def _key(number: int) -> str:
    return f"decision-{number}"  # the same at each start from the top


def _answer(number: int) -> str | None:
    """The answer to this question; "" if it was asked and not answered, None if it was not asked yet.

    Prefect keeps questions and answers with the run. It forgets that it asked when a run that crashed is taken up, and
    then would ask a question that is there already, which fails.
    """
    keys = keyset_from_base_key(f"suspended-{_key(number)}")
    given = read_flow_run_input(keys["response"])
    if given is not None:
        return SignedDecision.model_validate(given).decision
    return None if read_flow_run_input(keys["schema"]) is None else ""


def _ask(number: int, text: str, *, days: int) -> str:
    """Leave the process by Prefect's signal, to start from the top with the answer."""
    try:
        return suspend_flow_run(
            wait_for_input=SignedDecision.with_initial_data(description=text),
            timeout=days * 86_400,
            key=_key(number),
        ).decision
    except ValidationError:
        return ""  # died between suspending and asking: nobody was asked anything, and Prefect thinks that somebody was


def _end_on_refusal(context: Context, planned: PlannedRelease, ledger: Ledger) -> None:
    refusal = approval.standing(context, ledger, planned).refusal
    if refusal is not None:
        ledger.refuse(planned.plan, refusal)
    recorded = ledger.refusal(planned.digest)
    if recorded is not None:
        raise StorageError(f"{recorded.reason} (ledger row {recorded.sequence}); nothing was drawn or charged")


def request(context: Context, planned: PlannedRelease, plan_file: Path, settings: BundleParameters, name: str) -> str:
    """Start the release deployment on a plan and return its run's id; the caller does not wait for it.

    Raises:
        InputError: there is no such deployment, or no server.
    """
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound

    try:
        asked = cast(
            FlowRun,
            run_deployment(
                name,
                # no device: that of the retrain need not be one that the release's worker has
                parameters={
                    "plan": str(plan_file),
                    "home": context.home,
                    "ledger": settings.model_dump(mode="json", include=set(BundleParameters.model_fields)),
                },
                timeout=0,
                as_subflow=False,
                # a retrain that died after asking does not ask twice
                idempotency_key=f"{planned.digest}-{flow_run.get_id()}",
            ),
        )
    except ObjectNotFound:
        raise InputError(
            f"release.deployment: the server knows no deployment {name}; apply deployments/prefect.yaml"
        ) from None
    return str(asked.id)
