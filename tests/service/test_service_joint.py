"""The service of a bundle of several fields: answers nested by field, contradictions, a CSV with a column a field."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sealed_bundle import Sealed

from service.app import Settings, create_app
from tasks.coding.joint import JointCoder, open_bundle

SAID = "The employee fell from a ladder and broke his arm."


@pytest.fixture(scope="module")
def client(joint: Sealed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """With a rule that the answer to SAID breaks."""
    coder = open_bundle(joint.folder)
    assert isinstance(coder, JointCoder)
    (case,) = coder.code([SAID])
    nature, event = (case.codings[name].answers[0].code for name in ("nature", "event"))
    rules: Path = tmp_path_factory.mktemp("rules") / "rules.csv"
    rules.write_text(f"field,code,other_field,other_code,why\nnature,{nature},event,{event},never\n")
    with TestClient(create_app(open_bundle(joint.folder, rules=rules), Settings())) as made:
        yield made


def test_answers_are_nested_by_field(client: TestClient) -> None:
    """And a contradiction wants a look, whatever the scores; a blank narrative has no code in any field."""
    told = client.post("/code", json={"narratives": [SAID, " "], "top_k": 2}).json()
    first, blank = told["results"]
    assert set(first) == {"fields", "needs_review", "conflicts"}
    assert [len(first["fields"][name]["codes"]) for name in ("nature", "event")] == [2, 2]
    assert first["needs_review"] is True
    assert first["conflicts"][0]["why"] == "never"
    assert blank["fields"]["event"]["codes"] == []
    assert blank["conflicts"] == []
    origin = {"model", "classification", "classification_version", "bundle_digest", "score_temperature"}
    assert set(told) == {*origin, "results"}


def test_what_runs_is_told(client: TestClient) -> None:
    """The fields, and on the page too."""
    assert client.get("/version").json()["coded_fields"] == "nature event"
    assert ": nature, event, release" in client.get("/").text


def test_a_csv_comes_back_with_a_column_a_field(client: TestClient) -> None:
    """As `autocoder code` writes it."""
    text = client.post("/file", params={"column": "text", "threshold": 0.5}, content=f"text\n{SAID}\n").text
    (row,) = csv.DictReader(io.StringIO(text))
    assert {"nature", "nature_score", "event", "event_needs_review", "needs_review", "conflicts"} <= set(row)
    assert row["needs_review"] == "true"
    assert row["conflicts"].endswith(": never")
    assert row["coded_fields"] == "nature event"
