"""Would win: the release of what an audit has contradicted, by a fit that it did not see, or by a
weaker audit.
"""

from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from releases import make_planned, make_ref, release_key

from mechanisms.privacy.accuracy_table import events_of
from mechanisms.privacy.events import (
    Claim,
    DpSgdEvent,
    NoiseSegment,
    ParallelEvent,
    SwagPpmEvent,
)
from storage.ledger import BudgetRefused, Evaluation, Ledger, Policy, Scores
from storage.ledger.models import Sample
from storage.ledger.records import RecordSet
from tasks.releasing import gate
from tasks.releasing.case import ReleaseCase
from tasks.releasing.evidence import AUDITED_ARTIFACT
from tasks.releasing.plan import PlannedRelease

DECLARES = """
a refuted claim is not released
| another `seed`, label, population, number of draws or Δ; a weaker audit afterwards; audits that
could have found nothing (no reruns, confidence 0.999, too few guesses); auditing until one passes;
a record fewer, another order, a twentieth or two thirds fewer, three times as many, two or nine
further columns of long texts, another registry's key
| two sets that share half of the smaller one or less are others, and settings that the event names
(noise, bound, rank, snapshots, round) another method; both need an audit of their own where the
policy asks for one
"""

EVENT = SwagPpmEvent(
    reweighted=False, snapshots=20, rank=20, sensitivity_draws=500, sensitivity=2.0
)
CLAIM = Claim(
    guarantee_kind="asymptotic-local",
    epsilon=4.0,
    epsilon_add_remove=2.0,
    neighbouring_relation="add-remove",
    accountant="test",
)


def plan(fitted: str = "c", **changes: Any) -> PlannedRelease:
    values: dict[str, Any] = {
        "key": fitted,
        "event": EVENT,
        "claim": CLAIM,
        "data_fingerprint": "f",
        "records_rounded": 100,
    }
    return make_planned(candidate={"fitted": make_ref(fitted)}, **(values | changes))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    policy = {
        "name": "test",
        "require_audit": True,
        "default": {"asymptotic-local": {"epsilon": 20}},
    }
    return Ledger.open(
        f"sqlite:///{tmp_path / 'ledger.db'}", policy=Policy.parse(policy), key=release_key()
    )


def audit(
    ledger: Ledger, of: PlannedRelease, bound: float, sample: Sample | None = None, **changes: Any
) -> None:
    told = {"epsilon_lower_bound": bound, "reach": 6.0, "confidence": 0.95, "trials": 32}
    ledger.record(
        Evaluation(
            kind="audit",
            label="audit",
            population=of.plan.population,
            data_fingerprint=of.plan.data_fingerprint,
            event=of.plan.event,
            requester="auditor",
            artifact_digests={AUDITED_ARTIFACT: of.candidate.fitted.sha256},
            sample=sample,
            details=told | changes,
        )
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"release_label": "second"},
        {"population": "others", "cohorts": ("2016",)},
        {"event": EVENT.model_copy(update={"sensitivity": 1.9})},
        {"event": EVENT.model_copy(update={"sensitivity_draws": 501})},
    ],
    ids=["seed", "label", "population", "sensitivity", "draws"],
)
def test_another_fit_of_the_method_is_blocked_too(ledger: Ledger, changes: dict[str, Any]) -> None:
    """An audit contradicts 2 for one record; a posterior fitted at another seed, never audited or
    audited less, is blocked by it, under whatever name.
    """
    audit(ledger, plan(), 2.4)
    other = plan("9", **changes)
    for _ in range(2):
        with pytest.raises(
            BudgetRefused,
            check=of_kind("blocked", saying=("claimed ε 4", "ε 2 for one record more")),
        ):
            gate.check(ReleaseCase.of(other, ledger))
        audit(ledger, other, 0.3)
    assert ledger.verify().ok


def test_a_table_of_the_test_half_hides_no_refutation(ledger: Ledger) -> None:
    """An audit reran the training alone; the same training next to a table is the same method."""
    noise = NoiseSegment(steps=10, noise_multiplier=5.0, l2_clip_norm=1.0)
    training = DpSgdEvent(sampling_prob=1.0, segments=(noise,))
    formal = CLAIM.model_copy(update={"guarantee_kind": "formal", "delta": 1e-5, "epsilon": 2.0})
    audit(ledger, plan(event=training, claim=formal), 2.4)
    told = ParallelEvent(training=training, evaluation=events_of(0.5), split="record")
    with pytest.raises(BudgetRefused, check=of_kind("blocked")):
        gate.check(ReleaseCase.of(plan("9", event=told, claim=formal), ledger))


