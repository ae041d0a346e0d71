"""Would win: a training worker after whom nothing can be planned, approved or released again."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from ledger_sites import Site
from releases import make_audit, make_plan, make_planned, release_key
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from storage.errors import InputError
from storage.ledger import Evaluation, Ledger
from storage.ledger.journal import journals_of
from storage.paths import Workspace
from tasks.releasing.evidence import audits_of, measurement_of
from tasks.releasing.plan_page import accuracy_by_epsilon, candidate_scores, reference_f1

DECLARES = """
training stops no release and writes nothing in one
| measurements that are none, too long, of odd details, with line breaks, beyond every number;
advisory locks, table locks and open transactions of its role; further digits in the figures of an
audit; faults of its own words
| so many rows that a disk is full; an audit that says what is not so
"""


@pytest.fixture
def training(site: Site) -> Site:
    """The place as training's role sees it; on SQLite there are no roles."""
    return replace(site, url=site.training_url)


def insert(training: Site, *facts: str, kind: str = "audit") -> None:
    engine = sa.create_engine(training.url, poolclass=NullPool)
    statement = sa.text(
        "INSERT INTO measurement (recorded_at, kind, facts)"
        " VALUES ('2026-01-01T00:00:00+00:00', :kind, :facts)"
    )
    with engine.begin() as connection:
        connection.execute(statement, [{"kind": kind, "facts": text} for text in facts])


def written(site: Site, kind: str = "audit", **changes: Any) -> dict[str, Any]:
    """What a whole audit of the plan looks like in the table, with changed fields."""
    site.open().record(make_audit(make_planned(), 1.0))
    (facts,) = site.rows("SELECT facts FROM measurement ORDER BY number DESC LIMIT 1")[0]
    site.sql("DELETE FROM measurement", owner=True)
    return json.loads(facts) | {"kind": kind} | changes


def hostile(plain: dict[str, Any]) -> Iterator[str]:
    """Rows that are no measurements, or whose details are no figures."""
    yield from ("", "{}", "[]", "7", "null", "{", "[" * 3000, "9" * 6000, '"\\ud800"')
    for name in plain:
        for value in (None, "x", -1, [], {}, 10**400, "1e999999", "\n", [[]], True):
            yield json.dumps(plain | {name: value})
    for name in ("epsilon_lower_bound", "confidence", "reach", "trials", "weighted_f1", "sample"):
        for value in (None, "x", -1.5, [], {"marks": 1}, math.inf, math.nan, 10**400, True):
            yield json.dumps(plain | {"details": plain["details"] | {name: value}})
    yield json.dumps(plain, indent=1)
    yield json.dumps(plain | {"more": 1})


def test_a_measurement_that_is_none_is_skipped(site: Site, training: Site, tmp_path: Path) -> None:
    """Each hostile row in turn, by training's role: the releasing worker reads its plan's figures
    and releases all the same, and its journal goes on.
    """
    planned, house = make_planned(), Workspace(tmp_path / "house").create()
    plain = written(site)
    for kind in ("audit", "evaluation"):
        insert(training, *hostile(plain | {"kind": kind}), kind=kind)
    for kind in ("release", "handover", "revocation", "gift"):
        insert(training, json.dumps(plain | {"kind": kind}), kind=kind)
    ledger = site.open(journals=journals_of(house))
    assert {row.evaluation.kind for row in ledger.measurements()} <= {"audit", "evaluation"}
    measurements = ledger.measurements()
    audits_of(measurements, planned.candidate.fitted.sha256)
    for question in (candidate_scores, reference_f1, accuracy_by_epsilon):
        question(measurements, planned)
    for answer in (ledger.budget, ledger.rows, ledger.verify):
        answer()
    measured = measurement_of(
        ledger.measurements(),
        fitted=planned.candidate.fitted.sha256,
        fingerprint=planned.plan.data_fingerprint,
        event=planned.plan.event,
        claim=planned.plan.claim,
        minimum=ledger.policy().audit_reach,
    )
    assert measured is None or measured.line
    row = ledger.reserve(make_plan("k"))
    ledger.mark_drawn(str(row.release_id), draw_digest="d")
    assert ledger.commit(str(row.release_id), bundle_digest="b").state == "committed"
    assert site.open(journals=journals_of(house)).verify().ok


