"""Partners' installations: the base dependencies of pyproject.toml, alone and with the extra
`partner`.
"""

import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from jobs import answers, environment, write_csv
from packaging.requirements import Requirement
from sealed_bundle import Sealed
from stack import free_port

from storage.extras import install_command
from tasks.coding.coder import open_bundle
from tasks.running.installation import PARTNER, TRAINING

ROOT = Path(__file__).parents[2]
LAST = f"This needs the extra `train`: {install_command('train')}\n"
HIDING = """
import sys
from importlib.machinery import PathFinder

class Light(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Light
"""
PROGRAM = f"""{HIDING}
from flows.cli import main
for words in COMMANDS:
    sys.argv = ["autocoder", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print(END, flush=True)
"""
END = "-- the next command --"


def _names(requirements: list[str], extra: str = "") -> dict[str, set[str]]:
    """Distributions that are asked for on this machine, with the extras of each."""
    parsed = [Requirement(line) for line in requirements]
    held = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {re.sub(r"[-_.]+", "-", one.name).lower(): one.extras for one in held}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _hidden(requirements: list[str]) -> set[str]:
    """Top-level modules that these do not bring, of all that are installed here."""
    light: set[tuple[str, str]] = set()
    waiting = [(name, "") for name in _names(requirements)]
    while waiting:
        name, extra = one = waiting.pop()
        if one in light:
            continue
        light.add(one)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # a build of torch for CUDA has others
            continue
        for other, extras in _names(required, extra).items():
            waiting += [(other, wanted) for wanted in ("", *extras)]
    names = {name for name, _ in light} | {"autocoder"}
    found = metadata.packages_distributions().items()
    return {module for module, owners in found if not names & set(_names(list(owners)))}


@pytest.fixture(scope="session")
def bare() -> set[str]:
    return _hidden(PROJECT["dependencies"])


@pytest.fixture(scope="session")
def hidden() -> set[str]:
    return _hidden(PROJECT["dependencies"] + EXTRAS["partner"])


def _command(hidden: set[str], *commands: Sequence[Any]) -> list[str]:
    """The command line of a process that runs these, one after another, until one fails."""
    listed = [list(map(str, words)) for words in commands]
    return [sys.executable, "-c", f"HIDDEN, COMMANDS, END = {hidden}, {listed}, {END!r}\n{PROGRAM}"]


def _run(
    hidden: set[str], folder: Path, *commands: Sequence[Any]
) -> subprocess.CompletedProcess[str]:
    env = environment(PYTHONPATH=str(ROOT))
    return subprocess.run(
        _command(hidden, *commands),
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env=env,
    )


def test_the_extras_are_what_is_hidden(bare: set[str], hidden: set[str]) -> None:
    """Each package of an extra by its module, so that none is forgotten in a message; the base has
    none of them. `whenever` is Prefect's, and is only kept to a version.
    """
    modules = {"scikit_learn": "sklearn"}
    train = {name.replace("-", "_") for name in _names(EXTRAS["train"])} - {"autocoder", "whenever"}
    assert {modules.get(name, name) for name in train} == TRAINING - {"absl", "docket"}
    assert set(_names(EXTRAS["partner"])) | {"starlette"} == PARTNER
    assert hidden >= TRAINING | {"model_signing", "sigstore", "boto3"}
    assert bare >= hidden | PARTNER


@pytest.mark.parametrize("name", ["PrivateClassifier", "compare", "swag_ppm"])
def test_a_name_of_the_package_that_trains_names_its_extra(bare: set[str], name: str) -> None:
    """Such an import ends with what is missing and how it is installed; `open_bundle` is there."""
    program = f"HIDDEN = {bare}\n{HIDING}\nfrom autocoder import open_bundle\nimport autocoder\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}autocoder.{name}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines(keepends=True)[-1]
    assert re.fullmatch(
        rf"ModuleNotFoundError: `{name}`: not installed: \w+\. {re.escape(LAST)}", last
    )


