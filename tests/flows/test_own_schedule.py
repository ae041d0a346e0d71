"""`autocoder train --deploy NAME --cron LINE` registers a run with its very parameters on a real
Prefect server.
"""

from pathlib import Path
from uuid import UUID

import httpx
import pytest
from in_process import CommandRunner
from jobs import Job
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from run_options import parameters

from flows.commands.deploy import POOLS
from flows.deployed import formal as retrain
from flows.server import automations
from flows.server.form import FormalForm

pytestmark = pytest.mark.servers

CRON = "0 6 1 */3 *"
ZONE = "Europe/Paris"


def deployment(server: str, name: str) -> httpx.Response:
    """The server's answer about a deployment."""
    return httpx.get(f"{server}/deployments/name/retrain/{name}", timeout=60)


@pytest.fixture
def registered(server: str, served: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A workspace beside a server that has the work pools."""
    monkeypatch.setenv("PREFECT_API_URL", server)
    with temporary_settings({PREFECT_API_URL: server}):  # those of this process were read before
        automations.apply_pools(POOLS)
    return served.at(tmp_path / "home")


def test_the_run_that_the_calendar_starts_is_the_one_that_was_typed(
    registered: Job, server: str
) -> None:
    """Parameters, schedule and pool are on the server; its scheduled run reads as the command's own
    parameters.
    """
    job = registered
    options = ("--profile", "demo-formal", "--epsilon", "5", "--data", str(job.data))
    options += (
        "--codelist",
        str(job.codelist),
        "--deploy",
        "own",
        "--cron",
        CRON,
        "--time-zone",
        ZONE,
    )
    done = job.command("retrain", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"deployment retrain/own: runs at {CRON} ({ZONE}) on pool cpu")
    assert "this ε is an estimate" not in done.stderr
    assert not job.home.exists(), "nothing ran"
    content = deployment(server, "own").json()
    (schedule,) = content["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"], schedule["active"]) == (
        CRON,
        ZONE,
        True,
    )
    assert (content["work_pool_name"], content["work_queue_name"]) == ("cpu", "default")
    assert content["enforce_parameter_schema"] is True
    with (
        temporary_settings({PREFECT_API_URL: server}),
        get_client(sync_client=True) as client,
    ):  # it repeats after a 503
        run = client.create_flow_run_from_deployment(UUID(content["id"]))
    form = retrain.validate_parameters(run.parameters)["parameters"]
    expected = parameters(
        "demo-formal",
        ["method.target_epsilon=5.0"],
        data=job.data.resolve(),
        codelist=job.codelist.resolve(),
    )
    assert isinstance(form, FormalForm)
    assert (form.parameters(), form.run().home) == (expected, str(job.home))
    again = job.command("retrain", *job.options(), "--deploy", "own")
    assert again.returncode == 0, again.stderr
    assert "runs manually" in again.stdout
    assert "this ε is an estimate" in again.stderr
    changed = deployment(server, "own").json()
    assert (changed["id"], changed["schedules"]) == (content["id"], [])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--deploy", "osha-formal"), "delivered deployment"),
        (("--deploy", "a/b"), "--deploy: 'a/b'"),
        (("--deploy", "wrong", "--cron", "every quarter"), "is not a cron line"),
        (("--deploy", "wrong", "--cron", "0 0 6 * * 1"), "is not a cron line of five fields"),
        (("--deploy", "wrong", "--cron", "0 6 30 2 *"), "a day that never comes"),
        (
            ("--deploy", "wrong", "--cron", "0 6 1 * *", "--time-zone", "Mars/Base"),
            "--time-zone: unknown time zone 'Mars/Base'",
        ),
        (("--deploy", "wrong", "--set", "model.max_length=9000"), "must be at most 512"),
    ],
)
def test_what_cannot_run_is_not_registered(
    registered: Job, server: str, options: tuple[str, ...], says: str
) -> None:
    """Each mistake is named, and the server has no such deployment afterwards."""
    done = registered.command("retrain", *registered.options(), *options)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert deployment(server, "wrong").status_code == 404


def test_without_a_server_or_a_name_the_message_says_what_to_set(
    told: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server named, no server there, a schedule of nothing."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    code, err = told("retrain", "--profile", "demo", "--deploy", "own")
    assert code == 2
    assert "Set PREFECT_API_URL" in err
    code, err = told("retrain", "--profile", "demo", "--cron", CRON)
    assert code == 2
    assert "--deploy" in err


def test_a_server_that_does_not_answer_is_named(new: Job, tmp_path: Path) -> None:
    """After the parameters were checked."""
    away = new.at(tmp_path / "home", env=new.env | {"PREFECT_API_URL": "http://127.0.0.1:1/api"})
    done = away.command("retrain", *away.options(), "--deploy", "own")
    assert done.returncode == 2
    assert "Check PREFECT_API_URL" in done.stderr
