"""A second database as witness: the head of each transaction in a table that the pipeline's role can only add to.

Best on a server that other people keep: who restores or rewrites the ledger and the workspace has to have that one too.
A row that does not go on from the last one is taken only if it says that somebody signed a recovery (`recovered`); such
rows stay for whoever keeps the database to see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection
from sqlalchemy.pool import NullPool

from storage.errors import InputError, StorageError
from storage.ledger.database import parse_url
from storage.ledger.journal import Outside, marks_of
from storage.ledger.models import Mark

_TABLE = "ledger_witness"
_SECONDS = 20
_COLUMNS = (
    "ledger varchar(64) NOT NULL, sequence bigint NOT NULL, hash varchar(64) NOT NULL, recovered boolean NOT NULL"
)
_NEWEST = f"(SELECT max(number) FROM {_TABLE})"
_MADE = {
    "sqlite": (
        f"CREATE TABLE {_TABLE} (number integer PRIMARY KEY AUTOINCREMENT, {_COLUMNS}, "
        "witnessed_at text NOT NULL DEFAULT CURRENT_TIMESTAMP)",
        *(
            f"CREATE TRIGGER {_TABLE}_no_{what.lower()} BEFORE {what} ON {_TABLE} "
            f"BEGIN SELECT RAISE(ABORT, 'the witness is append-only: {what} refused'); END"
            for what in ("UPDATE", "DELETE")
        ),
        f"""CREATE TRIGGER {_TABLE}_append BEFORE INSERT ON {_TABLE}
        WHEN (NEW.number IS NOT NULL AND NEW.number >= 0) OR EXISTS (SELECT 1 FROM {_TABLE} AS w
          WHERE w.number = {_NEWEST} AND NOT NEW.recovered AND (w.ledger <> NEW.ledger OR w.sequence >= NEW.sequence))
        BEGIN SELECT RAISE(ABORT, 'the witness is append-only: a head must go on from the last one'); END""",
    ),
    "postgresql": (
        f"CREATE TABLE {_TABLE} (number bigint PRIMARY KEY, {_COLUMNS}, witnessed_at timestamptz NOT NULL)",
        """CREATE FUNCTION ledger_witness_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          RAISE insufficient_privilege USING MESSAGE = 'the witness is append-only: ' || TG_OP || ' refused';
        END $$""",
        f"CREATE TRIGGER {_TABLE}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {_TABLE} "
        "FOR EACH STATEMENT EXECUTE FUNCTION ledger_witness_refuse()",
        f"""CREATE FUNCTION ledger_witness_append() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE last record;
        BEGIN
          PERFORM pg_advisory_xact_lock(2021093);
          SELECT number, ledger, sequence INTO last FROM {_TABLE} ORDER BY number DESC LIMIT 1;
          IF NOT NEW.recovered AND (last.ledger <> NEW.ledger OR last.sequence >= NEW.sequence) THEN
            RAISE EXCEPTION 'the witness is append-only: a head must go on from the last one'
              USING ERRCODE = 'insufficient_privilege';
          END IF;
          NEW.number := coalesce(last.number, 0) + 1;
          NEW.witnessed_at := now();
          RETURN NEW;
        END $$""",
        f"CREATE TRIGGER {_TABLE}_append BEFORE INSERT ON {_TABLE} "
        "FOR EACH ROW EXECUTE FUNCTION ledger_witness_append()",
        f"REVOKE ALL ON {_TABLE} FROM PUBLIC",
    ),
}


@dataclass(frozen=True)
class Witness(Outside):
    """The table in the database of this URL; `make_witness` puts it there."""

    url: str

    @property
    def name(self) -> str:
        """The URL without its password."""
        return f"the witness {parse_url(self.url).render_as_string(hide_password=True)}"

    def last(self) -> Mark | None:
        """The newest mark; None where nothing was kept yet.

        Raises:
            StorageError: the database does not answer, or has no such table.
        """
        with self._connected() as connection:
            return _last(connection)

    def append(self, lines: bytes) -> None:
        """Add the newest of these marks, unless another process has gone further meanwhile.

        Raises:
            StorageError: it cannot be written. What was committed stays; running again goes on from there.
        """
        for mark in [*marks_of(lines)][-1:]:
            with self._connected() as connection:
                if connection.dialect.name == "postgresql":  # as its trigger: what is read here stays the last one
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(2021093)"))
                last = _last(connection)
                if last is None or last.ledger != mark.ledger or last.sequence < mark.sequence:
                    _add(connection, mark, recovered=False)

    def overrule(self, lines: bytes) -> None:
        """Add the newest of these marks although it does not go on; a person has signed that."""
        for mark in [*marks_of(lines)][-1:]:
            with self._connected() as connection:
                _add(connection, mark, recovered=True)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A transaction that nobody writes beside; errors without values or passwords."""
        engine = _engine(self.url)
        try:
            with engine.connect() as connection, connection.begin():
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("PRAGMA synchronous = FULL")
                yield connection
        except exc.DBAPIError as error:
            original = str(error.orig).splitlines()[0] if error.orig else ""
            missing = "no such table" in original or getattr(error.orig, "sqlstate", None) == "42P01"
            if missing:
                original = "it has no table of heads; as its owner run `autocoder ledger witness --url URL`"
            raise StorageError(
                f"{self.name}: {original}; without it nobody can tell which ledger is used. Nothing was drawn since; "
                "put that right and run again"
            ) from error


