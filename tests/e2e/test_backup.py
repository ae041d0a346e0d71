"""A backup by the commands of docs/how-to/back-up-and-recover.md, restored into a fresh database
and workspace.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import printed_pages
import pytest
import stack as scripts_stack
from stacks import Stack

from storage.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.servers, pytest.mark.postgres, pytest.mark.timeout(2400)]


def commands(number: int) -> list[str]:
    """Lines of a block of the section *Back up and restore*: 0 is the environment, 1 backs up, 2
    restores.
    """
    page = ROOT / "docs" / "how-to" / "back-up-and-recover.md"
    return printed_pages.commands(page.read_text(), "Back up and restore", number)


def follow(lines: list[str], folder: Path, *, workspace: Path, url: str) -> list[str]:
    """Run commands in a folder that holds KEY.pem, after those that set the section's environment;
    what they print. Only what the section writes in capitals is filled in, and the stack's folder
    of secrets is put where it says.
    """
    found = re.fullmatch(r"\S+//(\w+):(\S+)@(\S+):(\d+)/ledger", url)
    assert found is not None
    role, password, host, port = found.groups()
    (folder / "stack" / "secrets").mkdir(parents=True, exist_ok=True)
    (folder / "stack" / "secrets" / role).write_text(password)
    values = {"HOST": host, "PORT": port, "WORKSPACE": shlex.quote(str(workspace))}
    env = {
        k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "AUTOCODER_", "PG"))
    }
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    printed = []
    for line in lines:
        text = "\n".join(("set -euo pipefail", *commands(0), line))
        command = [
            "bash",
            "-c",
            re.sub(rf"\b({'|'.join(values)})\b", lambda found: values[found[0]], text),
        ]
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout + done.stderr)
    return printed


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """The URL, by role, of an empty ledger in a PostgreSQL of its own, as `make stack` makes it."""
    folder = Path(f"/tmp/autocoder-restore-{os.getpid()}")  # PostgreSQL's user must come through
    other = scripts_stack.Stack(folder, "", "")
    try:
        host, port = other.postgres()

        def url(role: str) -> str:
            return f"postgresql+psycopg://{role}:{other.secret(role)}@{host}:{port}/ledger"

        command = ("ledger", "migrate", "--release-role", "autocoder")
        other.once(
            sys.executable,
            "-m",
            "flows.cli",
            *command,
            env=other.base | {"AUTOCODER_LEDGER_URL": url("ledger_owner")},
        )
        yield url
    finally:
        other.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_backup_restores_into_a_fresh_stack(
    stack: Stack, officer: Path, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    """The same rows, found whole by `verify` against the head that was signed before; history as
    closed as it was.
    """
    folder, home = tmp_path / "backup", tmp_path / "restored"
    folder.mkdir()
    home.mkdir(mode=0o700)
    shutil.copy(officer, folder / "KEY.pem")
    shutil.copy(officer.with_name("signing-key.pub.pem"), folder / "KEY.pub.pem")
    (stack.home / "private").mkdir(mode=0o700, exist_ok=True)
    (stack.home / "bundles").mkdir(exist_ok=True)
    follow(commands(1), folder, workspace=stack.home, url=stack.ledger_url("ledger_owner"))

    # what the backup does not hold must not come back
    before = Ledger.open(stack.ledger_url()).head()
    told = follow(commands(2), folder, workspace=home, url=fresh("ledger_owner"))
    assert Ledger.open(fresh("ledger_owner")).head() == before
    assert str(before[0]) in told[2]
    kept = sorted(p.relative_to(stack.home) for p in (stack.home / "private" / "plans").glob("*"))
    assert sorted(p.relative_to(home) for p in (home / "private" / "plans").glob("*")) == kept
    assert (home / "private").stat().st_mode & 0o077 == 0

    import psycopg

    address = fresh("autocoder").replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM ledger_row").fetchone() == (before[0],)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM ledger_row")


def test_a_row_lost_on_the_way_is_found(
    stack: Stack, officer: Path, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    """A restore into a ledger that a superuser then shortens does not pass: the head tells."""
    shutil.copy(officer, tmp_path / "KEY.pem")
    shutil.copy(officer.with_name("signing-key.pub.pem"), tmp_path / "KEY.pub.pem")
    dump, head, *_ = commands(1)
    follow([dump, head], tmp_path, workspace=stack.home, url=stack.ledger_url("ledger_owner"))
    restore, _, verify, _ = commands(2)
    follow([restore], tmp_path, workspace=tmp_path, url=fresh("ledger_owner"))
    import psycopg

    address = fresh("ledger_owner").replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "DELETE FROM ledger_row WHERE sequence = (SELECT max(sequence) FROM ledger_row)"
        )
    with pytest.raises(AssertionError, match="missing: the ledger ends at row"):
        follow([verify], tmp_path, workspace=tmp_path, url=fresh("ledger_owner"))
