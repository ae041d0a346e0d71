"""A mistake in a file, and a question about a command, are answered before anything is imported
that takes seconds.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from slow_imports import Done, run

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


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """All of these, one after another in a process of their own; nothing is written."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "text.json").write_text("not JSON")
    (folder / "text.csv").write_text("text,code\nan employee fell,1\n")
    done = run([words for words, _ in ANSWERS.values()], folder)
    assert {path.name for path in folder.iterdir()} == {"text.csv", "text.json"}
    return dict(zip(ANSWERS, done, strict=True))


@pytest.mark.parametrize("name", ANSWERS)
def test_it_is_answered_before_the_imports(name: str, refused: dict[str, Done]) -> None:
    assert ANSWERS[name][1] in refused[name].said
    assert refused[name].imported == ()


DEMO = ("train", "--data", "injuries.csv", "--codelist", "codelist.csv", "--epsilon", "5")
LARGE_BATCH = ("--set", "method.name=dp-sgd", "--set", "method.batch_size=1000000")
TOO_LONG = ("--set", "model.encoder=./encoder", "--set", "model.max_length=65")
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
    "more tokens than the encoder reads": (
        [*DEMO, "--profile", "demo-formal", *TOO_LONG],
        "reads at most 64 tokens",
    ),
    "dry run, more tokens than the encoder reads": (
        [*DEMO, "--profile", "demo-formal", "--dry-run", *TOO_LONG],
        "reads at most 64 tokens",
    ),
}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    folder = tmp_path_factory.mktemp("demo")
    write_demo_data(folder, records=200, seed=1)
    (folder / "encoder").mkdir()
    config = {"model_type": "bert", "max_position_embeddings": 64, "pad_token_id": 0}
    (folder / "encoder" / "config.json").write_text(json.dumps(config))
    done = run([words for words, _ in OF_THE_RECORDS.values()], folder)
    return dict(zip(OF_THE_RECORDS, done, strict=True))


@pytest.mark.parametrize("name", OF_THE_RECORDS)
def test_the_records_are_read_without_the_imports(name: str, answered: dict[str, Done]) -> None:
    """No stage computes, so that no one waits for torch, Prefect, or an accountant."""
    assert OF_THE_RECORDS[name][1] in answered[name].said
    assert answered[name].imported == ()


def test_a_run_whose_stages_are_all_there_takes_no_torch(tmp_path: Path) -> None:
    """The second of two equal runs computes nothing but the claim, and writes the same plan."""
    write_demo_data(tmp_path, records=60, seed=1)
    command = (*DEMO, "--profile", "demo-formal", "--home", str(tmp_path / "home"))
    (first,), (again,) = run([command], tmp_path), run([command], tmp_path)
    assert (first.code, again.code) == (0, 0), first.said + again.said
    assert "torch" in first.imported
    assert again.imported == ("scipy",)
    assert _plan_named(again.said) == _plan_named(first.said)


def _plan_named(said: str) -> str:
    return next(line for line in said.splitlines() if line.startswith("plan: "))


def test_a_ledger_is_read_without_the_imports(tmp_path: Path) -> None:
    """One with a row in it."""
    workspace = Workspace(tmp_path / "workspace").create()
    Ledger.open(workspace.ledger_url).ensure_genesis_row(requester="lead")
    home = ("--home", str(workspace.home))
    for done in run([("ledger", "show", *home), ("ledger", "verify", *home)], tmp_path):
        assert not done.code, done.said
        assert done.imported == ()
