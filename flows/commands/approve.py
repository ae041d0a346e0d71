"""Defines `autocoder approve`: signed decisions on a planned release or a policy."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.layout import say_prose
from flows.commands.ledger_options import LedgerOptions, home_of_plan, select_ledger
from flows.commands.terminal import command_line, say
from flows.server.settings import workspace_of
from mechanisms.privacy.numerics import epsilon_text
from storage.errors import Contradiction, InputError, Missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from storage.ledger import Decision, Policy
    from storage.ledger.decisions import Answer
    from tasks.releasing.case import ReleaseCase
    from tasks.releasing.plan import PlannedRelease
    from tasks.releasing.plan_page import Answer as PageAnswer
    from tasks.running.stage import Context


@dataclass(frozen=True)
class DecisionTarget:
    """Destination of a decision: standard output, a waiting run, or the plan's
    folder and the ledger.
    """

    only_print: Annotated[
        bool,
        typer.Option(
            "--print",
            help="Only print the signed line, for the form on Prefect's page or for a file.",
        ),
    ] = False
    post: Annotated[
        bool, typer.Option("--post", help="Send it to the waiting release run (PREFECT_API_URL).")
    ] = False
    home: options.HomeOfPlan = None


def approve(
    key: Annotated[
        Path, typer.Option("--key", help="Your private key (PEM; `autocoder keys new` makes one).")
    ],
    to: DecisionTarget,
    plan: Annotated[
        Path | None,
        typer.Argument(help="Plan that `train` or `compare` wrote (private/plans/*.json)."),
    ] = None,
    refuse: Annotated[
        bool,
        typer.Option(
            "--refuse", help="Refuse the plan, so that it can never be released. Requires --reason."
        ),
    ] = False,
    despite_audit: Annotated[
        bool,
        typer.Option(
            "--despite-audit",
            help=(
                "Allow the release although an audit contradicts its claim, or although "
                "a required audit was inconclusive. Requires --reason, which the "
                "privacy statement quotes."
            ),
        ),
    ] = False,
    reason: Annotated[
        str, typer.Option(help="Reason, which the ledger records (with --policy, word for word).")
    ] = "",
    policy: Annotated[
        Path | None,
        typer.Option(
            help=("Approve this budget policy instead of a plan, and print the signed line.")
        ),
    ] = None,
    requester: Annotated[str, typer.Option(help="With --policy: who requests the change.")] = "",
    agency_key: Annotated[
        Path | None,
        typer.Option(
            help=(
                "The agency's public key or roots. They are pinned on this machine at "
                "the first use."
            )
        ),
    ] = None,
    first_release: Annotated[
        bool,
        typer.Option(
            "--first-release",
            help=(
                "With a pinned key: the agency has not released anything yet, so its "
                "ledger contains no signature."
            ),
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Sign without asking for confirmation, for scripts.")
    ] = False,
) -> None:
    r"""Sign a decision: approve a planned release, refuse it, or let it pass despite an audit.

    The signature covers everything that the plan releases, counts only for that plan, and is saved
    next to it (except with `--print` and `--post`). A signature despite an audit also covers the
    measurement, so a later audit blocks the release again. A plan without an audit cannot pass this
    way, and no one can sign for their own request. The budget policy lists the keys that count, and
    how many are needed. You see all objections to a plan before you are asked to confirm.
    `approve` refuses what it can see that `release` would refuse; without a ledger it signs
    nothing.

    Examples

      autocoder approve PLAN.json --key officer/signing-key.pem

      autocoder approve desk/plan.json --home desk \
          --key officer/signing-key.pem --print

      autocoder approve PLAN.json --key officer/signing-key.pem --post

      autocoder approve PLAN.json --key officer/signing-key.pem \
          --refuse --reason "the code list of 2025 is missing"

      autocoder approve --policy policy-2027.yaml \
          --requester lead --reason "budget of 2027" \
          --key officer/signing-key.pem > approval.txt
    """
    if (plan is None) == (policy is None):
        raise Missing(
            "nothing to sign. Pass a plan, or a policy with --policy.", kind="nothing-to-sign"
        )
    reason = reason.strip()
    if (refuse or despite_audit or policy) and not reason:
        raise Missing(
            "--reason: it is empty. Enter a reason, which the signature covers.",
            kind="empty-reason",
        )
    if policy is not None:
        if not requester:
            raise Missing(
                "--requester: missing. The signature covers who requests the policy.",
                kind="no-requester",
            )
        _approve_policy(policy, key, to, requester=requester, reason=reason)
    elif plan is not None and despite_audit:
        _override(plan, key, reason, to)
    elif plan is not None:
        if refuse:
            question = f"Refuse this plan for good? Reason: {reason}"
            ask = partial(_confirm, question, yes=yes)
            _decide(plan, key, "refuse", reason, to, lambda *_: ask())
        else:
            check = partial(_ask, agency_key=agency_key, first=first_release, yes=yes)
            _decide(plan, key, "approve", reason, to, check)


def _override(plan: Path, key: Path, reason: str, to: DecisionTarget) -> None:
    from storage.ledger.decisions import sign
    from storage.ledger.keys import load_private_key

    context, settings = select_ledger(home_of_plan(plan, to.home))
    from tasks.releasing import gate
    from tasks.releasing.case import ReleaseCase
    from tasks.releasing.plan import PlannedRelease

    planned = PlannedRelease.load(plan.expanduser())
    case = ReleaseCase.open(context, planned, settings, file=plan)
    audit = case.measurement
    if audit is None:
        raise Missing(
            "--despite-audit: this plan was never audited. Run `autocoder audit PLAN` first.",
            kind="never-audited",
        )
    decision = sign(
        load_private_key(key),
        subject="override",
        decision="approve",
        digest=planned.digest,
        terms=gate.override_terms(case, audit),
        reason=reason,
    )
    row = gate.override(case, decision)
    say(
        f"{audit.line}\noverridden: ledger row {row.sequence}\nnext: "
        f"{command_line('release', plan)}"
    )


def _approve_policy(
    policy: Path, key: Path, to: DecisionTarget, *, requester: str, reason: str
) -> None:
    from storage.ledger import Policy
    from storage.ledger.content import policy_terms
    from storage.ledger.decisions import sign
    from storage.ledger.keys import load_private_key

    loaded, private = Policy.load(policy), load_private_key(key)
    in_force = LedgerOptions(home=to.home).open().state().policy_mark
    terms = policy_terms(loaded.name, in_force, requester=requester, reason=reason)
    decision = sign(
        private, subject="policy", decision="approve", digest=loaded.digest, terms=terms
    )
    say(
        f"policy {loaded.name}, digest {loaded.digest}: approved by key {decision.key_id[:12]}…",
        err=True,
    )
    say(f"in the place of the policy of {in_force}, for {requester}: {reason}", err=True)
    say(decision.token)


def _decide(
    plan: Path, key: Path, answer: Answer, reason: str, to: DecisionTarget, ask: Callable[..., None]
) -> None:
    if to.only_print and to.post:
        raise Contradiction("--print and --post are mutually exclusive", kind="print-and-post")
    context, settings = select_ledger(home_of_plan(plan, to.home))
    from storage.ledger.content import release_terms
    from storage.ledger.decisions import sign
    from storage.ledger.keys import load_private_key
    from tasks.releasing.case import ReleaseCase
    from tasks.releasing.plan import PlannedRelease

    planned, private = PlannedRelease.load(plan), load_private_key(key)
    if answer == "approve":
        planned.require_consistent()  # before any of it is shown
    # A plan is signed only where its budget and its audits can be read.
    case = ReleaseCase.open(context, planned, settings, file=plan)
    _require_asked(case.policy, private.public_key())
    if not to.only_print and not to.post:
        _require_own_workspace(planned, context)
    _show(planned, plan, context, case)
    ask(case, context)
    decision = sign(
        private,
        subject="release",
        decision=answer,
        digest=planned.digest,
        terms=release_terms(planned.plan),
        reason=reason,
    )
    if to.only_print:
        outcome = decision.token
    elif to.post:
        outcome = f"{answer}: sent to run {_post(plan, planned, decision)}"
    else:
        outcome = _accept(case, decision, context)
    done = "refused" if answer == "refuse" else "signed"
    say(f"{done}: digest {planned.digest[:12]}…", err=True)
    if answer == "refuse" and (to.only_print or to.post):
        say("note: `release` will record this refusal, and then fail", err=True)
    say(outcome)


def _require_asked(policy: Policy, key: EllipticCurvePublicKey) -> None:
    """Refuses a key with a signature that would not count, before anyone reads and confirms."""
    from storage.ledger.decisions import approver_of
    from storage.ledger.keys import key_id

    if not policy.approvals.approvers:
        raise Contradiction(
            f"approve: policy {policy.name} asks for no signature; `release` needs none",
            kind="no-signature-asked",
        )
    approver_of(policy.approvals, key_id(key))


def _require_own_workspace(planned: PlannedRelease, context: Context) -> None:
    """Refuses to save a signature where the releasing worker will not look for it."""
    if not planned.file(context).is_file():
        raise InputError(
            f"approve: this plan is not of the workspace {context.home}, so no release would find "
            "a signature that is saved there. Use --print and send the agency what it prints (for "
            "`autocoder release PLAN --approval FILE`), or use --post",
            kind="another-workspace",
        )


def _ask(
    case: ReleaseCase,
    context: Context,
    *,
    agency_key: Path | None,
    first: bool,
    yes: bool,
) -> None:
    from tasks.releasing import approval, surroundings
    from tasks.running.failures import private_errors

    pinned = approval.pinned_key(agency_key)
    with private_errors("approve"):
        surroundings.require_releasable(context, case)
        if pinned is not None:
            approval.require_agency_ledger(case.ledger, pinned, first=first)
    if pinned is None:
        say(
            (
                "note: no key of the agency is pinned: who signed its ledger is not checked "
                "(--agency-key)"
            ),
            err=True,
        )
    _confirm("Sign this promise?", yes=yes)


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not _is_terminal():
        raise InputError(
            "approve: cannot prompt, because stdin is not a terminal. "
            "Read the plan, then use --yes",
            kind="no-terminal",
        )
    typer.confirm(question, abort=True, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _show(planned: PlannedRelease, plan: Path, context: Context, case: ReleaseCase) -> None:
    from tasks.bundle.texts import describe_encoder
    from tasks.releasing import plan_page
    from tasks.releasing.promise import promise_of

    claim, output = planned.plan.claim, planned.output
    epsilon = "none" if claim.epsilon is None else epsilon_text(claim.epsilon)
    tell = partial(say_prose, start="  ", err=True)
    say(
        (
            f"{planned.plan.population}, {planned.plan.release_label}: {claim.guarantee_kind}, ε "
            f"{epsilon}, requested by {planned.plan.requester}"
        ),
        err=True,
    )
    for sentence in promise_of(claim, planned.plan.event):
        tell(sentence)
    if claim.unprotected_inputs:
        tell("Not covered by ε:")
    for line in claim.unprotected_inputs:
        tell(line, start="    - ")
    encoder = describe_encoder(planned.candidate.model.encoder, output.encoder)
    tell(f"licence {output.licence}, {output.precision}, encoder {encoder}")
    for text in output.texts:
        tell(f"released in the bundle, on no published list: {text}")
    page = plan_page.load_plan_page(context, case)
    for answer in page.answers:
        if _is_told(answer):
            tell(f"{plan_page.MARKS[answer.verdict]}: {answer.question} {answer.text}")
    home = None if workspace_of(plan).resolve() == Path(context.home).resolve() else context.home
    judged = replace(page, answers=tuple(filter(_is_judged, page.answers)))
    tell(f"{judged.summary}; details: {command_line('plan', plan, home=home)}")
    assumptions = command_line("plan", plan, home=home)
    tell(
        f"assumptions: {assumptions} lists them. Your signature covers each of them, so read "
        "them all"
    )


def _is_told(answer: PageAnswer) -> bool:
    """Whether a signer sees this answer before the prompt: each that asks for a judgement does."""
    if not _is_judged(answer):
        return False
    if answer.key == "promise":
        return answer.verdict == "investigate"  # its sentences and items stand above
    return answer.key in _QUOTED or answer.verdict != "fine"


def _is_judged(answer: PageAnswer) -> bool:
    """Whether a signer has to judge an answer. That signatures are missing is why they sign."""
    return answer.key != "decision" or answer.verdict == "warning"


_QUOTED = ("leakage", "cost", "outdated", "related")
"""Answers that a signer must see even if they are fine."""


def _accept(case: ReleaseCase, decision: Decision, context: Context) -> str:
    """Saves a decision next to its plan. Refuses a decision with a key that the
    policy does not list.
    """
    from tasks.releasing import approval

    name = approval.accept_decision(context, case, decision)
    case = case.reread(context)
    row = case.ledger.refusal(case.plan)
    if decision.decision == "refuse" and row is not None:
        return f"refused by {name}: ledger row {row.sequence}"
    missing = case.approvals.missing
    return f"approved by {name}" + (
        f"; {missing} more needed" if missing else f"\nnext: {command_line('release', case.file)}"
    )


def _post(plan: Path, planned: PlannedRelease, decision: Decision) -> str:
    if "PREFECT_API_URL" not in os.environ:
        raise Missing(
            "--post: no server is configured. Set PREFECT_API_URL (and PREFECT_API_AUTH_STRING).",
            kind="no-server-to-post",
        )
    from flows.server.waiting_runs import answer, waiting_releases

    # By the file name, which is the plan's key, because the approver's copy may be at another path
    # than the worker's.
    names = {plan.name, f"{planned.plan.idempotency_key[:16]}.json"}
    runs = [run for run in waiting_releases() if Path(run.plan).name in names]
    if not runs:
        raise Missing(
            f"--post: no release run waits for {plan.name}. Start one on Prefect's page.",
            kind="no-waiting-run",
        )
    answer(runs[0].id, decision.token)
    return runs[0].id
