"""`autocoder compare` as its user runs it: every branch measured and recorded, an internal report,
clear refusals.
"""

import json
import subprocess
from pathlib import Path

import pytest
from in_process import CommandRunner
from jobs import ENCODED, Job
from refusals import of_kind

from mechanisms.errors import MechanismError
from storage.errors import StorageError
from tasks.bundle.sentences import COUPLED
from tasks.releasing.claims import COMPARED
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

CHOSEN = (
    *("non-private", "swag-ppm", "swag-ppm-reweighted"),
    *("dp-sgd", "dp-sgd-tuned", "prior-descent"),
)
AIMING = ("dp-sgd", "dp-sgd-tuned", "prior-descent")
"""Those with a target."""

GIVEN = 6
SIZES = ("--set", "baselines.epochs=2", "--set", "baselines.batch_size=64")


def run(job: Job, *extra: str) -> subprocess.CompletedProcess[str]:
    return job.command("compare", *job.options(), *SIZES, "--json", *extra)


@pytest.fixture(scope="module")
def compared(finished: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    home = tmp_path_factory.mktemp("compare") / "home"
    chosen = (
        "--branches",
        ",".join(CHOSEN),
        "--seeds",
        "1",
        "--epsilon",
        str(GIVEN),
        "--epsilons",
        "2",
    )
    done = run(finished.copy(home, *ENCODED), *chosen)
    assert done.returncode == 0, done.stderr
    return home, json.loads(done.stdout)


@pytest.fixture(scope="module")
def given(compared: tuple[Path, dict]) -> dict:
    return compared[1]


def test_every_branch_has_its_claim_and_kind(given: dict) -> None:
    """Kinds are told apart; the formal ones meet each target and do not exceed it."""
    assert [one["branch"] for one in given["branches"]] == [*CHOSEN, *AIMING]
    branches = {one["branch"]: one for one in given["branches"][: len(CHOSEN)]}
    assert branches["non-private"]["guarantee_kind"] == "none"
    assert branches["non-private"]["epsilon"] is None
    assert branches["swag-ppm"]["guarantee_kind"] == "asymptotic-local"
    for name in ("dp-sgd-tuned", "prior-descent"):
        assert branches[name]["guarantee_kind"] == "formal"
        assert branches[name]["epsilon"] == pytest.approx(GIVEN, rel=0.005)
        assert any("without spending" in line for line in branches[name]["unprotected"])
    assert branches["dp-sgd"]["epsilon"] < GIVEN, "calibrated by Mironov's conversion"
    assert not any("without spending" in line for line in branches["dp-sgd"]["unprotected"])
    assert all(one["epsilon"] <= 2 for one in given["branches"][len(CHOSEN) :])


def test_results_are_internal_and_without_a_code(compared: tuple[Path, dict], new: Job) -> None:
    """In the private workspace; every branch is in the table; no code of the
    records is anywhere.
    """
    home, result = compared
    folder = Path(result["folder"])
    assert folder.is_relative_to(home / "private")
    text = (folder / "results.md").read_text()
    assert "its figures were computed from private records" in text
    for branch in result["branches"]:
        assert branch["title"] in text
    assert json.loads((folder / "results.json").read_text())["branches"] == result["branches"]
    assert (folder / "results.svg").read_text().startswith("<svg")


def test_what_has_a_claim_and_a_bundle_has_a_plan(given: dict) -> None:
    """Each at its target."""
    at = [f"{name} at epsilon {target}" for target in ("6", "2") for name in AIMING]
    assert set(given["plans"]) == {"swag-ppm", "swag-ppm-reweighted", *at}


def test_each_claim_is_in_the_ledger_and_nothing_is_charged(
    new: Job, compared: tuple[Path, dict]
) -> None:
    """One internal row a branch and seed."""
    every = [row for row in new.at(compared[0]).ledger() if row["kind"] == "evaluation"]
    rows = [row for row in every if row["label"].startswith("fit: ")]
    rows = rows[: len(CHOSEN)]  # later comparisons of this file add theirs
    assert {row["label"].split(",")[0].removeprefix("fit: ") for row in rows} == set(CHOSEN)
    kinds = {
        row["label"].split(",")[0].removeprefix("fit: "): row["guarantee_kind"] for row in rows
    }
    assert kinds["non-private"] == "none"
    assert kinds["prior-descent"] == "formal"


def test_a_branch_with_a_formal_claim_is_released_by_the_same_path(
    new: Job, compared: tuple[Path, dict], given: dict, told: CommandRunner, tmp_path: Path
) -> None:
    """Reserved, charged to the formal account, bundled with its own words; again, the same bundle
    and no new charge.
    """
    plan = given["plans"]["prior-descent at epsilon 6"]
    code, error = told("release", plan, "--home", tmp_path / "other")
    assert code == 2, "its records are not charged to another workspace's ledger"
    assert "--home: the plan belongs to" in error
    assert not (tmp_path / "other").exists()
    job = new.at(compared[0])
    done = job.command("release", plan, "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["guarantee_kind"] == "formal"
    assert made["sensitivity"] == "none"
    folder = Path(made["bundle"])
    statement = json.loads((folder / "privacy_statement.json").read_text())
    assert float(statement["delta"]) == 1e-5, "the usual one, which the default policy allows"
    assert float(statement["epsilon"]) == pytest.approx(GIVEN, rel=0.005)
    assert COUPLED in statement["unprotected_inputs"]
    assert COMPARED in statement["unprotected_inputs"]
    assert "one training run with noise" in (folder / "README.md").read_text()
    assert json.loads(job.command("release", plan, "--json").stdout) == made


def test_a_plan_edited_by_hand_is_refused(
    new: Job, compared: tuple[Path, dict], given: dict, tmp_path: Path
) -> None:
    """A smaller epsilon, or another artifact, in the plan's file: nothing is reserved."""
    home, result = compared[0], given
    plan = json.loads(Path(result["plans"]["dp-sgd-tuned at epsilon 6"]).read_text())
    cheaper = json.loads(json.dumps(plan))
    cheaper["plan"]["claim"]["epsilon"] /= 2
    quieter = json.loads(json.dumps(plan))
    quieter["plan"]["event"]["segments"][0]["noise_multiplier"] *= 2
    other = json.loads(json.dumps(plan))
    other["candidate"]["fitted"] = json.loads(
        Path(result["plans"]["prior-descent at epsilon 6"]).read_text()
    )["candidate"]["fitted"]
    context = Context(home=str(home), device="cpu")
    for changed, refusal in (
        (plan, None),
        (cheaper, of_kind("plan-differs", saying="claim.epsilon")),
        (quieter, of_kind("plan-differs")),
        (other, of_kind("plan-differs", saying="artifact_digests")),
    ):
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(changed))
        planned = PlannedRelease.load(file)
        if refusal is None:
            planned.check(context)
            continue
        with pytest.raises((StorageError, MechanismError), check=refusal):
            planned.check(context)
    file.write_text("{}")
    done = new.at(home).command("release", str(file))
    assert done.returncode == 2, done.stderr
    assert "is not a release plan" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainable", "prior"),
    [("lora", "none"), ("full", "titles"), ("lora", "titles"), ("full", "none")],
)
def test_the_other_trainable_parts_compare_too(
    trainable: str, prior: str, new: Job, tiny_roberta: Path, tmp_path: Path
) -> None:
    """Ghost clipping, schedules, class weights and SWAG-PPM on a tiny RoBERTa, each with its claim,
    from titles too. Nightly: `tasks/fitting/test_chain.py` takes each part from a file to a
    release, and `tasks/auditing/test_token_trials.py` fits DP-SGD of tokens.
    """
    settings = {
        "model.encoder": str(tiny_roberta),
        "model.trainable": trainable,
        "model.prior": prior,
        "model.pooling": "first" if prior == "none" else "mean",
        "model.max_length": "16",
        "model.lora_rank": "2",
        "method.pseudo_posterior.risk_draws": "3",
        "method.pseudo_posterior.sensitivity_draws": "3",
    }
    branches = (
        "non-private,swag-ppm,dp-sgd,dp-sgd-class-weighted,sad"
        if trainable == "full"
        else "dp-sgd-class-weighted,sad"
    )
    every = dict(setting.split("=", 1) for setting in new.settings) | settings
    job = new.at(
        tmp_path / "home", settings=tuple(f"{name}={value}" for name, value in every.items())
    )
    done = run(job, "--branches", branches, "--seeds", "1", "--epsilon", "8")
    assert done.returncode == 0, done.stderr
    result = {branch["branch"]: branch for branch in json.loads(done.stdout)["branches"]}
    assert ",".join(result) == branches
    for name in ("dp-sgd-class-weighted", "sad"):
        assert result[name]["guarantee_kind"] == "formal"
        assert result[name]["epsilon"] == pytest.approx(8, rel=0.005)
    assert all(0 <= branch["mean"]["weighted_f1"] <= 1 for branch in result.values())


