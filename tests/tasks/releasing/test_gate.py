"""The gate: a contradicted claim is refused through the ledger, and only a counted signature lets
it pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from releases import make_audit, make_claim, make_planned, release_key

from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Decision, Evaluated, Ledger, Policy
from storage.ledger.decisions import sign
from storage.ledger.entries import Overridden
from storage.ledger.keys import load_private_key, new_keys
from tasks.releasing import gate
from tasks.releasing.case import ReleaseCase
from tasks.releasing.evidence import Evidence, Measurement
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

CLAIM = make_claim(neighbouring_relation="add-remove", delta_text="O(n^-1/2), not quantified")


@pytest.fixture
def planned() -> PlannedRelease:
    return make_planned(release_label="first", claim=CLAIM, data_fingerprint="f", cohorts=("2015",))


def policy_of(**more: Any) -> Policy:
    return Policy.parse({"name": "test", "default": {"asymptotic-local": {"epsilon": 20}}} | more)


def ledger_under(folder: Path, policy: Policy) -> Ledger:
    return Ledger.open(f"sqlite:///{folder / 'ledger.db'}", policy=policy, key=release_key())


def approvers(folder: Path) -> dict[str, Any]:
    """Makes keys of an officer and of the requester, which the policy knows."""
    keys = {name: new_keys(folder / name)[1].read_text() for name in ("officer", "operator")}
    return {"minimum": 0, "approvers": keys}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return ledger_under(tmp_path, policy_of(approvals=approvers(tmp_path)))


@pytest.fixture
def asking(tmp_path: Path) -> Ledger:
    """A ledger whose policy asks for an audit."""
    return ledger_under(tmp_path, policy_of(require_audit=True, approvals=approvers(tmp_path)))


def _audit(ledger: Ledger, planned: PlannedRelease, bound: float, **details: Any) -> Evaluated:
    return ledger.record(make_audit(planned, bound, **details))


def _measured(ledger: Ledger, planned: PlannedRelease) -> Measurement:
    found = ReleaseCase.of(planned, ledger).measurement
    assert found is not None
    return found


def _signed(
    ledger: Ledger, planned: PlannedRelease, folder: Path, reason: str = "memo 12"
) -> Decision:
    return sign(
        load_private_key(folder / "signing-key.pem"),
        subject="override",
        decision="approve",
        digest=planned.digest,
        terms=gate.override_terms(ReleaseCase.of(planned, ledger), _measured(ledger, planned)),
        reason=reason,
    )


def test_a_plan_without_its_artifacts_is_refused_before_any_claim_is_judged(
    planned: PlannedRelease, tmp_path: Path
) -> None:
    """It was made in another workspace, whose ledger charges its records."""
    with pytest.raises(StorageError, check=of_kind("artifact-of-another-workspace")):
        planned.check(Context(home=str(tmp_path)))


def test_a_bound_below_the_claim_passes_and_is_told(
    ledger: Ledger, planned: PlannedRelease
) -> None:
    """Nothing measured is nothing told; a smaller bound passes and is in the release's own row."""
    assert gate.check(ReleaseCase.of(planned, ledger)) is None
    _audit(ledger, planned, 3.9)
    told = gate.check(ReleaseCase.of(planned, ledger))
    assert told is not None
    assert told.model_dump()["verdict"] == "not contradicted"
    row = ledger.reserve(planned.plan, plan_digest=planned.digest, audit=told)
    assert row.reserved.audit == told
    line = told.line
    assert line.startswith(
        "claimed ε 4, measured at least ε 3.9 (95% confidence, 32 training runs): "
    )
    assert "could have detected" not in line, "what perfect guesses show is no power"
    assert "so a true ε between 4 and " in line
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("epsilon", "add_remove", "bound", "expected"),
    [
        (5.31, 2.66, 3.91, "contradicted"),
        (4.60, 2.30, 2.64, "contradicted"),
        (5.44, 2.72, 4.10, "contradicted"),
        (5.00, 2.50, 5.04, "contradicted"),
        (5.31, 2.66, 2.65, "not contradicted"),
        (5.00, None, 4.99, "not contradicted"),
        (5.00, 5.00, 4.99, "not contradicted"),
    ],
)
def test_like_is_held_against_like(
    epsilon: float, add_remove: float | None, bound: float, expected: str
) -> None:
    """A bound for one record more or less, against what is claimed for that: twice as much is
    claimed for one replaced. Where a claim has one number (formal, or of an older row), against
    that.
    """
    claim = CLAIM.model_copy(update={"epsilon": epsilon, "epsilon_add_remove": add_remove})
    assert evidence(bound).judge(claim) == expected


def evidence(bound: float, reach: float = 9.0) -> Evidence:
    return Evidence.of({"epsilon_lower_bound": bound, "confidence": 0.95, "reach": reach})


