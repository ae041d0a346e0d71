"""The service of a model with columns of values: JSON, a file and the page take them, and none is forgotten."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.app import Settings, create_app
from service.clients import Clients, State
from tasks.coding.coder import Coder
from tasks.coding.joint import open_bundle
from tasks.coding.records import with_values

HEADER = {"X-API-Key": "k"}
CASES = [{"Industry": "Mining", "Age": ""}, {"Industry": "Fishing", "Age": "under 25"}]


@pytest.fixture(scope="module")
def valued(valued_bundle: Path) -> Coder:
    return open_bundle(valued_bundle).fields[""]


@pytest.fixture(scope="module")
def client(valued: Coder) -> Iterator[TestClient]:
    state = State(Clients.of({"tests": "k"}))
    with TestClient(create_app(valued, Settings(state=state, narratives_per_minute=10**6))) as client:
        yield client


def records(texts: Sequence[str], cases: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    return [{"narrative": text, "columns": case} for text, case in zip(texts, cases, strict=True)]


def test_each_narrative_has_its_columns(client: TestClient, valued: Coder) -> None:
    """The answers are the coder's; a blank narrative has none whatever its columns, and one may be sent alone."""
    texts, cases = ["He fell.", "He fell.", " "], [*CASES, CASES[0]]
    results = client.post("/code", json={"narratives": records(texts, cases)}, headers=HEADER).json()["results"]
    expected = valued.code([with_values(text, case) for text, case in zip(texts, cases, strict=True)])
    for result, coding in zip(results, expected, strict=True):
        assert [entry["score"] for entry in result["codes"]] == pytest.approx(
            [answer.score for answer in coding.answers], abs=1e-4
        )
    assert results[0]["codes"] != results[1]["codes"]
    (one,) = client.post("/code", json={"narratives": records(texts, cases)[1]}, headers=HEADER).json()["results"]
    assert one["codes"][0]["score"] == pytest.approx(results[1]["codes"][0]["score"], abs=1e-4)


def test_the_example_of_the_description_is_answered(client: TestClient) -> None:
    """OpenAPI names the columns, all required."""
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["Columns"]["required"] == ["Industry", "Age"]
    (example,) = schemas["CodeRequest"]["examples"]
    assert client.post("/code", json=example, headers=HEADER).status_code == 200


@pytest.mark.parametrize("columns", [
    None,
    {},
    {"Industry": "Mining"},
    {"Industry": "Mining", "Age": "", "more": "zebrafinch"},
    {"Industry": "zebrafinch" * 200, "Age": ""},
    {"Industry": 7, "Age": ""},
    {"column_0": "zebrafinch", "column_1": ""},
])  # fmt: skip
def test_a_column_is_not_forgotten(client: TestClient, columns: Any) -> None:
    """Scores without a column that the model was trained with are others; no value is quoted."""
    answer = client.post("/code", json={"narratives": records(["He fell."], [columns])}, headers=HEADER)
    assert answer.status_code == 422
    assert "zebrafinch" not in answer.text
    assert client.post("/code", json={"narratives": "He fell."}, headers=HEADER).status_code == 422


def test_more_narratives_than_allowed_are_refused(client: TestClient) -> None:
    sent = {"narratives": records(["He fell."] * 65, [CASES[0]] * 65)}
    assert client.post("/code", json=sent, headers=HEADER).status_code == 422


def test_a_model_without_columns_refuses_them(coder: Coder) -> None:
    with TestClient(create_app(coder, Settings())) as plain:
        assert plain.post("/code", json={"narratives": "He fell."}).status_code == 200
        sent = {"narratives": records(["He fell."], [CASES[0]])}
        assert plain.post("/code", json=sent).status_code == 422


def test_a_file_has_them_in_its_columns(client: TestClient, valued: Coder) -> None:
    """By their names; a file without one is refused with the name."""
    content = "Text,Industry,Age\nHe fell.,Mining,\nHe fell.,Fishing,under 25\n"
    asked = {"params": {"column": "Text"}, "headers": HEADER | {"Content-Type": "text/csv"}}
    rows = list(csv.DictReader(io.StringIO(client.post("/file", content=content, **asked).text)))
    expected = valued.code([with_values("He fell.", case) for case in CASES])
    assert [row["code"] for row in rows] == [coding.answers[0].code for coding in expected]
    refused = client.post("/file", content=content.replace("Age", "Years"), **asked)
    assert refused.status_code == 422
    assert "no column 'Age'" in refused.json()["detail"]


def test_the_page_and_the_list_offer_the_values(client: TestClient) -> None:
    """A choice for each column, in the list's order, and one for another value."""
    assert client.get("/codes", headers=HEADER).json()["columns"] == {
        "Industry": ["Construction", "Mining"],
        "Age": ["under 25", "25 and over"],
    }
    page = client.get("/").text
    assert page.count("data-column=") == 2
    assert "<option>Construction</option><option>Mining</option>" in page


def test_an_explanation_says_what_a_value_adds(client: TestClient) -> None:
    """Without columns the explained case has none, as in a file that lacks them."""
    asked = {"narrative": "He fell.", "codes": [{"code": "111"}]}
    plain = client.post("/explain", json=asked, headers=HEADER).json()["reasons"][0]
    own = client.post("/explain", json=asked | {"columns": CASES[0]}, headers=HEADER).json()["reasons"][0]
    assert plain["columns"] == {"Industry": 0, "Age": 0}
    assert own["columns"]["Industry"] != 0
    assert own["columns"]["Age"] == 0
    assert own["score"] != plain["score"]
