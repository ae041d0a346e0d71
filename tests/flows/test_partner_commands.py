"""calibrate, drift, qa and serve as a partner agency types them."""

from __future__ import annotations

import json
import re
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
from sealed_bundle import Sealed
from stack import free_port
from tiny_models import CODES

from storage.errors import InputError, StorageError


@pytest.fixture(scope="module")
def coded(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory, narratives: Callable[..., list[str]]) -> Path:
    """300 narratives and the codes that the model gave them."""
    folder = tmp_path_factory.mktemp("coded")
    source, out = folder / "new.csv", folder / "coded.csv"
    write_csv(source, [{"Text": text} for text in narratives(300)])
    command("code", "--bundle", tiny_bundle, "--data", source, "--text", "Text", "--out", out, "--quiet")
    return out


def test_double_coding_from_the_sample_to_kappa(coded: Path, tmp_path: Path) -> None:
    """A person who agrees on all but each fifth row: the share is told with its interval; nothing is overwritten."""
    sample = tmp_path / "sample.csv"
    code, out, _ = invoke("qa", "draw", coded, "--out", sample, "--share", "0.5", "--seed", "1", "--json")
    assert (code, json.loads(out)["sampled"], json.loads(out)["columns"]) == (0, 150, ["Text"])
    model, filled = read_csv(coded), read_csv(sample)
    for n, row in enumerate(filled):
        own = model[int(row["qa_row"]) - 1]["code"]
        row["human_code"] = own if n % 5 else ("111" if own != "111" else "132")
    write_csv(sample, filled)
    found = json.loads(invoke("qa", "agree", coded, "--sample", sample, "--json")[1])
    assert found["share"] == pytest.approx(0.8)
    low, high = found["share_interval"]
    assert low < 0.8 < high
    assert "Cohen's kappa" in invoke("qa", "agree", coded, "--sample", sample)[1]
    with pytest.raises(InputError, match="may contain work"):
        invoke("qa", "draw", coded, "--out", sample, "--text", "Text")


def test_a_sample_for_some_hours_becomes_counts_with_intervals(coded: Path, tmp_path: Path) -> None:
    """100 rows take five hours; a person who agrees confirms the model's counts; no file is replaced."""
    sample, out = tmp_path / "sample.csv", tmp_path / "counts.csv"
    given = ("qa", "draw", coded, "--out", sample, "--text", "Text", "--hours", "5", "--seed", "1", "--json")
    assert json.loads(invoke(*given)[1])["sampled"] == 100
    model = read_csv(coded)
    filled = [row | {"human_code": model[int(row["qa_row"]) - 1]["code"]} for row in read_csv(sample)]
    write_csv(sample, filled)
    options = ("--sample", sample, "--by", "model", "--out", out)
    _, said, _ = invoke("estimate", coded, *options, "--plot", tmp_path / "counts.svg")
    assert "100 rows coded by hand of 300" in said
    for row in read_csv(out):
        assert row["note"] == "none" or float(row["estimate"]) == pytest.approx(int(row["machine"]), abs=0.11)
        assert row["model"] in {"_T", model[0]["model"]}
    content = json.loads(invoke("estimate", coded, "--sample", sample, "--json")[1])
    assert content["sampled"] == 100
    with pytest.raises(InputError, match="--overwrite"):
        invoke("estimate", coded, *options)


