"""Ledgers to test on: a SQLite file, and a PostgreSQL database of its own with an owner and an
application role.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from sqlalchemy.engine import URL, Engine

    from mechanisms.privacy.events import Claim
    from storage.ledger import Ledger, Policy, ReleasePlan
    from storage.ledger.entries import Entry

_ROLES = ("owner", "release", "training")
DEFAULT_SERVER = "postgresql+psycopg://127.0.0.1:5432/postgres"


def engine_of(url: str | URL, **options: Any) -> Engine:
    """Returns an engine that keeps no connection."""
    import sqlalchemy as sa
    from sqlalchemy.pool import NullPool

    return sa.create_engine(url, poolclass=NullPool, **options)


@dataclass(frozen=True)
class Site:
    """A place for a ledger: as the releasing worker's role, as anyone who owns the tables, and as
    training's role.
    """

    url: str
    owner_url: str
    training_url: str

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def open(self, policy: Policy | None = None, **options: Any) -> Ledger:
        """As the releasing worker, whose key is the same in all tests."""
        from releases import release_key

        from storage.ledger import Ledger

        return Ledger.open(self.url, policy=policy, key=release_key(), **options)

    def sql(self, *statements: str, owner: bool = False) -> None:
        """Run statements past the ledger, each in the same transaction."""
        engine = engine_of(self.owner_url if owner else self.url)
        with engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        engine = engine_of(self.owner_url)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]


def append_past(
    ledger: Ledger,
    entry: Entry | dict[str, Any],
    *,
    key: EllipticCurvePrivateKey | None = None,
) -> int:
    """Adds an entry past the ledger's own checks, signed with a key or by no one; returns its row's
    number.
    """
    from storage.ledger import chain

    plain = entry if isinstance(entry, dict) else entry.as_json()
    with ledger.database.write() as connection:
        return chain.append(connection, plain, key=key).sequence


@pytest.fixture(scope="session")
def postgres_server() -> URL:
    """A server that may create databases and roles, or a skip with the reason."""
    from sqlalchemy import exc
    from sqlalchemy.engine import make_url

    url = make_url(os.environ.get("AUTOCODER_TEST_POSTGRES", DEFAULT_SERVER))
    try:
        engine = engine_of(url, connect_args={"connect_timeout": 3})
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
    except (exc.SQLAlchemyError, ModuleNotFoundError) as error:
        pytest.skip(
            f"no PostgreSQL at {url.render_as_string(hide_password=True)} "
            "(AUTOCODER_TEST_POSTGRES): "
            f"{type(error).__name__}"
        )
    return url


@pytest.fixture(scope="session")
def postgres_database(postgres_server: URL) -> Iterator[Site]:
    """A database with an owner and an application role, without tables; dropping one waits for the
    server's disk.
    """
    tag = uuid.uuid4().hex[:10]
    names = {"db": f"autocoder_test_{tag}"} | {role: f"autocoder_{role}_{tag}" for role in _ROLES}
    admin = engine_of(postgres_server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        for role in _ROLES:
            connection.exec_driver_sql(
                f"CREATE ROLE {names[role]} LOGIN PASSWORD 'secret-{tag[::-1]}'"
            )
        connection.exec_driver_sql(f"CREATE DATABASE {names['db']} OWNER {names['owner']}")

    def url(role: str) -> str:
        changed = postgres_server.set(
            username=names[role], password=f"secret-{tag[::-1]}", database=names["db"]
        )
        return changed.render_as_string(hide_password=False)

    try:
        yield Site(url("release"), url("owner"), url("training"))
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {names['db']} WITH (FORCE)")
            for role in _ROLES:
                connection.exec_driver_sql(f"DROP ROLE {names[role]}")


@pytest.fixture
def postgres_site(postgres_server: URL, postgres_database: Site) -> Site:
    """That database with fresh tables: what the test before left in it, connections
    too, is gone.
    """
    from sqlalchemy.engine import make_url

    from storage.ledger.database import Database, migrate

    app, owner = make_url(postgres_database.url), make_url(postgres_database.owner_url)
    training = make_url(postgres_database.training_url)
    admin = engine_of(postgres_server.set(database=app.database), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        others = (
            "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) {others}")
        connection.exec_driver_sql(
            f"DROP OWNED BY {owner.username}, {app.username}, {training.username} CASCADE"
        )
    migrate(
        Database(postgres_database.owner_url, lock_timeout=20),
        app_role=training.username,
        release_role=app.username,
    )
    return postgres_database


@pytest.fixture
def sqlite_site(tmp_path: Path) -> Site:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    return Site(url, url, url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def site(request: pytest.FixtureRequest) -> Site:
    return request.getfixturevalue(f"{request.param}_site")


@pytest.fixture
def own_server_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that another user (the server's) may enter; pytest's own are closed to others."""
    if request.node.get_closest_marker("postgres") and not (
        shutil.which("pg_ctl") or list(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    ):
        pytest.skip("a server of our own needs PostgreSQL's server programs (initdb, pg_ctl)")
    folder = Path(tempfile.mkdtemp(prefix="autocoder-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def small_disks() -> tuple[str, ...]:
    """The command prefix under which a process may mount a disk of its own, or a skip with the
    reason.
    """
    prefix = ("unshare", "--mount")
    probe = [*prefix, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"]
    try:
        allowed = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip(
            "a small disk can't be mounted here: needs `unshare --mount` and the right to mount"
        )
    return prefix


@pytest.fixture
def plan() -> Callable[..., ReleasePlan]:
    from releases import make_plan

    return make_plan


@pytest.fixture
def claim() -> Callable[..., Claim]:
    from releases import make_claim

    return make_claim