def test_running_again_computes_nothing(new: Job, compared: tuple[Path, dict]) -> None:
    home, result = compared
    before = {p: p.stat().st_mtime_ns for p in (home / "private" / "stages").rglob("manifest.json")}
    again = run(
        new.at(home),
        "--branches",
        ",".join(CHOSEN),
        "--seeds",
        "1",
        "--epsilon",
        "6",
        "--epsilons",
        "2",
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["branches"] == result["branches"]
    assert {
        p: p.stat().st_mtime_ns for p in (home / "private" / "stages").rglob("manifest.json")
    } == before


def test_bad_settings_are_refused_by_name(new: Job, told: CommandRunner, tmp_path: Path) -> None:
    given = ("compare", *new.options(), *SIZES, "--home", tmp_path / "home")
    for extra, named in (
        (("--delta", "1"), "delta"),
        (("--branches", "dp-sdg"), "--branches: unknown branch dp-sdg"),
        (("--branches", "dp-sgd"), "--epsilon is missing: dp-sgd"),
        (("--epsilon", "-1"), "target_epsilon"),
        (("--branches", "prior-descent", "--set", "model.trainable=full"), "prior-descent"),
    ):
        code, error = told(*given, *extra)
        assert (code, error.count("\n")) == (2, 1), error
        assert named in error
    # seen once the records are counted
    larger = ("--branches", "dp-sgd", "--epsilon", "4", "--set", "baselines.batch_size=5000")
    done = run(new.at(tmp_path / "home"), *larger)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last.startswith("error: "), "--batch-size" in last) == (
        2,
        True,
        True,
    ), done.stderr
