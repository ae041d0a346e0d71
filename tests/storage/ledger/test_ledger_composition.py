"""Releases compose by what their events cost: exact where a theorem covers adaptive choice, refused
one too many.
"""

import math
import os
import shutil
import signal
from decimal import Decimal
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from ledger_sites import append_past
from refusals import of_kind
from scipy.stats import norm
from sqlalchemy import event as sa_event

from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import (
    Claim,
    ComposedEvent,
    DpSgdEvent,
    GaussianReleaseEvent,
    NoiseSegment,
    ParallelEvent,
)
from storage.errors import StorageError
from storage.ledger import BudgetRefused, Policy, composition
from storage.ledger.budget import Account, Balance, Charge
from storage.ledger.composition import (
    Loss,
    Sampled,
    first_rule,
    gaussian_delta,
    gaussian_epsilon,
    loss_of,
    more,
    total,
    within,
)
from storage.ledger.content import anticipated
from storage.ledger.journal import ForeignLedger, journals_of
from storage.ledger.recovery import detect, restore
from storage.paths import Workspace
from tests.support.releases import another, make_plan, release_key

ONE = 4.2246860589417805
"""Noise multiplier of one Gaussian release of (1, 1e-6): `gaussian_cost.calibrate`."""
TEN = Decimal(10), Decimal("0.001")


def gaussian(noise=ONE):
    return GaussianReleaseEvent(what="a vector", noise_multiplier=noise, l2_sensitivity=1.0)


def descent(prob=0.02, noise=1.1, steps=600):
    return DpSgdEvent(
        sampling_prob=prob,
        segments=(NoiseSegment(steps=steps, noise_multiplier=noise, l2_clip_norm=1.0),),
    )


def loss(
    event, epsilon="1", delta="0.000001", claimed="add-remove", relation="add-remove", **options
):
    content = None if event is None else event.model_dump(mode="json")
    amounts = {"epsilon": Decimal(epsilon), "delta": Decimal(delta)}
    return loss_of(content, claimed=claimed, relation=relation, **amounts, **options)


def planned(key, event=None, *, epsilon=1.0, delta=1e-6, **changes):
    claim = {"epsilon": epsilon, "delta": delta}
    return make_plan(key, kind="formal", claim=claim, event=event or gaussian(), **changes)


def policy(epsilon=10, delta="0.001", composition="exact"):
    cap = {"epsilon": epsilon, "delta": delta, "composition": composition}
    return Policy.parse({"name": "p", "default": {"formal": cap}})


# -- arithmetic
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu_squared", ["0.0001", "0.05", "1.26", "5.4", "25", "400"])
@pytest.mark.parametrize("share", [0.02, 0.5, 1.0, 1.3])
def test_delta_of_a_gaussian_is_the_closed_form_rounded_up(mu_squared, share):
    mu = math.sqrt(float(mu_squared))
    epsilon = round(share * (mu * mu / 2 + 3 * mu), 6)
    closed = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert float(gaussian_delta(Decimal(mu_squared), Decimal(str(epsilon)))) == pytest.approx(
        closed, rel=1e-8
    )


def test_epsilon_is_the_least_that_holds():
    epsilon = gaussian_epsilon(Decimal("5.4"), Decimal("0.001"))
    assert str(epsilon) == "9.250340787295"  # every process has these digits
    assert gaussian_delta(Decimal("5.4"), epsilon) <= Decimal("0.001")
    assert gaussian_delta(Decimal("5.4"), epsilon - Decimal("1e-12")) > Decimal("0.001")


@pytest.mark.parametrize("epsilon", ["0", "0.000001", "0.7", "5", "900", "100000000"])
@pytest.mark.parametrize("delta", ["1e-18", "0.000001", "0.4", "0.999999999999999999"])
def test_the_largest_gaussian_is_exactly_under_its_claim(epsilon, delta):
    """One step of 1e-18 more exceeds delta: at none, at everyday and at huge epsilons."""
    rate = composition.gaussian_loss(Decimal(epsilon), Decimal(delta)).mu_squared
    assert rate is not None
    assert rate == 0 or gaussian_delta(rate, Decimal(epsilon)) <= Decimal(delta)
    assert gaussian_delta(rate + Decimal("1e-18"), Decimal(epsilon)) > Decimal(delta)


