"""`autocoder status` and `autocoder status --serve` on a workspace without a server."""

import json
import shlex
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from in_process import command, invoke, write_policy
from jobs import Job, answers, environment
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed, Failed, Late, Suspended
from prometheus_client.parser import text_string_to_metric_families
from refusals import of_kind
from stack import free_port

from flows.commands import status, train
from flows.deployed import formal as retrain
from flows.deployed import release
from flows.server.client import REFUSED
from storage.artifacts import Store
from storage.bundle.seal import release_key
from storage.errors import InputError
from storage.ledger import Ledger
from storage.paths import Workspace
from tasks.parameters import LedgerParameters, RetrainParameters
from tasks.releasing.plan import PlannedRelease, release_lock
from tasks.running import worker_metrics
from tasks.running.worker_metrics import running_stages

Samples = dict[tuple[str, str], float]


def now() -> datetime:
    return datetime.now(UTC)


def samples(text: str, label: str) -> Samples:
    return {
        (sample.name, sample.labels.get(label, "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_status_of_a_finished_job_wants_nobody(finished: Job) -> None:
    """Head, policy and budget; exit code 0."""
    done = finished.command("status", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["server"] is None
    assert found["open_releases"] == found["plans"] == []
    assert found["budget"]
    assert all(float(line["epsilon_left"]) < float(line["epsilon_cap"]) for line in found["budget"])


def test_status_of_an_empty_workspace_makes_nothing(tmp_path: Path, new: Job) -> None:
    """No ledger yet is no error, and looking makes none."""
    home = tmp_path / "none"
    done = new.at(home).command("status")
    assert done.returncode == 0, done.stderr
    assert "ledger    none yet" in done.stdout
    assert not home.exists()


def test_a_plan_without_its_approval_wants_a_person(finished: Job, tmp_path: Path) -> None:
    """A policy that asks for two signatures: the plan is reported with what is missing, and the
    exit code is 1.
    """
    job = finished.copy(tmp_path / "home")
    file = write_policy(tmp_path, "B. Officer", minimum=1)
    changed = job.command(
        "ledger", "change-policy", "--policy", str(file), "--requester", "a", "--reason", "b"
    )
    assert changed.returncode == 0, changed.stderr
    plan = job.planned_as(finished)
    done = job.command("status")
    assert done.returncode == 1
    assert "waits for 1 more approval (approved by no one yet)" in done.stdout
    assert f"  next    autocoder approve {plan} --key YOUR-KEY.pem\n" in done.stdout

    # the same for Prometheus, where a server is named that does not answer
    away = job.at(job.home, env=environment(PREFECT_API_URL="http://127.0.0.1:1/api"))
    told = away.command("status", "--prometheus").stdout
    assert samples(told, "")[("autocoder_plans_waiting", "")] == 1
    assert samples(told, "part")[("autocoder_up", "server")] == 0
    refused = away.command("status")
    assert refused.returncode == 2
    assert "PREFECT_API_URL" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_process_that_died_here_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lock is free, so no silence has to pass; of another host's only the silence tells."""
    private = tmp_path / "private"
    here, away = (
        worker_metrics.MetricsListener(private, flow, host=host)
        for flow, host in (("retrain", socket.gethostname()), ("audit", "another host"))
    )
    for listener in (here, away):
        listener.started("fit")
    none: Any = {"ledger": None, "open_releases": [], "plans": [], "budget": [], "server": None}

    def shown() -> str:
        status._show(none | {"stages": running_stages(private)})
        return capsys.readouterr().out

    assert "repeat its command" not in shown()
    del here, away, listener
    told = shown()
    assert "`autocoder train`" in told
    assert "`autocoder audit`" not in told


@pytest.mark.parametrize("names", [(), ("officer",)])
def test_a_plan_over_the_budget_is_not_advised_to_be_released(
    finished: Job, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Neither by `status` nor at the end of `train`: it is refused where an approver can, and
    otherwise trained again.
    """
    job = finished.copy(tmp_path / "home")
    file = write_policy(tmp_path, *names, minimum=len(names))
    policy = yaml.safe_load(file.read_text())
    policy["default"] = {"asymptotic-local": {"epsilon": 0.01}}
    file.write_text(yaml.safe_dump(policy))
    command(
        *("ledger", "change-policy", "--home", job.home, "--policy", file),
        *("--requester", "a", "--reason", "b"),
    )
    plan = str(job.planned_as(finished))
    (found,) = json.loads(invoke("status", "--json", "--home", job.home)[1])["plans"]
    assert "policy strict" in found["unfit"]
    refusing = found["remedy"].startswith(f"autocoder approve {plan} --refuse --key ")
    assert refusing == bool(names)
    assert "autocoder release" not in found["remedy"]
    shown = invoke("status", "--home", job.home)[1]
    assert "does not fit the budget: " in shown
    assert "ready to release" not in shown
    told = train._next(
        RetrainParameters.model_construct(release=LedgerParameters()), plan, str(job.home)
    )
    assert "autocoder plan" in told
    assert "autocoder release" not in told
    assert "autocoder audit" not in told


def test_a_release_that_died_is_resumed_by_its_own_command(finished: Job, tmp_path: Path) -> None:
    """After its reservation: `status` and `ledger recover` print the command that goes on without
    a second charge; while it runs, none is advised.
    """
    job = finished.copy(tmp_path / "home")
    file = Path(job.planned_as(finished))
    planned = PlannedRelease.load(file)
    ledger = Ledger.open(Workspace(job.home).ledger_url, key=release_key(Workspace(job.home)))
    ledger.reserve(planned.plan, plan_digest=planned.digest)

    def remedies() -> list[str]:
        found = json.loads(invoke("status", "--json", "--home", job.home)[1])
        return [release["remedy"] for release in found["open_releases"]]

    assert remedies() == [f"autocoder release {shlex.quote(str(file))}"]
    code, out, _ = invoke("ledger", "recover", "--home", job.home)
    assert code == 1
    assert f"autocoder release {file}" in out
    with Store(Workspace(job.home).private).lock(release_lock(planned.plan)):
        assert remedies() == [""]
    file.unlink()
    assert remedies() == ["autocoder ledger recover"]


def test_a_second_run_is_advised_only_when_none_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stage is silent for an hour. While its process lives, or the server has its run, nobody is
    told to repeat the command; afterwards they are.
    """
    private = tmp_path / "private"
    listener = worker_metrics.MetricsListener(private, "retrain", host="a")
    listener.started("fit")
    none: Any = {"ledger": None, "open_releases": [], "plans": [], "budget": []}

    def shown(server: dict[str, Any] | None) -> str:
        stages = [stage | {"seconds_since": 3600.0} for stage in running_stages(private)]
        status._show(none | {"server": server, "stages": stages})
        return capsys.readouterr().out

    assert "autocoder train" not in shown(None)
    del listener
    assert "autocoder train" in shown(None)
    names = ("unserved", "unserved_queues", "stopped", "waiting")
    server: dict[str, Any] = {"runs": {}, "workers": {}} | {name: [] for name in names}
    assert "autocoder train" not in shown(server | {"unended": ["retrain"]})
    assert "autocoder train" in shown(server | {"unended": ["release"]})


def test_a_plan_at_release_is_not_ready_to_release(finished: Job, tmp_path: Path) -> None:
    """While a process holds the release's lock, or the server runs its release, no second one is
    advised.
    """
    job = finished.copy(tmp_path / "home")
    file = Path(job.planned_as(finished))
    planned = PlannedRelease.load(file)
    assert plans_of(job) == [(False, f"autocoder release {shlex.quote(str(file))}")]
    with Store(Workspace(job.home).private).lock(release_lock(planned.plan)):
        assert plans_of(job) == [(True, "")]
    assert plans_of(job)[0][0] is False
    plan: dict[str, Any] = {"file": str(file), "releasing": False, "remedy": "autocoder release"}
    overview: Any = {"server": {"releasing": [f"/workspace/{file.name}"]}, "plans": [plan]}
    status._mark_releasing(overview)
    assert (plan["releasing"], plan["remedy"]) == (True, "")


def plans_of(job: Job) -> list[tuple[bool, str]]:
    found = json.loads(job.command("status", "--json").stdout)
    return [(plan["releasing"], plan["remedy"]) for plan in found["plans"]]


@pytest.mark.servers
def test_every_stopped_run_has_its_next_command(server: str, served: Job, tmp_path: Path) -> None:
    """On a real server: what failed is tried again, what crashed is resumed, what is late gets a
    worker, what waits is signed; a run without a deployment is repeated by its command.
    """
    pool = f"watched-{tmp_path.name}"
    with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        flow = client.create_flow_from_name("retrain")
        deployment = client.create_deployment(flow, name="watched", work_pool_name=pool)
        states = [
            Failed(message="InputError: --data: no file\nsecond line"),
            Crashed(),
            Late(scheduled_time=now()),
            Failed(name=REFUSED, message="no column"),
        ]
        failed, crashed, late, refused = (
            client.create_flow_run_from_deployment(deployment, state=state) for state in states
        )
        typed = client.create_flow_run(retrain, state=Failed())
        waiting = client.create_flow_run(
            release, parameters={"plan": "/w/a plan.json"}, state=Suspended(timeout_seconds=3600)
        )
    try:
        watched = served.at(tmp_path / "none")
        overview = json.loads(watched.command("status", "--json").stdout)
        remedies = {run["id"]: run["remedy"] for run in overview["server"]["stopped"]}
        assert remedies[str(failed.id)] == f"prefect flow-run retry {failed.id}"
        assert remedies[str(refused.id)].startswith("correct its form: Copy to new run on http")
        assert remedies[str(refused.id)].endswith(f"/runs/flow-run/{refused.id}")
        assert remedies[str(crashed.id)] == "prefect deployment run housekeeping/housekeeping"
        assert remedies[str(late.id)] == f"prefect worker start --pool {pool}"
        assert remedies[str(typed.id)].startswith("repeat its command, `autocoder train`")
        done = watched.command("status")
        assert done.returncode == 1
        (line,) = (one for one in done.stdout.splitlines() if failed.name in one)
        assert line.endswith("InputError: --data: no file")
        assert f"  next    prefect flow-run retry {failed.id}\n" in done.stdout
        assert "autocoder approve '/w/a plan.json' --key YOUR-KEY.pem --post\n" in done.stdout
    finally:
        with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as client:
            for run in (failed, crashed, late, refused, typed, waiting):
                client.delete_flow_run(run.id)  # for others on this server to count none of them


@pytest.mark.parametrize("address", ["9464", "127.0.0.1:http", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, check=of_kind("serving-address")):
        invoke("status", "--home", tmp_path, "--serve", address)


def test_a_run_is_seen_by_prometheus(finished: Job) -> None:
    """Over HTTP: every stage with its time, those of the model with a rate, the budget; no count of
    records.
    """
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "status",
        "--home",
        str(finished.home),
        "--serve",
        address,
    ]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as serving:
        try:
            while not answers(f"http://{address}/metrics"):
                assert serving.poll() is None, "it ended before it answered"
                time.sleep(0.25)
            text = httpx.get(f"http://{address}/metrics", timeout=60).text
        finally:
            serving.terminate()
    by_stage = samples(text, "stage")
    stages = {stage for name, stage in by_stage if name == "autocoder_stage_last_seconds"}
    assert stages >= {name.partition("/")[0] for name in finished.stages()}
    rated = {stage for name, stage in by_stage if name == "autocoder_stage_records_per_second"}
    assert "branch-fit" in rated, rated
    assert all(by_stage[("autocoder_stage_records_per_second", stage)] > 0 for stage in rated)
    by_part = samples(text, "part")
    assert by_part[("autocoder_up", "ledger")] == 1
    by_population = samples(text, "population")
    left, cap = (
        by_population[(f"autocoder_budget_epsilon_{name}", "demo")] for name in ("left", "cap")
    )
    assert 0 < left < cap
    counts = [
        json.loads(manifest)["figures"]["train"]
        for name, manifest in finished.stages().items()
        if name.startswith("ingest")
    ]
    assert counts
    # a rate may happen to be the same number, in its two digits
    told = {
        value
        for (name, _), value in by_stage.items()
        if name != "autocoder_stage_records_per_second"
    }
    assert not told & set(counts)