def test_the_tutorial_s_commands_make_its_table(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of the page in its order, and its lines of Python; fewer narratives and hours than there."""
    page = (Path(__file__).parents[2] / "docs/tutorials/published-table.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    steps = re.findall(r"^    ```(python|)\n(.*?)^    ```$", page, flags=re.MULTILINE | re.DOTALL)
    assert [language for language, _ in steps] == ["", "", "", "python", "", ""]
    for language, block in steps:
        if language:
            exec(textwrap.dedent(block), {})
        else:
            fewer = block.replace("\\\n", " ").replace("3000", "200").replace("--hours 20", "--hours 4")
            arguments = fewer.replace("BUNDLE", str(tiny_bundle)).split()[1:]
            # what a random encoder codes may have none of the codes that the people of this page choose
            command(*arguments, *(["--allow-unlisted"] if "--sample" in arguments else []))
    rows = read_csv(tmp_path / "counts.csv")
    assert any(row["State"] == "_T" and row["estimate_low"] for row in rows)
    assert (tmp_path / "counts.png").read_bytes().startswith(b"\x89PNG")


def test_drift_says_its_verdict_by_exit_code(coded: Path, tmp_path: Path) -> None:
    """A period against itself is stable; one in which half of the rows went to one code has drifted: exit code 3."""
    code, out, _ = invoke("drift", coded, "--reference", coded, "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "stable")
    rows = read_csv(coded)
    given = [row["code"] for row in rows]
    rare = min(CODES, key=given.count)
    moved = write_csv(tmp_path / "moved.csv", [row | {"code": rare} if n % 2 else row for n, row in enumerate(rows)])
    code, out, _ = invoke("drift", moved, "--reference", coded)
    assert code == 3, out
    with pytest.raises(InputError, match=r"none\.csv"):
        invoke("drift", tmp_path / "none.csv", "--reference", coded)


def test_calibrated_thresholds_are_what_code_uses(coded: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Coded records give a temperature and thresholds; `code --thresholds` lets through what reaches them."""
    rows = read_csv(coded)
    records = [{"Text": row["Text"], "Nature": row["code"]} for row in rows]
    data, out = write_csv(tmp_path / "own.csv", records), tmp_path / "thresholds.json"
    code, said, _ = invoke("calibrate", "--bundle", tiny_bundle, "--data", data, "--text", "Text", "--out", out)
    assert code == 0
    found = json.loads(out.read_text())
    assert found["records"] == 300
    assert f"temperature {found['temperature']}" in said
    assert found["bundle_digest"] == rows[0]["bundle_digest"], "it names the bundle whose scores it is of"
    assert not any(row["Text"] in out.read_text() for row in rows), "the file holds no narrative"
    reached = [t for t in found["thresholds"] if t["threshold"] is not None]
    target = str(reached[0]["target_accuracy"])
    again = tmp_path / "again.csv"
    given = ("--bundle", tiny_bundle, "--data", data, "--text", "Text", "--quiet")
    invoke("code", *given, "--out", again, "--thresholds", out, "--accuracy", target)
    for row in read_csv(again):
        sure = float(row["score"]) >= reached[0]["threshold"]
        assert row["needs_review"].lower() == str(not sure).lower()
    with pytest.raises(InputError, match="--out"):
        invoke("calibrate", "--bundle", tiny_bundle, "--data", data, "--text", "Text", "--out", out)
    with pytest.raises(InputError, match="Code"):
        given = ("--data", data, "--text", "Text", "--label", "Code", "--out", tmp_path / "x.json")
        invoke("calibrate", "--bundle", tiny_bundle, *given)
    assert not (tmp_path / "x.json").exists()


def test_sets_come_from_the_file_and_drift_ends_their_promise(coded: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Every tenth code is another one: sets of 85 % hold the right code of 85 % of the rows or so; drift says when not.

    1.96 standard deviations of 300 rows and as many of 225 calibration records are 6 points.
    """
    rows = read_csv(coded)
    right = [list(CODES)[n % len(CODES)] if n % 10 == 0 else row["code"] for n, row in enumerate(rows)]
    records = [{"Text": row["Text"], "Nature": code} for row, code in zip(rows, right, strict=True)]
    data, fitted, out = write_csv(tmp_path / "own.csv", records), tmp_path / "sets.json", tmp_path / "sets.csv"
    given = ("--bundle", tiny_bundle, "--data", data, "--text", "Text")
    _, said, _ = invoke("calibrate", *given, "--out", fitted, "--sets")
    assert "A set holds the right code with probability 85% or more" in said
    assert "probability 99%" in said
    _, _, promised = invoke("code", *given, "--out", out, "--thresholds", fitted, "--coverage", "0.85")
    assert "A set holds the right code with probability 85%" in promised
    found = read_csv(out)
    sets = [row["set"].split("; ") for row in found]
    assert [int(row["set_size"]) for row in found] == [len(one) for one in sets]
    assert all(row["code"] == one[0] for row, one in zip(found, sets, strict=True))
    for row, one in zip(found, sets, strict=True):
        assert all(code.startswith(row["group_set"]) for code in one)
    covered = sum(code in one for code, one in zip(right, sets, strict=True)) / len(sets)
    assert covered > 0.79
    moved = write_csv(tmp_path / "moved.csv", [row | {"code": min(CODES)} for row in found])
    _, said, _ = invoke("drift", moved, "--reference", out)
    assert "The coverage of the sets does not hold" in said
    assert "coverage" not in invoke("drift", out, "--reference", out)[1]
    for wrong, problem in (("0.7", "no sets for 0.7. Take 0.8, 0.85"), ("0.85", "calibrate --sets")):
        thresholds = ("--thresholds", fitted) if wrong == "0.7" else ()
        with pytest.raises(InputError, match=problem):
            invoke("code", *given, *thresholds, "--out", tmp_path / "x.csv", "--coverage", wrong)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "API key"),
        (("--no-key",), "--verify-key"),
        (("--no-key", "--proxy", "10.0.0.1", "--host", "0.0.0.0"), "can be reached from elsewhere"),
    ],
)
def test_an_open_door_is_refused(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str
) -> None:
    """Before the model is loaded: no key, another machine, no signature."""
    monkeypatch.delenv("AUTOCODER_API_KEY", raising=False)
    with pytest.raises(InputError, match=problem):
        invoke("serve", "--bundle", tiny_bundle, *arguments)


def test_a_bundle_that_is_not_as_it_was_signed_is_not_served(sealed: Sealed, tmp_path: Path) -> None:
    """Refused before the port opens, with the file's name."""
    folder = sealed.copy(tmp_path)
    (folder / "LICENSE").write_text("changed")
    assert sealed.trust.pinned
    with pytest.raises(StorageError, match="LICENSE"):
        invoke("serve", "--bundle", folder, "--verify-key", sealed.trust.pinned, "--no-key")


@pytest.fixture
def served(sealed: Sealed, tmp_path: Path) -> Iterator[tuple[str, dict[str, str], subprocess.Popen[str]]]:
    """The service as a process of its own, its address, the header of its key."""
    key = "0123456789abcdef-key"
    (tmp_path / "key.txt").write_text(key + "\n")
    port = free_port()
    arguments = ["serve", "--bundle", sealed.folder, "--verify-key", sealed.trust.pinned, "--port", port]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *map(str, arguments), "--api-key-file", str(tmp_path / "key.txt")],
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
def test_sigterm_lets_the_requests_at_work_end(
    served: tuple[str, dict[str, str], subprocess.Popen[str]], sealed: Sealed
) -> None:
    """SIGTERM in the middle of a request: nobody new comes in, it gets its whole answer, the process ends by itself and
    has told no narrative.
    """
    address, header, process = served
    assert httpx.get(f"{address}/version").status_code == 401
    known = httpx.get(f"{address}/version", headers=header).json()
    assert known["signed_by"] == sealed.signer.key_id
    body = json.dumps({"narratives": [f"zebrafinch {n} " * 30 for n in range(64)]}).encode()

    def halting() -> Iterator[bytes]:
        yield body[:1000]
        assert httpx.get(f"{address}/health").status_code == 200  # by now the first half has been read
        process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.TransportError):  # nobody new comes in
            while True:
                httpx.get(f"{address}/health")
                time.sleep(0.1)
        yield body[1000:]

    answer = httpx.post(
        f"{address}/code", content=halting(), headers=header | {"Content-Type": "application/json"}, timeout=500
    )
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == 64
    assert process.wait(300) in (0, -signal.SIGTERM)
    assert process.stdout is not None
    assert "zebrafinch" not in process.stdout.read()
