#!/usr/bin/env python
"""Runs the production stack without Docker. Each component is a local process on a free loopback
port.

    python scripts/stack.py --folder stack [--data injuries.csv --codelist codelist.csv] [--json]

The stack is PostgreSQL (Prefect's database, and the ledger's under three roles), Redis, Prefect's
server with authentication, its background services, two workers for the pool `cpu` (one trains, one
releases and does housekeeping), and one for `gpu` if torch finds a GPU. Deployments and automations
are applied. It prints the environment that a shell needs to use this stack, above all its ledger.
PostgreSQL is the server at $AUTOCODER_STACK_POSTGRES (a superuser's URL), or a new one in the
folder; the same holds for Redis and $AUTOCODER_STACK_REDIS. Notifications go to
$AUTOCODER_NOTIFY_WEBHOOK if it is set. A component that dies is restarted. Ctrl-C stops everything;
the folder keeps the data.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg
from psycopg import sql

ROOT = Path(__file__).resolve().parent.parent
ROLES = ("prefect", "ledger_owner", "autocoder")
PREFECT = (sys.executable, "-m", "prefect")
WORKERS = {
    "worker-cpu": ("cpu", "cpu-1", ("default", "coding")),
    # neither an approved release nor housekeeping waits for a training run
    "worker-release": ("cpu", "cpu-2", ("release", "upkeep")),
    "worker-gpu": ("gpu", "gpu-1", ()),
}
"""By component: its pool, its name at the server, and the queues that it serves (none: all). Each
takes one run at a time.
"""
CONNECT_TO_SELF = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"connect-src 'self' ws://127.0.0.1:*; object-src 'none'; base-uri 'self'; "
    "form-action 'self'\">"
)
"""Policy that deployments/Caddyfile sends as a header and that a page can also declare itself."""
PATIENCE = 600
"""Seconds within which a component must answer."""


def free_port() -> int:
    """Returns a loopback port that nobody listens on, below the range that systems assign to
    clients.

    While the server is not up, a client that retries its port could otherwise be assigned that very
    port.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return probe.getsockname()[1]


