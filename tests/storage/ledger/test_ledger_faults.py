"""Races, kills, cut connections, restarts, locks and full disks, with real processes on both
backends.
"""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
import sqlalchemy as sa
from refusals import of_kind
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from storage.errors import StorageError
from storage.ledger import Ledger
from storage.ledger.database import Database, migrate
from storage.ledger.schema import REVISION

pytestmark = pytest.mark.servers

DRIVERS = Path(__file__).parent / "drivers"
ROOT = Path(__file__).parents[3]


def run_driver(name, *arguments, before=()):
    """Run a driver in a process of its own, warnings as errors, and return what it prints."""
    done = subprocess.run(
        [*before, sys.executable, "-W", "error", str(DRIVERS / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.long)])
def test_a_race_of_sixteen_for_ten_reservations_has_ten_winners(site, rounds):
    """16 processes let loose at the same moment, a cap that fits 10: exactly 10 in each round."""
    report = run_driver("race.py", site.url, 16, rounds)
    assert report["errors"] == []
    assert report["granted"] == [10] * rounds
    assert report["refused"] == [6] * rounds
    assert report["spent"] == [10.0] * rounds
    assert report["verify"] == ""


@pytest.mark.parametrize("moments", [0, pytest.param(100, marks=pytest.mark.long)])
def test_a_release_killed_anywhere_keeps_every_promise(site, tmp_path, moments):
    """SIGKILL at each of nine steps, then at random moments; see `drivers/kill.py` for what is
    checked after each.

    Never a second draw, a committed row without its bundle, a bundle without its row, or a budget
    understated; and each release, run again, ends committed.
    """
    report = run_driver("kill.py", site.url, tmp_path / "home", moments, 20261121)
    assert report["problems"] == []
    assert report["kills"] == 9 + moments
    assert set(report["found"]) == {"nothing", "reserved", "drawn", "committed"}


def as_admin(server):
    return sa.create_engine(server, poolclass=NullPool, isolation_level="AUTOCOMMIT")


def pid_of(connection):
    return connection.connection.dbapi_connection.info.backend_pid


def spending(ledger):
    return [(line.account.cohort, line.account.epsilon) for line in ledger.budget() if line.used]


@pytest.mark.postgres
def test_a_connection_cut_while_waiting_for_the_lock_is_taken_up_again(
    postgres_server, postgres_site, plan
):
    """The reservation's backend is terminated while another holds the ledger's lock; it ends
    reserved, once.
    """
    ledger, results = postgres_site.open(), []
    database = ledger.database.url.database
    admin = as_admin(postgres_server.set(database=database))
    with admin.connect() as connection, admin.connect() as watcher:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("LOCK TABLE ledger_row IN EXCLUSIVE MODE")
        worker = threading.Thread(target=lambda: results.append(ledger.reserve(plan())))
        worker.start()
        waiting = sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = :name AND wait_event_type = 'Lock' AND wait_event = 'relation'"
        )
        for _ in range(1500):
            # a transaction sees the activity of its first look alone, so that another one looks
            if watcher.execute(waiting, {"name": database}).all():
                break
            time.sleep(0.02)
        else:
            pytest.fail("the reservation never waited for the lock")
        connection.exec_driver_sql("COMMIT")
    worker.join(60)
    assert [row.state for row in results] == ["reserved"]
    assert spending(ledger) == [("2023", 4)]
    assert ledger.verify().ok


@pytest.mark.postgres
@pytest.mark.parametrize("kept", [False, True])
def test_a_connection_cut_at_the_commit_charges_once(postgres_server, postgres_site, plan, kept):
    """Cut just before the commit (nothing kept) and just after, its answer lost: both end with one
    reservation.
    """
    ledger, cuts = postgres_site.open(), []
    admin = as_admin(postgres_server)

    def cut(connection):
        if cuts or not connection.get_execution_options().get("ledger_write"):
            return
        cuts.append(pid_of(connection))
        if kept:
            connection.connection.dbapi_connection.commit()
        with admin.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": cuts[0]})

    event.listen(ledger.database.engine, "commit", cut)
    row = ledger.reserve(plan())
    assert len(cuts) == 1
    assert row.state == "reserved"
    assert [r.release_id for r in ledger.releases()] == [row.release_id]
    assert spending(ledger) == [("2023", 4)]
    assert ledger.verify().ok


@pytest.mark.postgres
def test_a_server_that_is_away_is_named_without_password_and_address(postgres_site, plan):
    """No endless waiting, and neither in the text nor in the traceback that a run's log has; what
    was known stays.
    """
    ledger = postgres_site.open()
    ledger.database.engine = sa.create_engine(
        ledger.database.url.set(port=1), poolclass=NullPool, hide_parameters=True
    )
    with pytest.raises(StorageError, check=of_kind("no-connection")) as error:
        ledger.release("x")
    told = "".join(traceback.format_exception(error.value))
    for secret in (ledger.database.url.password, "127.0.0.1", "localhost"):
        assert str(secret) not in told


