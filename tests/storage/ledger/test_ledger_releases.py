"""One release's life and its cost, on both backends."""

from decimal import Decimal

import pytest
from refusals import of_kind

from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import LEAST_EPSILON, DpSgdEvent, NoiseSegment, NonPrivateEvent
from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Evaluation, Policy, amounts
from storage.ledger.models import Exact
from storage.ledger.records import RecordSet

D = Decimal
POLICY = Policy.parse(
    {
        "name": "two populations",
        "record_count_rounding": 100,
        "populations": {
            "injuries": {
                "formal": {"epsilon": 10, "delta": "0.001"},
                "asymptotic-local": {"epsilon": 10},
                "cohorts": {"2024": {"asymptotic-local": {"epsilon": 5}}},
            },
            "fires": {"asymptotic-local": {"epsilon": 1}},
        },
    }
)


def spent(ledger, population="injuries", kind="asymptotic-local"):
    return {
        line.account.cohort: line.account.epsilon
        for line in ledger.budget()
        if line.used
        and (line.account.population, line.account.guarantee_kind) == (population, kind)
    }


def test_a_release_passes_through_its_states_and_keeps_all_it_knew(site, plan):
    """reserved -> drawn -> committed; the newest row repeats the plan and adds the two digests."""
    ledger = site.open(POLICY)
    reserved = ledger.reserve(plan(code_commit="abc", artifact_digests={"posterior": "1"}))
    assert (reserved.state, reserved.epsilon, reserved.plan.records_rounded) == (
        "reserved",
        D(4),
        1_200,
    )
    ledger.mark_drawn(reserved.release_id, draw_digest="d1")
    committed = ledger.commit(reserved.release_id, bundle_digest="b1")
    assert (committed.state, committed.draw_digest, committed.bundle_digest) == (
        "committed",
        "d1",
        "b1",
    )
    assert (committed.plan.code_commit, committed.plan.artifact_digests) == (
        "abc",
        {"posterior": "1"},
    )
    assert [row.state for row in ledger.history(reserved.release_id)] == [
        "reserved",
        "drawn",
        "committed",
    ]
    assert [row.state for row in ledger.releases()] == ["committed"]
    assert ledger.open_releases() == []
    assert ledger.verify().ok


def test_the_same_plan_again_returns_the_first_release_and_charges_nothing(site, plan):
    """Idempotency in every state, also for a rerun under another Prefect run."""
    ledger = site.open(POLICY)
    first = ledger.reserve(plan())
    assert ledger.reserve(plan(prefect_run_id="another")) == first
    drawn = ledger.mark_drawn(first.release_id, draw_digest="d")
    assert ledger.reserve(plan()) == drawn
    assert ledger.mark_drawn(first.release_id, draw_digest="d") == drawn
    done = ledger.commit(first.release_id, bundle_digest="b")
    assert ledger.commit(first.release_id, bundle_digest="b") == done
    assert ledger.reserve(plan()) == done
    assert spent(ledger) == {"2023": D(4)}


@pytest.mark.parametrize(
    "change", [{"data_fingerprint": "other"}, {"cohorts": ("2022",)}, {"population": "fires"}]
)
def test_another_plan_under_a_used_key_is_refused(sqlite_site, plan, change):
    """A key stands for one release; the message names what differs."""
    ledger = sqlite_site.open(POLICY)
    ledger.reserve(plan())
    with pytest.raises(
        InputError, check=of_kind("key-of-another-release", saying=next(iter(change)))
    ):
        ledger.reserve(plan(**change))


def test_a_second_draw_or_bundle_is_refused(site, plan):
    """Another digest than the recorded one never gets in, nor a draw after the end."""
    ledger = site.open(POLICY)
    release = ledger.reserve(plan()).release_id
    with pytest.raises(StorageError, check=of_kind("not-drawn")):
        ledger.commit(release, bundle_digest="b")
    ledger.mark_drawn(release, draw_digest="d")
    with pytest.raises(StorageError, check=of_kind("drawn-twice")):
        ledger.mark_drawn(release, draw_digest="other")
    ledger.commit(release, bundle_digest="b")
    with pytest.raises(StorageError, check=of_kind("committed-differently")):
        ledger.commit(release, bundle_digest="other")
    with pytest.raises(StorageError, check=of_kind("committed")):
        ledger.burn(release, reason="late")


