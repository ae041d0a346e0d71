"""The tables: from nothing, again, what is refused, and what a transaction leaves of them."""

import pytest
import sqlalchemy as sa
from refusals import of_kind
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from storage.errors import InputError, StorageError
from storage.ledger import Ledger
from storage.ledger.database import Database, migrate
from storage.ledger.schema import REVISION, VERSION_TABLE, metadata


def test_the_schema_is_the_one_that_the_code_uses(site):
    """Tables and columns of the database equal the code's metadata."""
    site.open()
    present = sa.inspect(sa.create_engine(site.owner_url, poolclass=NullPool))
    for name, table in metadata.tables.items():
        assert {column["name"] for column in present.get_columns(name)} == {
            column.name for column in table.columns
        }
    assert set(present.get_table_names()) == {*metadata.tables, VERSION_TABLE}


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite"])
def test_a_look_for_a_ledger_creates_none(driver, tmp_path):
    """By either spelling of the URL; one that is there is opened."""
    url = f"{driver}:///{tmp_path / 'ledger.db'}"
    assert Ledger.open_existing(url) is None
    with pytest.raises(InputError, check=of_kind("no-ledger")):
        Ledger.require_existing(url)
    assert list(tmp_path.iterdir()) == []
    Ledger.open(url).ensure_genesis_row(requester="operator")
    found = Ledger.open_existing(url)
    assert found is not None
    assert found.head()[0] == 1


@pytest.mark.postgres
def test_a_database_without_a_ledger_is_migrated_by_its_owner(postgres_site, plan):
    """The application's role gets the command to run; after it ran, schema and grants are there."""
    tables = (*metadata.tables, VERSION_TABLE)
    functions = postgres_site.rows(
        "SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    )
    postgres_site.sql(
        *(f"DROP TABLE {table}" for table in tables),
        *(f"DROP FUNCTION {name}" for (name,) in functions),
        owner=True,
    )
    with pytest.raises(
        StorageError,
        check=of_kind("schema-outdated", saying=("no ledger", "autocoder ledger migrate")),
    ):
        postgres_site.open()
    role = make_url(postgres_site.url).username
    assert (
        migrate(Database(postgres_site.owner_url, lock_timeout=10), release_role=role) == REVISION
    )
    postgres_site.open().reserve(plan("c", cohorts=("2023",)))
    assert postgres_site.open().verify().notes == ()


def test_a_newer_schema_is_refused(sqlite_site):
    """Old code doesn't write into a ledger that it doesn't understand."""
    sqlite_site.open()
    sqlite_site.sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StorageError, check=of_kind("unknown-schema")):
        sqlite_site.open()


def test_a_transaction_is_exclusive_and_counts_whole_or_not_at_all(sqlite_site):
    """From its first moment no one else writes; when it fails, nothing of it remains."""
    first = sqlite_site.open().database
    second = sqlite_site.open(lock_timeout=0.1).database
    with pytest.raises(ZeroDivisionError), first.write() as connection:
        with pytest.raises(StorageError, check=of_kind("locked")), second.write():
            pass
        connection.exec_driver_sql("CREATE TABLE begun (id INTEGER)")
        raise ZeroDivisionError
    assert not sa.inspect(first.engine).has_table("begun")
    with second.write():
        pass


def test_prefects_own_database_is_refused(tmp_path):
    """A ledger lives apart from Prefect's tables, whose role may change rows."""
    url = f"sqlite:///{tmp_path / 'prefect.db'}"
    engine = sa.create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for table in ("flow_run", "task_run"):
            connection.exec_driver_sql(f"CREATE TABLE {table} (id INTEGER)")
    with pytest.raises(InputError, check=of_kind("prefect-database")):
        Ledger.open(url)


@pytest.mark.postgres
def test_grants_go_to_an_ordinary_role_only(postgres_site, postgres_server):
    """Not to the owner, a superuser or no one: no grant would bind the first two."""
    database = Database(postgres_site.owner_url, lock_timeout=10)
    owner = make_url(postgres_site.owner_url).username
    for role, refusal in (
        (owner, of_kind("table-owner")),
        (postgres_server.username or "postgres", of_kind("superuser")),
        ("nobody_x", of_kind("no-role")),
    ):
        with pytest.raises(InputError, check=refusal):
            migrate(database, app_role=role)
    with pytest.raises(InputError, check=of_kind("same-roles")):
        migrate(database, app_role="training", release_role="training")


@pytest.mark.postgres
def test_the_role_of_an_officers_desk_reads_and_adds_nothing(postgres_site, plan):
    """Neither a row of the chain nor a measurement, and not the lock of the chain."""
    postgres_site.open().reserve(plan())
    desk = make_url(postgres_site.training_url).username
    database = Database(postgres_site.owner_url, lock_timeout=10)
    migrate(database, read_role=desk)
    ledger = Ledger.open(postgres_site.training_url)
    assert [row.release_id for row in ledger.releases()]
    with pytest.raises(StorageError, check=of_kind("role-may-not")):
        ledger.reserve(plan("b"))
    engine = sa.create_engine(postgres_site.training_url, poolclass=NullPool)
    for statement in (
        "INSERT INTO measurement (recorded_at, kind, facts) VALUES ('x', 'audit', '{}')",
        "SELECT ledger_lock()",
    ):
        with engine.connect() as connection, pytest.raises(sa.exc.ProgrammingError):
            connection.exec_driver_sql(statement)
    for role in ("app_role", "release_role"):
        with pytest.raises(InputError, check=of_kind("reading-role")):
            migrate(database, read_role=desk, **{role: desk})


@pytest.mark.postgres
def test_a_copy_is_of_a_file(postgres_site, tmp_path):
    """A ledger on PostgreSQL has roles instead."""
    with pytest.raises(InputError, check=of_kind("not-copyable")):
        postgres_site.open().database.copy_to(tmp_path / "ledger.db")


def test_migrating_again_changes_nothing(site, plan):
    """Idempotent, with rows."""
    ledger = site.open()
    ledger.reserve(plan())
    head = ledger.head()
    assert migrate(Database(site.owner_url, lock_timeout=10)) == REVISION
    assert ledger.head() == head
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("", "ledger-url"),
        ("nonsense", "ledger-url"),
        ("mysql://h/db", "ledger-backend"),
        ("sqlite://", "ledger-in-memory"),
        ("sqlite:///:memory:", "ledger-in-memory"),
    ],
)
def test_what_is_no_place_for_a_ledger_is_refused(url, kind):
    """Another database, none at all, or one in memory."""
    with pytest.raises(InputError, check=of_kind(kind)):
        Ledger.open(url)
