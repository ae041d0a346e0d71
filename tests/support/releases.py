"""Builds claims, plans of a release and candidates, so that a changed field changes one file of the
tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from mechanisms.model.config import ModelConfig
from mechanisms.privacy.events import Claim, Event, SwagPpmEvent
from storage.artifacts import ArtifactRef
from storage.ledger import Evaluation, ReleasePlan, ReleaseRow
from storage.ledger.entries import Reserved
from tasks.fitting.candidate import Candidate
from tasks.releasing.evidence import AUDITED_ARTIFACT
from tasks.releasing.plan import PlannedRelease

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@cache
def release_key() -> EllipticCurvePrivateKey:
    """Returns the releasing worker's key, the same in every process."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.derive_private_key(20_261_127, ec.SECP256R1())


def make_ref(letter: str) -> ArtifactRef:
    """Returns a reference to what is nowhere; its digest is the letter, 64 times."""
    return ArtifactRef(uri=f"file:///nowhere/{letter}", sha256=letter * 64, kind="test")


def make_claim(kind: str = "asymptotic-local", **changes: Any) -> Claim:
    formal = kind == "formal"
    values: dict[str, Any] = {
        "guarantee_kind": kind,
        "epsilon": 4.0,
        "delta": 1e-5 if formal else None,
        "delta_text": "" if formal else "O(n^-1/2)",
        "sensitivity": None if formal else 2.0,
        "neighbouring_relation": "add-remove" if formal else "replace-one",
        "accountant": "test 1",
    }
    return Claim(**(values | changes))


def make_event(**changes: Any) -> Event:
    """Returns the event of a SWAG-PPM draw with sensitivity 2."""
    values: dict[str, Any] = {
        "reweighted": False,
        "snapshots": 20,
        "rank": 20,
        "sensitivity_draws": 500,
        "sensitivity": 2.0,
    }
    return SwagPpmEvent(**(values | changes))


def make_plan(
    key: str = "k",
    *,
    kind: str = "asymptotic-local",
    claim: Mapping[str, Any] | Claim | None = None,
    **changes: Any,
) -> ReleasePlan:
    """Returns a release plan; `claim` changes the claim's fields or replaces it, `changes` the
    plan's.
    """
    values: dict[str, Any] = {
        "idempotency_key": key,
        "release_label": "label",
        "population": "injuries",
        "cohorts": ("2023",),
        "data_fingerprint": "f" * 64,
        "records_rounded": 1_234,
        "event": make_event(),
        "claim": claim if isinstance(claim, Claim) else make_claim(kind, **(claim or {})),
        "requester": "operator",
    }
    return ReleasePlan.model_validate(values | changes)


def shared_with(row: ReleaseRow) -> list[str]:
    """Returns the earlier releases that a reservation names as made from some of its records."""
    assert row.reserved.records is not None
    return list(row.reserved.records.releases)


def another(row: ReleaseRow, *, claim: Mapping[str, Any] | None = None, **changes: Any) -> Reserved:
    """Returns the reservation of another release like a row's, with changed fields of its plan and
    its claim, which nothing checks.
    """
    changes = {"idempotency_key": "another"} | changes
    if claim is not None:
        changes["claim"] = row.claim.model_copy(update=dict(claim))
    plan = row.plan.model_copy(update=changes)
    return row.reserved.model_copy(update={"release_id": "f" * 16, "plan": plan})


def make_candidate(**changes: Any) -> Candidate:
    """Returns a posterior over a head's parameters: references `a` to `c`."""
    names = ("dataset", "prepared", "fitted")
    values: dict[str, Any] = {
        name: make_ref(letter) for name, letter in zip(names, "abc", strict=True)
    }
    values |= {"mechanism": {"kind": "swag-ppm"}, "is_sampled": True}
    return Candidate(**(values | {"model": ModelConfig(trainable="head"), "seed": 1} | changes))


def make_planned(*, candidate: Mapping[str, Any] | None = None, **changes: Any) -> PlannedRelease:
    """Returns the plan of a candidate; `candidate` changes its fields, `changes` the plan's
    (`make_plan`).
    """
    return PlannedRelease(plan=make_plan(**changes), candidate=make_candidate(**(candidate or {})))


def make_audit(
    planned: PlannedRelease, bound: float, *, fitted: str | None = None, **details: Any
) -> Evaluation:
    """Returns the row of an audit, with 32 reruns that could have shown 9, of a plan's candidate or
    of another fit.
    """
    found = {"epsilon_lower_bound": bound, "reach": 9.0, "confidence": 0.95, "trials": 32}
    return Evaluation(
        kind="audit",
        label="audit",
        population="injuries",
        data_fingerprint="f",
        event=planned.plan.event,
        requester="auditor",
        artifact_digests={AUDITED_ARTIFACT: fitted or planned.candidate.fitted.sha256},
        details=found | details,
    )
