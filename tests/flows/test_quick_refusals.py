"""A mistake in a file, and a question about a command, are answered before anything is imported
that takes seconds.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from slow_imports import command

from storage.demo_data import write_demo_data
from storage.ledger import Ledger
from storage.paths import Workspace

RETRAIN = (
    "retrain",
    "--profile",
    "formal",
    "--data",
    "text.csv",
    "--text",
    "text",
    "--epsilon",
    "5",
)
ANSWERS: dict[str, tuple[Sequence[str], str]] = {
    "release, no plan": (["release", "absent.json"], "plan absent.json: No such file"),
    "release, not a plan": (["release", "text.json"], "plan text.json is not a release plan"),
    "audit, no plan": (["audit", "absent.json"], "plan absent.json: No such file"),
    "plan, no plan": (["plan", "absent.json"], "plan absent.json: No such file"),
    "approve, no plan": (
        ["approve", "absent.json", "--key", "text.json"],
        "plan absent.json: No such file",
    ),
    "retrain, no records": (
        ["retrain", "--profile", "demo-formal", "--data", "absent.csv"],
        "--data: the file absent.csv does not exist",
    ),
    "compare, no list": (
        ["compare", "--profile", "demo", "--data", "text.json", "--codelist", "absent.csv"],
        "--codelist: the file absent.csv does not exist",
    ),
    "retrain, no profile": (["retrain", "--data", "text.json"], "--profile: missing"),
    "retrain, no such column": (
        [*RETRAIN, "--label", "Code"],
        "text.csv has no column 'Code' (--label)",
    ),
    "retrain, one code in all rows": (
        [*RETRAIN, "--label", "code", "--population", "p", "--classification", ""],
        "all 1 usable records have the same code",
    ),
    "retrain, unknown setting": (
        [*RETRAIN, "--set", "data.sorce=1"],
        "data.sorce: unknown parameter",
    ),
    "ledger show, no ledger": (["ledger", "show"], "no ledger at"),
    "release, help": (["release", "--help"], "Release a plan"),
}


@pytest.mark.parametrize(("words", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_it_is_answered_before_the_imports(
    words: Sequence[str], answer: str, tmp_path: Path
) -> None:
    """In a process of its own; nothing is written."""
    (tmp_path / "text.json").write_text("not JSON")
    (tmp_path / "text.csv").write_text("text,code\nan employee fell,1\n")
    done = command(words, tmp_path)
    assert answer in done.stdout + done.stderr
    assert done.stdout.endswith("imported:\n"), done.stdout[-200:]
    assert {path.name for path in tmp_path.iterdir()} == {"text.csv", "text.json"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_demo_data(folder, records=200, seed=1)
    return folder


DEMO = ("train", "--data", "injuries.csv", "--codelist", "codelist.csv", "--epsilon", "5")
LARGE_BATCH = ("--set", "method.name=dp-sgd", "--set", "method.batch_size=1000000")
OF_THE_RECORDS: dict[str, tuple[Sequence[str], str]] = {
    "dry run": ([*DEMO, "--profile", "demo-formal", "--dry-run"], "to compute"),
    "a device that is absent": (
        [*DEMO, "--profile", "demo-formal", "--device", "cuda"],
        "torch finds no CUDA device",
    ),
    "dry run, a clip that sums do not hold": (
        [*DEMO, "--profile", "demo-formal", "--dry-run", "--set", "method.l2_clip_norm=1e9"],
        "more than exact sums hold",
    ),
    "dry run, a batch above the records": (
        [*DEMO, "--profile", "formal", "--dry-run", *LARGE_BATCH],
        "larger than the data",
    ),
}


@pytest.mark.parametrize(("words", "answer"), OF_THE_RECORDS.values(), ids=OF_THE_RECORDS)
def test_the_records_are_read_without_the_imports(
    words: Sequence[str], answer: str, demo: Path
) -> None:
    """No stage computes, so that no one waits for torch, Prefect, or an accountant."""
    done = command(words, demo)
    assert answer in done.stdout + done.stderr
    assert done.stdout.endswith("imported:\n"), done.stdout[-200:]


@pytest.mark.parametrize("words", [["show"], ["verify"]], ids=" ".join)
def test_a_ledger_is_read_without_the_imports(words: Sequence[str], tmp_path: Path) -> None:
    """One with a row in it."""
    workspace = Workspace(tmp_path / "workspace").create()
    Ledger.open(workspace.ledger_url).ensure_genesis_row(requester="lead")
    done = command(["ledger", *words, "--home", str(workspace.home)], tmp_path)
    assert not done.returncode, done.stderr
    assert done.stdout.endswith("imported:\n"), done.stdout[-200:]
