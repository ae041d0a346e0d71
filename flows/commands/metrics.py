"""Provides the figures of stages, ledger and server to Prometheus, for `autocoder status
--prometheus` and `--serve`.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.commands.ledger_options import select_ledger
from flows.commands.terminal import say
from storage.errors import InputError, OutOfRange, StorageError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from flows.server.waiting_runs import ServerOverview
    from tasks.parameters import LedgerParameters
    from tasks.releasing.budgets import LedgerOverview
    from tasks.running.stage import Context

_ACCOUNT = ("population", "cohort", "guarantee_kind")
TIMES = {
    "ledger_verified": ("ledger-head.json", "when ledger-verify last passed, seconds since 1970"),
    "head_exported": ("head-exported", "when a head was last exported, seconds since 1970"),
    "backed_up": ("backed-up", "when a backup last finished, seconds since 1970"),
}
"""Metrics that are modification times of files in the private workspace. `ledger export head`
writes the second file, and the operator's backup must touch the third.
"""


def show(workspace: Path, serve: str | None) -> None:
    """Prints stages, budgets, runs and workers in Prometheus' format, or serves them at
    ADDRESS:PORT.

    Each scrape reads the figures of runs in the workspace, the ledger, and the Prefect server
    (PREFECT_API_URL). If a part does not answer, its `autocoder_up` is 0.
    """
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.registry import Collector

    figures = Figures(workspace)

    class Everything(Collector):
        def collect(self) -> Iterator[Metric]:
            return figures.families()

        def describe(self) -> Iterator[Metric]:
            return iter(())  # registration must not read the ledger

    address, _, port = (serve or "").rpartition(":")
    if serve is not None and not (
        address and re.fullmatch(r"\d{1,5}", port) and int(port) < 65_536
    ):
        raise OutOfRange(
            f"--serve: {serve} is not ADDRESS:PORT. Expected something like 127.0.0.1:9464.",
            kind="serving-address",
        )
    registry = CollectorRegistry()
    registry.register(Everything())
    if serve is None:
        say(generate_latest(registry).decode(), end="")
        return
    try:
        start_http_server(int(port), addr=address.strip("[]"), registry=registry)
    except OSError as error:
        raise InputError(
            f"--serve {serve}: {error.strerror or error}", kind="cannot-serve-metrics"
        ) from None
    say(f"http://{serve}/metrics", err=True)
    threading.Event().wait()


class Figures:
    """The figures of one workspace.

    Scrapes are frequent, and must not replay the ledger and load every plan each time. Results are
    therefore kept until the ledger's head or a file of the plans changes.
    """

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._known: tuple[object, list[Metric]] | None = None

    def families(self) -> Iterator[Metric]:
        """Yields all metric families. If a part does not answer, its `autocoder_up` is 0."""
        context, settings = select_ledger(self._workspace)
        from tasks.running import worker_metrics

        private = context.workspace.private
        yield from worker_metrics.families(private)
        yield from of_workspace(private)
        up: dict[str, float] = {}
        try:
            yield from self._ledger(context, settings)
            up["ledger"] = 1
        except StorageError:
            up["ledger"] = 0
        if "PREFECT_API_URL" in os.environ:
            from flows.server.waiting_runs import overview

            try:
                yield from of_server(overview())
                up["server"] = 1
            except StorageError:
                up["server"] = 0
        yield _gauge(
            "up", "1 if it answers", ["part"], (([part], value) for part, value in up.items())
        )

    def _ledger(self, context: Context, settings: LedgerParameters) -> list[Metric]:
        from tasks.releasing.budgets import ledger_overview
        from tasks.releasing.ledger_access import existing_ledger

        ledger = existing_ledger(context, settings)
        state = (
            None if ledger is None else ledger.head(),
            _stamps(context.workspace.private / "plans"),
        )
        if self._known is None or self._known[0] != state:
            self._known = state, list(of_ledger(ledger_overview(context, settings)))
        return self._known[1]


def _stamps(folder: Path) -> tuple[tuple[str, int], ...]:
    """Returns the files below a folder with their modification times."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return tuple(sorted((str(path), path.stat().st_mtime_ns) for path in files))


def of_workspace(private: Path) -> Iterator[Metric]:
    """Yields metrics of the workspace's disk and files; none before there is a workspace."""
    if not private.is_dir():
        return
    disk = shutil.disk_usage(private)
    yield _gauge(
        "disk_free_ratio", "free share of the workspace's disk", (), [([], disk.free / disk.total)]
    )
    for name, (file, text) in TIMES.items():
        if (private / file).is_file():
            when = (private / file).stat().st_mtime
            yield _gauge(f"{name}_timestamp_seconds", text, (), [([], when)])


def of_ledger(overview: LedgerOverview) -> Iterator[Metric]:
    capped = [
        ([line["population"], line["cohort"], line["guarantee_kind"]], line)
        for line in overview["budget"]
        if line["epsilon_cap"]
    ]
    remaining = ((account, line["epsilon_left"]) for account, line in capped)
    yield _gauge("budget_epsilon_left", "epsilon left of an account", _ACCOUNT, remaining)
    caps = ((account, line["epsilon_cap"]) for account, line in capped)
    yield _gauge("budget_epsilon_cap", "its cap", _ACCOUNT, caps)
    yield _gauge(
        "open_releases",
        "releases neither committed nor burned",
        (),
        [([], len(overview["open_releases"]))],
    )
    waiting = sum(bool(plan["missing"]) and not plan["refused"] for plan in overview["plans"])
    yield _gauge("plans_waiting", "plans that wait for approvals", (), [([], waiting)])


def of_server(overview: ServerOverview) -> Iterator[Metric]:
    runs = (([state.lower()], count) for state, count in overview["runs"].items())
    yield _gauge("runs", "runs of the last seven days by state", ["state"], runs)
    online = (([pool], count) for pool, count in overview["workers"].items())
    yield _gauge("workers_online", "workers that answer, by pool", ["pool"], online)
    waits = overview["waits"].items()
    mean = (([pool], waited["seconds"] / waited["begun"]) for pool, waited in waits)
    yield _gauge("run_wait_seconds", "mean wait of runs in seven days, by pool", ["pool"], mean)
    longest = (([pool], waited["longest"]) for pool, waited in waits)
    yield _gauge("run_longest_wait_seconds", "longest wait, by pool", ["pool"], longest)
    polled = (([queue["pool"], queue["queue"]], queue["polled"]) for queue in overview["queues"])
    yield _gauge(
        "queue_polled_timestamp_seconds",
        "when a worker last asked for runs of a queue, seconds since 1970",
        ["pool", "queue"],
        polled,
    )
    yield _gauge("runs_silent", "running runs without a heartbeat", (), [([], overview["silent"])])


def _gauge(
    name: str, text: str, labels: Iterable[str], samples: Iterable[tuple[list[str], Any]]
) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"autocoder_{name}", text, labels=list(labels))
    for values, value in samples:
        family.add_metric(values, float(value))
    return family
