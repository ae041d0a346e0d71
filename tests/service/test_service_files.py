"""A file sent to the service: the answers of `autocoder code`, its strictness, its limits, and
nothing that stays.
"""

import asyncio
import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service import files
from service.app import Settings, create_app
from service.batching import Batcher
from service.clients import Clients, State
from service.metrics import Metrics
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.coding.bundles import Bundles
from tasks.coding.coder import Coder
from tasks.coding.columns import AnswerColumns
from tasks.coding.job import CodingJob, run

KEY = "a key for tests only"
STATE = State(Clients.of({"tests": KEY}))
HEADER = {"X-API-Key": KEY}


@pytest.fixture(scope="module")
def client(coder: Coder) -> Iterator[TestClient]:
    """The service with a key and without a rate that tests would meet."""
    with TestClient(create_app(coder, Settings(state=STATE))) as client:
        yield client


def table(texts: list[str]) -> bytes:
    """A CSV with another column, cells that look like formulas among them."""
    out = io.StringIO(newline="")
    csv.writer(out).writerows(
        [["=id", "Text"], *([f"=1+{n}", text] for n, text in enumerate(texts))]
    )
    return out.getvalue().encode()


def test_a_file_is_read_as_the_request_says(client: TestClient) -> None:
    """The settings of --read, as JSON; an unknown one is refused by its name."""
    content = "Text^State\nfell; broke, an arm^TX\n".encode("cp1252")
    asked = {"column": "Text", "read": '{"separator": "^", "encoding": "cp1252"}'}
    answer = client.post("/file", params=asked, content=content, headers=HEADER)
    assert answer.status_code == 200, answer.text
    (row,) = csv.DictReader(io.StringIO(answer.text, newline=""))
    assert (row["Text"], row["State"]) == ("fell; broke, an arm", "TX")
    refused = client.post(
        "/file", params=asked | {"read": '{"seperator": "^"}'}, content=content, headers=HEADER
    )
    assert refused.status_code == 422
    assert "a field with another name" in refused.text
    assert "seperator" not in refused.text


@pytest.mark.parametrize(
    "encoding", ["punycode", "idna", "unicode_escape", "raw_unicode_escape", "rot13", "x"]
)
def test_a_request_names_no_codec_that_holds_the_service(client: TestClient, encoding: str) -> None:
    """Punycode takes an hour for a file of 4 MB: no file is written in it."""
    asked = {"column": "Text", "read": json.dumps({"encoding": encoding})}
    answer = client.post(
        "/file", params=asked, content=b"Text\n" + b"x" * 1000 + b"-aaaa", headers=HEADER
    )
    assert answer.status_code == 422
    assert "encoding is unknown" in answer.text


