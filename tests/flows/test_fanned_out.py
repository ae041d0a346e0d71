"""A risk pass, coding, an audit and a comparison on two real workers, each with a workspace of its own.

They share a Prefect server on PostgreSQL and a bucket; coding, a folder. What comes out is what one process gives.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from jobs import Job, environment, prefect_server
from real_workers import kill_a_run, online, runs_of, workers
from s3_server import access, new_bucket
from sqlalchemy.pool import NullPool

from storage.tables.reader import survey
from tasks.auditing import run as auditing
from tasks.auditing.settings import AuditParameters, choose_branches
from tasks.branches.branch import Terms, standard_branches
from tasks.branches.plan import Origin
from tasks.coding import shards as coding_shards
from tasks.coding.job import run as code_alone
from tasks.coding.joint import open_bundle
from tasks.comparing import run as comparison
from tasks.comparing.summary import summarise
from tasks.running.stage import Context, run_step

ROOT = Path(__file__).resolve().parents[2]
HEARTBEAT = 30
"""Seconds between two of a run: Prefect's least."""
AUDIT = {"trials": 24, "trial_draws": 5, "canaries": 4, "power": False}
BRANCHES = ("non-private", "swag-ppm")

pytestmark = [pytest.mark.servers, pytest.mark.postgres, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def prefect_database(postgres_server: sa.URL) -> Iterator[str]:
    """An empty database for Prefect, dropped at the end."""
    name = f"prefect_test_{uuid.uuid4().hex[:10]}"
    admin = sa.create_engine(postgres_server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        url = postgres_server.set(drivername="postgresql+asyncpg", database=name)
        if url.username is None:
            url = url.set(username=os.environ.get("PGUSER", "postgres"))
        yield url.render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def house(prefect_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server on PostgreSQL, deployments applied. It misses a run sooner than elsewhere, where nobody may have
    told the workers how often to send heartbeats.
    """
    folder = tmp_path_factory.mktemp("house")
    with prefect_server(folder, PREFECT_API_DATABASE_CONNECTION_URL=prefect_database) as url:
        env = environment(PREFECT_API_URL=url)
        rules = yaml.safe_load((ROOT / "deployments" / "automations.yaml").read_text(encoding="utf-8"))
        (zombies,) = [rule["trigger"] for rule in rules if rule["name"] == "zombies"]
        zombies["within"] = 4 * HEARTBEAT
        (folder / "automations.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
        command = [sys.executable, "-m", "flows.cli", "deploy", "--automations", str(folder / "automations.yaml")]
        applied = subprocess.run(command, env=env, capture_output=True, text=True)
        assert applied.returncode == 0, applied.stderr
        yield url


@dataclass(frozen=True)
class Site:
    """The server, and two workers of a pool with a workspace each in the folder."""

    server: str
    folder: Path
    env: dict[str, str]
    started: list[subprocess.Popen[bytes]]

    def made(self, stage: str) -> list[int]:
        """Returns how many results of a stage each worker has."""
        folders = (self.folder / f"worker-{i}" / "private" / "stages" / stage for i in range(2))
        return [len(list(folder.glob("*/manifest.json"))) for folder in folders]


@contextmanager
def two_workers(server: str, folder: Path, *, pool: str = "cpu", **shared: str) -> Iterator[Site]:
    """Workers of a pool; none takes up housekeeping."""
    env = environment(PREFECT_API_URL=server, PREFECT_WORKER_QUERY_SECONDS="1", OMP_WAIT_POLICY="PASSIVE", **shared)
    env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = str(HEARTBEAT)
    queues = ("shards", "coding") if pool == "cpu" else ()
    with workers(env, folder, 2, pool=pool, queues=queues) as started:
        while online(server, pool) < len(started):
            assert all(worker.poll() is None for worker in started)
            time.sleep(0.2)
        yield Site(server, folder, env, started)


@pytest.fixture(scope="module")
def storage(s3: str) -> dict[str, str]:
    """The environment of workers that share a bucket."""
    with pytest.MonkeyPatch.context() as environ:
        for name, value in access(s3).items():
            environ.setenv(name, value)
        return access(s3) | {"AUTOCODER_STORAGE": new_bucket()}


@pytest.fixture(scope="module")
def with_bucket(house: str, storage: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two workers that share a bucket. The audit kills one of them, so its test comes last."""
    with two_workers(house, tmp_path_factory.mktemp("with-bucket"), **storage) as site:
        yield site


def began(site: Site, *arguments: Any) -> subprocess.Popen[str]:
    """A process of Python beside the workers."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=site.env,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed; it has to end well."""
    try:
        out, said = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0, said
    return out


def shards_of(house: str, setting: str) -> list[dict[str, Any]]:
    """Runs of shards that have this setting."""
    return [run for run in runs_of(house, "shard") if setting in run["parameters"]["shard"]["settings"]]


def check_parameters(run: dict[str, Any], storage: dict[str, str]) -> None:
    """Checks that a shard's run names neither the bucket nor the secret that opens it."""
    assert set(run["parameters"]["shard"]) == {"settings", "inputs", "key"}
    text = json.dumps(run)
    assert storage["AUTOCODER_STORAGE"] not in text
    assert storage["AWS_SECRET_ACCESS_KEY"] not in text


def manifests(home: Path, *names: str) -> dict[str, bytes]:
    """Of the finished stages of these names: they hold the digest of every file."""
    root = home / "private" / "stages"
    found = {f"{n}/{p.parent.name}": p.read_bytes() for n in names for p in (root / n).glob("*/manifest.json")}
    assert {name.partition("/")[0] for name in found} == set(names)
    return found


CODE = """
import json, sys
from flows.code_batch import code_batch
from tasks.parameters import ShardSettings
data, out, bundle = sys.argv[1:]
coded = code_batch(data=data, out=out, bundle=bundle, column="Text", top_k=2, threshold=0.5,
                   fan_out=ShardSettings(shards=2, patience_seconds=1000))
print(coded.model_dump_json())
"""


def test_a_file_that_two_workers_code_is_the_one_of_one_process(
    house: str, tiny_bundle: Path, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """One of them dies by SIGKILL at a shard, which another run takes up; every row has the answer it has alone. So has
    the command's file, though it is killed while they work: typed again, it goes on from what they did.
    """
    source, some = tmp_path / "in.jsonl", narratives(500)
    lines = [json.dumps({"id": n, "Text": some[n % len(some)] + f" {n}"}) for n in range(8 * 2048)]
    source.write_text("\n".join(lines) + "\n")
    coder = open_bundle(tiny_bundle)
    table = survey(source, text_columns=("Text",))
    alone = tmp_path / "alone.csv"
    job = coding_shards.job_of(coder, table, out=str(alone), column="Text", top_k=2, threshold=0.5)
    expected = code_alone(coder, job)
    with two_workers(house, tmp_path) as site:
        process = began(site, "-c", CODE, source, tmp_path / "out.csv", tiny_bundle)
        killed = kill_a_run(house, "shard", site.started)
        told = json.loads(ended(process))
        runs = {run["id"]: run for run in shards_of(house, "job")}
        resumed = _by_command(site, source, tmp_path / "typed.csv", tiny_bundle)
    assert (tmp_path / "typed.csv").read_bytes() == alone.read_bytes()
    assert resumed >= 2048, "at least the piece that was there"
    asked_for = [run for run in shards_of(house, "job") if run["id"] not in runs]
    assert len(asked_for) == 2, "the second command took over what the first had asked for"
    assert (tmp_path / "out.csv").read_bytes() == alone.read_bytes()
    assert (told["rows"], told["needs_review"]) == (expected.rows, expected.review)
    assert runs[killed]["state_type"] == "CRASHED"
    assert sorted(run["state_type"] for run in runs.values()) == ["COMPLETED"] * 2 + ["CRASHED"]
    text = json.dumps([*runs.values(), *asked_for])
    assert not [word for word in some[0].split() if len(word) > 5 and word in text]
    assert not list(tmp_path.glob(".out.csv*")), "nothing is left beside the output"


def _by_command(site: Site, source: Path, out: Path, bundle: Path) -> int:
    """`autocoder code --shards`, killed once a piece is there, and typed again; rows that the second one found."""
    command = ["-m", "flows.cli", "code", "--data", source, "--out", out, "--bundle", bundle]
    command += ["--text", "Text", "--top-k", "2", "--threshold", "0.5", "--shards", "2", "--json"]
    first = began(site, *command)
    while not list(out.with_name(f".{out.name}.coding").glob("shards-*/*.parquet")):
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.05)
    first.kill()
    first.communicate()
    assert not out.exists()
    return json.loads(ended(began(site, *command)))["resumed"]


def test_a_risk_pass_whose_shards_two_workers_do(
    house: str, storage: dict[str, str], finished: Job, tmp_path: Path
) -> None:
    """The risk pass is the unbroken single process's, byte for byte, so that all after it is reused.

    The shard that died ran again, alone.
    """
    with two_workers(house, tmp_path, pool="gpu", **storage) as site:
        job = finished.copy(tmp_path / "home")
        job = job.at(job.home, settings=(*job.settings, "release.enabled=false"), env=site.env)
        shutil.rmtree(job.home / "private" / "stages" / "risks")
        process = began(site, *job.arguments("--shards", "3")[1:])
        kill_a_run(house, "shard", site.started)
        ended(process)
    stages = {name: manifest for name, manifest in job.stages().items() if not name.startswith("risk-shard/")}
    assert stages == finished.stages()
    runs = shards_of(house, "purpose")
    assert sorted(run["state_type"] for run in runs) == ["COMPLETED"] * 3 + ["CRASHED"]
    for run in runs:
        check_parameters(run, storage)
    computed = site.made("risk-shard")
    assert sum(computed) == 3, "on the workers, each once"
    assert all(computed)


def test_a_comparison_whose_branches_two_workers_run(
    house: str, with_bucket: Site, storage: dict[str, str], finished: Job, tmp_path: Path
) -> None:
    """Stages and aggregates are a single process's."""
    from flows.commands.profiles import parameters

    here = finished.copy(tmp_path / "alone")
    wanted = parameters("demo", list(here.settings), data=here.data, codelist=here.codelist)
    context = Context(home=str(here.home), device="cpu")
    settings = Terms(epochs=2, target_epsilon=4)
    chosen = tuple(standard_branches()[name] for name in BRANCHES)
    alone = comparison.run(context, wanted, settings, chosen, do=partial(run_step, context))

    there = finished.copy(tmp_path / "home")
    command = ["-m", "flows.cli", "compare", "--home", str(there.home), *there.options()]
    command += ["--branches", ",".join(BRANCHES), "--seeds", "1", "--epochs", "2", "--epsilon", "4"]
    told = json.loads(ended(began(with_bucket, *command, "--spread", "--json")))
    expected = [json.loads(one.model_dump_json()) for one in summarise(alone.outcomes, context)]
    assert told["branches"] == expected
    names = ("branch-fit", "predictions", "scores", "swag")
    assert manifests(there.home, *names) == manifests(here.home, *names)
    runs = shards_of(house, "target")
    assert [run["state_type"] for run in runs] == ["COMPLETED"] * 2
    for run in runs:
        check_parameters(run, storage)
    assert sum(with_bucket.made("branch-shard")) == 2, "on the workers"


def _with_settings(job: Job, made: Job) -> Path:
    """The plan of another job as this one's own, and beside it what it was made with."""
    plan = job.planned_as(made)
    (settings,) = (made.home / "private" / "plans").glob("*.settings")
    plan.with_suffix(".settings").write_text(settings.read_text().replace(str(made.home), str(job.home)))
    return plan


def test_an_audit_whose_reruns_two_workers_do(
    house: str, with_bucket: Site, storage: dict[str, str], finished: Job, tmp_path: Path
) -> None:
    """The reruns and all that is measured from them are a single process's, byte for byte, though one worker dies with
    what it was at: its heartbeat stops, and another one does the shard.
    """
    here = finished.copy(tmp_path / "alone")
    planned, origin = Origin.of(_with_settings(here, finished))
    chosen = choose_branches(origin.branch, origin.parameters, origin.terms.all_branches)
    context = Context(home=str(here.home), device="cpu")
    alone = auditing.run(
        context,
        origin.parameters,
        origin.terms,
        AuditParameters.model_validate(AUDIT),
        chosen,
        do=partial(run_step, context),
        prefect_run_id=None,
        candidate=planned.candidate.fitted,
    )

    there = finished.copy(tmp_path / "home")
    plan = _with_settings(there, finished)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in AUDIT.items() if name != "power"]
    command = ("-m", "flows.cli", "audit", plan, "--no-power", "--shards", "2", "--json")
    process = began(with_bucket, *command, *options)
    killed = kill_a_run(house, "shard", with_bucket.started, with_worker=True)
    told = json.loads(ended(process))
    names = ("audit-pool", "audit-trials", "audit")
    assert manifests(there.home, *names) == manifests(here.home, *names)
    (mine,), (theirs,) = told["branches"], json.loads(alone.model_dump_json())["branches"]
    own = ("curves", "ledger_sequence")
    assert {k: v for k, v in mine.items() if k not in own} == {k: v for k, v in theirs.items() if k not in own}
    runs = {run["id"]: run for run in shards_of(house, "unit")}
    assert runs[killed]["state_type"] == "CRASHED"
    assert sorted(run["state_type"] for run in runs.values()) == ["COMPLETED"] * 2 + ["CRASHED"]
    for run in runs.values():
        check_parameters(run, storage)
