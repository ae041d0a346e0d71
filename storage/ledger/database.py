"""Connections and transactions for SQLite and PostgreSQL, with errors whose text is safe to
show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.pool import NullPool

from storage.durable import replace_atomically
from storage.errors import (
    Changed,
    Contradiction,
    Missing,
    OutOfRange,
    StorageError,
    Unavailable,
    Unknown,
)
from storage.ledger import schema
from storage.ledger.journal import ForeignLedger, Journal
from storage.ledger.schema import (
    REVISION,
    VERSION_TABLE,
    ledger_row,
    measurement,
    metadata,
    record_set,
)

_T = TypeVar("_T")

_LOCK = "SELECT ledger_lock()"
"""Held by all writers of the chain until the end of the transaction."""
_MIGRATION_LOCK = "SELECT pg_advisory_xact_lock(2021092)"
"""Held by owners before there is a table to lock."""
_RETRY_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)  # seconds; a PostgreSQL restart takes about this long
_NOT_WRITABLE = (
    "SQLITE_READONLY",
    "SQLITE_READONLY_CANTINIT",
    "SQLITE_READONLY_CANTLOCK",
    "SQLITE_READONLY_DIRECTORY",
    "SQLITE_READONLY_RECOVERY",
    "SQLITE_READONLY_ROLLBACK",
)
"""SQLite's errors if a user may only read. One more, DBMOVED, is of a file that was replaced."""
_TABLES = (*(table.name for table in metadata.sorted_tables), VERSION_TABLE)
_MEASURE = {measurement.name: "(recorded_at, kind, idempotency_key, facts)"}
_WRITE = {**_MEASURE, ledger_row.name: "", record_set.name: ""}
"""Tables to which a role may add rows, with the columns that it may set."""


class LedgerLocked(StorageError):
    """Another process holds the lock. Nothing was recorded."""


class ConnectionLost(Unavailable):
    """The connection was lost, so it is unknown whether the last transaction was kept."""


