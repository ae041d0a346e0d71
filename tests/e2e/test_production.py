"""The production stack as an agency runs it: retrain, wait, approve, release, through crashes; who
may do what. The tests go on from each other's state, in their order.
"""

import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from runs import ended, in_state, processes_of, releases, small, start, with_settings
from stacks import Stack

from storage.ledger.content import release_terms
from storage.ledger.decisions import sign
from storage.ledger.keys import load_private_key
from tasks.releasing.plan import PlannedRelease

pytestmark = [pytest.mark.servers, pytest.mark.postgres, pytest.mark.timeout(2400)]


def test_the_api_refuses_whoever_does_not_log_in(stack: Stack) -> None:
    for path in ("/flow_runs/filter", "/deployments/filter", "/admin/database/clear"):
        assert httpx.post(f"{stack.api}{path}", json={}, timeout=30).status_code == 401
        assert (
            httpx.post(
                f"{stack.api}{path}", json={}, auth=("operator", "guess"), timeout=30
            ).status_code
            == 401
        )
    assert stack.post("/flow_runs/filter").status_code == 200


def test_each_role_reaches_its_own_database_and_nobody_changes_history(stack: Stack) -> None:
    """Prefect's role does not see the ledger; the pipeline's role may add to it,
    and nothing else.
    """

    def connect(role: str, database: str) -> psycopg.Connection:
        return psycopg.connect(
            stack.ledger_url(role, database).replace("+psycopg", ""), autocommit=True
        )

    for role, database in (
        ("prefect", "ledger"),
        ("autocoder", "prefect"),
        ("ledger_owner", "prefect"),
    ):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            connect(role, database)
    with connect("autocoder", "ledger") as connection:
        connection.execute("SELECT count(*) FROM ledger_row")
        for statement in (
            *("UPDATE ledger_row SET body = ''", "DELETE FROM ledger_row", "TRUNCATE ledger_row"),
            *("DROP TABLE ledger_row", "ALTER TABLE ledger_row DISABLE TRIGGER ALL"),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_the_nightly_check_is_laid_up_ahead_and_the_example_is_paused(stack: Stack) -> None:
    """The check of the ledger is in the database long before its hour, so that no one has to be
    there to schedule it then; the quarterly training, an example, is not.
    """

    def scheduled(name: str) -> list[dict[str, Any]]:
        wanted = {"deployments": {"id": {"any_": [stack.deployment(name)["id"]]}}}
        return stack.post("/flow_runs/filter", wanted).json()

    (first, *_) = stack.wait("its schedule", lambda: scheduled("ledger-verify/ledger-verify"))
    assert first["state_type"] == "SCHEDULED"
    hour = datetime.fromisoformat(first["expected_start_time"].replace("Z", "+00:00"))
    assert (hour.hour, hour.minute) == (2, 17)
    assert scheduled("retrain/osha-formal") == []


def test_a_wrong_value_is_refused_when_the_form_is_sent(stack: Stack) -> None:
    """A file, a column and a text of the wrong kind by the server, and no run comes of it."""
    for field, wrong in (
        ("advanced", {"method": {}}),
        ("source", ""),
        ("label_column", ""),
        ("mechanism", "formal"),
    ):
        parameters = small(stack)
        parameters["parameters"][field] = wrong
        response = start(stack, "retrain/demo", parameters)
        assert response.status_code == 409, response.text
        assert "Validation failed" in response.text


def test_a_wrong_setting_ends_the_run_with_its_name(stack: Stack) -> None:
    """Out of range and misspelt: what is in the YAML text is read when the run begins."""
    runs = []
    for name, value, said in (
        ("epochs", -1, "method.fine_tune.epochs: must be at least 1"),
        ("epocs", 3, "Did you mean method.fine_tune.epochs"),
    ):
        parameters = with_settings(small(stack), {"method": {"fine_tune": {name: value}}})
        runs.append((start(stack, "retrain/demo", parameters).json(), said))
    for run, said in runs:
        done = stack.wait("its end", lambda run=run: ended(stack, run["id"]))
        assert done["state_type"] == "FAILED"
        assert said in done["state"]["message"]


def test_killed_in_training_it_is_taken_up_and_asks_for_approval(
    stack: Stack, officer: Path
) -> None:
    """A scheduled training run whose process dies by SIGKILL continues, and ends with one release
    run that waits.
    """
    # more than the kill takes, on a fast machine too
    parameters = with_settings(small(stack), {"method": {"fine_tune": {"epochs": 50}}})
    run = start(stack, "retrain/demo", parameters, after=3).json()
    stages = stack.home / "private" / "stages"
    stack.wait("its features", lambda: list(stages.glob("features/*/manifest.json")), pause=0.02)
    victims = processes_of(run)
    assert victims
    for process in victims:
        process.kill()
    done = stack.wait("the retrain's end", lambda: ended(stack, run["id"]))
    assert done["state_type"] == "COMPLETED", done["state"]
    assert done["run_count"] == 2, "resumed once"

    (asked,) = stack.wait("a release run", lambda: stack.runs("release"))
    waiting = stack.wait("its suspension", lambda: in_state(stack, asked["id"], "PAUSED"))
    assert waiting["state_name"] == "Suspended"
    stack.wait("the worker's release", lambda: not processes_of(asked))
    assert releases(stack) == []
    artifacts = {a["key"]: a for a in stack.post("/artifacts/filter").json() if a["key"]}
    assert "asymptotic-local" in artifacts["release-plan"]["data"]
    assert "autocoder approve" in artifacts["release-plan"]["data"]


def test_everything_may_die_while_it_waits(stack: Stack) -> None:
    """PostgreSQL, Redis, server, services and workers by SIGKILL: they come back, and the run still
    waits.
    """
    before = stack.state["processes"]
    (waiting,) = stack.runs("release")
    for process in before.values():
        os.kill(process, signal.SIGKILL)
    stack.wait(
        "the restart",
        lambda: all(stack.state["processes"][name] != before[name] for name in before),
    )
    stack.wait("the waiting run", lambda: stack.run(waiting["id"])["state_name"] == "Suspended")


def test_only_a_good_signature_lets_it_go_on(stack: Stack, officer: Path, tmp_path: Path) -> None:
    """A text that is none is refused by the form; a stranger's is refused by the run, which waits
    on; the officer's releases, once.
    """
    (asked,) = stack.runs("release")
    plan = asked["parameters"]["plan"]
    for text in ("I approve. B. Officer", "A" * 100):
        said = stack.post(
            f"/flow_runs/{asked['id']}/resume", {"run_input": {"decision": text}}
        ).json()
        assert said["status"] == "REJECT"
        assert stack.run(asked["id"])["state_name"] == "Suspended"

    stranger = tmp_path / "stranger"
    stack.command("keys", "new", "--out", str(stranger))
    # The rule against zombies may take the run up once more after such a night; it asks again then.
    stack.wait("the waiting run", lambda: stack.run(asked["id"])["state_name"] == "Suspended")
    key = stranger / "signing-key.pem"
    refused = stack.command("approve", plan, "--key", str(key), "--yes", "--post")
    assert refused.returncode == 2, refused.stderr
    # a stranger writes to the form without this command
    planned = PlannedRelease.load(Path(plan))
    decision = sign(
        load_private_key(key),
        subject="release",
        decision="approve",
        digest=planned.digest,
        terms=release_terms(planned.plan),
    )
    posted = stack.post(
        f"/flow_runs/{asked['id']}/resume", {"run_input": {"decision": decision.token}}
    )
    assert posted.json()["status"] == "ACCEPT"
    stack.wait(
        "its refusal",
        lambda: [line for line in stack.said(asked["id"]) if "does not count" in line],
    )
    stack.wait("waiting again", lambda: stack.run(asked["id"])["state_name"] == "Suspended")
    assert releases(stack) == []

    posted = stack.command("approve", plan, "--key", str(officer), "--yes", "--post")
    assert posted.returncode == 0, posted.stderr
    done = stack.wait("the release", lambda: ended(stack, asked["id"]))
    assert done["state_type"] == "COMPLETED", done["state"]
    (row,) = releases(stack)
    assert (row.state, row.reserved.approvals) == ("committed", ("officer",))
    assert [p.name for p in (stack.home / "bundles").iterdir()] == [row.release_id]
    assert stack.command("ledger", "verify").returncode == 0
