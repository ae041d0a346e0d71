#!/usr/bin/env python
"""Measures the cost of Prefect: a retrain with and without it, many shards, two workers against one.

    python benchmarks/orchestration.py overhead --data osha.csv --codelist oiics201_nature.csv [--profile osha-head]
    python benchmarks/orchestration.py overhead --profile demo
    python benchmarks/orchestration.py submission [--shards 1000] [--database postgresql+asyncpg://…]
    python benchmarks/orchestration.py workers [--draws 20]

Claim 1: orchestration takes less than 5 % of a retrain of `osha-head`, and under 15 s of the demo, against the same
stages and the same release called in plain Python: each a process of its own, Prefect's import (which the plain one
can't avoid) counted to orchestration. The server runs already, as in production (or the command starts its own).
Claim 2: asking for the last of 1,000 shards takes at most 1.5 times what the first took.
Claim 3: two workers of one thread each finish a risk pass in at most 0.6 of the time of one.
The server is Prefect's own, on SQLite unless --database names another, as production has. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.fitting.ingest import ingest_records

PLAIN = """
import time
before = time.perf_counter()
import prefect.flows, prefect.tasks, prefect.client.orchestration, prefect.artifacts
result = {"import": time.perf_counter() - before, "stages": {}}
import json, sys
from pathlib import Path
from flows.commands import profiles
from tasks.releasing import publish
from tasks.retraining import run as retraining
from tasks.running.progress import Listener, listening
from tasks.running.stage import Context, run_step

class Seconds(Listener):
    def finished(self, label, figures, *, reused, seconds):
        result["stages"][label] = seconds

home, profile, data, codelist = sys.argv[1:]
parameters = profiles.parameters(profile, [], data=Path(data), codelist=Path(codelist))
context = Context(home=home)
context.workspace.create()
with listening(Seconds()):
    made = retraining.run(context, parameters, lambda step: run_step(context, step), prefect_run_id=None)
    planned, _ = publish.keep_plan(context, made.planned, parameters.release)
    publish.release.fn(context, planned, parameters.release)
print(json.dumps(result))
"""
"""A retrain without a flow, a task or a server."""


def main() -> None:
    """Runs the requested part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("overhead", "submission", "workers"))
    parser.add_argument("--data", type=Path, help="records (default: invented ones)")
    parser.add_argument("--codelist", type=Path, help="their code list")
    parser.add_argument("--profile", default="osha-head")
    parser.add_argument("--own-server", action="store_true", help="let the command start Prefect's server itself")
    parser.add_argument("--repeats", type=int, default=1, help="of the overhead, interleaved (default: 1)")
    parser.add_argument("--shards", type=int, default=1000, help="shards to ask for (default: 1000)")
    parser.add_argument("--database", help="URL of an empty PostgreSQL database for Prefect's server (default: SQLite)")
    parser.add_argument("--draws", type=int, default=20, help="draws of the pass that the workers share (default: 20)")
    options = parser.parse_args()
    part = {"overhead": overhead, "submission": submission, "workers": workers}[options.part]
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"part": options.part, "cores": os.cpu_count()} | part(options, Path(folder)), indent=1))


# -- claim 1 -----------------------------------------------------------------------------------------------


