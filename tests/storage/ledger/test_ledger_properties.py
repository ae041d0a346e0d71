"""Any sequence of reserve, draw, commit and burn keeps the invariants in the docstring of
`storage.ledger`.
"""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from refusals import of_kind

from storage.errors import StorageError
from storage.ledger import BudgetRefused, Policy, ReleaseRow
from storage.ledger.policy import ALL_COHORTS

CAP = Decimal(10)
POLICY = Policy.parse(
    {
        "name": "p",
        "default": {
            "asymptotic-local": {"epsilon": 10},
            "formal": {"epsilon": 10, "delta": "0.001"},
        },
    }
)
COHORTS = ("2022", "2023", "2024")
UNITS = ("record", "unit (Employer)")
FOLLOWS = {
    "reserved": {"drawn", "burned"},
    "drawn": {"committed", "burned"},
    "committed": set(),
    "burned": set(),
}
# Quarters are exact in binary and decimal, so that the model's sums need no rounding rule.
epsilons = st.integers(min_value=1, max_value=24).map(lambda quarters: quarters / 4)


def machine(site, plan):
    """Return a state machine over the ledger at `site`; each run has a population
    of its own there.
    """
    runs = itertools.count()

    class Releases(RuleBasedStateMachine):
        releases = Bundle("releases")

        def __init__(self):
            super().__init__()
            self.ledger = site.open(POLICY)
            self.population = f"population-{next(runs)}"
            self.keys: dict[int, str] = {}
            self.spent: dict[tuple[str, str], Decimal] = {}
            self.rows: dict[str, ReleaseRow] = {}
            self.head = self.ledger.head()
            self.unit = "record"

        @initialize(unit=st.sampled_from(UNITS))
        def protects(self, unit):
            self.unit = unit

        def seen(self, row: ReleaseRow) -> None:
            """Compare a release's new row with its last one: invariants 3, 4 and 5."""
            assert row.release_id is not None
            before = self.rows.get(row.release_id)
            if before is not None and before.sequence != row.sequence:
                assert row.state in FOLLOWS[before.state]
                for now, then in (
                    (row.epsilon, before.epsilon),
                    (row.sensitivity, before.sensitivity),
                ):
                    assert (now or 0) >= (then or 0)
                assert before.draw_digest in (None, row.draw_digest)
                assert before.bundle_digest in (None, row.bundle_digest)
            self.rows[row.release_id] = row

        def charge(self, kind: str, cohorts: tuple[str, ...], epsilon: Decimal) -> bool:
            """The model's own budget: spend from every cohort or from none; of units, from that of
            all, too.
            """
            cohorts = cohorts if self.unit == "record" else (*cohorts, ALL_COHORTS)
            if any(self.spent.get((kind, c), Decimal(0)) + epsilon > CAP for c in cohorts):
                return False
            for cohort in cohorts:
                self.spent[kind, cohort] = self.spent.get((kind, cohort), Decimal(0)) + epsilon
            return True

        @rule(
            target=releases,
            key=st.integers(0, 12),
            epsilon=epsilons,
            cohorts=st.sets(st.sampled_from(COHORTS), min_size=1).map(sorted).map(tuple),
            kind=st.sampled_from(("asymptotic-local", "formal")),
        )
        def reserve(self, key, epsilon, cohorts, kind):
            claim = {"epsilon": epsilon, "privacy_unit": self.unit} | (
                {"sensitivity": epsilon / 2} if kind != "formal" else {}
            )
            wanted = plan(
                f"{self.population}-{key}",
                kind=kind,
                claim=claim,
                cohorts=cohorts,
                population=self.population,
            )
            if key in self.keys:
                known = self.rows[self.keys[key]]
                if (known.plan.cohorts, known.guarantee_kind) == (cohorts, kind):
                    assert self.ledger.reserve(wanted) == known
                else:
                    with pytest.raises(StorageError, check=of_kind("key-of-another-release")):
                        self.ledger.reserve(wanted)
                return multiple()
            if not self.charge(kind, cohorts, Decimal(epsilon)):
                with pytest.raises(BudgetRefused):
                    self.ledger.reserve(wanted)
                return multiple()
            row = self.ledger.reserve(wanted)
            self.keys[key] = row.release_id or ""
            self.seen(row)
            return row.release_id

        @precondition(lambda self: self.spent)
        @rule(
            kind=st.sampled_from(("asymptotic-local", "formal")),
            cohort=st.sampled_from((*COHORTS, "2099")),
        )
        def reserve_for_another_unit(self, kind, cohort):
            """Refused, in whatever cohort, once anything of the kind was charged."""
            if not any(of == kind for of, _ in self.spent):
                return
            other = next(unit for unit in UNITS if unit != self.unit)
            claim = {"epsilon": 0.25, "privacy_unit": other} | (
                {"sensitivity": 0.125} if kind != "formal" else {}
            )
            wanted = plan(
                "other", kind=kind, claim=claim, cohorts=(cohort,), population=self.population
            )
            with pytest.raises(BudgetRefused, check=of_kind("unit-of-population")):
                self.ledger.reserve(wanted)

        @rule(release=releases, digest=st.sampled_from(("d1", "d2")), epsilon=epsilons)
        def draw(self, release, digest, epsilon):
            before = self.rows[release]
            if before.state != "reserved":
                if before.draw_digest == digest and before.state != "burned":
                    assert self.ledger.mark_drawn(release, draw_digest=digest) == before
                else:
                    with pytest.raises(StorageError):
                        self.ledger.mark_drawn(release, draw_digest=digest)
                return
            if before.guarantee_kind == "formal":
                self.seen(self.ledger.mark_drawn(release, draw_digest=digest))
                return
            assert before.epsilon is not None
            surplus = Decimal(epsilon) - before.epsilon
            fits = surplus <= 0 or self.charge(before.guarantee_kind, before.plan.cohorts, surplus)
            measured = {"sensitivity": epsilon / 2, "epsilon": epsilon}
            if fits:
                row = self.ledger.mark_drawn(release, draw_digest=digest, **measured)
                assert row.epsilon == max(Decimal(epsilon), before.epsilon)
            else:
                with pytest.raises(BudgetRefused):
                    self.ledger.mark_drawn(release, draw_digest=digest, **measured)
                row = self.ledger.release(release)
                assert row.state == "burned"
            self.seen(row)

        @rule(release=releases, digest=st.sampled_from(("b1", "b2")))
        def commit(self, release, digest):
            before = self.rows[release]
            if before.state == "drawn" or before.bundle_digest == digest:
                self.seen(self.ledger.commit(release, bundle_digest=digest))
            else:
                with pytest.raises(StorageError):
                    self.ledger.commit(release, bundle_digest=digest)

        @rule(release=releases)
        def burn(self, release):
            if self.rows[release].state == "committed":
                with pytest.raises(StorageError):
                    self.ledger.burn(release, reason="r")
            else:
                self.seen(self.ledger.burn(release, reason="r"))

        @precondition(lambda self: self.spent)
        @invariant()
        def accounts_equal_the_model_and_fit_their_caps(self):
            """Invariants 1 and 2: exactly what was charged, never less for a burn, never over the
            cap.
            """
            found = {
                (line.account.guarantee_kind, line.account.cohort): line.account.epsilon
                for line in self.ledger.budget()
                if line.account.population == self.population
            }
            assert found == self.spent
            assert max(found.values()) <= CAP

        @invariant()
        def the_chain_only_grows(self):
            """Invariant 6: anyone who kept the last head still finds it."""
            from storage.ledger.checkpoints import state_checkpoint

            report = self.ledger.verify(checkpoints=[state_checkpoint(*self.head)])
            assert report.ok, report.problem
            self.head = self.ledger.head()

    return Releases


@pytest.mark.parametrize(
    ("backend", "examples"),
    [
        ("sqlite", 5),
        pytest.param("postgres", 2, marks=pytest.mark.postgres),
        pytest.param("sqlite", 50, marks=pytest.mark.long),
        pytest.param("postgres", 20, marks=[pytest.mark.postgres, pytest.mark.long]),
    ],
)
def test_any_sequence_keeps_the_invariants(request, plan, backend, examples):
    """A model with budgets, states and digests of its own is compared after every step."""
    site = request.getfixturevalue(f"{backend}_site")
    run_state_machine_as_test(
        machine(site, plan),
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            database=None,
        ),
    )
