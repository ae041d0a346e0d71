"""Suspends a run until its plan is approved, with a form on Prefect's page for each signed
decision.

Prefect stores questions and answers with the run, which starts from the top after each answer.
"""

from __future__ import annotations

from typing import Annotated

from prefect import get_run_logger
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.input.actions import read_flow_run_input
from prefect.input.run_input import keyset_from_base_key
from pydantic import ConfigDict, Field, ValidationError

from storage.errors import InputError
from storage.ledger import Decision
from storage.worded_text import Worded
from tasks.releasing import approval, plan_page, prefect_page
from tasks.releasing.case import ReleaseCase
from tasks.releasing.promise import strength_of
from tasks.releasing.surroundings import Surroundings
from tasks.running.stage import Context


class SignedDecision(RunInput):
    model_config = ConfigDict(extra="forbid", title="Signed decision")

    # the run checks the signature; no other text has this length
    decision: Annotated[
        str, Worded(r"^[\s\S]{300,}$", "the line that autocoder approve --print prints")
    ] = Field(
        title="Signed decision",
        # Prefect's page shows no markup here.
        description="Required: the line that autocoder approve PLAN --key KEY.pem --print "
        "prints. To refuse, add --refuse and a --reason.",
    )


def wait(context: Context, case: ReleaseCase, *, days: int) -> ReleaseCase:
    """Returns the case of a deployment's run once its plan may be released. Until then, leaves the
    process with Prefect's signal.

    Args:
        days: days that a question remains open.
    """
    problem = ""
    number = 0
    while True:
        number += 1
        approval.require_unrefused(case)
        if approval.may_release(case, deployed=True):
            return case
        decision = _answer(number)
        if decision is None:
            text = plan_page.markdown(plan_page.page_of(case, Surroundings.of(context, case)))
            page = prefect_page.publish_plan(context.run, text)
            question = _warning_of(problem) + question_about(case, page)
            decision = _ask(number, question, days=days)
        if not decision:
            continue
        try:
            approval.accept_decision(context, case, Decision.read(decision))
            case = case.reread(context)
            problem = ""
        except InputError as error:
            problem = str(error)
            get_run_logger().warning("The answer does not count: %s", problem)


def _warning_of(problem: str) -> str:
    """Returns the paragraph above the question that says why the last answer does not count, if
    there was one.
    """
    if not problem:
        return ""
    return (
        "**The last answer does not count.** "
        f"{problem[:1].upper()}{problem[1:].rstrip('.')}. The run is still waiting.\n\n"
    )


def question_about(case: ReleaseCase, page: str | None) -> str:
    """Returns the text above the field for the signature. It is short, so that nobody presses
    *Resume* without having seen the field.

    Args:
        page: address of the plan's page, or None if the server did not take it.
    """
    plan = "`release-plan` in the tab *Artifacts*" if page is None else f"[its page]({page})"
    return "\n\n".join(
        (
            "**Nothing is released without a signature in the field below.** First read the whole "
            f"promise in the plan: {plan}.",
            strength_of(case.plan.claim),
        )
    )


def _key(number: int) -> str:
    return f"decision-{number}"  # the same after each start from the top


def _answer(number: int) -> str | None:
    """Returns the answer to this question; "" if it is open, None if the run has not asked it yet.

    Prefect forgets the open question of a run that crashed, and then fails when the same question
    is asked again.
    """
    keys = keyset_from_base_key(f"suspended-{_key(number)}")
    answer = read_flow_run_input(keys["response"])
    if answer is not None:
        return SignedDecision.model_validate(answer).decision
    return None if read_flow_run_input(keys["schema"]) is None else ""


def _ask(number: int, text: str, *, days: int) -> str:
    """Leaves the process with Prefect's signal; the run restarts with the answer."""
    try:
        return suspend_flow_run(
            wait_for_input=SignedDecision.with_initial_data(description=text),
            timeout=days * 86_400,
            key=_key(number),
        ).decision
    except ValidationError:
        # the run died between suspending and asking, but Prefect considers the question asked
        return ""