@pytest.mark.parametrize(
    "changes",
    [
        {"data_fingerprint": "g"},
        {"event": EVENT.model_copy(update={"reweighted": True})},
        {"claim": CLAIM.model_copy(update={"epsilon": 5.0, "epsilon_add_remove": 2.5})},
    ],
    ids=["records", "method", "claim"],
)
def test_it_blocks_nothing_else(ledger: Ledger, changes: dict[str, Any]) -> None:
    """Other records, another method, a claim above what was measured: an audit of its own is all
    that they need.
    """
    audit(ledger, plan(), 2.4)
    other = plan("9", **changes)
    audit(ledger, other, 0.3)
    told = gate.check(ReleaseCase.of(other, ledger))
    assert told is not None
    assert told.model_dump()["verdict"] == "not contradicted"


@pytest.mark.parametrize(
    ("weak", "kind"),
    [
        ({"trials": 0}, "audit-without-reruns"),
        ({"confidence": 0.999}, "unaudited"),
        ({"reach": 1.9}, "audit-without-result"),
        ({"trials": 0, "gradient_runs": 0}, "audit-without-reruns"),
    ],
    ids=["no reruns", "confidence", "few guesses", "nothing"],
)
def test_an_audit_that_could_not_have_failed_opens_nothing(
    ledger: Ledger, weak: dict[str, Any], kind: str
) -> None:
    """The policy asks for an audit; one that had no chance is none."""
    with pytest.raises(BudgetRefused, check=of_kind("unaudited")):
        gate.check(ReleaseCase.of(plan(), ledger))
    audit(ledger, plan(), 0.0, **weak)
    with pytest.raises(BudgetRefused, check=of_kind(kind)):
        gate.check(ReleaseCase.of(plan(), ledger))
    audit(ledger, plan(), 0.3)
    assert gate.check(ReleaseCase.of(plan(), ledger)) is not None


def marks(first: int, last: int, *, key: bytes = b"k" * 32, columns: int = 1) -> Sample:
    """The sample of records number `first` to `last`, as rows of the ledger have it."""
    texts = ("narrative", *(f"text {column}" for column in range(1, columns)))
    records = (
        f"{text} number {number} of many".encode()
        for text in texts
        for number in range(first, last)
    )
    return RecordSet.of(records, key=key).sample


def known(ledger: Ledger, fingerprint: str, sample: Sample | None) -> None:
    key = f"evaluation {fingerprint}"
    ledger.record(
        Evaluation(
            subject=Scores(),
            population="injuries",
            data_fingerprint=fingerprint,
            requester="operator",
            idempotency_key=key,
            sample=sample,
        )
    )


@pytest.mark.parametrize(
    "sample",
    [
        *(marks(1, 2000), marks(0, 2000), marks(100, 2000), marks(1400, 2000), marks(0, 6000)),
        *(marks(0, 2000, columns=3), marks(0, 2000, columns=10), marks(0, 2000, key=b"o" * 32)),
    ],
    ids=[
        "one record fewer",
        "another order",
        "a twentieth fewer",
        "a third",
        "three times as many",
        "two long columns more",
        "nine long columns more",
        "another key",
    ],
)
def test_records_that_are_the_same_under_another_fingerprint(
    ledger: Ledger, sample: Sample
) -> None:
    """A contradiction is not left behind by records taken away or added, the file sorted again,
    further columns, or a registry's key of one's own: the audit is in the ledger, and so are the
    samples of both.
    """
    audit(ledger, plan(), 2.4, sample=marks(0, 2000))
    other = plan("9", data_fingerprint="g")
    known(ledger, "g", sample)
    audit(ledger, other, 0.3)
    with pytest.raises(BudgetRefused, check=of_kind("blocked")):
        gate.check(ReleaseCase.of(other, ledger))


def test_records_of_which_most_are_others_are_others(ledger: Ledger) -> None:
    """Next year's, of which a tenth was there before, need an audit of their own and no more."""
    audit(ledger, plan(), 2.4, sample=marks(0, 2000))
    other = plan("9", data_fingerprint="g")
    known(ledger, "g", marks(1800, 3800))
    audit(ledger, other, 0.3)
    assert gate.check(ReleaseCase.of(other, ledger)) is not None
