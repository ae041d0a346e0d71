"""How a run waits for the approvals of a plan: suspended, with a form in Prefect's page for each signed decision.

Prefect keeps questions and answers with the run, which starts from the top at each answer.
"""

from __future__ import annotations

from itertools import count

from prefect import get_run_logger
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.input.actions import read_flow_run_input
from prefect.input.run_input import keyset_from_base_key
from pydantic import ConfigDict, Field, ValidationError

from storage.errors import InputError
from storage.ledger import Decision, Ledger
from tasks.releasing import approval, plan_page, prefect_page
from tasks.releasing.at_hand import AtHand
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


class SignedDecision(RunInput):
    """The form of a waiting release."""

    model_config = ConfigDict(extra="forbid", title="Signed decision")

    decision: str = Field(
        title="Signed decision",
        description="The line that `autocoder approve PLAN --key KEY.pem --print` (or `autocoder refuse …`) prints.",
        pattern=r"^\s*[A-Za-z0-9_=-]{300,}\s*$",
    )


def wait(context: Context, planned: PlannedRelease, ledger: Ledger, *, plan: str, days: int, suspends: bool) -> None:
    """Return when the plan may be released; leave the process by Prefect's signal while it may not.

    Args:
        plan: path of the plan, for the page and for errors.
        days: how long a question stands.
        suspends: the run is a deployment's, so that Prefect can start it again. Without it approvals must be there.

    Raises:
        StorageError: somebody refused, approvals are missing and this run cannot wait, or there is no policy.
    """
    problem = ""
    for number in count(1):
        stands = approval.require_unrefused(context, ledger, planned)
        if approval.suffices(ledger, planned, stands, plan=plan, deployed=suspends):
            return
        decision = _answer(number)
        if decision is None:
            found = AtHand.of(context, ledger, planned)
            text = plan_page.markdown(plan_page.page_of(planned, ledger, stands, file=plan, found=found))
            prefect_page.publish_plan(text)
            warning = f"**The last answer does not count.** {problem}\n\n" if problem else ""
            decision = _ask(number, warning + text, days=days)
        if not decision:
            continue
        try:
            approval.admit(context, ledger, planned, Decision.read(decision))
            problem = ""
        except InputError as error:
            problem = str(error)
            get_run_logger().warning("The answer does not count: %s", problem)


def _key(number: int) -> str:
    return f"decision-{number}"  # the same at each start from the top


def _answer(number: int) -> str | None:
    """The answer to this question; "" if it was asked and not answered, None if it was not asked yet.

    Prefect forgets that it asked when a run that crashed is taken up, and then would ask a question that is there
    already, which fails.
    """
    keys = keyset_from_base_key(f"suspended-{_key(number)}")
    answer = read_flow_run_input(keys["response"])
    if answer is not None:
        return SignedDecision.model_validate(answer).decision
    return None if read_flow_run_input(keys["schema"]) is None else ""


def _ask(number: int, text: str, *, days: int) -> str:
    """Leave the process by Prefect's signal, to start from the top with the answer."""
    try:
        return suspend_flow_run(
            wait_for_input=SignedDecision.with_initial_data(description=text), timeout=days * 86_400, key=_key(number)
        ).decision
    except ValidationError:
        return ""  # died between suspending and asking: nobody was asked anything, and Prefect thinks that somebody was