def test_burning_keeps_the_cost(site, plan):
    """A burned release has spent; nothing follows it; its key returns it."""
    ledger = site.open(POLICY)
    release = ledger.reserve(plan()).release_id
    burned = ledger.burn(release, reason="wrong data")
    assert (burned.state, burned.reason) == ("burned", "wrong data")
    assert ledger.burn(release, reason="again") == burned
    with pytest.raises(StorageError, check=of_kind("not-reserved", saying="burned")):
        ledger.mark_drawn(release, draw_digest="d")
    assert ledger.reserve(plan()) == burned
    assert spent(ledger) == {"2023": D(4)}


def test_a_release_spends_from_each_of_its_cohorts_and_the_tightest_cap_rules(site, plan):
    """Disjoint cohorts compose in parallel; 2024 has a cap of 5, so a second 4 there is refused for
    all.
    """
    ledger = site.open(POLICY)
    ledger.reserve(plan("a", cohorts=("2023", "2024")))
    ledger.reserve(plan("b", cohorts=("2023",)))
    with pytest.raises(
        BudgetRefused, check=of_kind("over-cap", saying=("2024", "ε 4 ", "ε 8", "ε 3 "))
    ):
        ledger.reserve(plan("c", cohorts=("2022", "2024")))
    assert spent(ledger) == {"2023": D(8), "2024": D(4)}


def test_a_cap_reached_exactly_is_not_exceeded(sqlite_site, plan):
    """5 of 5 fits; the smallest number more does not."""
    ledger = sqlite_site.open(POLICY)
    ledger.reserve(plan("a", cohorts=("2024",), claim={"epsilon": 5.0}))
    with pytest.raises(BudgetRefused, check=of_kind("over-cap", saying=("ε 5.01", "ε 0.01 "))):
        ledger.reserve(plan("b", cohorts=("2024",), claim={"epsilon": 1.5e-12}))


def test_delta_is_capped_beside_epsilon(sqlite_site, plan):
    """A formal claim within epsilon but over delta is refused, with delta's arithmetic."""
    ledger = sqlite_site.open(POLICY)
    ledger.reserve(plan("a", kind="formal", claim={"epsilon": 1.0, "delta": 0.0006}))
    with pytest.raises(
        BudgetRefused, check=of_kind("over-cap", saying=("δ 0.0006", "δ 0.0012", "δ 0.0002 "))
    ):
        ledger.reserve(plan("b", kind="formal", claim={"epsilon": 1.0, "delta": 0.0006}))


def test_what_has_no_cap_is_refused(sqlite_site, plan):
    """A population that the policy doesn't name, or a kind without a cap, may spend nothing."""
    ledger = sqlite_site.open(POLICY)
    with pytest.raises(BudgetRefused, check=of_kind("no-cap")):
        ledger.reserve(plan(population="unknown"))
    with pytest.raises(BudgetRefused, check=of_kind("no-cap")):
        ledger.reserve(plan(population="fires", kind="formal"))
    assert ledger.open_releases() == []


def test_non_private_is_recorded_and_never_released(site, plan, claim):
    """A model without protection: an evaluation row with no epsilon, and no way to
    a reservation.
    """
    ledger = site.open(POLICY)
    with pytest.raises(BudgetRefused, check=of_kind("unmatched-claim")):
        ledger.reserve(plan(claim={"guarantee_kind": "none", "epsilon": None}))
    with pytest.raises(BudgetRefused, check=of_kind("unmatched-claim")):
        ledger.reserve(plan(event=NonPrivateEvent(epochs=3)))
    row = ledger.record(
        Evaluation(
            label="baseline",
            population="injuries",
            data_fingerprint="f",
            requester="operator",
            event=NonPrivateEvent(epochs=3),
            details={"macro_f1": 0.49},
        )
    )
    assert (row.evaluation.event, row.guarantee_kind, row.epsilon) == (
        NonPrivateEvent(epochs=3),
        "none",
        None,
    )