def overhead(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The command against the same in plain Python; they take turns at being first."""
    data, codelist = records(options, folder, number=2000)
    job = [options.profile, str(data), str(codelist)]
    sides: dict[str, list[dict[str, Any]]] = {"plain": [], "orchestrated": []}
    with server(folder, options.database) as api:
        env = environment() if options.own_server else environment(PREFECT_API_URL=api)
        for repeat in range(options.repeats):
            for side in sorted(sides, reverse=repeat % 2 == 0):
                home = folder / f"{side}-{repeat}"
                sides[side].append(plain(home, *job) if side == "plain" else orchestrated(home, *job, env=env))
                shutil.rmtree(home)
    pairs = list(zip(sides["plain"], sides["orchestrated"], strict=True))
    costs = [b["wall"] - a["wall"] for a, b in pairs]
    return {
        "profile": options.profile,
        "server": "started by the command" if options.own_server else "running",
        "seconds": {side: [shown(one) for one in runs] for side, runs in sides.items()},
        "costs_s": [round(cost, 1) for cost in costs],
        "cost_s": round(statistics.median(costs), 1),
        "cost_share": round(statistics.median(c / a["wall"] for c, (a, _) in zip(costs, pairs, strict=True)), 3),
        "cost_processor_s": round(statistics.median(b["processor"] - a["processor"] for a, b in pairs), 1),
        "targets": {"osha-head cost_share": 0.05, "demo cost_s": 15},
    }


def plain(home: Path, *job: str) -> dict[str, Any]:
    """Seconds of the plain process, by the clock and of its processor, and of its stages; without Prefect's import."""
    with processor() as used:
        wall, output = timed([sys.executable, "-c", PLAIN, str(home), *job], environment())
    inner = json.loads(output)
    away = inner["import"]
    return {"wall": wall - away, "processor": used[0] - away, "import": away, "stages": inner["stages"]}


def orchestrated(home: Path, profile: str, data: str, codelist: str, *, env: Mapping[str, str]) -> dict[str, Any]:
    """The same of the command, whose stages' seconds are those of its metrics."""
    from tasks.running import worker_metrics

    command = [sys.executable, "-m", "flows.cli", "retrain", "--release", "--quiet", "--home", str(home)]
    command += ["--profile", profile, "--data", data, "--codelist", codelist]
    with processor() as used:
        wall, _ = timed(command, env)
    samples = worker_metrics.read(home / "private").items()
    seconds = {dict(labels)["stage"]: s for (name, labels), s in samples if name == "autocoder_stage_last_seconds"}
    return {"wall": wall, "processor": used[0], "stages": seconds}


def shown(one: dict[str, Any]) -> dict[str, Any]:
    """The seconds of a side, with what is left outside the stages."""
    outside = one["wall"] - sum(one["stages"].values())
    rounded = {name: round(s, 1) for name, s in one.items() if name != "stages"} | {"outside": round(outside, 1)}
    return rounded | {"stages": {label: round(s, 2) for label, s in one["stages"].items()}}


@contextmanager
def processor() -> Iterator[list[float]]:
    """Processor seconds of the processes that were started and ended within."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    taken = [used()]
    yield taken
    taken[0] = used() - taken[0]


# -- claim 2 -----------------------------------------------------------------------------------------------


def submission(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Asks for many shards that nobody computes; seconds of each request, and of a look at all of them."""
    from storage.artifacts import ArtifactRef, digest
    from tasks.fitting.risks import Draws
    from tasks.parameters import FanOut
    from tasks.running.shard_runs import ShardRuns, StageRequest
    from tasks.running.shards import place_of
    from tasks.running.stage import Context

    names = ("dataset", "prepared", "posterior", "weights")
    refs = {n: ArtifactRef(kind=n, uri=f"file:///w/stages/{n}/{'0' * 32}", sha256="0" * 64) for n in names}
    whole: Any = {"model": {}, "seed": 1, "std_scale": 1, "purpose": "risk", "end": options.shards}
    shards = Draws.model_validate(whole).split(options.shards)
    times, ids = [], []
    with server(folder, options.database) as api, deployed(api, folder):
        context = Context(home=str(folder), fan_out=FanOut(shards=options.shards))
        with ShardRuns.connect(context.fan_out.deployment, place_of(context)) as runs:
            for draws in shards:
                request = StageRequest[Draws](settings=draws, inputs=refs, key=digest(draws.first)[:32])
                started = time.perf_counter()
                ids.append(runs.start(request, label=draws.label))
                times.append(time.perf_counter() - started)
            started = time.perf_counter()
            seen = len(runs.states(ids))
            look = time.perf_counter() - started
    some = max(1, min(50, len(times) // 4))
    ends = {"first": times[1 : some + 1], "last": times[-some:], "all": times}
    return {
        "shards": seen,
        "database": "SQLite" if options.database is None else options.database.split(":")[0],
        "submission_s": round(sum(times), 1),
        "median_ms": {end: round(1000 * statistics.median(taken), 1) for end, taken in ends.items()},
        "mean_ms": {end: round(1000 * statistics.mean(taken), 1) for end, taken in ends.items()},
        "longest_s": round(max(times), 1),
        "over_one_second": sum(t > 1 for t in times),
        "last_over_first": round(statistics.median(ends["last"]) / statistics.median(ends["first"]), 3),
        "look_at_all_s": round(look, 2),
        "target": 1.5,
    }


# -- claim 3 -----------------------------------------------------------------------------------------------


def workers(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same pass, four shards, by one worker and by two, each in a workspace that holds what the pass reads."""
    import torch

    from flows.commands import profiles
    from mechanisms.posterior.config import SwagConfig
    from tasks.fitting import data, train
    from tasks.fitting import risks as posterior
    from tasks.parameters import FanOut
    from tasks.running.stage import Context, run_step

    torch.set_num_threads(1)
    source, codelist = records(options, folder, number=200)
    # All of the encoder is drawn: a pass that takes longer than its workers' processes take to start.
    settings = ["model.trainable=full", "model.pooling=first", "fit.adamw.epochs=1", "fit.sgd.epochs=2"]
    settings += ["fit.swag.rank=2", f"pseudo_posterior.risk_draws={options.draws}"]
    chosen = profiles.parameters("demo", settings, data=source, codelist=codelist)
    model, fit, config = chosen.model, chosen.fit, chosen.pseudo_posterior
    assert isinstance(fit.swag, SwagConfig)
    fitted = Context(home=str(folder / "fitted"), device="cpu")
    fitted.workspace.create()

    def risks(context: Context) -> Any:
        """The pass; what it reads is there already, but in the first workspace."""
        dataset = run_step(context, ingest_records(chosen.data))
        prepared = run_step(context, data.prepare(model, dataset, seed=fit.seed))
        base = train.Round("base", model, fit, dataset, prepared)
        tuned = run_step(context, train.fine_tune(base))
        return posterior.measure(base, config, posterior=run_step(context, train.collect_swag(base, tuned=tuned)))

    risks(fitted)
    seconds: dict[str, float] = {}
    digests = set()
    with server(folder, options.database) as api, deployed(api, folder):
        for number in (1, 2):
            home = folder / f"home-{number}"
            shutil.copytree(fitted.home, home)
            context = Context(home=str(home), device="cpu", fan_out=FanOut(shards=4, patience_seconds=3600))
            step = risks(context)
            with serving(api, folder, number):
                started = time.perf_counter()
                digests.add(run_step(context, step).sha256)
                seconds[str(number)] = round(time.perf_counter() - started, 1)
    started = time.perf_counter()
    step = risks(fitted)
    digests.add(run_step(fitted, step).sha256)
    alone = time.perf_counter() - started
    assert len(digests) == 1, "the passes differ"
    return {
        "draws": options.draws,
        "shards": 4,
        "seconds_by_workers": seconds,
        "two_over_one": round(seconds["2"] / seconds["1"], 3),
        "one_process_s": round(alone, 1),
        "target": 0.6,
    }


# -- surroundings ------------------------------------------------------------------------------------------


def records(options: argparse.Namespace, folder: Path, *, number: int) -> tuple[Path, Path]:
    """The files that were given, or invented ones."""
    from storage.demo_data import write_demo_data

    if options.data is not None and options.codelist is not None:
        return options.data.resolve(), options.codelist.resolve()
    if options.profile != "demo" and options.part == "overhead":
        sys.exit("--data and --codelist: name the records of this profile")
    written = write_demo_data(folder / "data", records=number, seed=1)
    return written.csv, written.codelist


def environment(**changes: str) -> dict[str, str]:
    """Returns the environment of a user without settings of ours or of Prefect's."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "AUTOCODER_"))}
    quiet = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "OMP_WAIT_POLICY": "PASSIVE"}
    return inherited | quiet | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)} | changes


def timed(command: list[str], env: Mapping[str, str]) -> tuple[float, str]:
    """Wall seconds of a command that must succeed, and its output."""
    started = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - started, done.stdout


@contextmanager
def server(folder: Path, database: str | None) -> Iterator[str]:
    """Prefect's server on the database, or on SQLite; gives the API's address."""
    import httpx

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    env = environment(PREFECT_HOME=str(folder / "server"))
    if database is not None:
        env["PREFECT_API_DATABASE_CONNECTION_URL"] = database
    process = start(command, env)
    try:
        for _ in range(900):
            try:
                if httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=2).status_code == httpx.codes.OK:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        else:
            sys.exit("the server did not start")
        yield f"http://127.0.0.1:{port}/api"
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def deployed(api: str, folder: Path) -> Iterator[None]:
    """The deployments applied, and this process turned to the server."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    env = environment(PREFECT_API_URL=api, PREFECT_HOME=str(folder / "deploy"))
    timed([sys.executable, "-m", "flows.cli", "deploy"], env)
    os.environ["PREFECT_API_URL"] = api
    with temporary_settings({PREFECT_API_URL: api}):
        yield
    del os.environ["PREFECT_API_URL"]


@contextmanager
def serving(api: str, folder: Path, number: int) -> Iterator[None]:
    """So many workers of the GPU pool, one thread and one run at a time each."""
    processes = []
    for i in range(number):
        env = environment(PREFECT_API_URL=api, PREFECT_HOME=str(folder / f"worker-{number}-{i}"))
        env |= {"PREFECT_WORKER_QUERY_SECONDS": "2", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "gpu", "--limit", "1"]
        processes.append(start([*command, "--name", f"worker-{number}-{i}"], env))
    try:
        wait_for_workers(api, number)
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def wait_for_workers(api: str, number: int) -> None:
    """Returns when so many workers of the pool have reported to the server."""
    import httpx

    for _ in range(300):
        pool_workers = httpx.post(f"{api}/work_pools/gpu/workers/filter", json={}, timeout=30).json()
        if sum(w["name"].startswith(f"worker-{number}-") for w in pool_workers) == number:
            return
        time.sleep(0.2)
    sys.exit("the workers did not start")


def start(command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process in the background."""
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