def wait_for(what: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            sys.exit(f"stack: {what} does not answer after {PATIENCE} s; see the logs")
        time.sleep(0.2)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def has_card() -> bool:
    """Whether torch finds a CUDA device."""
    command = [sys.executable, "-c", "import torch; torch.cuda.init()"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def settings_of_containers(name: str) -> dict[str, str]:
    """Returns the settings that the server or the workers also have in containers."""
    lines = (ROOT / "deployments" / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def claim(folder: Path) -> int:
    """Claims a folder for this process until it ends, because two stacks in one folder would
    destroy each other's state.
    """
    lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        sys.exit(f"stack: another stack is running in {folder}. Stop it, or use another --folder.")
    return lock


@dataclass
class Component:
    """A child process: command, environment, user."""

    name: str
    command: list[str]
    env: dict[str, str]
    user: str | None = None
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0


@dataclass
class Stack:
    """All components, in the order in which they are started."""

    folder: Path
    data: str
    codelist: str
    components: list[Component] = field(default_factory=list)
    tells: bool = True
    """Whether progress is reported on stderr. A program reads one line of JSON instead."""
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = claim(self.folder)
        for name in ("logs", "secrets", "home"):
            (self.folder / name).mkdir(exist_ok=True, mode=0o700 if name == "secrets" else 0o755)
        self.postgres_address = ""
        self.redis_address = ""
        self.api_port = free_port()
        self.api = f"http://127.0.0.1:{self.api_port}/api"
        self.auth = f"operator:{self.secret('operator')}"
        self.base = {
            k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "AUTOCODER_"))
        }
        self.base["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"

    def secret(self, name: str) -> str:
        """Returns a password, created once in a file that others cannot read."""
        file = self.folder / "secrets" / name
        if not file.exists():
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(secrets.token_urlsafe(24))
        return file.read_text()

    def database(self, role: str, name: str, driver: str, *, password: str | None = None) -> str:
        """Returns the URL of a database, with the role's password or a placeholder for it."""
        login = f"{role}:{password or self.secret(role)}"
        return f"postgresql+{driver}://{login}@{self.postgres_address}/{name}"

    def exports(self) -> list[str]:
        """Returns lines for a user's shell: the server, and the workers' workspace and ledger.

        No password is printed; the shell reads each from its file.
        """
        operator, autocoder = (
            f"$(cat {shlex.quote(str(self.folder / 'secrets' / name))})"
            for name in ("operator", "autocoder")
        )
        url = self.database("autocoder", "ledger", "psycopg", password=autocoder)
        return [
            f'export PREFECT_API_URL={self.api} PREFECT_API_AUTH_STRING="operator:{operator}"',
            (
                f"export AUTOCODER_HOME={shlex.quote(str(self.folder / 'home'))} "
                f'AUTOCODER_LEDGER_URL="{url}"'
            ),
        ]

    def tell(self, step: str) -> None:
        """Reports which step of the start begins, and the seconds since the first step."""
        if self.tells:
            print(f"{time.monotonic() - self.began:6.1f}s  {step}", file=sys.stderr, flush=True)

    # -- components
    # ----------------------------------------------------------------------------------------

    def run(
        self, name: str, *command: str, env: dict[str, str] | None = None, user: str | None = None
    ) -> None:
        """Starts a component. `watch` restarts it if it dies."""
        component = Component(name, list(command), env or self.base, user)
        self.components.append(component)
        self._start(component)

    def _start(self, component: Component) -> None:
        with self.log_of(component).open("ab") as log:
            component.process = subprocess.Popen(
                component.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=component.env,
                cwd=ROOT if component.user is None else "/",
                user=component.user,
                start_new_session=True,  # Ctrl-C is passed on by the stack, in order
            )
        component.starts += 1
        self.write_state()

    def log_of(self, component: Component) -> Path:
        return self.folder / "logs" / f"{component.name}.log"

    def once(self, *command: str, env: dict[str, str]) -> None:
        """Runs a command to its end. If it fails, the stack fails."""
        done = subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(
                f"stack: {' '.join(command[2:5])} "
                f"failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )

    def write_state(self) -> None:
        """Writes the addresses of all components, for `--json`, tests and users."""
        state = {
            "ui": self.api.removesuffix("/api"),
            "api": self.api,
            "postgres": self.postgres_address,
            "redis": self.redis_address,
            "home": str(self.folder / "home"),
            "secrets": str(self.folder / "secrets"),
            "processes": {c.name: c.process.pid for c in self.components if c.process is not None},
        }
        partial = self.folder / "stack.json.partial"
        partial.write_text(json.dumps(state, indent=1) + "\n")
        partial.replace(self.folder / "stack.json")

    def watch(self) -> None:
        """Restarts components that die, until interrupted."""
        while True:
            for component in self.components:
                if component.process is not None and component.process.poll() is not None:
                    print(
                        f"stack: {component.name} ended ({component.process.returncode}); "
                        f"started again. Its log is {self.log_of(component)}"
                    )
                    self._start(component)
            time.sleep(1)

    def stop(self) -> None:
        """Stops everything, the last started first."""
        if self.tells:
            print("stack: stopping all processes; this takes up to a minute", file=sys.stderr)
        for component in reversed(self.components):
            process = component.process
            if process is None or process.poll() is not None:
                continue
            # PostgreSQL treats SIGINT as "fast": it does not wait for its clients.
            process.send_signal(signal.SIGINT if component.name == "postgres" else signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        (self.folder / "stack.json").unlink(missing_ok=True)

    # -- PostgreSQL and Redis
    # ------------------------------------------------------------------------------

    def postgres(self) -> tuple[str, int]:
        """Finds or starts PostgreSQL, creates roles and databases, and returns host and port."""
        admin_url = os.environ.get("AUTOCODER_STACK_POSTGRES")
        admin = admin_url or self._own_postgres()
        wait_for("PostgreSQL", lambda: _connects(admin))
        with psycopg.connect(admin, autocommit=True) as connection:
            for role in ROLES:
                exists = connection.execute(
                    "SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)
                ).fetchone()
                verb = "ALTER" if exists else "CREATE"
                connection.execute(
                    sql.SQL(verb + " ROLE {} LOGIN PASSWORD {}").format(
                        sql.Identifier(role), sql.Literal(self.secret(role))
                    )
                )
            for database, owner in (("prefect", "prefect"), ("ledger", "ledger_owner")):
                if not connection.execute(
                    "SELECT 1 FROM pg_database WHERE datname = %s", (database,)
                ).fetchone():
                    connection.execute(
                        sql.SQL("CREATE DATABASE {} OWNER {}").format(
                            sql.Identifier(database), sql.Identifier(owner)
                        )
                    )
                    # PUBLIC may connect to every database by default, but Prefect's role has no
                    # business in the ledger's.
                    connection.execute(
                        sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(
                            sql.Identifier(database)
                        )
                    )
            connection.execute("GRANT CONNECT ON DATABASE ledger TO autocoder")
            return connection.info.host, connection.info.port

    def _own_postgres(self) -> str:
        initdb = shutil.which("initdb") or next(
            (
                str(p)
                for p in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
            ),
            None,
        )
        if initdb is None:
            sys.exit(
                "stack: PostgreSQL is missing: install it (Debian: postgresql), or set "
                "AUTOCODER_STACK_POSTGRES to its URL"
            )
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        folder = self.folder / "postgres"
        folder.mkdir(exist_ok=True)
        password = folder / "superuser"
        if user is not None:
            shutil.chown(folder, user)
            _require_way_in(folder)
        if not (folder / "data" / "PG_VERSION").exists():
            password.write_text(self.secret("postgres"))
            password.chmod(0o600)
            if user is not None:
                shutil.chown(password, user)
            command = [
                initdb,
                "-D",
                str(folder / "data"),
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--no-sync",
            ]
            command += ["-A", "scram-sha-256", f"--pwfile={password}"]
            done = subprocess.run(
                command, user=user, cwd="/", capture_output=True, text=True, env=environment
            )
            password.unlink()
            if done.returncode:
                sys.exit(f"stack: initdb failed: {done.stderr}")
        port = free_port()
        options = ["listen_addresses=127.0.0.1", "unix_socket_directories="]
        options += ["shared_buffers=64MB", "max_connections=200"]
        self.run(
            "postgres",
            *(str(Path(initdb).with_name("postgres")), "-D", str(folder / "data"), "-p", str(port)),
            *(part for option in options for part in ("-c", option)),
            env=environment,
            user=user,
        )
        return f"postgresql://postgres:{self.secret('postgres')}@127.0.0.1:{port}/postgres"

    def redis(self) -> str:
        """Finds or starts Redis, and returns its URL."""
        redis_url = os.environ.get("AUTOCODER_STACK_REDIS")
        if redis_url:
            return redis_url.rstrip("/")
        binary = shutil.which("redis-server")
        if binary is None:
            sys.exit(
                "stack: Redis is missing: install it (Debian: redis-server), or set "
                "AUTOCODER_STACK_REDIS to its URL"
            )
        folder, port = self.folder / "redis", free_port()
        folder.mkdir(exist_ok=True, mode=0o700)
        config = folder / "redis.conf"  # keeps the password out of the process list
        config.write_text(
            f"bind 127.0.0.1\nport {port}\ndir {folder}\nappendonly yes\nrequirepass "
            f"{self.secret('redis')}\n"
        )
        config.chmod(0o600)
        self.run("redis", binary, str(config))
        wait_for("Redis", lambda: answers(port))
        return f"redis://:{self.secret('redis')}@127.0.0.1:{port}"

    # -- Prefect
    # -------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Starts everything, in order."""
        has_data = (self.folder / "postgres" / "data" / "PG_VERSION").exists()
        usual = "about half a minute" if has_data else "about a minute, since its databases are new"
        if self.tells:
            print(f"stack: starting in {self.folder}: {usual}", file=sys.stderr, flush=True)
        self.tell("PostgreSQL")
        host, port = self.postgres()
        self.postgres_address = f"{host}:{port}"
        self.tell("Redis")
        redis = self.redis()
        self.redis_address = redis.rpartition("@")[2].removeprefix("redis://")

        server = self.base | settings_of_containers("server")
        server |= {
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_DATABASE_CONNECTION_URL": self.database("prefect", "prefect", "asyncpg"),
            "PREFECT_SERVER_API_AUTH_STRING": self.auth,
            "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": self.api.removesuffix("/api"),
            "PREFECT_SERVER_UI_API_URL": self.api,
            "PREFECT_UI_URL": self.api.removesuffix("/api"),
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(self.folder / "prefect" / "ui"),
            "PREFECT_REDIS_MESSAGING_URL": f"{redis}/0",
            "PREFECT_SERVER_DOCKET_URL": f"{redis}/1",
            "PREFECT_SERVER_LOG_RETRYABLE_ERRORS": "false",
            "AUTOCODER_PREFECT_API": self.api,
        }
        self.tell("tables of Prefect")
        self.once(*PREFECT, "server", "database", "upgrade", "-y", env=server)
        self.tell("tables of the ledger")
        self.once(
            *(
                sys.executable,
                "-m",
                "flows.cli",
                "ledger",
                "migrate",
                "--release-role",
                "autocoder",
            ),
            env=self.base
            | {"AUTOCODER_LEDGER_URL": self.database("ledger_owner", "ledger", "psycopg")},
        )
        start = (
            "server",
            "start",
            "--no-services",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.api_port),
        )
        self.tell("Prefect's server and its services")
        self.run("server", *PREFECT, *start, env=server)
        self.run("services", sys.executable, "-m", "flows.server.services", env=server)
        wait_for("Prefect's server", lambda: _healthy(self.api))
        close_pages(self.folder / "prefect" / "ui")
        worker = self.base | settings_of_containers("worker")
        worker |= {
            "PREFECT_API_URL": self.api,
            "PREFECT_API_AUTH_STRING": self.auth,
            "PREFECT_UI_URL": f"{self.api.removesuffix('/api')}/v2",
            "PREFECT_WORKER_QUERY_SECONDS": os.environ.get("AUTOCODER_STACK_QUERY_SECONDS", "5"),
            "AUTOCODER_HOME": str(self.folder / "home"),
            "AUTOCODER_LEDGER_URL": self.database("autocoder", "ledger", "psycopg"),
            "AUTOCODER_DATA": self.data,
            "AUTOCODER_CODELIST": self.codelist,
        }
        self.tell("deployments")
        webhook = {k: v for k, v in os.environ.items() if k == "AUTOCODER_NOTIFY_WEBHOOK"}
        self.once(
            sys.executable,
            "-m",
            "flows.cli",
            "deploy",
            env=worker | webhook | self.prefect_home("deploy"),
        )
        self.tell("workers")
        for component, (pool, name, queues) in WORKERS.items():
            command = (
                "worker",
                "start",
                "--pool",
                pool,
                "--type",
                "process",
                "--limit",
                "1",
                "--name",
                name,
            )
            if pool == "gpu" and not has_card():
                continue
            served = (part for queue in queues for part in ("--work-queue", queue))
            self.run(
                component, *PREFECT, *command, *served, env=worker | self.prefect_home(component)
            )

    def prefect_home(self, name: str) -> dict[str, str]:
        """Returns a separate folder for each of Prefect's processes."""
        return {"PREFECT_HOME": str(self.folder / "prefect" / name)}


def close_pages(folder: Path) -> None:
    """Restricts the pages that the server has copied here to connections to the server, because
    they would also contact an analytics host.
    """
    for index in folder.glob("*/index.html"):
        page = index.read_text(encoding="utf-8")
        if CONNECT_TO_SELF not in page:
            partial = index.with_suffix(".partial")
            partial.write_text(
                page.replace("<head>", f"<head>{CONNECT_TO_SELF}", 1), encoding="utf-8"
            )
            partial.replace(index)


def _connects(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _healthy(api: str) -> bool:
    try:
        # any answer will do: without credentials it is a 401
        return httpx.get(f"{api}/health", timeout=2).status_code in (200, 401)
    except httpx.HTTPError:
        return False


def _require_way_in(folder: Path) -> None:
    closed = [p for p in folder.parents if not p.stat().st_mode & 0o001]
    if closed:
        sys.exit(
            f"stack: user postgres cannot enter {closed[-1]}. Use a --folder that other users may "
            "pass through"
        )


def given_file(name: str) -> str:
    """Returns the absolute path of a file that the deployments name, or "" if there is none.

    A run would miss the file only after the stack has started.
    """
    if not name:
        return ""
    path = Path(name).resolve()
    if not path.is_file():
        sys.exit(
            f"stack: there is no file {path}. `autocoder demo-data --out demo` writes records and "
            "a code list to try."
        )
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("stack"), help="folder for data, logs and secrets"
    )
    parser.add_argument("--data", default="", help="file of records for scheduled training")
    parser.add_argument("--codelist", default="", help="its code list")
    parser.add_argument(
        "--json", action="store_true", help="print stack.json when everything answers"
    )
    options = parser.parse_args()
    data, codelist = (given_file(value) for value in (options.data, options.codelist))
    stack = Stack(options.folder.resolve(), data, codelist, tells=not options.json)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        stack.up()
        if options.json:
            print(json.dumps(json.loads((stack.folder / "stack.json").read_text())), flush=True)
        else:
            print(f"Prefect   {stack.api.removesuffix('/api')}   log in as operator:PASSWORD")
            print(f"password  {stack.folder / 'secrets' / 'operator'}")
            if "worker-gpu" not in {component.name for component in stack.components}:
                print("no worker for the pool gpu: torch finds no CUDA device")
            print(f"secrets   {stack.folder / 'secrets'}    logs {stack.folder / 'logs'}")
            print("For a shell that uses this stack:", *stack.exports(), sep="\n")
            print("Ctrl-C stops it.", flush=True)
        stack.watch()
    finally:
        stack.stop()


if __name__ == "__main__":
    main()