def parse_url(url: str) -> URL:
    """The URL of a ledger, with psycopg 3 for PostgreSQL. Refuses other databases."""
    try:
        parsed = make_url(url)
    except exc.ArgumentError as error:
        raise OutOfRange(
            "ledger URL: expected sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE",
            kind="ledger-url",
        ) from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise OutOfRange(
            f"ledger URL: {parsed.drivername} is not supported. Use sqlite:///FILE "
            "or postgresql+psycopg://…",
            kind="ledger-backend",
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise OutOfRange(
            "ledger URL: a ledger in memory would be lost. Use sqlite:///FILE",
            kind="ledger-in-memory",
        )
    return parsed


def database_exists(url: str) -> bool:
    """Whether a ledger's SQLite file exists. A server's database is assumed to exist."""
    parsed = parse_url(url)
    return parsed.get_backend_name() != "sqlite" or Path(str(parsed.database)).exists()


class Database:
    """A ledger's database. Each transaction uses its own connection, so a lost connection affects
    only one transaction.
    """

    def __init__(self, url: str, *, lock_timeout: float, journals: Sequence[Journal] = ()) -> None:
        self.url = parse_url(url)
        self.journals = tuple(journals)
        self.lock_timeout = lock_timeout
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        connect_args: dict[str, float] = {"timeout": lock_timeout} if self.is_sqlite else {}
        try:
            self.engine = sa.create_engine(
                self.url, poolclass=NullPool, hide_parameters=True, connect_args=connect_args
            )
        except ModuleNotFoundError as error:
            raise StorageError(
                "PostgreSQL needs psycopg. Install this package with its extra `postgres`",
                kind="no-psycopg",
            ) from error
        if self.is_sqlite:
            event.listen(self.engine, "connect", self._sqlite_connect)
            event.listen(self.engine, "begin", self._sqlite_begin)

    @property
    def name(self) -> str:
        """Name of this database in messages: a file's path, or a server's database without its
        address.

        Messages appear on Prefect's pages and in notifications, which must not reveal where the
        ledger is.
        """
        if self.is_sqlite:
            return self.url.render_as_string()
        return f"{self.url.database} on PostgreSQL"

    @staticmethod
    def _sqlite_connect(connection: Any, _: Any) -> None:
        # The driver's own BEGIN comes too late (before the first write), so two readers of the same
        # sum could both insert. Transactions are therefore begun manually below.
        connection.isolation_level = None
        cursor = connection.cursor()
        # A confirmed reservation must survive a power failure.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA trusted_schema = OFF")
        cursor.close()

    @staticmethod
    def _sqlite_begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql(
                "BEGIN IMMEDIATE" if options.get("ledger_write") else "BEGIN"
            )

    @contextmanager
    def write(self, *, lock: str = _LOCK) -> Iterator[Connection]:
        """Opens a transaction with exclusive write access to the chain. Commits at the end, rolls
        back on an error.
        """
        with self._adding() as connection:
            if not self.is_sqlite:
                connection.execute(sa.text(lock))
            for journal in self.journals:
                journal.check(connection)
            yield connection
        for journal in self.journals:
            with self.read() as connection:
                journal.append(connection)

    @contextmanager
    def add(self) -> Iterator[Connection]:
        """Opens a transaction that adds measurements. On PostgreSQL it neither waits for writers of
        the chain nor blocks them.
        """
        with self._adding() as connection:
            yield connection

    @contextmanager
    def _adding(self) -> Iterator[Connection]:
        with self._safe_errors(), self.engine.connect() as connected:
            connection = connected.execution_options(ledger_write=True)
            with connection.begin():
                if not self.is_sqlite:
                    # SET LOCAL lasts for this transaction. A server that acknowledges before
                    # writing would lose reservations; stricter settings are kept.
                    milliseconds = int(self.lock_timeout * 1000)
                    connection.execute(
                        sa.text(
                            "SELECT set_config('lock_timeout', :limit, true), CASE"
                            " WHEN current_setting('synchronous_commit') IN ('off', 'local')"
                            " THEN set_config('synchronous_commit', 'on', true) END"
                        ),
                        {"limit": f"{milliseconds}ms"},
                    )
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Opens a transaction with a consistent snapshot of the ledger, however long it reads."""
        with self._safe_errors(), self.engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin():
                yield connection

    def copy_to(self, file: Path) -> None:
        """Writes the current state of a SQLite ledger to another file, with the permissions of the
        ledger's own.

        Raises:
            InputError: the ledger is on PostgreSQL, or the folder of the file does not exist.
        """
        if not self.is_sqlite:
            raise Contradiction(
                f"ledger {self.name}: only a SQLite ledger can be copied. Create a role that only "
                "reads for the officer (`autocoder ledger migrate --read-role`)",
                kind="not-copyable",
            )
        if not file.parent.is_dir():
            raise Missing(
                f"--out: the folder {file.parent} does not exist. Create it", kind="no-copy-folder"
            )
        with (
            self._safe_errors(),
            replace_atomically(file, source=Path(str(self.url.database))) as partial,
            self.engine.connect() as connection,
        ):
            raw = connection.execution_options(isolation_level="AUTOCOMMIT")
            raw.exec_driver_sql("VACUUM INTO ?", (str(partial),))

    def transact(self, work: Callable[[Connection], _T]) -> _T:
        """Runs `work` in a write transaction, and repeats it after a lost connection. `work` must
        be idempotent: if its row exists already, it returns that row.
        """
        for pause in _RETRY_PAUSES:
            try:
                with self.write() as connection:
                    return work(connection)
            except ConnectionLost:
                time.sleep(pause)
        with self.write() as connection:
            return work(connection)

    @contextmanager
    def _safe_errors(self) -> Iterator[None]:
        try:
            yield
        except exc.DBAPIError as error:
            raise self._translate(error) from None  # a log would also show the driver's text

    def _translate(self, error: exc.DBAPIError) -> StorageError:
        original = str(error.orig).splitlines()[0] if error.orig else ""
        code = getattr(error.orig, "sqlstate", None)
        if "locked" in original or code == "55P03":
            return LedgerLocked(
                f"ledger {self.name}: locked by another process for "
                f"{self.lock_timeout:g} s{self._holder()}. Nothing was recorded. "
                "Try again when that process is done",
                kind="locked",
            )
        if "disk is full" in original or code in ("53100", "53200"):
            return StorageError(
                f"ledger {self.name}: no space left. Nothing was recorded. Free some and retry",
                kind="disk-full",
            )
        if getattr(error.orig, "sqlite_errorname", "") in _NOT_WRITABLE:
            return StorageError(
                f"ledger {self.name}: this user may not write to it. Nothing was recorded. Run the "
                "command as the owner of the workspace, or get the right from the owner",
                kind="ledger-not-writable",
            )
        if "disk I/O error" in original or code == "58030":
            return StorageError(
                f"ledger {self.name}: disk error. Nothing was recorded", kind="disk-error"
            )
        if code == "42501":
            return StorageError(
                f"ledger {self.name}: this role may not do that ({original}). Rows of the chain "
                "are added by the role given to `autocoder ledger migrate --release-role`",
                kind="role-may-not",
            )
        if isinstance(error, exc.IntegrityError):
            return StorageError(
                f"ledger {self.name}: the row contradicts an existing one. Nothing was recorded",
                kind="contradicting-row",
            )
        gone = error.connection_invalidated or (
            isinstance(error, exc.OperationalError) and not self.is_sqlite
        )
        if gone and error.statement is None and not error.connection_invalidated:
            # psycopg puts host and port first and the reason last
            reason = original.rpartition(": ")[2]
            return ConnectionLost(
                f"ledger {self.name}: can't connect: {reason}. Check AUTOCODER_LEDGER_URL",
                kind="no-connection",
            )
        if gone:
            return ConnectionLost(
                f"ledger {self.name}: no connection to the server. It is not known "
                "whether the last step was recorded. Repeating it is safe",
                kind="connection-lost",
            )
        if "unable to open" in original or "not a database" in original:
            return StorageError(
                f"ledger {self.name}: {original}. Check the file and its folder",
                kind="unreadable-ledger",
            )
        return StorageError(
            f"ledger {self.name}: {type(error.orig).__name__}: {original}", kind="database-error"
        )

    def _holder(self) -> str:
        if self.is_sqlite:
            return ""
        query = sa.text(
            "SELECT usename, pid FROM pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks"
            " WHERE granted AND relation = to_regclass(:table) AND mode = 'ExclusiveLock')"
        )
        try:
            with self.engine.connect() as connection:
                rows = connection.execute(query, {"table": ledger_row.name}).all()
        except exc.DBAPIError:
            return ""
        return "".join(f", by role {role} (process {pid})" for role, pid in rows)

    def check(self) -> None:
        """Requires that this is the journals' ledger, with all rows that they have recorded."""
        if self.journals:
            with self.read() as connection:
                for journal in self.journals:
                    journal.check(connection)

    def _require_unlost(self, path: Path) -> None:
        for journal in self.journals:
            mark = journal.last()
            if mark is not None and not path.exists():
                raise ForeignLedger(
                    f"no ledger at {path}, {journal.name} has used {mark}. A new one is not "
                    "begun in its place: "
                    "restore it, or `autocoder ledger recover`",
                    kind="no-ledger-where-one-was",
                )

    def prepare(self) -> None:
        """Creates a SQLite file's tables. On PostgreSQL, requires that the owner has created
        them.
        """
        if self.is_sqlite:
            path = Path(str(self.url.database))
            # guard: test_a_ledger_in_the_place_of_the_one_that_was_used
            self._require_unlost(path)
            if not path.parent.is_dir():
                raise Missing(
                    f"ledger {self.name}: the folder {path.parent} does not exist. Create it",
                    kind="no-ledger-folder",
                )
            try:  # not accessible to others, because it contains populations, requesters and costs
                # resolved: a link that leads nowhere yet would be left to the driver, which asks
                # the umask
                # guard: test_a_ledger_behind_a_link_that_leads_nowhere_yet
                os.close(os.open(path.resolve(), os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                pass
            except (OSError, RuntimeError) as error:  # RuntimeError: a circular link
                reason = getattr(error, "strerror", None) or "a link leads to itself"
                raise StorageError(
                    f"ledger {self.name}: cannot be created: {reason}", kind="uncreatable-ledger"
                ) from error
        with self.read() as connection:
            revision = _revision(connection)
        if revision == REVISION:
            return
        if self.is_sqlite:
            migrate(Database(str(self.url), lock_timeout=self.lock_timeout))
        else:
            state = "has no ledger" if revision is None else f"holds a ledger of schema {revision}"
            raise StorageError(
                f"ledger {self.name} {state}, and this code needs {REVISION}. As "
                "the owner of the database run `autocoder ledger migrate --url URL "
                "--app-role ROLE --release-role ROLE`",
                kind="schema-outdated",
            )


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def migrate(
    database: Database,
    *,
    app_role: str | None = None,
    release_role: str | None = None,
    read_role: str | None = None,
) -> str:
    """Creates missing tables and grants roles their permissions; returns the schema's revision.

    Args:
        database: the database. On PostgreSQL, connect as the role that will own the tables.
        app_role: role of training, maintenance and metrics, which may read and add measurements.
        release_role: role of the releasing worker, which may read, and add measurements, rows of
            the chain and record sets.
        read_role: role of an officer's desk, which may read.
    """
    if app_role is not None and app_role == release_role:
        raise Contradiction(
            "--release-role: must differ from --app-role, which may not append releases",
            kind="same-roles",
        )
    if read_role is not None and read_role in (app_role, release_role):
        raise Contradiction(
            "--read-role: must differ from the two roles that add rows", kind="reading-role"
        )
    if database.is_sqlite:
        _use_write_ahead_log(database)
    with database.write(lock=_MIGRATION_LOCK) as connection:
        _refuse_prefect(database, connection)
        revision = _revision(connection)
        if revision is None:
            schema.create(connection)
        elif revision != REVISION:
            raise Changed(
                f"ledger {database.name}: this code does not know its schema "
                f"{revision}, only {REVISION}. A ledger of an unpublished version "
                "must be started again. For one of a later version, update this "
                "program",
                kind="unknown-schema",
            )
        for role, tables in ((app_role, _MEASURE), (release_role, _WRITE), (read_role, {})):
            if role is not None:
                _grant(database, connection, role, tables)
    return REVISION


def _refuse_prefect(database: Database, connection: Connection) -> None:
    inspector = sa.inspect(connection)
    if inspector.has_table("flow_run") and inspector.has_table("task_run"):
        raise Contradiction(
            f"ledger {database.name}: this is Prefect's database, whose role may "
            "change rows. Use a separate one for the ledger",
            kind="prefect-database",
        )


def _use_write_ahead_log(database: Database) -> None:
    # Write-ahead logging lets a long `verify` read without blocking a reservation. The switch
    # cannot happen inside a transaction, and it does not wait for a lock when many processes create
    # the file at once.
    deadline = time.monotonic() + database.lock_timeout
    while True:
        try:
            with database._safe_errors(), database.engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            return
        except LedgerLocked:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _grant(
    database: Database, connection: Connection, role: str, tables: Mapping[str, str]
) -> None:
    if database.is_sqlite:
        raise Contradiction(
            "roles: SQLite has no roles. The mode of its file determines who may write",
            kind="roles-in-sqlite",
        )
    superuser = connection.execute(
        sa.text("SELECT rolsuper FROM pg_roles WHERE rolname = :role"), {"role": role}
    ).scalar()
    if superuser is None:
        raise Unknown(
            f"roles: no role {role}. Create it first (CREATE ROLE … LOGIN)", kind="no-role"
        )
    if superuser:
        raise Contradiction(
            f"roles: {role} is a superuser and bypasses grants. Use an ordinary role",
            kind="superuser",
        )
    quoted = connection.dialect.identifier_preparer.quote_identifier(role)
    owner = connection.execute(
        sa.text(
            "SELECT pg_has_role(:role, tableowner, 'MEMBER') FROM pg_tables"
            " WHERE tablename = :table AND schemaname = current_schema()"
        ),
        {"role": role, "table": ledger_row.name},
    ).scalar()
    if owner:
        raise Contradiction(
            f"roles: {role} owns the ledger's tables. Migrate as another role than {role}",
            kind="table-owner",
        )
    namespace = connection.dialect.identifier_preparer.quote_identifier(
        str(connection.execute(sa.text("SELECT current_schema()")).scalar())
    )
    connection.execute(sa.text(f"GRANT USAGE ON SCHEMA {namespace} TO {quoted}"))
    for table in _TABLES:
        connection.execute(sa.text(f"REVOKE ALL ON {table} FROM {quoted}"))
        # guard: test_rows_and_totals_are_not_changed
        connection.execute(sa.text(f"GRANT SELECT ON {table} TO {quoted}"))
    # guard: test_training_adds_measurements_alone
    for table, columns in tables.items():
        connection.execute(sa.text(f"GRANT INSERT {columns} ON {table} TO {quoted}"))
    verb, to = ("GRANT EXECUTE", "TO") if ledger_row.name in tables else ("REVOKE ALL", "FROM")
    # guard: test_training_cannot_hold_the_lock
    connection.execute(sa.text(f"{verb} ON FUNCTION ledger_lock() {to} {quoted}"))