@pytest.mark.parametrize("count", [1, 7, 50])
def test_the_epsilon_of_a_sum_is_dp_accountings_and_never_below_it(count):
    """By privacy loss distributions on a grid, which round up by their discretisation, some 1e-3 of
    epsilon here.
    """
    one = loss(gaussian())
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(ONE), count))
    ours = total(Loss().plus(one, count), rule="gaussian", delta=TEN[1])
    assert float(ours) == pytest.approx(accountant.get_epsilon(0.99e-3), abs=0.02)
    mu_squared = count / ONE**2
    mu, epsilon = math.sqrt(mu_squared), float(ours)
    closed = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert closed == pytest.approx(0.99e-3, rel=1e-6)


def test_a_pure_release_is_gaussian_at_the_corner_of_its_trade_off():
    for epsilon in (0.1, 1.0, 5.0, 30.0):
        mu = math.sqrt(float(composition.pure_rate_of(Decimal(str(epsilon)))))
        corner = 1 / (1 + math.exp(epsilon))
        assert norm.cdf(-mu / 2) <= corner * (1 + 1e-9)
        assert norm.cdf(-mu / 2 * (1 - 1e-6)) > corner * (1 - 1e-6)
    assert (
        300 < composition.pure_rate_of(Decimal(41)) < 328
    )  # 8 epsilon is above it for every epsilon


# -- what a release costs
# ------------------------------------------------------------------------------------


def test_each_kind_of_event_has_its_loss():
    assert loss(gaussian(2.0)).mu_squared == Decimal("0.25")
    assert loss(descent()) == Loss(Decimal(1), Decimal("0.000001"), None, Sampled(0.02, 1.1, 600))
    assert loss(None).mu_squared is None
    assert loss(None, delta="0").mu_squared == composition.pure_rate_of(Decimal(1))
    assert loss(ComposedEvent(events=(gaussian(), descent()))).mu_squared is None
    parts = ComposedEvent(events=(gaussian(2.0), descent(prob=1.0, noise=2.0, steps=3)))
    assert loss(parts).mu_squared == 1
    # a unit of three records; a record replaced is one removed and one added
    assert loss(gaussian(2.0), records_per_unit=3).mu_squared == Decimal("2.25")
    assert loss(gaussian(2.0), relation="replace-one").mu_squared == 1
    assert loss(descent(), relation="replace-one").epsilon == 2
    assert loss(descent(), relation="replace-one").sampled is None
    assert loss(descent(), records_per_unit=3).sampled is None


def test_a_release_may_not_claim_less_noise_than_its_event():
    """The claim's epsilon does not come into the sum where the event says what it costs."""
    assert loss(gaussian(), epsilon="0.001").mu_squared == loss(gaussian(), epsilon="9").mu_squared


def test_the_rule_is_chosen_by_the_first_charge():
    cap = {"epsilon": TEN[0], "delta": TEN[1]}
    assert first_rule(loss(gaussian()), **cap) == "gaussian"
    assert first_rule(loss(descent(), epsilon="2.9"), **cap) == "sampled"
    assert first_rule(loss(None), **cap) == "basic"
    # where one release takes all of the cap, its claim is what counts
    assert first_rule(loss(gaussian()), epsilon=Decimal(1), delta=Decimal("0.000001")) == "basic"


def test_a_gaussian_account_has_a_hundredth_of_delta_for_sums_of_claims():
    both, cap = loss(gaussian()).plus(loss(descent())), {"epsilon": TEN[0], "delta": TEN[1]}
    assert total(both, rule="gaussian", delta=TEN[1]) == 2
    assert within(both, rule="gaussian", **cap)
    lumps = both.plus(loss(None, delta="0.000009"))
    assert not within(lumps, rule="gaussian", **cap)
    assert within(lumps, rule="basic", **cap)


@pytest.mark.parametrize(
    ("cap", "delta", "size", "exact", "basic"),
    [(10, "1e-3", 1, 108, 10), (8, "1e-5", 1, 49, 8), (8, "1e-5", 2, 13, 4)],
)
def test_how_many_releases_fit(cap, delta, size, exact, basic):
    noise = ONE if size == 1 else gaussian_cost.calibrate(gaussian, target_epsilon=size, delta=1e-6)
    one = loss(gaussian(noise), epsilon=str(size))
    epsilon, most = Decimal(cap), Decimal(delta)
    assert more(Loss(), one, rule="gaussian", epsilon=epsilon, delta=most) == exact
    assert more(Loss(), one, rule="basic", epsilon=epsilon, delta=most) == basic


def charged(ledger, plan) -> Charge:
    (charge,) = ledger.charges(ledger.reserve(plan).release_id)
    return charge


# -- the ledger
# ----------------------------------------------------------------------------------------------


