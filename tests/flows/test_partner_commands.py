"""sample, estimate, drift and serve as a partner agency types them."""

import json
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from in_process import command, invoke
from jobs import answers, environment, read_csv, write_csv
from refusals import of_kind
from sealed_bundle import Sealed
from stack import free_port
from tiny_models import CODES
from workbooks import workbook

from storage.errors import InputError, StorageError
from storage.ledger.keys import key_id


@pytest.fixture(scope="module")
def coded(
    tiny_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
    narratives: Callable[..., list[str]],
) -> Path:
    folder = tmp_path_factory.mktemp("coded")
    source, out = folder / "new.csv", folder / "coded.csv"
    write_csv(source, [{"Text": text} for text in narratives(300)])
    command("code", "--bundle", tiny_bundle, "--data", source, "--text", "Text", "--out", out)
    return out


def test_double_coding_from_the_sample_to_kappa(coded: Path, tmp_path: Path) -> None:
    """A person who agrees on four rows of five: share and interval; nothing is overwritten."""
    sample = tmp_path / "sample.csv"
    code, out, _ = invoke("sample", coded, "--out", sample, "--share", "0.5", "--json")
    assert (code, json.loads(out)["sampled"], json.loads(out)["columns"]) == (0, 150, ["Text"])
    model, filled = read_csv(coded), read_csv(sample)
    for n, row in enumerate(filled):
        own = model[int(row["qa_row"]) - 1]["code"]
        row["human_code"] = own if n % 5 else ("111" if own != "111" else "132")
    write_csv(sample, filled)
    found = json.loads(invoke("estimate", coded, "--sample", sample, "--json")[1])
    assert found["agreement"]["share"] == pytest.approx(0.8)
    low, high = found["agreement"]["share_interval"]
    assert low < 0.8 < high
    assert "Cohen's kappa" in invoke("estimate", coded, "--sample", sample)[1]
    with pytest.raises(InputError, check=of_kind("sample-exists")):
        invoke("sample", coded, "--out", sample, "--text", "Text")


def test_a_sample_becomes_counts_with_intervals(coded: Path, tmp_path: Path) -> None:
    """A person who agrees confirms the model's counts; no file is replaced."""
    sample, out = tmp_path / "sample.csv", tmp_path / "counts.csv"
    given = ("sample", coded, "--out", sample, "--text", "Text", "--rows", "100", "--json")
    assert json.loads(invoke(*given)[1])["sampled"] == 100
    model = read_csv(coded)
    filled = [
        row | {"human_code": model[int(row["qa_row"]) - 1]["code"]} for row in read_csv(sample)
    ]
    write_csv(sample, filled)
    options = ("--sample", sample, "--by", "model", "--out", out)
    _, said, _ = invoke("estimate", coded, *options, "--plot", tmp_path / "counts.svg")
    assert "100 rows coded manually of 300" in said
    for row in read_csv(out):
        assert row["note"] == "few" or float(row["estimate"]) == pytest.approx(
            int(row["machine"]), abs=0.11
        )
        assert row["model"] in {"_T", model[0]["model"]}
    content = json.loads(invoke("estimate", coded, "--sample", sample, "--json")[1])
    assert content["sampled"] == 100
    with pytest.raises(InputError, check=of_kind("file-exists")):
        invoke("estimate", coded, *options)


def test_the_list_of_a_sheet(coded: Path, tmp_path: Path) -> None:
    """A classification in a workbook of several lists serves `estimate` and the
    groups of `code`.
    """
    book, sample = tmp_path / "lists.xlsx", tmp_path / "sample.csv"
    titled = [[code, f"T{code}"] for code in CODES]
    parents = [[code, f"T{code}", code[:1]] for code in CODES]
    book.write_bytes(
        workbook([["code", "title"], ["A", "x"], ["B", "y"]], [["code", "title"], *titled],
                 [["code", "title", "parent"], *parents])
    )  # fmt: skip
    command("sample", coded, "--out", sample, "--share", "0.5")
    rows = [row | {"human_code": next(iter(CODES))} for row in read_csv(sample)]
    write_csv(sample, rows)
    given = ("estimate", coded, "--sample", sample, "--json", "--codelist", book)
    with pytest.raises(InputError, check=of_kind("several-sheets")):
        invoke(*given)
    with pytest.raises(InputError, check=of_kind("unlisted-codes"), match=r"\b150\b.*\b150\b"):
        invoke(*given, "--read-codelist", "sheet=S1")
    assert "150 on the list" in invoke(*given, "--read-codelist", "sheet=S2")[2]
    with pytest.raises(InputError, check=of_kind("key-repeated", saying="sheet")):
        invoke(*given, "--read-codelist", "sheet=S1", "--read-codelist", "sheet=S2")
    with pytest.raises(InputError, check=of_kind("codelist-missing")):
        invoke(*given[:-2], "--read-codelist", "sheet=S2")