def test_a_file_comes_back_as_the_command_would_write_it(
    client: TestClient, coder: Coder, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Byte for byte except for the last digits of scores: blank rows, line breaks, quotes, formulas
    made text.
    """
    content = table([*narratives(40), " ", 'He said "fell",\nfrom a ladder', "=cmd|' /C calc'!A0"])
    asked = {"column": "Text", "top_k": 2, "threshold": 0.6}
    answer = client.post("/file", params=asked, content=content, headers=HEADER)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-rows"] == "43"
    assert answer.headers["cache-control"] == "no-store"
    (tmp_path / "in.csv").write_bytes(content)
    source = survey(tmp_path / "in.csv", text_columns=("Text",))
    answers = (AnswerColumns(2, 0.6, coder.groups is not None),)
    run(Bundles.of(coder), CodingJob(source, tmp_path / "out.csv", Narratives(("Text",)), answers))
    expected = list(
        csv.DictReader(io.StringIO((tmp_path / "out.csv").read_bytes().decode(), newline=""))
    )
    got = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    scores = {name for name in expected[0] if "score" in name}
    for one, other in zip(got, expected, strict=True):
        assert {k: v for k, v in one.items() if k not in scores} == {
            k: v for k, v in other.items() if k not in scores
        }
        assert all(
            float(one[k] or 0) == pytest.approx(float(other[k] or 0), abs=1e-4) for k in scores
        )
    assert got[42]["Text"].startswith("'=cmd")
    assert got[0]["'=id"] == "'=1+0"


@pytest.mark.parametrize(
    ("content", "column", "status", "said"),
    [
        (b"", "Text", 422, "is empty"),
        (b"Text,id\nzebrafinch,1,2\n", "Text", 422, "row 1: 3 fields, but the header has 2"),
        (b"Text,id\nzebra\0finch,1\n", "Text", 422, "NUL"),
        (b"Text,id\nzebrafinch,1\n", "Narrative", 422, "no column 'Narrative'"),
        (
            b"Text,code\nzebrafinch,1\n",
            "Text",
            422,
            "columns that the answers would overwrite: code",
        ),
        (
            b"zebrafinch fell from a very long ladder on Monday,1\nzebrafinch,2\n",
            "Text",
            422,
            "no column",
        ),
        (b"PK\x03\x04zebrafinch", "Text", 422, "takes a CSV"),
        (b"PAR1zebrafinch", "Text", 422, "takes a CSV"),
        (b"Text\n" + b"zebrafinch\n" * (files.MOST_ROWS + 1), "Text", 422, "more than 5,000"),
        (
            b"Text\n" + b"zebrafinch\n" * (files.MOST_BYTES // 11 + 1),
            "Text",
            413,
            "4,194,304 bytes",
        ),
    ],
    ids=[
        "empty",
        "ragged",
        "nul",
        "column",
        "overwritten",
        "no header",
        "zip",
        "parquet",
        "rows",
        "bytes",
    ],
)
def test_the_commands_refusals(
    client: TestClient, content: bytes, column: str, status: int, said: str
) -> None:
    """By file, column or row; no cell is quoted and no place of the machine is named."""
    answer = client.post("/file", params={"column": column}, content=content, headers=HEADER)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["detail"]
    assert "zebrafinch" not in answer.text
    assert "/proc" not in answer.text


def test_without_a_key_no_file_is_coded(client: TestClient) -> None:
    assert client.post("/file", params={"column": "Text"}, content=b"Text\nx\n").status_code == 401


def test_nothing_of_a_file_stays(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file in the folder for temporary ones, no descriptor that is open still, and no place that
    is taken.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    content = b"Text\n" + b"zebrafinch fell\n" * 50

    def held() -> list[str]:
        found = []
        for link in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # that of the look itself
                found.append(str(link.readlink()))
        return [name for name in found if "upload" in name]

    for _ in range(files.AT_ONCE + 1):
        assert (
            client.post(
                "/file", params={"column": "Text"}, content=content, headers=HEADER
            ).status_code
            == 200
        )
        assert (
            client.post(
                "/file", params={"column": "x"}, content=content, headers=HEADER
            ).status_code
            == 422
        )
    assert not held()
    assert not list(tmp_path.iterdir())


def test_a_system_without_files_in_memory_codes_files_too(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has no `memfd_create`: the answer is the same, and the file is gone
    with the request.
    """
    asked = {"column": "Text"}
    content = table(["fell from a ladder", "burned a hand"])
    usual = client.post("/file", params=asked, content=content, headers=HEADER)
    monkeypatch.delattr(files.os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = client.post("/file", params=asked, content=content, headers=HEADER)
    assert answer.status_code == 200, answer.text
    assert answer.content == usual.content
    assert not list(tmp_path.iterdir())


def test_a_bundle_that_is_withdrawn_codes_no_further_row(coder: Coder) -> None:
    """Asked before each piece: what was coded until then has gone, the rest is not coded."""
    upload = files.read(b"Text\n" + b"fell\n" * 40, coder, column="Text", top_k=1, threshold=None)
    standing = iter([True, True, False])

    def require() -> None:
        if not next(standing):
            raise RuntimeError("withdrawn")

    async def code() -> list[str]:
        batcher, parts = Batcher(coder.scores), []
        await batcher.start()
        with pytest.raises(RuntimeError, match="withdrawn"):
            async for part in files.lines(upload, coder, batcher, require, Metrics(())):
                parts.append(part)
        await batcher.stop()
        return parts

    assert [part.count("\r\n") for part in asyncio.run(code())] == [1, 16, 16]
