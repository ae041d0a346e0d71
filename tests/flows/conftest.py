"""What tests of the commands share, all of pytest's processes together: libraries, a server, a
finished job.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import shared
from in_process import CommandRunner, command, write_policy
from jobs import MARKER, Job, environment, read_csv, start_server, start_warm, write_csv

from storage.demo_data import write_demo_data


@pytest.fixture(autouse=True)
def no_chance_of_a_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit contradicts up to one true claim in twenty, because its noise has no seed. Audits of
    this process have the same noise every time; those of other processes do not.
    """
    from tasks.auditing import gradients

    monkeypatch.setattr(gradients, "Run", partial(gradients.Run, key=bytes(range(32))))


@pytest.fixture(scope="session")
def server(common: Path, migrated: Callable[[Path], Path]) -> Iterator[str]:
    """A Prefect server's address. Others use it too: look only at your own runs."""
    with shared.running(common / "server", lambda folder: start_server(migrated(folder))) as url:
        yield url


@pytest.fixture(scope="session")
def small_data(common: Path) -> tuple[Path, Path]:
    """Synthetic narratives, some with the marker, and their code list."""

    def write(folder: Path) -> None:
        written = write_demo_data(folder, records=400, seed=1)
        rows = read_csv(written.csv)
        for row in rows[::10]:
            row["Final Narrative"] += f" {MARKER}."
        write_csv(written.csv, rows)

    folder = shared.once(common / "data", write)
    return folder / "injuries.csv", folder / "codelist.csv"


@pytest.fixture(scope="session")
def new(common: Path, small_data: tuple[Path, Path]) -> Iterator[Job]:
    """A job that has not begun, in no workspace yet: give it one by `at`. It runs
    without a server.
    """
    with shared.running(common / "warm", start_warm) as address:
        yield Job(common / "none", *small_data, warm=Path(address), env=environment())


@pytest.fixture(scope="session")
def served(common: Path, server: str, new: Job) -> Job:
    """The same job with the shared Prefect server."""
    return new.at(
        new.home, env=environment(PREFECT_API_URL=server, PREFECT_HOME=str(common / "prefect"))
    )


@pytest.fixture(scope="session")
def finished(common: Path, new: Job) -> Job:
    """A job that ran to its end unbroken. Tests must not change its workspace; `stdout` and
    `stderr` beside it are what it printed.
    """

    def run(folder: Path) -> None:
        done = new.at(folder / "home").run("--json")
        assert done.returncode == 0, done.stderr
        (folder / "stdout").write_text(done.stdout)
        (folder / "stderr").write_text(done.stderr)

    return new.at(shared.once(common / "finished", run) / "home")


@pytest.fixture
def site(finished: Job, tmp_path: Path) -> tuple[Job, str]:
    """A workspace under a policy of two approvals, and a plan to release into it."""
    job = finished.copy(tmp_path / "home")
    policy = write_policy(tmp_path, "officer", "director", minimum=2)
    change = (
        "--policy",
        str(policy),
        "--requester",
        "lead",
        "--reason",
        "start",
        "--home",
        str(job.home),
    )
    command("ledger", "change-policy", *change)
    return job, str(job.planned_as(finished))


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> CommandRunner:
    """Run a command that is to be refused."""
    return CommandRunner(capsys)