SMALL = 2, "0.00001"
"""A cap under which few releases of (1, 1e-6) fit."""


def fits_under(cap=SMALL):
    return more(
        Loss(), loss(gaussian()), rule="gaussian", epsilon=Decimal(cap[0]), delta=Decimal(cap[1])
    )


def fill(ledger, number, **changes):
    for key in range(number):
        ledger.reserve(planned(f"{changes.get('population', '')} {key}", **changes))


@pytest.mark.parametrize(
    ("rule", "cap", "delta", "refusal"),
    [
        ("exact", 5, "0.00001", of_kind("over-cap", saying=("ε 5 at δ 1e-5", "ε 5."))),
        ("basic", 14, "0.001", of_kind("over-cap", saying=("ε 14 ", "ε 15 ", "ε 1 "))),
    ],
)
def test_a_forecast_says_how_many_more_fit(site, rule, cap, delta, refusal):
    ledger = site.open(policy(cap, delta, composition=rule))
    cap = ledger.policy().cap("injuries", "2023", "formal")
    empty = Account("injuries", "2023", "formal")
    before = Balance.of_claim(empty, cap, Decimal(1), Decimal("0.000001")).more
    ledger.reserve(planned("k0"))
    after = next(line.more or 0 for line in ledger.budget() if line.used)
    assert before == after + 1 > 10
    for number in range(after):
        ledger.reserve(planned(f"more {number}"))
    with pytest.raises(BudgetRefused, check=refusal):
        ledger.reserve(planned("one more"))
    assert ledger.verify().ok


def test_sampled_releases_of_one_step_compose_by_their_loss_distribution(site):
    """Less noise, or more of the records at a step, than the first release: claims add up from
    there on.
    """
    ledger = site.open(policy(12))
    first, _, third, last = (
        ledger.charges(ledger.reserve(planned(key, event, epsilon=2.9)).release_id)[0]
        for key, event in (
            ("a", descent()),
            ("b", descent(noise=1.2, prob=0.01)),
            ("c", descent()),
            ("d", descent(noise=1.0)),
        )
    )
    accountant = PLDAccountant()
    step = dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.1))
    accountant.compose(dp_event.SelfComposedDpEvent(step, 1800))
    assert float(third.after.epsilon) == pytest.approx(accountant.get_epsilon(0.99e-3), abs=0.01)
    assert (first.after.rule, third.after.rule, last.after.rule) == (
        "sampled",
        "sampled",
        "sampled",
    )
    assert third.after.epsilon < 2 * first.loss.epsilon
    assert last.after.epsilon == sum(one.loss.epsilon for one in (first, first, first, last))
    assert last.after.delta == Decimal("0.000004")
    assert ledger.verify().ok


def test_kinds_that_come_one_after_another(site):
    """Gaussian, sampled, only by its claim, then a policy that asks for basic composition: the
    stricter counts.
    """
    ledger = site.open(policy(30))
    charges = [
        charged(ledger, planned("a")),
        charged(ledger, planned("b", descent(), epsilon=2.9)),
        charged(ledger, planned("c", make_plan().event, delta=1e-6)),
    ]
    assert [charge.after.rule for charge in charges] == ["gaussian"] * 3
    assert [charge.after.delta for charge in charges] == [
        Decimal("0.001"),
        Decimal("0.000002"),
        Decimal("0.000003"),
    ]
    ledger.change_policy(policy(30, composition="basic"), requester="o", reason="careful")
    last = charged(site.open(), planned("d")).after
    assert (last.rule, last.epsilon, last.delta) == ("basic", Decimal("5.9"), Decimal("0.000004"))
    assert ledger.verify().ok


