"""The service: its answers, its limits, its silence, and whatever else is sent to it."""

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from mechanisms.model.scorer import Scores
from mechanisms.thresholds_file import FittedOn, Thresholds
from service import files
from service.app import Settings, create_app
from service.batching import Batcher, Overloaded
from service.clients import Clients, State
from storage.bundle.folder import ACCURACY, UnsoundBundle
from tasks.coding.coder import Coder
from tests.support.thresholds import thresholds_file

KEY = "a key for tests only"
STATE = State(Clients.of({"tests": KEY}))
HEADER = {"X-API-Key": KEY}


@pytest.fixture(scope="module")
def client(coder: Coder) -> Iterator[TestClient]:
    """The service with a key and without a rate that tests would meet."""
    with TestClient(create_app(coder, Settings(state=STATE))) as client:
        yield client


def test_it_answers_as_the_coder_does(
    client: TestClient, coder: Coder, narratives: Callable[..., list[str]]
) -> None:
    """One narrative or several; blank ones among them; with and without a threshold."""
    texts = [*narratives(20), " "]
    told = client.post(
        "/code", json={"narratives": texts, "top_k": 2, "threshold": 0.5}, headers=HEADER
    ).json()
    expected = coder.code(texts, top_k=2, threshold=0.5)
    assert {name: told[name] for name in coder.origin} == coder.origin
    for result, coding in zip(told["results"], expected, strict=True):
        assert [entry["code"] for entry in result["codes"]] == [
            answer.code for answer in coding.answers
        ]
        assert result["needs_review"] == coding.needs_review
        assert (result["group"] and result["group"]["code"]) == (coding.group and coding.group.code)
    (one,) = client.post("/code", json={"narratives": texts[0]}, headers=HEADER).json()["results"]
    assert one["codes"] == [told["results"][0]["codes"][0] | {"score": one["codes"][0]["score"]}]
    assert one["needs_review"] is None
    (blank,) = client.post("/code", json={"narratives": ""}, headers=HEADER).json()["results"]
    assert blank["codes"] == []


def test_the_examples_of_the_description_are_answered(client: TestClient) -> None:
    """What OpenAPI shows can be sent as it stands."""
    described = client.get("/openapi.json").json()
    examples = described["components"]["schemas"]["CodeRequest"]["examples"]
    assert len(examples) == 2
    for example in examples:
        assert client.post("/code", json=example, headers=HEADER).status_code == 200


@pytest.mark.parametrize("key", [None, "", "wrong", KEY[:-1], "kéy"])
def test_without_the_key_nothing_is_coded(client: TestClient, key: str | None) -> None:
    headers = [] if key is None else [(b"X-API-Key", key.encode())]
    refused = client.post("/code", json={"narratives": "x"}, headers=headers)
    assert refused.status_code == 401
    assert ("missing" in refused.json()["detail"]) == (not key), "no key is not a wrong key"
    assert client.get("/version", headers=headers).status_code == 401
    assert client.get("/health", headers=headers).json() == {"status": "ok"}
    assert client.get("/version", headers=HEADER).json()["model"] == "tiny"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"narratives": "zebrafinch" * 2001}, 422, "narratives: longer than 20,000 characters"),
        ({"narratives": ["zebrafinch"] * 1001}, 422, "narratives: more than 1000 narratives"),
        ({"narratives": []}, 422, "narratives: an empty list"),
        (
            {"narratives": {"zebrafinch": 1}},
            422,
            "narratives: not a text. Send a string, or a list",
        ),
        ({"narratives": ["zebrafinch", None]}, 422, "narratives, item 2: not a text"),
        (
            {"narratives": ["zebrafinch"] * 2 + ["zebrafinch" * 2001]},
            422,
            "narratives, item 3: longer than 20,000",
        ),
        ({}, 422, "body.narratives: Field required"),
        ({"narratives": "zebrafinch", "top_k": 0}, 422, "body.top_k: "),
        (
            {"narratives": "zebrafinch", "more": "zebrafinch"},
            422,
            "body.a field with another name: ",
        ),
        ({"narratives": "zebrafinch" * 500_000}, 413, ""),
        ("zebrafinch", 422, "Send one, with the header Content-Type: application/json"),
    ],
)
def test_what_is_refused_is_not_quoted(
    client: TestClient, body: object, status: int, said: str
) -> None:
    """The cause is the true one, with the item's number."""
    answer = client.post(
        "/code", content=json.dumps(body), headers=HEADER | {"content-type": "application/json"}
    )
    assert answer.status_code == status
    assert "zebrafinch" not in answer.text
    assert answer.json()["detail"]
    assert said in answer.json()["detail"]


