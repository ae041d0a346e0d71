"""What audits of one claim may spend together, kind by kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_jobs
from scipy.stats import binom

from mechanisms.model.config import ModelConfig
from mechanisms.privacy.events import Claim, SwagPpmEvent
from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef
from storage.ingest import IngestConfig
from storage.ledger import Evaluation, Ledger
from tasks.auditing.alpha_spending import TESTS, AuditAttempt, count_attempt, evidence_of
from tasks.branches.branch import Branch, Terms
from tasks.branches.experiment import Outcome, Study
from tasks.parameters import DataParameters, FitParameters, RetrainParameters
from tasks.running.stage import Context, Step, run_step

REF = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, kind="test")
EVENT = SwagPpmEvent(reweighted=False, snapshots=20, rank=20, sensitivity_draws=500, sensitivity=2.0)
ALL = sum(TESTS.values())


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty one."""
    return Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")


def taken(
    ledger: Ledger,
    evidence: Mapping[str, str],
    *,
    seed: int = 1,
    records: str = "f",
    c: float = 1.0,
    write: bool = True,
    as_first: float = 0.1,
) -> AuditAttempt:
    """Numbers an audit with this evidence and, if `write`, records its row."""
    base = RetrainParameters(
        data=DataParameters(source="x.csv", ingest=IngestConfig()), model=ModelConfig(), fit=FitParameters(seed=seed)
    )
    parameters = base.model_copy(update={"pseudo_posterior": base.pseudo_posterior.model_copy(update={"c": c})})
    settings, facts = Terms(), {"fingerprint": records, "train": 1000}
    study = Study(Context(home="/nowhere"), parameters, settings, REF, REF, facts, lambda step: REF)
    claim = Claim(guarantee_kind="asymptotic-local", epsilon=4, neighbouring_relation="add-remove", accountant="test")
    branch = Branch(name="swag-ppm", title="x", mechanism=SwagPpm(round="weighted"))
    given = Outcome(branch, seed, branch.mechanism, EVENT, claim, REF, REF, {})
    attempt = count_attempt(study, given, evidence, ledger.rows(), confidence=0.95)
    if write:
        details: dict[str, Any] = {"claim_of": attempt.claim_of, "attempts": dict(attempt.numbers)}
        details |= {"evidence": dict(evidence), "epsilon_lower_bound": 0.1, "epsilon_as_first": as_first}
        _row(ledger, details, records)
    return attempt


def _row(ledger: Ledger, details: dict[str, Any], records: str) -> None:
    named: Any = {"kind": "audit", "label": "audit", "population": "x", "requester": "x"}
    ledger.record(Evaluation(**named, data_fingerprint=records, event=EVENT, details=details))


def test_audits_of_one_claim_share_its_false_alarm_rate(ledger: Ledger) -> None:
    """The same evidence again is the same attempt, whatever came between. Other evidence gets the next number of its
    kind, also at another seed; what a kind may spend adds up to its share of 5 %, and over kinds to all of it.
    """
    assert taken(ledger, {"gradients": "a", "reruns": "r"}).numbers == {"gradients": 1, "reruns": 1}
    assert taken(ledger, {"gradients": "a", "reruns": "r"}).numbers == {"gradients": 1, "reruns": 1}
    for number in range(9):
        assert taken(ledger, {"gradients": f"b{number}"}).numbers == {"gradients": 2 + number}
    later = taken(ledger, {"gradients": "a", "reruns": "s"}, seed=2)
    assert later.numbers == {"gradients": 1, "reruns": 2}
    assert later.number == 2
    assert later.alpha["reruns"] == pytest.approx(0.05 / ALL / 6)
    assert later.first == pytest.approx(dict.fromkeys(("reruns", "gradients"), 0.05 / ALL / 2))
    every = [AuditAttempt("", {}, dict.fromkeys(TESTS, k), 0.95).spent for k in range(1, 200)]
    assert sum(every) == pytest.approx(0.05 * (1 - 1 / 200))


def test_other_records_or_settings_are_another_claim(ledger: Ledger) -> None:
    """Their audits are first ones; rows of other kinds, such as refusals of the gate, count nothing."""
    for number in range(3):
        taken(ledger, {"reruns": f"r{number}", "gradients": "a"})
    fresh = {"reruns": "x", "gradients": "a"}
    assert taken(ledger, fresh, records="g", write=False).number == 1
    assert taken(ledger, fresh, c=0.5, write=False).number == 1
    same = taken(ledger, fresh, write=False)
    assert same.number == 4
    _row(ledger, {"verdict": "blocked"}, "f")
    assert taken(ledger, fresh, write=False).numbers == same.numbers == {"reruns": 4, "gradients": 1}


def test_what_other_audits_would_have_refuted_is_remembered(ledger: Ledger) -> None:
    """By the claim's later audits; not by the same again, nor by another claim's."""
    taken(ledger, {"reruns": "r"}, as_first=2.5)
    taken(ledger, {"reruns": "s"}, as_first=1.5)
    refuted_before = [taken(ledger, {"reruns": one}, write=False).refuted_before for one in "rst"]
    assert refuted_before == [1.5, 2.5, 2.5]
    assert taken(ledger, {"reruns": "t"}, c=0.5, write=False).refuted_before == 0.0


def test_evidence_is_what_stages_hold(tmp_path: Path) -> None:
    """The same numbers under another key are the same; others, of whatever stage of the kind, are not; without reruns
    there is no such evidence.
    """
    context = tiny_jobs.workspace(tmp_path)

    def stage(name: str, held: str, asked: int) -> ArtifactRef:
        def body(work: Any) -> dict[str, Any]:
            (work.out / "numbers").write_text(held)
            return {}

        return run_step(
            context, Step(name, name, {"asked": asked}, {}, body, modules=("tasks.auditing.alpha_spending",))
        )

    def of(**refs: ArtifactRef | None) -> dict[str, str]:
        return evidence_of(context.store, refs)

    predictions, trials, pool = (stage(name, "1", 1) for name in ("predictions", "trials", "pool"))
    again, drawn_anew = stage("trials", "1", 2), stage("trials", "2", 1 + 2)
    whole = of(predictions=predictions, trials=trials, pool=pool, gradients=None)
    assert set(whole) == {"reruns"}
    assert again.sha256 != trials.sha256
    assert of(predictions=predictions, trials=again, pool=pool) == whole
    assert of(predictions=predictions, trials=drawn_anew, pool=pool) != whole
    assert of(predictions=predictions) == {}


def test_auditing_until_one_contradicts_finds_too_much_without_this() -> None:
    """P-values of true claims, 20 audits of each with all their tests: some audit raises an alarm in at most 5 % of 400
    claims (more than 33 have 0.3 %); each at 5 % it does in most.
    """
    pick = np.random.default_rng(0)
    p = pick.random((400, 20, ALL))
    attempts = [AuditAttempt("", {}, dict.fromkeys(TESTS, k), 0.95) for k in range(1, 21)]
    alphas = np.array([[one.alpha[kind] for kind, tests in TESTS.items() for _ in range(tests)] for one in attempts])
    assert binom.sf(33, 400, 0.05) < 0.003
    assert (p <= alphas).any((1, 2)).sum() <= 33
    assert (p <= 0.05 / ALL).any((1, 2)).sum() > 200