@pytest.mark.parametrize("moment", ["commit", "close"])
def test_a_process_killed_around_the_commit_grants_nothing_more(site, moment):
    """With SIGKILL before the last release is committed, and after it: asked again it is one
    release, and the last.
    """
    ledger = site.open(policy(*SMALL))
    fill(ledger, fits_under() - 1)
    child = os.fork()
    if child == 0:
        other = site.open()
        sa_event.listen(
            other.database.engine, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        try:
            other.reserve(planned("killed"))
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    recorded = [row for row in ledger.releases() if row.plan.idempotency_key == "killed"]
    assert len(recorded) == (moment == "close")
    ledger.reserve(planned("killed"))
    with pytest.raises(BudgetRefused, check=of_kind("over-cap")):
        ledger.reserve(planned("one more"))
    assert ledger.verify().ok


def test_a_restored_copy_of_the_database_grants_nothing_more(site, tmp_path):
    """The ledger as it was after the first release is put in place of the full one: its rows come
    back first.
    """
    workspace = Workspace(tmp_path / "home")
    workspace.create()
    ledger = site.open(policy(*SMALL), journals=journals_of(workspace))
    ledger.reserve(planned("first"))
    at, copy = ledger.head()[0], tmp_path / "copy.db"
    if site.is_sqlite:
        shutil.copy(tmp_path / "ledger.db", copy)
    fill(ledger, fits_under() - 1)
    ledger.database.engine.dispose()
    if site.is_sqlite:
        shutil.copy(copy, tmp_path / "ledger.db")
    else:
        tables = ("record_set", "ledger_row")
        site.sql(*(f"DELETE FROM {table} WHERE sequence > {at}" for table in tables), owner=True)
    with pytest.raises(ForeignLedger):
        site.open(journals=journals_of(workspace))
    rollback = detect(site.url, workspace)
    assert rollback is not None
    assert (
        restore(site.url, workspace, rollback, key=release_key().public_key()) == fits_under() - 1
    )
    again = site.open(journals=journals_of(workspace))
    with pytest.raises(BudgetRefused, check=of_kind("over-cap")):
        again.reserve(planned("one more"))
    assert again.verify().ok


def test_a_release_above_the_cap_is_charged_named_and_never_drawn(site):
    """Written past the program's check with the worker's own key."""
    ledger = site.open(policy(*SMALL))
    fill(ledger, fits_under())
    row = ledger.reserve(planned(" 0"))
    _, refusal = ledger.state().price(row.plan, [])
    assert refusal is not None
    assert refusal.kind == "over-cap"
    written = append_past(ledger, another(row), key=release_key())
    report = ledger.verify()
    assert [(bad.sequence, bad.void) for bad in report.bad] == [(written, False)]
    assert "injuries, 2023 (policy" in report.problem
    with pytest.raises(StorageError, check=of_kind("unfounded-release")):
        ledger.mark_drawn("f" * 16, draw_digest="d")
    (line,) = (line for line in ledger.budget() if line.used)
    assert line.account.epsilon > 2


def test_a_gaussian_account_has_ninety_nine_hundredths_of_delta():
    spent = loss(gaussian())
    assert spent.mu_squared is not None
    assert total(spent, rule="gaussian", delta=TEN[1]) == gaussian_epsilon(
        spent.mu_squared, TEN[1] * 99 / 100
    )


def test_units_and_shared_records_follow_the_same_rule(sqlite_site, tmp_path):
    from storage.ledger.records import RecordSet

    records = RecordSet.of([b"one", b"two"], key=b"k" * 32)
    ledger = sqlite_site.open(policy())
    ledger.reserve(planned("a", population="first"), records=records)
    charges = ledger.charges(
        ledger.reserve(planned("b", population="second"), records=records).release_id
    )
    both = total(loss(gaussian()).plus(loss(gaussian())), rule="gaussian", delta=TEN[1])
    assert {charge.account: charge.after.epsilon for charge in charges} == {
        "2023": both,
        "first/2023": both,
    }
    unit: dict[str, Any] = {"privacy_unit": "person", "max_records_per_unit": 2}
    of_unit = Claim(**(planned("c").claim.model_dump() | unit))
    of_person = planned("c", population="third").model_copy(update={"claim": of_unit})
    charges = ledger.charges(ledger.reserve(of_person).release_id)
    assert [charge.after.cohort for charge in charges] == ["2023", "all cohorts"]
    assert {charge.loss.mu_squared for charge in charges} == {
        loss(gaussian(), records_per_unit=2).mu_squared
    }
    assert ledger.verify().ok


@pytest.mark.parametrize("noise", [ONE / 2, 2 * ONE])
def test_a_table_of_the_test_half_costs_the_larger_part(noise: float) -> None:
    """A model and a table of the half that it was not trained on have the larger mu^2, whichever
    part has it; with a part of unknown rate there is none.
    """
    table = gaussian(noise)
    event = ParallelEvent(training=gaussian(), evaluation=(table,), split="record")
    rates = [loss(part).mu_squared for part in (gaussian(), table)]
    assert loss(event).mu_squared == max(rate for rate in rates if rate is not None)
    unknown = ParallelEvent(training=descent(), evaluation=(table,), split="record")
    assert loss(unknown).mu_squared is None
    row = anticipated(make_plan(kind="formal", event=event), audit=None)
    assert row.as_json()["mechanism"] == gaussian().mechanism
    assert row.event["mechanism"] == "parallel"
