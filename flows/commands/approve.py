"""`autocoder approve` and `autocoder refuse`: a person's signed decision on a planned release."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.settings import before_prefect

if TYPE_CHECKING:
    from storage.ledger import Decision
    from storage.ledger.decisions import Answer
    from tasks.releasing.plan import PlannedRelease

Key = Annotated[Path, typer.Option("--key", help="Your private key (PEM; `autocoder keys new` makes one).")]


@dataclass(frozen=True)
class WhereTo:
    """Where a decision goes: printed, handed to a run, or kept beside the plan and in the ledger."""

    only_print: Annotated[
        bool, typer.Option("--print", help="Only print the signed line, for the form in Prefect's page or for a file.")
    ] = False
    post: Annotated[bool, typer.Option("--post", help="Hand it to the waiting release run (PREFECT_API_URL).")] = False
    ledger_url: options.LedgerUrl = None
    home: options.PlansHome = None


def approve(
    key: Key,
    to: WhereTo,
    plan: Annotated[
        Path | None, typer.Argument(help="Plan that retrain or compare wrote (private/plans/*.json).")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Approve this budget policy instead of a plan; prints the line.")
    ] = None,
    recovery: Annotated[
        Path | None,
        typer.Option(help="Approve going on with another ledger (`autocoder ledger recover --ask`); prints the line."),
    ] = None,
) -> None:
    """Approve a planned release: sign it, and keep the signature beside the plan.

    The signature is over everything that the plan releases; it counts for that plan alone. Whose keys count, and how
    many are needed, the budget policy says. `--print` and `--post` do not keep it here.

    [bold]Examples[/bold]

      autocoder approve workspace/private/plans/0123456789abcdef.json --key officer/signing-key.pem

      autocoder approve PLAN.json --key officer/signing-key.pem --post

      autocoder approve --policy policy-2027.yaml --key officer/signing-key.pem > approval.txt
    """
    from storage.errors import InputError

    if sum(subject is not None for subject in (plan, policy, recovery)) != 1:
        raise InputError("name a plan, or a policy with --policy, or a recovery with --recovery")
    if policy is not None:
        _approve_policy(policy, key)
    elif recovery is not None:
        _approve_recovery(recovery, key)
    elif plan is not None:
        _decide(plan, key, "approve", "", to)


def refuse(
    plan: options.Plan, key: Key, reason: Annotated[str, typer.Option(help="Why; the ledger keeps it.")], to: WhereTo
) -> None:
    """Refuse a planned release: the ledger records who and why, and the plan can't be released any more.

    [bold]Example[/bold]

      autocoder refuse workspace/private/plans/0123456789abcdef.json --key officer/signing-key.pem \