def test_evaluations_keep_every_number_and_spend_nothing(site, claim):
    """An internal branch's epsilon, delta and Delta land in the ledger; the same key is recorded
    once.
    """
    ledger = site.open(POLICY)
    evaluation = Evaluation(
        label="dp-sgd",
        population="injuries",
        cohorts=("2023",),
        data_fingerprint="f",
        requester="operator",
        claim=claim("formal", epsilon=3.9, sensitivity=0.25),
        idempotency_key="e",
    )
    row = ledger.record(evaluation)
    assert ledger.record(evaluation) == row
    assert row.epsilon is not None
    assert row.epsilon >= D(3.9)
    assert (row.exact.delta, row.exact.sensitivity) == (D("0.00001"), D("0.25"))
    assert spent(ledger, kind="formal") == {}
    assert ledger.verify().ok


def test_a_replacement_that_costs_nothing_is_recorded_as_the_least_there_is(site, claim):
    """At a delta near 1 an accountant says 0, which the ledger rounds up."""
    made = claim("formal", epsilon=1e-9, epsilon_replaced=0.0)
    row = site.open(POLICY).record(
        Evaluation(
            label="e", population="injuries", data_fingerprint="f", requester="operator", claim=made
        )
    )
    assert row.exact.epsilon_replaced == amounts.epsilon(LEAST_EPSILON)


@pytest.mark.parametrize("prob", [0.2, 1.0])
def test_a_claim_at_a_delta_near_1_is_charged(prob: float) -> None:
    """The accountants find an epsilon of 0 for so much noise, which no ledger can charge."""
    steps = NoiseSegment(steps=30, noise_multiplier=8.0, l2_clip_norm=1.0)
    made = claim_of(
        DpSgdEvent(sampling_prob=prob, segments=(steps,)),
        delta=0.99,
        privacy_unit="record",
        max_records_per_unit=1,
        unprotected_inputs=(),
    )
    assert (made.epsilon, made.epsilon_replaced) == (LEAST_EPSILON, LEAST_EPSILON)
    exact = Exact.of(made)
    assert exact.epsilon == exact.epsilon_add_remove == amounts.epsilon(LEAST_EPSILON) > 0


def test_an_audit_belongs_to_its_release(sqlite_site, plan):
    """Audits appear in the release's history without changing its state; an unknown release is an
    error.
    """
    ledger = sqlite_site.open(POLICY)
    release = ledger.reserve(plan()).release_id
    audit = Evaluation(
        kind="audit",
        label="membership test",
        population="injuries",
        data_fingerprint="f",
        requester="auditor",
        release_id=release,
        details={"auc": 0.52},
    )
    ledger.record(audit)
    ledger.record(audit)
    kinds = [row.as_json()["kind"] for row in ledger.history(release)]
    assert kinds == ["release", "audit", "audit"]
    assert ledger.release(release).state == "reserved"
    with pytest.raises(InputError, check=of_kind("unknown-release")):
        ledger.record(audit.model_copy(update={"release_id": "nobody"}))


def test_the_larger_of_planned_and_drawn_is_charged(site, plan):
    """Sensitivity 2.0 planned and 2.5 at the draw: epsilon 5, the surplus of 1 charged, event and
    row agree.
    """
    ledger = site.open(POLICY)
    release = ledger.reserve(plan(claim={"epsilon_add_remove": 2.0})).release_id
    row = ledger.mark_drawn(release, draw_digest="d", sensitivity=2.5, epsilon=5.0)
    assert (row.epsilon, row.sensitivity, row.exact.epsilon_add_remove) == (
        D(5),
        D("2.5"),
        D("2.5"),
    )
    assert row.event["sensitivity"] == 2.5
    assert [charge.loss.epsilon for charge in ledger.charges(release)] == [D(4), D(1)]
    assert spent(ledger) == {"2023": D(5)}
    assert ledger.verify().ok