def make_witness(url: str, *, app_role: str | None = None) -> None:
    """Put the table and its triggers into a database, as the owner; `app_role` may then read and add heads.

    Raises:
        InputError: the role is missing, a superuser or the owner, or this is SQLite, which has none.
        StorageError: the table is there already, or the database does not answer.
    """
    engine = _engine(url)
    shown = parse_url(url).render_as_string(hide_password=True)
    try:
        with engine.begin() as connection:
            if not sa.inspect(connection).has_table(_TABLE):
                for statement in _MADE[connection.dialect.name]:
                    connection.exec_driver_sql(statement)
            if app_role is not None:
                _grant(connection, app_role)
    except exc.DBAPIError as error:
        original = str(error.orig).splitlines()[0] if error.orig else ""
        raise StorageError(f"witness {shown}: {original}") from error


def _grant(connection: Connection, role: str) -> None:
    if connection.dialect.name == "sqlite":
        raise InputError("--app-role: SQLite has no roles; its triggers keep the witness append-only")
    found = connection.execute(
        sa.text("SELECT rolsuper OR rolname = current_user FROM pg_roles WHERE rolname = :role"), {"role": role}
    ).scalar()
    if found is None:
        raise InputError(f"--app-role: no role {role}; create it first (CREATE ROLE … LOGIN)")
    if found:
        raise InputError(f"--app-role: {role} is the owner or a superuser, whom no grant binds; give another role")
    prepare = connection.dialect.identifier_preparer
    quoted = prepare.quote_identifier(role)
    schema = prepare.quote_identifier(str(connection.execute(sa.text("SELECT current_schema()")).scalar()))
    connection.execute(sa.text(f"GRANT USAGE ON SCHEMA {schema} TO {quoted}"))
    connection.execute(sa.text(f"REVOKE ALL ON {_TABLE} FROM {quoted}"))
    connection.execute(sa.text(f"GRANT SELECT, INSERT (ledger, sequence, hash, recovered) ON {_TABLE} TO {quoted}"))


def _engine(url: str) -> sa.Engine:
    parsed = parse_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    options = {"timeout": _SECONDS} if sqlite else {"connect_timeout": _SECONDS}
    return sa.create_engine(parsed, poolclass=NullPool, hide_parameters=True, connect_args=options)


def _last(connection: Connection) -> Mark | None:
    row = connection.execute(
        sa.text(f"SELECT ledger, sequence, hash FROM {_TABLE} ORDER BY number DESC LIMIT 1")
    ).one_or_none()
    return None if row is None else Mark(ledger=row[0], sequence=row[1], hash=row[2])


def _add(connection: Connection, mark: Mark, *, recovered: bool) -> None:
    connection.execute(
        sa.text(
            f"INSERT INTO {_TABLE} (ledger, sequence, hash, recovered) VALUES (:ledger, :sequence, :hash, :recovered)"
        ),
        mark.model_dump() | {"recovered": recovered},
    )
