"""deployments/monitoring against what `autocoder status --serve` tells, and in a Prometheus of
Debian's.
"""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from stack import free_port

from flows.commands.metrics import TIMES, Figures, of_ledger, of_server, of_workspace
from storage.ledger import Ledger, Policy
from storage.paths import Workspace
from tasks.releasing import budgets
from tasks.running import worker_metrics

MONITORING = Path(__file__).resolve().parents[2] / "deployments" / "monitoring"
_SCRAPED = {"up": {"job", "instance"}}
"""What Prometheus adds by itself."""


class Everything(Collector):
    """Every family that there is, made by the command's own functions; a stage ended, one runs, one
    failed.
    """

    def collect(self) -> Iterator[Metric]:
        with tempfile.TemporaryDirectory() as private:
            listener = worker_metrics.MetricsListener(Path(private), "retrain", host="a")
            listener.started("fit")
            listener.sized("fit", 100)
            for done in range(3):
                listener.report("fit", done, 2)
            with (
                patch("torch.cuda.is_available", return_value=True),
                patch("torch.cuda.max_memory_allocated", int),
            ):
                listener.finished("fit", {}, reused=False, seconds=1)
            listener.started("head")
            listener.failed("head")
            listener.started("risks")
            yield from worker_metrics.families(Path(private))
            for file, _ in TIMES.values():
                (Path(private) / file).touch()
            yield from of_workspace(Path(private))
        account: Any = {
            "population": "p",
            "cohort": "2015",
            "guarantee_kind": "k",
            "epsilon_cap": "4",
            "epsilon_left": "1",
        }
        ledger: Any = {"budget": [account], "open_releases": [], "plans": []}
        yield from of_ledger(ledger)
        server: Any = {
            "runs": {"FAILED": 1, "CRASHED": 0},
            "workers": {"cpu": 1},
            "waits": {"cpu": {"begun": 2, "seconds": 3, "longest": 2}},
            "queues": [{"pool": "cpu", "queue": "release", "polled": 1.0}],
            "silent": 0,
        }
        yield from of_server(server)
        up = GaugeMetricFamily("autocoder_up", "as in flows.commands.metrics", labels=["part"])
        up.add_metric(["ledger"], 1)
        yield up


def exposed() -> dict[str, set[str]]:
    found: dict[str, set[str]] = dict(_SCRAPED)
    for family in Everything().collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard() -> dict[str, Any]:
    return json.loads((MONITORING / "dashboard.json").read_text())


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    return yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]


def names(expression: str) -> set[str]:
    """Metrics in a PromQL expression: words before a selector or on their own that are no function,
    word or label.
    """
    bare = re.sub(r"\{[^}]*\}|by \([^)]*\)|\[\w+\]|offset \w+", " ", expression)
    words = set(re.findall(r"\b([a-z_]+)\b(?!\s*\()", bare))
    return words - {"and", "or", "unless", "by", "on"}


def test_every_metric_and_label_that_is_asked_for_is_told() -> None:
    """By dashboard and alarms; and the dashboard shows every metric, so that a new one is not
    forgotten.
    """
    told = exposed()
    for expression in (*queries(), *(rule["expr"] for rule in rules())):
        assert names(expression), expression
        for name in names(expression):
            assert name in told, f"{name} in {expression}"
        for label in re.findall(r"(\w+)=\"", expression):
            assert any(label in told[name] for name in names(expression)), (
                f"{label} in {expression}"
            )
    asked = set().union(*(names(expression) for expression in queries()))
    assert asked == set(told) - set(_SCRAPED)
    for target in (target for panel in dashboard()["panels"] for target in panel["targets"]):
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert all(label in told[name] for name in names(target["expr"]) & set(told)), target


def promtool(*arguments: str) -> None:
    if not shutil.which("promtool"):
        pytest.skip("needs promtool (Debian: prometheus)")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alarms_are_sound_and_fire_when_they_should(tmp_path: Path) -> None:
    """Prometheus' own tool: the rules, the settings, and hours or days of samples for each alarm,
    quiet ones included.
    """
    promtool("check", "rules", str(MONITORING / "alerts.yml"))
    promtool("check", "config", str(MONITORING / "prometheus.yml"))
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    files = [tmp_path / "alerts_test.yml", tmp_path / "alerts_of_days_test.yml"]
    for file in files:
        shutil.copy(Path(__file__).with_name(file.name), file)
    promtool("test", "rules", *map(str, files))
    fired = {
        case["alertname"]
        for file in files
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test["alert_rule_test"]
        if "exp_alerts" in case
    }
    assert fired == {rule["alert"] for rule in rules()}


def test_the_ledger_is_folded_again_only_when_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between scrapes the exporter keeps what it read: a new row or another file among the plans
    makes it read once more.
    """
    workspace = Workspace(tmp_path).create()
    ledger = Ledger.open(workspace.ledger_url)
    folds = 0

    def counted(*given: Any) -> Any:
        nonlocal folds
        folds += 1
        return overview(*given)

    overview = budgets.ledger_overview
    monkeypatch.setattr(budgets, "ledger_overview", counted)
    figures = Figures(workspace.home)
    for expected, change in (
        (1, lambda: None),
        (1, lambda: None),
        (2, lambda: change_policy(ledger)),
        (2, lambda: None),
        (3, lambda: plant_plan(workspace)),
        (3, lambda: None),
    ):
        change()
        (up,) = [family for family in figures.families() if family.name == "autocoder_up"]
        assert up.samples[0].value == 1
        assert folds == expected


def change_policy(ledger: Ledger) -> None:
    policy = Policy.parse({"name": "p", "default": {"formal": {"epsilon": 3, "delta": "0.0001"}}})
    ledger.change_policy(policy, requester="lead", reason="test")


def plant_plan(workspace: Workspace) -> None:
    (workspace.private / "plans").mkdir()
    (workspace.private / "plans" / "p.json").write_text("{}")


@pytest.mark.servers
def test_a_prometheus_reads_it_and_answers_the_dashboard(tmp_path: Path) -> None:
    """Scraped over HTTP with the settings of the project; each panel's question has an answer, an
    alarm fires.
    """
    if not shutil.which("prometheus"):
        pytest.skip("needs prometheus (Debian: prometheus)")
    registry = CollectorRegistry()
    registry.register(Everything())
    served, _ = start_http_server(0, addr="127.0.0.1", registry=registry)
    settings = (
        (MONITORING / "prometheus.yml")
        .read_text()
        .replace("metrics:9464", f"127.0.0.1:{served.server_port}")
    )
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    (tmp_path / "prometheus.yml").write_text(re.sub(r"\b[23]0s\b", "1s", settings))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:

        def ask(expression: str) -> list[Any]:
            try:
                answer = httpx.get(
                    f"http://127.0.0.1:{port}/api/v1/query",
                    params={"query": expression},
                    timeout=30,
                )
            except httpx.TransportError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                return []
            if answer.status_code == 503:  # it is still starting
                return []
            assert answer.json()["status"] in ("success", "error"), answer.text
            return answer.json()["data"]["result"] if answer.is_success else []

        for expression in (
            *queries(),
            'ALERTS{alertname="AutocoderStageFailed", alertstate="firing"}',
        ):
            while not ask(expression):  # the test's own time limit ends what never comes
                time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(60)
        served.shutdown()
        served.server_close()