def test_a_check_that_fails_contradicts() -> None:
    """Whatever the bound is: the sums are not as stated."""
    failed = evidence(0.5).model_copy(update={"faults": ("noise",)})
    assert failed.judge(CLAIM) == "contradicted"


@pytest.mark.parametrize(
    ("reach", "minimum", "expected"),
    [
        (3.1, 1.0, "inconclusive"),
        (4.1, 1.0, "not contradicted"),
        (4.1, 1.5, "inconclusive"),
    ],
)
def test_what_could_not_have_failed_says_nothing(
    reach: float, minimum: float, expected: str
) -> None:
    """Against a claim of 4: with perfect guesses at 3.1 an audit has no result, whatever it
    measured; a policy may ask for more. What contradicts does so all the same.
    """
    assert evidence(0.5, reach).judge(CLAIM, minimum=minimum) == expected
    assert evidence(4.1, reach).judge(CLAIM, minimum=minimum) == "contradicted"


def test_a_contradiction_of_its_own_is_named_before_anothers(
    ledger: Ledger, planned: PlannedRelease
) -> None:
    """The officer reads what was measured of this candidate, where that contradicts too."""
    _audit(ledger, planned, 6.0, fitted="9" * 64)
    own = _audit(ledger, planned, 4.3)
    _audit(ledger, planned, 1.0)
    found = _measured(ledger, planned)
    assert (found.ledger_sequence, found.epsilon_lower_bound) == (own.sequence, 4.3)


def test_a_contradiction_blocks_and_the_ledger_says_so(
    ledger: Ledger, planned: PlannedRelease
) -> None:
    """A bound above the claim refuses, once recorded; a smaller one later takes nothing back;
    nothing is reserved.
    """
    _audit(ledger, planned, 4.3)
    _audit(ledger, planned, 1.0)
    for _ in range(2):
        with pytest.raises(
            BudgetRefused, check=of_kind("blocked", saying=("claimed ε 4", "at least ε 4.3"))
        ):
            gate.check(ReleaseCase.of(planned, ledger))
    titles = [row.title for row in ledger.rows()]
    assert titles == ["release blocked: contradicted by an audit"]
    assert ledger.find(planned.plan.idempotency_key) is None
    assert ledger.verify().ok


def test_only_a_counted_signature_with_a_reason_overrides(
    ledger: Ledger, planned: PlannedRelease, tmp_path: Path
) -> None:
    """Not a stranger's key, the requester's, one without a reason, or one over a smaller
    measurement; an officer's.
    """
    with pytest.raises(InputError, check=of_kind("nothing-to-override")):
        gate.override(ReleaseCase.of(planned, ledger), sign_anything(planned, tmp_path / "officer"))
    _audit(ledger, planned, 4.3)
    new_keys(tmp_path / "stranger")
    for who, reason, refusal in (
        ("stranger", "memo", of_kind("not-an-approver")),
        ("operator", "memo", of_kind("own-request")),
        ("officer", " ", of_kind("no-reason")),
    ):
        with pytest.raises(InputError, check=refusal):
            gate.override(
                ReleaseCase.of(planned, ledger), _signed(ledger, planned, tmp_path / who, reason)
            )
    good = _signed(ledger, planned, tmp_path / "officer")
    with pytest.raises(InputError, check=of_kind("invalid-approval")):
        gate.override(
            ReleaseCase.of(planned, ledger), good.model_copy(update={"reason": "another"})
        )
    with pytest.raises(BudgetRefused):
        gate.check(ReleaseCase.of(planned, ledger))
    gate.override(ReleaseCase.of(planned, ledger), good)
    told = gate.check(ReleaseCase.of(planned, ledger))
    assert told is not None
    assert told.line.endswith("overridden by officer")

    _audit(ledger, planned, 5.0)  # worse than what the officer saw
    with pytest.raises(BudgetRefused):
        gate.check(ReleaseCase.of(planned, ledger))
    assert ledger.verify().ok