def test_the_same_records_under_another_name_are_charged_what_the_draw_cost(site, plan):
    """Not what was planned: both names have spent the same."""
    ledger = site.open(
        Policy.parse({"name": "twenty", "default": {"asymptotic-local": {"epsilon": 20}}})
    )
    records = RecordSet.of((f"record {n}".encode() for n in range(100)), key=b"k" * 32)
    first = plan("a", claim={"epsilon_add_remove": 2.0})
    release = ledger.reserve(first, records=records).release_id
    ledger.mark_drawn(release, draw_digest="d", sensitivity=2.5, epsilon=5.0)
    other = ledger.reserve(plan("b", population="others"), records=records)
    totals = {
        (line.account.population, line.account.epsilon)
        for line in ledger.budget()
        if line.account.cohort == "2023"
    }
    assert other.epsilon == D(4)
    assert totals == {("injuries", D(9)), ("others", D(9))}


def test_a_surplus_over_the_cap_burns_the_release(site, plan):
    """The draw exists but its cost doesn't fit: burned, the reservation stays spent, and again on a
    retry.
    """
    ledger = site.open(POLICY)
    release = ledger.reserve(plan(cohorts=("2023", "2024"))).release_id
    for _ in range(2):
        with pytest.raises(
            BudgetRefused, check=of_kind("burned-meanwhile", saying=("2024", "ε 4 ", "ε 6", "ε 1 "))
        ):
            ledger.mark_drawn(release, draw_digest="d", sensitivity=3.0, epsilon=6.0)
    assert ledger.release(release).state == "burned"
    assert spent(ledger) == {"2023": D(4), "2024": D(4)}
    assert ledger.verify().ok


def test_a_larger_sensitivity_needs_its_epsilon(sqlite_site, plan):
    """The ledger doesn't guess how epsilon follows; the release stays reserved."""
    ledger = sqlite_site.open(POLICY)
    release = ledger.reserve(plan()).release_id
    with pytest.raises(InputError, check=of_kind("epsilon-of-sample")):
        ledger.mark_drawn(release, draw_digest="d", sensitivity=2.5)
    with pytest.raises(InputError, check=of_kind("not-finite"), match="sensitivity"):
        ledger.mark_drawn(release, draw_digest="d", sensitivity=float("nan"), epsilon=5.0)
    assert ledger.release(release).state == "reserved"


def test_an_add_remove_claim_on_a_replace_one_account_costs_its_group_of_two(sqlite_site, plan):
    """(epsilon, delta) -> (2 epsilon, (1 + e^epsilon) delta), Vadhan 2017 Lemma 2.2: (1, 1e-5) ->
    (2, 3.718..e-5).
    """
    policy = Policy.parse(
        {
            "name": "p",
            "default": {
                "formal": {"epsilon": 3, "delta": "0.001", "neighbouring_relation": "replace-one"}
            },
        }
    )
    ledger = sqlite_site.open(policy)
    row = ledger.reserve(plan(kind="formal", claim={"epsilon": 1.0, "delta": 1e-5}))
    (charge,) = ledger.charges(row.release_id)
    assert charge.loss.epsilon == 2
    assert float(charge.loss.delta) == pytest.approx(3.718281828e-5, rel=1e-9)
    with pytest.raises(BudgetRefused, check=of_kind("over-cap", saying=("ε 2 ", "ε 4 ", "ε 1 "))):
        ledger.reserve(plan("b", kind="formal", claim={"epsilon": 1.0, "delta": 1e-5}))
    assert ledger.verify().ok


def test_a_replace_one_claim_is_not_added_to_an_add_remove_account(sqlite_site, plan):
    """Replace-one says nothing about add-remove, so the sum would understate; likewise for another
    unit.
    """
    ledger = sqlite_site.open(POLICY)
    ledger.reserve(plan("a", kind="formal", claim={"epsilon": 1.0}))
    with pytest.raises(BudgetRefused, check=of_kind("relation-of-account", saying="add-remove")):
        ledger.reserve(
            plan("b", kind="formal", claim={"epsilon": 1.0, "neighbouring_relation": "replace-one"})
        )
    with pytest.raises(BudgetRefused, check=of_kind("unit-of-population")):
        ledger.reserve(plan("c", kind="formal", claim={"epsilon": 1.0, "privacy_unit": "employer"}))


