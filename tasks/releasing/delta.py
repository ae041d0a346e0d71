"""The delta of a formal claim where nobody gives one: the usual one, or the policy's cap where that is less."""

from __future__ import annotations

from pathlib import Path

from storage.ledger import Ledger, Policy
from tasks.parameters import LedgerParameters, RetrainParameters
from tasks.releasing import publish
from tasks.releasing.allowed_delta import of_policy
from tasks.releasing.claims import ledger_url
from tasks.running.stage import Context


def usual_delta(context: Context, parameters: RetrainParameters) -> float:
    """What a formal claim of these records is stated at by itself, so that one release fits under the policy's caps.

    It depends on the policy and not on what is spent: the same command plans the same release, however often it is run.
    """
    return of_policy(policy_at_hand(context, parameters.release), parameters.data.population)


def policy_at_hand(context: Context, settings: LedgerParameters) -> Policy:
    """The policy in force, or the one that a first release would put in force; makes no ledger."""
    ledger = ledger_at_hand(context, settings)
    if ledger is not None:
        return ledger.policy()
    return Policy.load(Path(settings.policy).expanduser() if settings.policy else None)


def ledger_at_hand(context: Context, settings: LedgerParameters) -> Ledger | None:
    """The ledger of a workspace, None where there is none: looking makes no empty one."""
    url = ledger_url(context, settings)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        return None
    return publish.open_ledger(context, settings)