--reason "the code list of 2025 is missing"
    """
    from storage.errors import InputError

    if not reason.strip():
        raise InputError("--reason: say why")
    _decide(plan, key, "refuse", reason.strip(), to)


def _approve_policy(policy: Path, key: Path) -> None:
    from storage.ledger import Policy
    from storage.ledger.decisions import sign
    from storage.ledger.heads import load_private_key

    loaded = Policy.load(policy)
    decision = sign(
        load_private_key(key), subject="policy", decision="approve", digest=loaded.digest, terms={"name": loaded.name}
    )
    say(f"policy {loaded.name}, digest {loaded.digest}: approved by key {decision.key_id[:12]}…", err=True)
    say(decision.token)


def _approve_recovery(recovery: Path, key: Path) -> None:
    import json

    from storage.artifacts import digest
    from storage.errors import InputError
    from storage.ledger.content import recovery_terms
    from storage.ledger.decisions import sign
    from storage.ledger.heads import load_private_key

    try:
        content = json.loads(recovery.read_text(encoding="utf-8"))
        terms, spent = recovery_terms(content), len(content["releases"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"--recovery {recovery}: not what `autocoder ledger recover --ask` wrote") from None
    decision = sign(load_private_key(key), subject="recovery", decision="approve", digest=digest(content), terms=terms)
    say(f"given up: {terms['lost']}, with {spent} releases; gone on with: {terms['found']}", err=True)
    say(decision.token)


def _decide(plan: Path, key: Path, answer: Answer, reason: str, to: WhereTo) -> None:
    from storage.errors import InputError
    from storage.ledger.content import release_terms
    from storage.ledger.decisions import sign
    from storage.ledger.heads import load_private_key
    from tasks.releasing.plan import PlannedRelease

    if to.only_print and to.post:
        raise InputError("--print and --post exclude each other")
    workspace = options.plans_home(plan, to.home)
    before_prefect(workspace, make_home=False)
    planned = PlannedRelease.load(plan)
    _quote(planned, plan, workspace, to.ledger_url)
    decision = sign(
        load_private_key(key),
        subject="release",
        decision=answer,
        digest=planned.digest,
        terms=release_terms(planned.plan),
        reason=reason,
    )
    if to.only_print:
        outcome = decision.token
    elif to.post:
        outcome = f"{answer}: handed to run {_post(plan, decision)}"
    else:
        outcome = _keep(planned, decision, workspace, to.ledger_url)  # refuses a key that is none of the policy's
    say(f"signed: digest {planned.digest[:12]}…", err=True)
    say(outcome)


def _quote(planned: PlannedRelease, plan: Path, workspace: Path, ledger_url: str | None) -> None:
    """What is signed, on stderr before the signature: claim, measured leakage, budget, who else has these records."""
    from storage.errors import InputError
    from tasks.releasing import reading
    from tasks.running.stage import Context

    claim = planned.plan.claim
    epsilon = "none" if claim.epsilon is None else f"{claim.epsilon:.4g}"
    say(f"{planned.plan.population}, {planned.plan.release_label}: {claim.guarantee_kind}, ε {epsilon}", err=True)
    try:
        page = reading.read(Context(home=str(workspace)), planned, file=plan, url=ledger_url)
    except InputError as error:
        say(f"  budget and audit are not quoted: {error}", err=True)
        return
    for answer in page.answers:
        if answer.key in _QUOTED:
            say(f"  {answer.verdict}: {answer.question} {answer.text}", err=True)
    say(f"  {page.summary}; all of it: autocoder plan show {plan}", err=True)


_QUOTED = ("leakage", "cost", "outdated", "siblings")
"""Answers that a signature is given in the light of."""


def _keep(planned: PlannedRelease, decision: Decision, workspace: Path, ledger_url: str | None) -> str:
    from tasks.parameters import LedgerParameters
    from tasks.releasing import approval, gate, publish
    from tasks.running.stage import Context

    context = Context(home=str(workspace))
    ledger = publish.open_ledger(context, LedgerParameters(ledger_url=ledger_url))
    name = approval.admit(context, ledger, planned, decision)
    row = ledger.refusal(planned.plan)
    if decision.decision == "refuse" and row is not None:
        return f"refused by {name}: ledger row {row.sequence}"
    missing = approval.standing(context, ledger, planned).missing
    if missing:
        return f"approved by {name}; {missing} more wanted"
    stands_in_the_way = gate.obstacle(ledger, planned)
    if stands_in_the_way is not None:
        return f"approved by {name}; `autocoder release` will refuse it as things are: {stands_in_the_way}"
    return f"approved by {name}; `autocoder release` may go on"


def _post(plan: Path, decision: Decision) -> str:
    """Hand a decision to the release run that waits for this plan; return the run's id."""
    import os

    from storage.errors import InputError

    if "PREFECT_API_URL" not in os.environ:
        raise InputError("--post: set PREFECT_API_URL to the server's address (and PREFECT_API_AUTH_STRING)")
    from flows.server.waiting import answer, waiting_releases

    # By the name, which is made of the plan's key: the approver's copy need not lie where the worker's does.
    runs = [run for run in waiting_releases() if Path(run.plan).name == plan.name]
    if not runs:
        raise InputError(f"--post: no release run waits for {plan.name}, as the plan was named; start one in the page")
    answer(runs[0].id, decision.token)
    return runs[0].id