def test_code_must_be_committed_when_the_policy_says_so(sqlite_site, plan):
    """A release from a dirty tree could not be made again."""
    policy = Policy.parse(
        {
            "name": "strict",
            "require_clean_code": True,
            "default": {"asymptotic-local": {"epsilon": 10}},
        }
    )
    ledger = sqlite_site.open(policy)
    with pytest.raises(BudgetRefused, check=of_kind("uncommitted-code")):
        ledger.reserve(plan(code_dirty=True))
    assert ledger.reserve(plan(code_dirty=False)).state == "reserved"


def test_another_policy_needs_a_recorded_change(site, plan):
    """A swapped policy file can't raise a cap in silence; recorded, it holds, and the spending
    stays.
    """
    ledger = site.open(POLICY)
    ledger.reserve(plan("a", claim={"epsilon": 9.0}))
    wider = Policy.parse({"name": "wider", "default": {"asymptotic-local": {"epsilon": 12}}})
    reopened = site.open(wider)
    with pytest.raises(InputError, check=of_kind("policy-not-current")):
        reopened.reserve(plan("b", claim={"epsilon": 2.0}))
    row = reopened.change_policy(wider, requester="officer", reason="board decision 12")
    assert row.entry.policy.name == "wider"
    reopened.reserve(plan("b", claim={"epsilon": 2.0}))
    with pytest.raises(
        BudgetRefused, check=of_kind("over-cap", saying=("ε 12", "ε 11 ", "ε 13", "ε 1 "))
    ):
        site.open().reserve(plan("c", claim={"epsilon": 2.0}))
    assert site.open().verify().ok


@pytest.mark.parametrize(
    "claim",
    [
        {"epsilon": float("nan")},
        {"epsilon": float("inf")},
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": 5e-324},
        {"epsilon": 1e-13},
        {"epsilon": 1e12},
        {"epsilon": None},
        {"delta": float("nan")},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": -1e-5},
        {"delta": 1e-310},
        {"delta": 1e-19},
        {"delta": None},
        {"sensitivity": float("inf")},
        {"sensitivity": 0.0},
        {"mc_failure_prob": 1.5},
    ],
)
def test_numbers_that_no_budget_can_hold_are_refused(sqlite_site, plan, claim):
    """NaN, negative, zero, infinite, subnormal and too precise values reserve nothing."""
    ledger = sqlite_site.open(POLICY)
    with pytest.raises(InputError):
        ledger.reserve(plan(kind="formal", claim=claim))
    assert ledger.rows() == []


def test_a_pure_guarantee_has_delta_zero_when_it_says_so(sqlite_site, plan):
    """Delta 0 with words is a proof; without, an unset field (refused above)."""
    ledger = sqlite_site.open(POLICY)
    row = ledger.reserve(plan(kind="formal", claim={"delta": 0.0, "delta_text": "0: pure"}))
    assert row.exact.delta == 0
    assert ledger.verify().ok


def test_a_superseded_release_must_exist(sqlite_site, plan):
    """`supersedes` points into the same ledger."""
    ledger = sqlite_site.open(POLICY)
    with pytest.raises(InputError, check=of_kind("unknown-release")):
        ledger.reserve(plan(supersedes="nobody"))
    first = ledger.reserve(plan("a", claim={"epsilon": 1.0})).release_id
    assert (
        ledger.reserve(plan("b", claim={"epsilon": 1.0}, supersedes=first)).plan.supersedes == first
    )


def test_two_cohorts_of_one_name_would_be_charged_twice(sqlite_site, plan):
    """A duplicate is refused and not silently merged."""
    with pytest.raises(InputError, check=of_kind("repeated-cohort")):
        sqlite_site.open(POLICY).reserve(plan(cohorts=("2023", "2023")))