@pytest.mark.postgres
def test_a_measurement_of_nine_megabytes(postgres_site: Site) -> None:
    """Not by SQL, and not by the program."""
    training = replace(postgres_site, url=postgres_site.training_url)
    with pytest.raises(exc.DBAPIError, match="too long"):
        insert(training, "9" * 9_000_000)
    with pytest.raises(InputError):
        Ledger.open(training.url).record(
            make_audit(make_planned(), 1.0, checks={"x" * 70 + str(n): 0.5 for n in range(2000)})
        )


@pytest.mark.postgres
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT ledger_lock()",
        "LOCK TABLE ledger_row IN ROW EXCLUSIVE MODE",
        "LOCK TABLE measurement IN EXCLUSIVE MODE",
        "SELECT 1 FROM ledger_row FOR SHARE",
    ],
)
def test_training_cannot_hold_the_lock(postgres_site: Site, statement: str) -> None:
    with pytest.raises(exc.DBAPIError, match="permission denied"):
        replace(postgres_site, url=postgres_site.training_url).sql(statement)


@pytest.mark.postgres
def test_an_open_transaction_of_training_stops_no_release(postgres_site: Site) -> None:
    """It holds every lock that its role can get: advisory ones, a measurement's, readers'."""
    engine = sa.create_engine(postgres_site.training_url, poolclass=NullPool)
    with engine.connect() as connection, connection.begin():
        for statement in (
            "SELECT pg_advisory_lock(2021092)",
            "LOCK TABLE ledger_row IN ACCESS SHARE MODE",
            "SELECT count(*) FROM ledger_row, record_set",
            "INSERT INTO measurement (recorded_at, kind, idempotency_key, facts)"
            " VALUES ('x', 'audit', 'k', '{}')",
        ):
            connection.exec_driver_sql(statement)
        ledger = postgres_site.open(lock_timeout=2)
        row = ledger.reserve(make_plan("k"))
        ledger.mark_drawn(str(row.release_id), draw_digest="d")
        assert ledger.commit(str(row.release_id), bundle_digest="b").state == "committed"


def test_figures_carry_no_more_than_is_shown(sqlite_site: Site) -> None:
    """Fifteen further digits of each float of an audit, and a fault of its own words, leave no
    trace in what a release states.
    """
    ledger, planned = sqlite_site.open(), make_planned()
    figures = {"reach": 9.87654321012345, "confidence": 0.95, "trials": 123_456_789}
    bounds = {"noise_at_most": 0.765432101234567, "epsilon_of_any": 0.123456789012345}
    ledger.record(make_audit(planned, 1.23456789012345, **figures, **bounds))
    ledger.record(make_audit(planned, 99.0, faults=["narrative"]))
    measured = measurement_of(
        ledger.measurements(),
        fitted=planned.candidate.fitted.sha256,
        fingerprint=planned.plan.data_fingerprint,
        event=planned.plan.event,
        claim=planned.plan.claim,
        minimum=ledger.policy().audit_reach,
    )
    assert measured is not None
    stated = measured.model_dump(mode="json")
    numbers = [value for value in stated.values() if isinstance(value, int | float)]
    assert all(float(f"{value:.3g}") == value for value in numbers)
    assert (stated["epsilon_lower_bound"], stated["noise_at_most"]) == (1.23, 0.766)
    assert "narrative" not in measured.model_dump_json() + measured.line


def test_training_records_without_the_releasing_key(site: Site, training: Site) -> None:
    """The way of the program: an evaluation, once for its key, beside an untouched chain."""
    site.open().reserve(make_plan())
    head = site.open().head()
    own = Ledger.open(training.url)
    evaluation = Evaluation(
        label="e", population="p", data_fingerprint="f", requester="r", idempotency_key="k"
    )
    assert own.record(evaluation) == own.record(evaluation)
    assert site.open().head() == head
    assert release_key() is not None
