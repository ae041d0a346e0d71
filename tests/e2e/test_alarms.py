"""What the stack tells by itself: notifications that arrive, metrics of real runs; and a file coded
on it.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from runs import ended, in_state, release_run, releases, small, start
from sinks import Sink
from stack import has_card
from stacks import Stack

pytestmark = [pytest.mark.servers, pytest.mark.postgres, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def released(stack: Stack, officer: Path) -> str:
    """Id of a release of the population `demo`: that of test_production, or one made here."""
    rows = [
        row for row in releases(stack) if row.plan.population == "demo" and row.state == "committed"
    ]
    if rows:
        return str(rows[0].release_id)
    run = start(stack, "retrain/demo", small(stack)).json()
    assert stack.wait("the retrain", lambda: ended(stack, run["id"]))["state_type"] == "COMPLETED"
    asked = stack.wait("the release run", lambda: release_run(stack, run["id"]))
    stack.wait("its suspension", lambda: in_state(stack, asked["id"], "PAUSED"))
    posted = stack.command(
        "approve", asked["parameters"]["plan"], "--key", str(officer), "--yes", "--post"
    )
    assert posted.returncode == 0, posted.stderr
    stack.wait("the release", lambda: in_state(stack, asked["id"], "COMPLETED"))
    (row,) = releases(stack, of_run=run["id"])
    return str(row.release_id)


def test_a_failure_is_notified(stack: Stack, sink: Sink) -> None:
    """A file that is not there: refused in the first second of the run, and told with what to
    correct.
    """
    parameters = small(stack)
    parameters["parameters"]["source"] = "/no/such/records.csv"
    run = start(stack, "retrain/demo", parameters).json()
    assert stack.wait("its failure", lambda: ended(stack, run["id"]))["state_type"] == "FAILED"
    (text, *_) = stack.wait(
        "its notification",
        lambda: sink.having("failed", stack.run(run["id"])["name"], "/no/such/records.csv"),
    )
    assert "Traceback" not in text


def test_a_waiting_release_and_a_low_budget_are_notified(
    stack: Stack, sink: Sink, released: str
) -> None:
    """The first when it suspends, with its address; the second by housekeeping, from the ledger's
    own sums.
    """
    (waiting, *_) = stack.wait("the notification", lambda: sink.having("waits for an approval"))
    assert "/runs/flow-run/" in waiting
    assert start(stack, "housekeeping/housekeeping", {"low_share": 1.0}).is_success
    stack.wait("the notification", lambda: sink.having("Budget low", "demo"))
    account = sink.having("Budget low", "demo")[0]
    assert "has epsilon" in account


def test_metrics_of_the_runs_on_the_stack(stack: Stack, released: str) -> None:
    """Stages of the retrain, the budget, workers of the pools, runs by state:
    everything answers.
    """
    told = stack.command("status", "--prometheus")
    assert told.returncode == 0, told.stderr
    families = {
        family.name: family.samples for family in text_string_to_metric_families(told.stdout)
    }
    ended_well = {
        s.labels["stage"]
        for s in families["autocoder_stage_runs"]
        if s.labels["result"] == "computed"
    }
    assert {s.labels["stage"] for s in families["autocoder_stage_last_seconds"]} == ended_well
    assert ended_well >= {"ingest", "branch-fit", "predictions", "plan", "release"}
    assert {s.labels["part"]: s.value for s in families["autocoder_up"]} == {
        "ledger": 1,
        "server": 1,
    }
    assert {s.labels["pool"] for s in families["autocoder_workers_online"] if s.value} >= (
        {"cpu", "gpu"} if has_card() else {"cpu"}
    )
    assert any(s.labels["state"] == "completed" and s.value for s in families["autocoder_runs"])
    assert all(s.value > 0 for s in families["autocoder_budget_epsilon_left"])


def test_logs_are_json_lines_that_name_their_run(stack: Stack, released: str) -> None:
    """Of workers and of the runs that they start; a collector needs no pattern."""
    lines = (stack.folder / "logs" / "worker-cpu.log").read_text().splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert {"INFO", "ERROR"} <= {one["levelname"] for one in told}, "a run has failed"
    by_run: dict[str, set[str]] = {}
    for one in told:
        by_run.setdefault(one.get("flow_run_name") or "", set()).add(one.get("task_run_name") or "")
    assert any({"ingest", "features"} <= tasks for tasks in by_run.values()), by_run


def test_status_of_the_stack(stack: Stack, released: str) -> None:
    """Workers, runs and the ledger; exit code 1, since a run was refused."""

    workers_of_gpu = int(has_card())

    def status() -> dict[str, Any] | None:
        told = stack.command("status", "--json")
        assert told.returncode == 1, told.stderr
        found = json.loads(told.stdout)
        workers = found["server"]["workers"]
        return (
            found if (workers["cpu"], workers["gpu"]) == (2, workers_of_gpu) else None
        )  # a late heartbeat is no lost worker

    found = stack.wait("all workers", status)
    assert found["server"]["runs"]["Refused"] >= 1
    assert found["ledger"]["policy"] == "agency"
    assert found["open_releases"] == []


def test_a_file_is_coded_on_the_stack(stack: Stack, released: str, tmp_path: Path) -> None:
    """`code-batch` writes the rows of its input in their order, with codes added; its log holds no
    narrative.
    """
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    narratives = [
        f"Employee fell from a ladder and fractured his wrist, case {n}." for n in range(40)
    ]
    with source.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows(
            [["ID", "Final Narrative"], *([n, text] for n, text in enumerate(narratives))]
        )
    bundle = str(stack.home / "bundles" / released)
    run = start(
        stack, "code-batch/code-batch", {"data": str(source), "out": str(out), "bundle": bundle}
    ).json()
    done = stack.wait("the coding", lambda: ended(stack, run["id"]))
    assert done["state_type"] == "COMPLETED", done["state"]
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["Final Narrative"] for row in rows] == narratives
    added = set(rows[0]) - {"ID", "Final Narrative"}
    assert added
    assert not any("fractured" in line for line in stack.said(run["id"]))