@pytest.mark.postgres
def test_a_restart_in_the_middle_loses_and_doubles_nothing(own_server_folder):
    """A server stopped as by a power cut, twice, under a stream of reservations: each is there
    once.
    """
    report = run_driver("restart.py", own_server_folder, 2)
    assert report["failures"] == []
    assert (
        report["answered_at_restarts"][0] < report["answered_at_restarts"][1] < report["answered"]
    )
    assert report["lost"] == []
    assert report["recorded"] == report["answered"]
    assert report["spent"] == [report["answered"]] * 2
    assert report["verify"] == ""


@pytest.mark.parametrize(
    "backend", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def test_a_full_disk_loses_and_doubles_nothing(backend, own_server_folder, small_disks):
    """A disk of a few MiB filled by reservations: an error that says so, no half row, and on again
    with room.
    """
    report = run_driver("small_disk.py", backend, own_server_folder, before=small_disks)
    assert len(report["errors"]) == 1
    assert "no space left" in report["errors"][0]
    assert report["filled_after"] > 10
    assert (report["lost"], report["unanswered"], report["verify"]) == ([], 0, "")
    assert report["spent"] == [report["answered"]] * 2


def test_a_new_file_that_sqlite_calls_locked_without_waiting_is_tried_again(tmp_path):
    """Where a wait could never end, SQLite does not wait: sixteen that make one file at the same
    moment.
    """
    file = tmp_path / "ledger.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    database = Database(f"sqlite:///{file}", lock_timeout=60.0)
    event.listen(
        database.engine,
        "connect",
        lambda new, _: new.execute("PRAGMA busy_timeout = 0"),
        insert=True,
    )
    threading.Timer(0.5, lambda: other.execute("COMMIT")).start()
    assert migrate(database) == REVISION
    other.close()


def test_a_file_locked_by_another_process_is_waited_for_and_then_named(sqlite_site, plan, tmp_path):
    """Another process holds the write lock: a short wait ends in an error that says so, a longer
    one in a row.
    """
    ledger = sqlite_site.open(lock_timeout=0.2)
    ledger.reserve(plan("a", claim={"epsilon": 1.0}))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "ledger.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(StorageError, check=of_kind("locked")):
            ledger.reserve(plan("b", claim={"epsilon": 1.0}))
        assert len(ledger.rows()) == 2
        patient, results = sqlite_site.open(lock_timeout=30.0), []
        worker = threading.Thread(
            target=lambda: results.append(patient.reserve(plan("c", claim={"epsilon": 1.0})))
        )
        worker.start()
    finally:
        holder.communicate(b"\n")
    worker.join(60)
    assert [row.state for row in results] == ["reserved"]
    assert ledger.verify().ok


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.mark.postgres
def test_whoever_holds_the_lock_is_named_and_stops_no_reader(postgres_site, plan):
    """The releasing role may take the ledger's lock and keep it: writers end in words that name it,
    readers and measurements go on.
    """
    ledger = postgres_site.open(lock_timeout=0.3)
    role = make_url(postgres_site.url).username
    with as_admin(postgres_site.url).connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT ledger_lock()")
        with pytest.raises(
            StorageError,
            check=of_kind("locked", saying=(f"by role {role}", f"process {pid_of(connection)}")),
        ):
            ledger.reserve(plan())
        assert ledger.verify().ok
        assert ledger.budget()
    assert ledger.rows() == []


def test_many_processes_may_create_the_same_file(tmp_path):
    """Eight processes open a ledger that isn't there yet, all at once: one schema, one first row,
    eight releases.
    """
    url = f"sqlite:///{tmp_path / 'new.db'}"
    report = run_driver("race.py", url, 8, 1)
    assert report["errors"] == []
    assert report["granted"] == [8]
    assert report["verify"] == ""


def test_a_file_that_is_no_database_is_named(tmp_path):
    """A text file at the ledger's place, and a folder that isn't there."""
    from storage.ledger import Ledger

    path = tmp_path / "ledger.db"
    path.write_text(
        "this is text, and long enough to be read as a header of a database file by SQLite\n" * 20
    )
    with pytest.raises(StorageError, check=of_kind("unreadable-ledger", saying="not a database")):
        Ledger.open(f"sqlite:///{path}")
    with pytest.raises(StorageError, check=of_kind("no-ledger-folder")):
        Ledger.open(f"sqlite:///{tmp_path / 'absent' / 'ledger.db'}")
    assert sqlite3.sqlite_version_info >= (3, 35)


def test_a_user_who_may_not_write_is_told_so(tmp_path):
    """Not an error of the database: SQLite says of a file that the user may only read what it says
    of a connection that may only read.
    """
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    database = ledger.database
    event.listen(database.engine, "connect", lambda raw, _: raw.execute("PRAGMA query_only = ON"))
    database.engine.dispose()
    with (
        pytest.raises(StorageError, check=of_kind("ledger-not-writable")),
        database.write() as connection,
    ):
        connection.execute(sa.text("CREATE TABLE more (n INTEGER)"))


def test_the_file_of_a_ledger_is_closed_to_others(tmp_path):
    """It names populations, requesters and costs; SQLite's own files beside it take its mode."""
    before = os.umask(0o022)
    try:
        Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}