def test_the_tutorial_makes_its_table(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of the page in its order, and its lines of Python; fewer narratives and hours
    than there.
    """
    page = (Path(__file__).parents[2] / "docs/tutorials/published-table.md").read_text(
        encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    steps = re.findall(r"^    ```(python|)\n(.*?)^    ```$", page, flags=re.MULTILINE | re.DOTALL)
    assert [language for language, _ in steps] == ["", "", "", "python", "", ""]
    for language, block in steps:
        if language:
            exec(textwrap.dedent(block), {})
        else:
            fewer = (
                block.replace("\\\n", " ").replace("3000", "200").replace("--rows 400", "--rows 80")
            )
            arguments = shlex.split(fewer.replace("BUNDLE", str(tiny_bundle)))[1:]
            # what a random encoder codes may have none of the codes that the people of this page
            # choose
            command(
                *arguments,
                *(["--codelist", "demo/codelist.csv"] if "--sample" in arguments else []),
            )
    rows = read_csv(tmp_path / "counts.csv")
    assert any(row["State"] == "_T" and row["estimate_low"] for row in rows)
    assert (tmp_path / "counts.png").read_bytes().startswith(b"\x89PNG")


def test_drift_says_its_verdict_by_exit_code(coded: Path, tmp_path: Path) -> None:
    """A period against itself is stable; one in which half of the rows went to one code has
    drifted: exit code 3.
    """
    code, out, _ = invoke("drift", coded, "--reference", coded, "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "stable")
    rows = read_csv(coded)
    given = [row["code"] for row in rows]
    rare = min(CODES, key=given.count)
    moved = write_csv(
        tmp_path / "moved.csv",
        [row | {"code": rare} if n % 2 else row for n, row in enumerate(rows)],
    )
    code, out, _ = invoke("drift", moved, "--reference", coded)
    assert code == 3, out
    with pytest.raises(InputError, check=of_kind("no-data-file", saying="none.csv")):
        invoke("drift", tmp_path / "none.csv", "--reference", coded)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ((), of_kind("no-api-key")),
        (("--no-key",), of_kind("no-trusted-key")),
        (("--no-key", "--proxy", "10.0.0.1", "--host", "0.0.0.0"), of_kind("open-without-key")),
    ],
)
def test_an_open_door_is_refused(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], refusal: of_kind
) -> None:
    """Before the model is loaded: no key, another machine, no signature."""
    monkeypatch.delenv("AUTOCODER_API_KEY", raising=False)
    with pytest.raises(InputError, check=refusal):
        invoke("serve", "--bundle", tiny_bundle, *arguments)


def test_a_bundle_that_is_not_as_it_was_signed_is_not_served(
    sealed: Sealed, tmp_path: Path
) -> None:
    folder = sealed.copy(tmp_path)
    (folder / "LICENSE").write_text("changed")
    assert sealed.trust.pinned
    with pytest.raises(StorageError, check=of_kind("changed-file", file="LICENSE")):
        invoke("serve", "--bundle", folder, "--key", sealed.trust.pinned, "--no-key")


@pytest.fixture
def served(
    sealed: Sealed, tmp_path: Path
) -> Iterator[tuple[str, dict[str, str], subprocess.Popen[str]]]:
    """The service as a process of its own, its address, the header of its key."""
    key = "0123456789abcdef-key"
    (tmp_path / "key.txt").write_text(key + "\n")
    port = free_port()
    arguments = ["serve", "--bundle", sealed.folder, "--key", sealed.trust.pinned, "--port", port]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "flows.cli",
            *map(str, arguments),
            "--api-key-file",
            str(tmp_path / "key.txt"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    address = f"http://127.0.0.1:{port}"
    try:
        while not answers(f"{address}/health"):
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.1)
        yield address, {"X-API-Key": key}, process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.servers
def test_sigterm_lets_requests_end(
    served: tuple[str, dict[str, str], subprocess.Popen[str]], sealed: Sealed
) -> None:
    """SIGTERM in the middle of a request: no one new comes in, it gets its whole answer, the
    process ends by itself and has told no narrative.
    """
    address, header, process = served
    assert httpx.get(f"{address}/version").status_code == 401
    known = httpx.get(f"{address}/version", headers=header).json()
    assert known["signed_by"] == key_id(sealed.key.public_key())
    body = json.dumps({"narratives": [f"zebrafinch {n} " * 30 for n in range(64)]}).encode()

    def halting() -> Iterator[bytes]:
        yield body[:1000]
        assert (
            httpx.get(f"{address}/health").status_code == 200
        )  # by now the first half has been read
        process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.TransportError):  # nobody new comes in
            while True:
                httpx.get(f"{address}/health")
                time.sleep(0.1)
        yield body[1000:]

    answer = httpx.post(
        f"{address}/code",
        content=halting(),
        headers=header | {"Content-Type": "application/json"},
        timeout=500,
    )
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == 64
    assert process.wait(300) in (0, -signal.SIGTERM)
    assert process.stdout is not None
    assert "zebrafinch" not in process.stdout.read()
