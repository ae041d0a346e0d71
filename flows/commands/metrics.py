"""Gives Prometheus the figures of stages, ledger and server, for `autocoder status --prometheus` and `--serve`."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.commands import options
from flows.commands.terminal import say
from storage.errors import InputError, StorageError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector


def show(workspace: Path, serve: str | None) -> None:
    """Prints stages, budgets, runs and workers in Prometheus' format, or serves them at ADDRESS:PORT.

    Each scrape reads the figures of runs in the workspace, the ledger, and the Prefect server (PREFECT_API_URL). A part
    that does not answer has `autocoder_up` 0.
    """
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server

    address, _, port = (serve or "").rpartition(":")
    if serve is not None and not (address and re.fullmatch(r"\d{1,5}", port) and int(port) < 65_536):
        raise InputError(f"--serve: {serve} is not ADDRESS:PORT. Give one such as 127.0.0.1:9464.")
    registry = CollectorRegistry()
    registry.register(_collector(workspace))
    if serve is None:
        say(generate_latest(registry).decode(), end="")
        return
    try:
        start_http_server(int(port), addr=address.strip("[]"), registry=registry)
    except OSError as error:
        raise InputError(f"--serve {serve}: {error.strerror or error}") from None
    say(f"http://{serve}/metrics", err=True)
    threading.Event().wait()


def _collector(workspace: Path) -> Collector:
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector

    context, settings = options.select_ledger(workspace)
    from tasks.releasing.budgets import ledger_overview
    from tasks.running import worker_metrics

    class Everything(Collector):
        """Collects stages from the workspace, and the rest from ledger and server, at each scrape."""

        def collect(self) -> Iterator[Metric]:
            yield from worker_metrics.families(worker_metrics.read(context.workspace.private))
            up = GaugeMetricFamily("autocoder_up", "1 where it answers", labels=["part"])
            try:
                yield from _ledger(ledger_overview(context, settings))
                up.add_metric(["ledger"], 1)
            except StorageError:
                up.add_metric(["ledger"], 0)
            if "PREFECT_API_URL" in os.environ:
                from flows.server.waiting_runs import overview

                try:
                    yield from _server(overview())
                    up.add_metric(["server"], 1)
                except StorageError:
                    up.add_metric(["server"], 0)
            yield up

        def describe(self) -> Iterator[Metric]:
            """Describe nothing: registration must not read the ledger."""
            return iter(())

    return Everything()


def _ledger(overview: dict[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["population", "cohort", "guarantee_kind"]
    left = GaugeMetricFamily("autocoder_budget_epsilon_left", "epsilon left of an account", labels=labels)
    cap = GaugeMetricFamily("autocoder_budget_epsilon_cap", "its cap", labels=labels)
    for line in overview["budget"]:
        account = [line["population"], line["cohort"], line["guarantee_kind"]]
        if line["epsilon_cap"] is not None:
            left.add_metric(account, float(line["epsilon_left"]))
            cap.add_metric(account, float(line["epsilon_cap"]))
    yield left
    yield cap
    yield GaugeMetricFamily(
        "autocoder_open_releases", "releases neither committed nor burned", value=len(overview["open_releases"])
    )
    wait = sum(bool(plan["missing"]) and not plan["refused"] for plan in overview["plans"])
    yield GaugeMetricFamily("autocoder_plans_waiting", "plans whose approvals are missing", value=wait)


def _server(overview: dict[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    runs = GaugeMetricFamily("autocoder_runs", "runs of the last seven days by state", labels=["state"])
    for state, count in overview["runs"].items():
        runs.add_metric([state.lower()], count)
    workers = GaugeMetricFamily("autocoder_workers_online", "workers that answer, by pool", labels=["pool"])
    for pool, online in overview["workers"].items():
        workers.add_metric([pool], online)
    mean = GaugeMetricFamily("autocoder_run_wait_seconds", "mean wait of runs of seven days, by pool", labels=["pool"])
    longest = GaugeMetricFamily("autocoder_run_longest_wait_seconds", "the longest of them", labels=["pool"])
    for pool, waited in overview["waits"].items():
        mean.add_metric([pool], waited["seconds"] / waited["begun"])
        longest.add_metric([pool], waited["longest"])
    yield from (runs, workers, mean, longest)
