"""Derives the lines of a claim that disclose how its fit was selected; nobody can state or omit them by hand.

The facts are the ledger's rows of fits on the same records, which cannot be removed, and the settings in the recipe of
the fit. Records are the same where the rows have the same fingerprint, or where their samples of marks overlap: another
seed, another population name or an added record does not make them different.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mechanisms.errors import MechanismError
from storage.ledger import ComparisonFit, Ledger, Row, SearchFit
from storage.ledger.records import SAMPLE, same_records
from tasks.catalogue import branch_bodies
from tasks.parameters import RELEASE_BRANCH
from tasks.releasing.claims import SEARCHED, unprotected_inputs
from tasks.releasing.ledger_records import sample_of
from tasks.releasing.plan import CHOSEN_AFTER_COMPARISON, SELECTION_DISCLOSURE, PlannedRelease, describe_selection
from tasks.running.stage import Context


def with_disclosures(ledger: Ledger, context: Context, planned: PlannedRelease) -> PlannedRelease:
    """Replaces the plan's lines on its selection by those that the facts support."""
    claim = planned.plan.claim
    inputs = _inputs(context, planned)
    others = [line for line in claim.unprotected_inputs if line not in inputs and not _is_disclosure(line)]
    lines = (*inputs, *others, *_lines(ledger, context, planned))
    plan = planned.plan.model_copy(update={"claim": claim.model_copy(update={"unprotected_inputs": lines})})
    return planned.model_copy(update={"plan": plan})


def check(ledger: Ledger, context: Context, planned: PlannedRelease) -> None:
    """Refuses a plan whose lines differ from the current facts, such as one edited by hand or outdated.

    Raises:
        MechanismError: names what is missing or wrong; nothing was charged.
        StorageError: the data set or the fit is gone, or was changed.
    """
    for ref in (planned.candidate.dataset, planned.candidate.fitted):
        context.store.open(ref)
    stated = planned.plan.claim.unprotected_inputs
    actual = (*_inputs(context, planned), *_lines(ledger, context, planned))
    if stated == actual:
        return
    if all(_is_disclosure(line) for line in {*stated} ^ {*actual}):
        raise MechanismError(_outdated(planned, stated, actual, file=planned.file(context)))
    wrong = [f"without `{line}`" for line in actual if line not in stated]
    unsupported = sum(line not in actual for line in stated)
    wrong += [f"with {unsupported} unsupported"] if unsupported else []
    raise MechanismError(
        f"release plan: unprotected_inputs differ from what its fit and the ledger's rows on these records support "
        f"({'; '.join(wrong) or 'another order'}). Plan again: run the command that made the plan, which reuses "
        "finished stages"
    )


def _outdated(planned: PlannedRelease, stated: tuple[str, ...], actual: tuple[str, ...], *, file: Path) -> str:
    """Says in words why a plan is out of date, and the command that states it again."""
    before, now = _number(stated), _number(actual)
    fits = f" (the ledger has {now} fits of them, the plan names {before})" if before != now else ""
    others = {SEARCHED: "settings were searched on them", CHOSEN_AFTER_COMPARISON: "mechanisms were compared on them"}
    also = "".join(f"; {text}" for line, text in others.items() if line in actual and line not in stated)
    return (
        f"this plan is out of date: the same records were used again since{fits}{also}. Partners are told this, so the "
        "plan must state it. Nothing was charged. State it again, which takes seconds and needs approvals again: "
        f"`autocoder plan {shlex.quote(str(file))} --renew`. Then release it"
    )


def _number(lines: tuple[str, ...]) -> str:
    named = [match[1] for match in map(SELECTION_DISCLOSURE.fullmatch, lines) if match]
    return named[0] if len(named) == 1 else "none"


def _inputs(context: Context, planned: PlannedRelease) -> tuple[str, ...]:
    facts = context.store.figures(planned.candidate.dataset)
    return unprotected_inputs(facts, weights=planned.plan.event.risk_weights, model=planned.candidate.model)


def _lines(ledger: Ledger, context: Context, planned: PlannedRelease) -> tuple[str, ...]:
    made, same = planned.candidate, []
    sample = sample_of(context, made.dataset)
    for row in ledger.evaluations():
        # guard: another sample of the same records is found
        if row.data_fingerprint == planned.plan.data_fingerprint or same_records(row.details.get(SAMPLE), sample):
            same.append(row)
    candidate = {made.fitted.sha256} | ({made.measured.sha256} if made.measured is not None else set())
    own_rows = [row for row in same if candidate & set(row.artifact_digests.values())]
    stated = {line for row in own_rows for line in row.unprotected_inputs}
    fits = {made.fitted.sha256, *(name for row in same for name in _fits(row))}
    settings = context.store.recipe(made.fitted)["config"].get("mechanism", {})
    tuned = [line for lines, ways in _tuned() for line in lines if any(_holds(way, settings) for way in ways)]
    weighted = made.measured is not None and planned.plan.event.risk_weights
    searched = weighted and any(isinstance(row.subject, SearchFit) for row in same)
    holds = {
        SEARCHED: SEARCHED in stated or searched,
        **{line: line in stated or line in tuned for lines, _ in _tuned() for line in lines},
        CHOSEN_AFTER_COMPARISON: len({_branch(row) for row in same if row.event is not None}) > 1,
        describe_selection(len(fits)): True,
    }
    return tuple(line for line, applies in holds.items() if applies)


def _is_disclosure(line: str) -> bool:
    disclosures = {SEARCHED, CHOSEN_AFTER_COMPARISON, *(line for lines, _ in _tuned() for line in lines)}
    return line in disclosures or SELECTION_DISCLOSURE.fullmatch(line) is not None


def _fits(row: Row) -> list[str]:
    artifacts = row.artifact_digests
    if row.event is not None:
        return [artifacts.get("fit") or artifacts.get("posterior") or str(row.idempotency_key or row.sequence)]
    return []


def _branch(row: Row) -> str:
    return row.subject.branch if isinstance(row.subject, ComparisonFit) else RELEASE_BRANCH


@cache
def _tuned() -> tuple[tuple[tuple[str, ...], tuple[Mapping[str, Any], ...]], ...]:
    """Returns, for the branches that ship, their unprotected inputs and settings, on features and on tokens.

    Whoever fits with these settings has it from there, under whatever name.
    """
    return tuple(
        (tuple(body["unprotected"]), (body["mechanism"], body["mechanism"] | body.get("on_tokens", {})))
        for body in branch_bodies().values()
        if body.get("unprotected")
    )


def _holds(settings: Any, configuration: Any) -> bool:
    if isinstance(settings, Mapping):
        return isinstance(configuration, Mapping) and all(
            n in configuration and _holds(v, configuration[n]) for n, v in settings.items()
        )
    return bool(settings == configuration)