def test_an_inconclusive_audit_is_overridden_by_name(
    asking: Ledger, planned: PlannedRelease, tmp_path: Path
) -> None:
    """Under `require_audit`: an officer signs for that very audit, and the statement says so. None
    without an audit, for one without reruns, or by the requester; another audit makes the signature
    stale.
    """
    with pytest.raises(InputError, check=of_kind("nothing-to-override")):
        gate.override(ReleaseCase.of(planned, asking), sign_anything(planned, tmp_path / "officer"))
    _audit(asking, planned, 0.2, reach=1.0, trials=0)
    with pytest.raises(InputError, check=of_kind("not-overridable")):
        gate.override(
            ReleaseCase.of(planned, asking), _signed(asking, planned, tmp_path / "officer")
        )
    _audit(asking, planned, 0.3, reach=1.5, confidence=0.999)
    with pytest.raises(InputError, check=of_kind("not-overridable", saying="0.95")):
        gate.override(
            ReleaseCase.of(planned, asking), _signed(asking, planned, tmp_path / "officer")
        )
    _audit(asking, planned, 0.3, reach=1.5)
    with pytest.raises(BudgetRefused, check=of_kind("audit-without-result", saying="audit row 3")):
        gate.check(ReleaseCase.of(planned, asking))
    with pytest.raises(InputError, check=of_kind("own-request")):
        gate.override(
            ReleaseCase.of(planned, asking), _signed(asking, planned, tmp_path / "operator")
        )
    contradiction = _signed(asking, planned, tmp_path / "officer")
    unsaid = {name: told for name, told in contradiction.terms.items() if name != "verdict"}
    with pytest.raises(InputError):
        gate.override(
            ReleaseCase.of(planned, asking), contradiction.model_copy(update={"terms": unsaid})
        )
    asking_row = gate.override(ReleaseCase.of(planned, asking), contradiction)
    assert isinstance(asking_row.entry, Overridden)
    assert asking_row.entry.audit_row == 3
    told = gate.check(ReleaseCase.of(planned, asking))
    assert told is not None
    assert told.model_dump()["verdict"] == "inconclusive"
    assert told.line.endswith("too little for a claim of 4; overridden by officer")
    _audit(asking, planned, 0.4, reach=1.7)
    with pytest.raises(BudgetRefused, check=of_kind("audit-without-result", saying="audit row 4")):
        gate.check(ReleaseCase.of(planned, asking))
    _audit(asking, planned, 4.3)
    with pytest.raises(BudgetRefused, check=of_kind("blocked")):
        gate.check(ReleaseCase.of(planned, asking))
    assert asking.verify().ok


def sign_anything(planned: PlannedRelease, folder: Path) -> Decision:
    """An officer's signature over no measurement."""
    key = load_private_key(folder / "signing-key.pem")
    return sign(
        key, subject="override", decision="approve", digest=planned.digest, terms={}, reason="x"
    )


def test_a_policy_may_want_an_audit(tmp_path: Path, planned: PlannedRelease) -> None:
    """With `require_audit` an unaudited candidate is refused."""
    ledger = ledger_under(tmp_path, policy_of(require_audit=True))
    with pytest.raises(
        BudgetRefused, check=of_kind("unaudited", saying="Run `autocoder audit PLAN`")
    ):
        gate.check(ReleaseCase.of(planned, ledger))
    obstacle = gate.obstacle(ReleaseCase.of(planned, ledger))
    assert obstacle is not None, "who approves is told what would still be refused"
    assert obstacle.kind == "unaudited"
    weak: tuple[tuple[dict[str, Any], of_kind], ...] = (
        ({"confidence": 0.999}, of_kind("unaudited", saying="0.95")),
        ({"trials": 0}, of_kind("audit-without-reruns")),
        ({"reach": 3.1}, of_kind("audit-without-result", saying=("ε 3.1", "claim of 4"))),
    )
    for useless, refusal in weak:
        _audit(ledger, planned, 0.5, **useless)
        with pytest.raises(BudgetRefused, check=refusal):
            gate.check(ReleaseCase.of(planned, ledger))
    _audit(ledger, planned, 0.5)
    assert gate.check(ReleaseCase.of(planned, ledger)) is not None
    assert gate.obstacle(ReleaseCase.of(planned, ledger)) is None
    rows = len(list(ledger.measurements()))
    _audit(ledger, planned, 99.0)
    contradicted = gate.obstacle(ReleaseCase.of(planned, ledger))
    assert contradicted is not None
    assert contradicted.kind == "contradicted"
    assert len(list(ledger.measurements())) == rows + 1, "asking records nothing"


def test_a_policy_sets_how_much_an_audit_must_be_able_to_show(
    tmp_path: Path, planned: PlannedRelease
) -> None:
    """Twice the claim of 4 is more than perfect guesses at 7 could have shown; the default keeps a
    policy's digest.
    """
    plain, strict = policy_of(require_audit=True), policy_of(require_audit=True, audit_reach=2)
    assert policy_of(require_audit=True, audit_reach=1).digest == plain.digest != strict.digest
    ledger = ledger_under(tmp_path, strict)
    _audit(ledger, planned, 0.5, reach=7.0)
    with pytest.raises(BudgetRefused, check=of_kind("audit-without-result")):
        gate.check(ReleaseCase.of(planned, ledger))
    _audit(ledger, planned, 0.5, reach=8.5)
    assert gate.check(ReleaseCase.of(planned, ledger)) is not None