def test_a_body_of_another_kind_is_named(client: TestClient) -> None:
    """JSON without its header, and a form where the file itself is wanted."""
    answer = client.post("/code", content=b'{"narratives": "zebrafinch"}', headers=HEADER)
    assert "Content-Type: application/json" in answer.json()["detail"]
    answer = client.post("/file?column=text", files={"file": b"text\nzebrafinch\n"}, headers=HEADER)
    assert (answer.status_code, "Send the file itself" in answer.text) == (422, True)
    assert "zebrafinch" not in answer.text


def test_a_failure_of_the_model_says_no_text(
    coder: Coder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A library quotes what it chokes on: neither client nor terminal reads it, and the next
    request works.
    """
    broken = True

    def scores(self: Coder, texts: Sequence[str]) -> Scores:
        if broken:
            raise RuntimeError(f"cannot tokenise {texts}")
        return np.full((len(texts), 6), 1 / 6, np.float32)

    monkeypatch.setattr(Coder, "scores", scores)
    with TestClient(create_app(coder, Settings())) as client:
        failed = client.post("/code", json={"narratives": "zebrafinch"})
        broken = False
        assert client.post("/code", json={"narratives": "zebrafinch"}).status_code == 200
    assert failed.status_code == 500
    told = capfd.readouterr()
    assert "zebrafinch" not in failed.text + told.out + told.err
    assert "failed: RuntimeError" in told.err


def test_narratives_that_arrive_together_are_coded_together() -> None:
    """While one batch is at work the others gather; every request gets its own scores; a full queue
    refuses.
    """
    sizes: list[int] = []
    gate = threading.Event()

    def scores(texts: Sequence[str]) -> Scores:
        gate.wait(30)
        sizes.append(len(texts))
        return np.array([[float(text)] for text in texts], np.float32)

    async def run() -> list[Scores]:
        batcher = Batcher(scores, most=8, waiting=50)
        await batcher.start()
        asked = [asyncio.create_task(batcher.scores([str(n)])) for n in range(41)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await batcher.scores(["0"] * 20)
        asked[40].cancel()
        gate.set()
        found = await asyncio.gather(*asked[:40])
        await batcher.stop()
        return found

    assert [float(row[0, 0]) for row in asyncio.run(run())] == [float(n) for n in range(40)]
    assert sum(sizes) == 40, "what was given up is not coded"
    assert max(sizes) == 8
    assert len(sizes) <= 7


def test_stopping_lets_the_waiting_go() -> None:
    """Who waits when the service stops is not left hanging."""

    async def run() -> None:
        batcher = Batcher(lambda texts: np.zeros((len(texts), 1), np.float32))
        asked = asyncio.create_task(batcher.scores(["x"]))  # never started: it can only wait
        await asyncio.sleep(0)
        await batcher.stop()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(run())


def test_the_page_begins_with_the_nearest_threshold(coder: Coder) -> None:
    """The score of the wanted accuracy, or of the nearest that has one; without one
    none is chosen.
    """
    assert " selected>" not in TestClient(create_app(coder, Settings())).get("/").text
    fitted = thresholds_file([(0.8, 0.25), (0.9, None), (0.95, 0.875)])
    known = replace(coder, thresholds=fitted)
    for wanted, score, shown in ((0.8, 0.25, "80"), (0.9, 0.875, "95")):
        page = TestClient(create_app(known, Settings(accuracy=wanted))).get("/").text
        assert f'value="{score}" selected>{shown}% right' in page


def test_the_page_runs_its_own_script_alone(client: TestClient) -> None:
    """Its policy names the hash of the script, allows no other origin, and the page
    asks for none.
    """
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert (
        policy.count("'sha256-") == 6
    )  # a style and two scripts here, a style and two scripts of the review
    assert "http" not in page.text.replace("http-equiv", "")
    assert "OIICS 2.01" in page.text


def test_it_tells_how_often_the_model_is_right(coder: Coder, tmp_path: Path) -> None:
    """As the agency states it, on the page and with its version, its words as text; without a
    statement it says that there is none.
    """
    figure = {"estimate": 0.67, "low": 0.65, "high": 0.69}
    group = {"names": ["<b>1</b>"], "share": 0.5, "right": figure, "among_3_best": figure}
    told = {"schema": 1, "stated": True, "test_half": {"dated_from": None, "unit": "record"}}
    told |= {"records": 3678, "right": figure, "among_3_best": figure, "groups": [group, group]}
    folder = tmp_path / "bundle"
    shutil.copytree(coder.folder, folder)
    (folder / ACCURACY).write_text(json.dumps(told))
    for known, said in (
        (replace(coder, folder=folder), "67.0% (65.0 to 69.0)"),
        (coder, "states no accuracy"),
    ):
        with TestClient(create_app(known, Settings(state=STATE))) as client:
            page = client.get("/").text
            assert said in page
            assert "<b>1</b>" not in page
            version = client.get("/version", headers=HEADER).json()
            assert said in version["accuracy"][0]
    (folder / ACCURACY).write_text(json.dumps(told | {"narrative": "x"}))
    with pytest.raises(UnsoundBundle):
        create_app(replace(coder, folder=folder), Settings(state=STATE))


@pytest.mark.parametrize(
    ("fitted_on", "said"),
    [
        ("generated", "generated narratives of injuries, which are not real agency records"),
        ("coded-records", "your own coded records"),
    ],
)
def test_the_page_says_where_its_accuracies_are_from(
    coder: Coder, fitted_on: FittedOn, said: str
) -> None:
    """Beside an agency that states none, the accuracies to choose from are not the agency's."""
    thresholds: Thresholds = {**thresholds_file([(0.9, 0.75)]), "fitted_on": fitted_on}
    known = replace(coder, thresholds=thresholds)
    page = TestClient(create_app(known, Settings())).get("/").text
    stated, measured = re.findall(r"<p><small>(.*?)</small></p>", page)
    assert stated.strip() == "The agency states no accuracy."
    assert measured == f"The accuracies under “Review below” were measured on {said}."


def test_the_page_promises_no_accuracies_that_it_does_not_list(coder: Coder) -> None:
    """If no threshold was accurate enough, there are none to choose from."""
    thresholds: Thresholds = {**thresholds_file([(0.9, None)]), "fitted_on": "generated"}
    known = replace(coder, thresholds=thresholds)
    page = TestClient(create_app(known, Settings())).get("/").text
    assert "were measured on" not in page
    assert "No accuracy was measured for these scores." in page


@pytest.mark.parametrize("path", ["/", "/review"])
def test_a_page_asks_for_a_key_if_the_service_has_one(coder: Coder, path: str) -> None:
    for state, hidden in ((STATE, False), (Settings().state, True)):
        page = TestClient(create_app(coder, Settings(state=state))).get(path).text
        assert (' hidden><label for="key">' in page) is hidden


def test_many_narratives_are_coded_in_pieces(
    client: TestClient, coder: Coder, narratives: Callable[..., list[str]]
) -> None:
    """In their order, a blank one at a border among them, as the coder gives them."""
    texts = [*narratives(63), "", *narratives(66)]
    told = client.post("/code", json={"narratives": texts}, headers=HEADER).json()["results"]
    expected = [[answer.code for answer in one.answers] for one in coder.code(texts)]
    assert [[entry["code"] for entry in one["codes"]] for one in told] == expected


def test_large_requests_are_admitted_a_few_at_a_time() -> None:
    """One too many is refused, small ones are not; one that failed leaves its place."""
    large = files.LargeRequests()
    with ExitStack() as held:
        for _ in range(files.LARGE_AT_ONCE):
            held.enter_context(large.admitted(files.TOGETHER + 1))
        with pytest.raises(Overloaded), large.admitted(files.TOGETHER + 1):
            pass
        with large.admitted(files.TOGETHER):
            pass
    with suppress(ValueError), large.admitted(1000):
        raise ValueError
    with ExitStack() as held:
        for _ in range(files.LARGE_AT_ONCE):
            held.enter_context(large.admitted(1000))


def test_counts_hold_no_narrative(coder: Coder) -> None:
    """By path, status and time; a path or method that a client made up has no row of its own."""
    with TestClient(create_app(coder, Settings(state=STATE))) as client:
        assert client.get("/metrics").status_code == 401
        body = {"narratives": ["zebrafinch fell", "zebrafinch", ""], "threshold": 1.0}
        assert client.post("/code", json=body, headers=HEADER).status_code == 200
        long = {"narratives": "zebrafinch fell " * 600, "threshold": 0.0}
        assert client.post("/code", json=long, headers=HEADER).status_code == 200
        client.get("/zebrafinch", headers=HEADER)
        client.request("ZEBRA", "/code", headers=HEADER)
        answer = client.get("/metrics", headers=HEADER)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "zebra" not in answer.text.lower()
    lines = answer.text.splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")
    requests = "autocoder_requests_total"
    assert counts[f'{requests}{{method="POST",path="/code",status="200"}}'] == "2"
    assert counts[f'{requests}{{method="GET",path="other",status="404"}}'] == "1"
    assert counts[f'{requests}{{method="other",path="/code",status="405"}}'] == "1"
    assert counts[f'{requests}{{method="GET",path="/metrics",status="401"}}'] == "1"
    assert counts["autocoder_narratives_total"] == "4"
    assert counts['autocoder_judged_total{above="true"}'] == "1"
    assert counts['autocoder_judged_total{above="false"}'] == "3"
    assert counts["autocoder_cut_narratives_total"] == "1"
    bucket = 'autocoder_request_seconds_bucket{path="/code",le="+Inf"}'
    assert counts[bucket] == counts['autocoder_request_seconds_count{path="/code"}'] == "3"
    (family,) = [
        one for one in text_string_to_metric_families(answer.text) if "request_s" in one.name
    ]
    assert family.type == "histogram"
