"""How a release came to be chosen: lines of its claim that follow from facts, and that nobody states or leaves out.

The facts are the ledger's rows of fits on the same records, which nobody can take back, and the settings in the recipe
of the fit. Records are the same where the rows' fingerprint is, or where their samples of marks share one: another seed
of the sampling, another population or a record more does not make others of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from mechanisms.errors import MechanismError
from storage.artifacts import ArtifactRef
from storage.ledger import Ledger, Row
from storage.ledger.records import SAMPLE, same_records
from tasks.parameters import RELEASED
from tasks.releasing.claims import MATCHED, SEARCHED, unprotected_inputs
from tasks.releasing.plan import CHOSEN_AFTER_COMPARISON, LOOKED, PlannedRelease, looked
from tasks.releasing.records import record_set
from tasks.running.stage import Context

_BRANCHES = Path(__file__).resolve().parents[2] / "deployments" / "branches.yaml"
_COMPARED = re.compile(r"compare: (.+), seed \d+")
_SEARCHED, _DIAGNOSED = "tuning for epsilon ", "epsilon at "


@dataclass(frozen=True)
class Seen:
    """What the ledger knows of fits on some records."""

    fits: frozenset[str]
    branches: frozenset[str]
    searched: bool
    said: tuple[str, ...]
    """Lines that rows of the planned fit itself hold."""

    @staticmethod
    def of(ledger: Ledger, planned: PlannedRelease, sample: Mapping[str, Any]) -> Seen:
        """Look through the ledger's evaluations; audits, which measure a plan's own fit, are none."""
        made, same = planned.candidate, []
        for row in ledger.evaluations():
            if row.data_fingerprint == planned.plan.data_fingerprint or same_records(row.details.get(SAMPLE), sample):
                same.append(row)
        own = {made.fitted.sha256} | ({made.measured.sha256} if made.measured is not None else set())
        of_it = [row for row in same if own & set(row.artifact_digests.values())]
        fits = [name for row in same for name in _fits(row)]
        return Seen(
            fits=frozenset([made.fitted.sha256, *fits]),
            branches=frozenset(_branch(row) for row in same if row.event is not None),
            searched=any(row.label.startswith(_SEARCHED) for row in same),
            said=tuple(dict.fromkeys(line for row in of_it for line in row.unprotected_inputs)),
        )


def sample_of(context: Context, dataset: ArtifactRef) -> dict[str, Any]:
    """The sample of a data set's marks, for a row of what was computed from it."""
    return dict(_sample(context, dataset))


@lru_cache(maxsize=8)
def _sample(context: Context, dataset: ArtifactRef) -> Mapping[str, Any]:
    return record_set(context, dataset).sample


def stated(ledger: Ledger, context: Context, planned: PlannedRelease) -> PlannedRelease:
    """The plan with the lines on its choice as the facts have them, in the place of whatever it says."""
    claim = planned.plan.claim
    own = _own(context, planned)
    others = [line for line in claim.unprotected_inputs if line not in own and not _of_choice(line)]
    lines = (*own, *others, *_lines(ledger, context, planned))
    plan = planned.plan.model_copy(update={"claim": claim.model_copy(update={"unprotected_inputs": lines})})
    return planned.model_copy(update={"plan": plan})


def check(ledger: Ledger, context: Context, planned: PlannedRelease) -> None:
    """Refuse a plan whose lines are others than the facts of now, as one edited by hand or outdated would.

    Raises:
        MechanismError: names what is missing or wrong; nothing was charged.
        StorageError: the data set or the fit is gone, or was changed.
    """
    for ref in (planned.candidate.dataset, planned.candidate.fitted):
        context.store.open(ref)
    said = planned.plan.claim.unprotected_inputs
    true = (*_own(context, planned), *_lines(ledger, context, planned))
    if said != true:
        wrong = "; ".join([*(f"without `{x}`" for x in true if x not in said), *_unknown(said, true)])
        raise MechanismError(
            f"release plan: unprotected_inputs are not what its fit and the ledger's rows on these records say "
            f"({wrong or 'another order'}); plan again: other fits or audits of these records were recorded since. Run "
            "the command that made the plan again (finished stages are used), then release"
        )


def _unknown(said: tuple[str, ...], true: tuple[str, ...]) -> list[str]:
    number = sum(line not in true for line in said)
    return [f"with {number} that nothing bears out"] if number else []


def _own(context: Context, planned: PlannedRelease) -> tuple[str, ...]:
    facts = context.store.figures(planned.candidate.dataset)
    return unprotected_inputs(facts, weights=planned.plan.event.risk_weights)


def _lines(ledger: Ledger, context: Context, planned: PlannedRelease) -> tuple[str, ...]:
    made = planned.candidate
    seen = Seen.of(ledger, planned, sample_of(context, made.dataset))
    settings = context.store.recipe(made.fitted)["config"].get("mechanism", {})
    tuned = [line for lines, ways in _tuned() for line in lines if any(_holds(way, settings) for way in ways)]
    weighted = made.measured is not None and planned.plan.event.risk_weights
    holds = {
        SEARCHED: SEARCHED in seen.said or (weighted and seen.searched),
        MATCHED: MATCHED in seen.said,
        **{line: line in seen.said or line in tuned for lines, _ in _tuned() for line in lines},
        CHOSEN_AFTER_COMPARISON: len(seen.branches) > 1,
        looked(len(seen.fits)): True,
    }
    return tuple(line for line, told in holds.items() if told)


def _of_choice(line: str) -> bool:
    known = {SEARCHED, CHOSEN_AFTER_COMPARISON, *(line for lines, _ in _tuned() for line in lines)}
    return line in known or LOOKED.fullmatch(line) is not None


def _fits(row: Row) -> list[str]:
    """The fits that a row tells the figures of, each by the digest that it has in every such row."""
    told = row.artifact_digests
    if row.event is not None:
        return [told.get("fit") or told.get("posterior") or str(row.idempotency_key or row.sequence)]
    return [f"{row.sequence} {name}" for name in row.details if name.startswith(_DIAGNOSED)]


def _branch(row: Row) -> str:
    compared = _COMPARED.fullmatch(row.label)
    return RELEASED if compared is None else compared[1]


@cache
def _tuned() -> tuple[tuple[tuple[str, ...], tuple[Mapping[str, Any], ...]], ...]:
    """Of the branches that ship: what their settings took from records, and the settings, on features and on tokens.

    Whoever fits with these settings has it from there, under whatever name.
    """
    branches: Any = yaml.safe_load(_BRANCHES.read_text(encoding="utf-8"))
    return tuple(
        (tuple(body["unprotected"]), (body["mechanism"], body["mechanism"] | body.get("on_tokens", {})))
        for name, body in branches.items()
        if not name.startswith("x-") and body.get("unprotected")
    )


def _holds(settings: Any, found: Any) -> bool:
    """Whether what is found has all of these settings, whatever else it has."""
    if isinstance(settings, Mapping):
        return isinstance(found, Mapping) and all(n in found and _holds(v, found[n]) for n, v in settings.items())
    return bool(settings == found)