@pytest.mark.servers
def test_a_bundle_is_checked_adopted_and_coded_with_without_an_extra(
    bare: set[str], titled: Sealed, tmp_path: Path, narratives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No torch, by `model.onnx`; what needs an extra says which, in one line."""
    monkeypatch.delenv("AUTOCODER_HOME", raising=False)
    data = write_csv(tmp_path / "new.csv", [{"Text": text} for text in narratives(20)])
    given = ("--bundle", "coder", "--data", data, "--text", "Text")
    done = _run(
        bare,
        tmp_path,
        ("verify", titled.folder, "--key", titled.trust.pinned),
        ("adopt", titled.folder, "--key", titled.trust.pinned, "--out", "coder"),
        ("code", *given, "--out", "coded.csv", "--read", "separator=,"),
        ("code", "--bundle", "coder", "Employee fell.", "--json"),
        ("serve", "--bundle", "coder", "--no-key", "--port", free_port()),
    )
    assert "uvicorn" in done.stderr, done.stderr
    verified, adopted, coded, answer, nothing = done.stdout.split(f"{END}\n")
    assert "48 test vectors" in verified
    assert "48 test vectors" in adopted
    assert "20 rows coded" in coded
    assert json.loads(answer)["codes"]
    last = (
        "error: not installed: uvicorn. This needs the extra `partner`: "
        f"{install_command('partner')}\n"
    )
    assert (done.returncode, nothing, done.stderr.splitlines(keepends=True)[-1]) == (2, "", last)


@pytest.mark.servers
def test_a_partner_needs_no_training(
    hidden: set[str],
    titled: Sealed,
    tmp_path: Path,
    narratives: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Own thresholds, sample, drift, status: each ends well on a bundle, where nothing else can be
    imported.
    """
    monkeypatch.delenv("AUTOCODER_HOME", raising=False)
    texts = narratives(200)
    listed = titled.folder / "codelist.csv"
    codes = [line.split(",")[0] for line in listed.read_text().splitlines()[1:]]
    given_codes = open_bundle(titled.folder).code(texts)
    # half of them as the model says, since it is not adopted where it is hardly ever right
    rows = [
        {
            "Text": text,
            "Code": codes[number % 3] if number % 2 else coding.answers[0].code,
        }
        for number, (text, coding) in enumerate(zip(texts, given_codes, strict=True))
    ]
    hand = write_csv(tmp_path / "hand.csv", rows)
    given, labelled = ("--data", hand, "--text", "Text"), ("--label", "Code")
    filled = [
        {"qa_row": number, "qa_weight": 2, "human_code": codes[number % 3]}
        for number in range(1, 101)
    ]
    write_csv(tmp_path / "filled.csv", filled)
    done = _run(
        hidden,
        tmp_path,
        (
            "adopt",
            titled.folder,
            "--key",
            titled.trust.pinned,
            "--out",
            "coder",
            *given,
            *labelled,
            "--sets",
        ),
        ("code", "--bundle", "coder", *given, "--out", "coded.csv", "--coverage", "0.9"),
        ("sample", "coded.csv", "--out", "s.csv", "--text", "Text", "--json"),
        ("drift", "coded.csv", "--reference", "coded.csv"),
        ("release", "--help"),
        ("status", "--check", "--json"),
        (
            "estimate",
            "coded.csv",
            "--sample",
            "filled.csv",
            "--codelist",
            listed,
            "--plot",
            "x.png",
        ),
    )
    assert (
        done.stderr.splitlines(keepends=True)[-1] == f"error: not installed: matplotlib. {LAST}"
    ), done.stderr
    adopted, _, drawn, _, helped, found, nothing = done.stdout.split(f"{END}\n")
    assert "read: coder/report.html\nnext: autocoder code --bundle coder" in adopted
    assert json.loads(drawn)["rows"] == 200
    assert "Release a plan" in helped
    assert {one["check"]: one for one in json.loads(found)}["installation"]["result"].startswith(
        "light"
    )
    assert (done.returncode, nothing) == (2, "")


@pytest.mark.servers
def test_a_partner_serves(hidden: set[str], titled: Sealed, tmp_path: Path) -> None:
    """The service codes a narrative and has its review page."""
    port = free_port()
    given = ("--bundle", titled.folder, "--key", titled.trust.pinned, "--port", port, "--no-key")
    process = subprocess.Popen(
        _command(hidden, ("serve", *given)), cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT))
    )
    try:
        url = f"http://127.0.0.1:{port}"
        while not answers(f"{url}/health"):
            assert process.poll() is None
            time.sleep(0.2)
        assert httpx.get(f"{url}/review").status_code == 200
        assert httpx.post(f"{url}/code", json={"narratives": ["Employee fell."]}).status_code == 200
        explained = httpx.post(
            f"{url}/explain", json={"narrative": "Employee fell.", "codes": ["111"]}
        )
        assert explained.status_code == 501
        assert LAST.strip() in explained.json()["detail"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_what_trains_says_what_is_missing(hidden: set[str], tmp_path: Path) -> None:
    """One line with the extra, before anything is looked at: the file does not exist."""
    done = _run(hidden, tmp_path, ("retrain", "--profile", "formal", "--data", "absent.csv"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: not installed: {', '.join(sorted(TRAINING))}. {LAST}"
