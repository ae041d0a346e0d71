"""What audits of one claim may spend together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from mechanisms.model.classifier import ModelConfig
from mechanisms.privacy.events import Claim, SwagPpmEvent
from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef
from storage.ingest import IngestConfig
from storage.ledger import Evaluation, Ledger
from tasks.auditing.looks import Look, look
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import Branch, CompareParameters
from tasks.branches.outcome import Outcome, Study
from tasks.parameters import DataParameters, FitParameters, RetrainParameters
from tasks.running.stage import Context

REF = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, kind="test")
EVENT = SwagPpmEvent(reweighted=False, snapshots=20, rank=20, sensitivity_draws=500, sensitivity=2.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty one."""
    return Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")


def taken(
    ledger: Ledger, settings: AuditParameters, *, seed: int = 1, records: str = "f", c: float = 1.0, write: bool = True
) -> Look:
    """The look that an audit gets, and, if it is written, its row."""
    base = RetrainParameters(
        data=DataParameters(source="x.csv", ingest=IngestConfig()), model=ModelConfig(), fit=FitParameters(seed=seed)
    )
    parameters = base.model_copy(update={"pseudo_posterior": base.pseudo_posterior.model_copy(update={"c": c})})
    study = Study(
        Context(home="/nowhere"), parameters, CompareParameters(), REF, REF, {"fingerprint": records}, lambda step: REF
    )
    claim = Claim(guarantee_kind="asymptotic-local", epsilon=4, neighbouring_relation="add-remove", accountant="test")
    branch = Branch(name="swag-ppm", title="x", mechanism=SwagPpm(round="weighted"))
    given = Outcome(branch, seed, branch.mechanism, EVENT, claim, REF, REF, {}, [], {})
    found = look(study, settings, given, ledger.rows())
    if write:
        told: dict[str, Any] = {"claim_of": found.claim_of, "design": found.design, "look": found.number}
        _row(ledger, {"epsilon_lower_bound": 0.1} | told, records)
    return found


def _row(ledger: Ledger, details: dict[str, Any], records: str) -> None:
    ledger.record(
        Evaluation(
            kind="audit",
            label="audit",
            population="x",
            requester="x",
            data_fingerprint=records,
            event=EVENT,
            details=details,
        )
    )


def test_audits_of_one_claim_share_its_false_alarm_rate(ledger: Ledger) -> None:
    """The same audit again is the same look; more reruns, or another seed, are another; their shares add up to 5 %."""
    numbers = [taken(ledger, AuditParameters(trials=16)).number for _ in range(2)]
    assert numbers == [1, 1]
    assert taken(ledger, AuditParameters(trials=32)).number == 2
    assert taken(ledger, AuditParameters(trials=16), seed=2).number == 3
    assert taken(ledger, AuditParameters(trials=16)).number == 1
    looks = [taken(ledger, AuditParameters(trials=100 + n)) for n in range(20)]
    assert looks[0].number == 4
    alphas = [0.05 / (k * (k + 1)) for k in range(1, 24)]
    assert [one.alpha for one in looks] == pytest.approx(alphas[3:])
    assert sum(alphas) < 0.05


def test_other_records_or_settings_are_another_claim(ledger: Ledger) -> None:
    """Their audits are first ones; rows from before audits were counted are one each."""
    for n in range(3):
        taken(ledger, AuditParameters(trials=16 + n))
    assert taken(ledger, AuditParameters(), records="g", write=False).number == 1
    assert taken(ledger, AuditParameters(), c=0.5, write=False).number == 1
    for _ in range(2):
        _row(ledger, {"epsilon_lower_bound": 0.1}, "h")
    _row(ledger, {"verdict": "blocked"}, "h")
    assert taken(ledger, AuditParameters(), records="h", write=False).number == 3


def test_auditing_until_one_contradicts_finds_too_much_without_this() -> None:
    """P-values of true claims, 20 audits each: some audit raises an alarm in at most 5 % of 400 claims (more than 33
    have 0.3 %); each at 5 % it does in most.
    """
    pick = np.random.default_rng(0)
    p = pick.random((400, 20))
    alphas = np.array([Look("", "", k, 0.95).alpha for k in range(1, 21)])
    assert binom.sf(33, 400, 0.05) < 0.003
    assert (p <= alphas).any(1).sum() <= 33
    assert (p <= 0.05).any(1).sum() > 200
