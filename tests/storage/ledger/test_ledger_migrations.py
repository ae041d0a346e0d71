"""Migrations: from nothing, from an older version with rows in it, and what is refused."""

import warnings

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import exc
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from storage.errors import InputError, StorageError
from storage.ledger import Ledger, guards
from storage.ledger.database import Database, migrate
from storage.ledger.schema import REVISION, VERSION_TABLE, ledger_row, metadata


def script():
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "storage/ledger/migrations")
    return ScriptDirectory.from_config(config)


def test_the_code_asks_for_the_newest_migration():
    """One head, and it is the one that `open` compares with."""
    assert script().get_heads() == [REVISION]


def test_the_migrated_schema_is_the_one_that_the_code_uses(site):
    """Tables, columns, indexes and constraints of a migrated database equal the code's metadata."""
    site.open()
    engine = sa.create_engine(site.owner_url, poolclass=NullPool)
    with engine.connect() as connection, warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.SAWarning)  # SQLite can't reflect partial indexes' conditions
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []


def copy_into(source, target_url):
    """Insert a newer ledger's rows into an older schema, as if they had been written there."""
    target = sa.create_engine(target_url, poolclass=NullPool)
    with source.database.read() as reading, target.begin() as writing:
        columns = [c for c in ledger_row.columns]
        for row in reading.execute(sa.select(*columns).order_by(ledger_row.c.sequence)).mappings():
            writing.execute(ledger_row.insert(), dict(row))


def history(ledger, plan):
    first = ledger.reserve(plan("a", cohorts=("2023", "2024"))).release_id
    ledger.mark_drawn(first, draw_digest="d", sensitivity=2.5, epsilon=5.0)
    ledger.commit(first, bundle_digest="b")
    ledger.reserve(plan("b", kind="formal"))


def check_upgraded(site, source):
    with pytest.raises(exc.DBAPIError):
        site.rows("SELECT * FROM spend")
    if not site.is_sqlite:
        with pytest.raises(StorageError, match=r"schema 0001.*autocoder ledger migrate"):
            site.open()
        migrate(Database(site.owner_url, lock_timeout=10), app_role=make_url(site.url).username)
    upgraded = site.open()
    assert upgraded.rows() == source.rows()
    assert upgraded.budget() == source.budget()
    assert upgraded.verify().ok
    assert upgraded.verify().notes == ()


def test_an_older_file_with_rows_is_migrated_when_it_is_opened(sqlite_site, plan, tmp_path):
    """Version 0001 had no running totals: they are filled from its rows and the next reservation counts on."""
    source = Ledger.open(f"sqlite:///{tmp_path / 'new.db'}")
    history(source, plan)
    assert migrate(Database(sqlite_site.url, lock_timeout=10), revision="0001") == "0001"
    copy_into(source, sqlite_site.url)
    check_upgraded(sqlite_site, source)
    charge = sqlite_site.open().reserve(plan("c", cohorts=("2023",))).charges[0]
    assert (charge.epsilon_before, charge.epsilon_after) == (5, 9)


@pytest.mark.postgres
def test_an_older_database_with_rows_is_migrated_by_its_owner(postgres_site, plan, tmp_path):
    """The application's role is told what to run; after it ran, all rows, totals and grants are there."""
    source = Ledger.open(f"sqlite:///{tmp_path / 'new.db'}")
    history(source, plan)
    drop = ["DROP TABLE record_set", "DROP TABLE spend", "DROP TABLE ledger_row", f"DROP TABLE {VERSION_TABLE}"]
    functions = [f"DROP FUNCTION {name.removeprefix('function ')}" for name in guards.functions()]
    postgres_site.sql(*drop, *functions, owner=True)
    owner, role = Database(postgres_site.owner_url, lock_timeout=10), make_url(postgres_site.url).username
    assert migrate(owner, app_role=role, revision="0001") == "0001"
    copy_into(source, postgres_site.owner_url)
    check_upgraded(postgres_site, source)
    postgres_site.open().reserve(plan("c", cohorts=("2023",)))


def test_a_newer_schema_is_refused(sqlite_site):
    """Old code doesn't write into a ledger that it doesn't understand."""
    sqlite_site.open()
    sqlite_site.sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StorageError, match="newer than this code"):
        sqlite_site.open()


def test_prefects_own_database_is_refused(tmp_path):
    """A ledger lives apart from Prefect's tables, whose role may change rows."""
    url = f"sqlite:///{tmp_path / 'prefect.db'}"
    engine = sa.create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for table in ("flow_run", "task_run"):
            connection.exec_driver_sql(f"CREATE TABLE {table} (id INTEGER)")
    with pytest.raises(InputError, match="Prefect"):
        Ledger.open(url)


@pytest.mark.postgres
def test_grants_go_to_an_ordinary_role_only(postgres_site, postgres_server):
    """Not to the owner, a superuser or nobody: no grant would bind the first two."""
    database = Database(postgres_site.owner_url, lock_timeout=10)
    owner = make_url(postgres_site.owner_url).username
    for role, reason in (
        (owner, "owns"),
        (postgres_server.username or "postgres", "superuser"),
        ("nobody_x", "no role"),
    ):
        with pytest.raises(InputError, match=reason):
            migrate(database, app_role=role)


def test_migrating_again_changes_nothing(site, plan):
    """Idempotent, with rows."""
    ledger = site.open()
    ledger.reserve(plan())
    head = ledger.head()
    assert migrate(Database(site.owner_url, lock_timeout=10)) == REVISION
    assert ledger.head() == head
    assert ledger.verify().ok


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://h/db", "sqlite://", "sqlite:///:memory:"])
def test_what_is_no_place_for_a_ledger_is_refused(url):
    """Another database, none at all, or one in memory."""
    with pytest.raises(InputError, match="ledger URL"):
        Ledger.open(url)


def test_there_is_no_way_down():
    """A history isn't taken back, so no migration has a downgrade that runs."""
    for revision in script().walk_revisions():
        with pytest.raises(NotImplementedError):
            revision.module.downgrade()
