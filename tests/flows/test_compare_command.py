"""`autocoder compare` as its user runs it: every branch measured and recorded, an internal report, clear refusals."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

import pytest
from in_process import CommandRunner
from jobs import ENCODED, Job
from review_browser import CHROMIUM, check_accessible_file

from mechanisms.errors import MechanismError
from storage.errors import StorageError
from tasks.bundle.sentences import COUPLED
from tasks.releasing.claims import MATCHED
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

CHOSEN = (
    *("non-private", "swag-ppm", "swag-ppm-reweighted"),
    *("dp-sgd", "dp-sgd-tuned", "prior-descent"),
)


GIVEN = 6.0
SIZES = ("--set", "rivals.epochs=2", "--set", "rivals.batch_size=64")


def run(job: Job, *extra: str) -> subprocess.CompletedProcess[str]:
    """Compare, to the end."""
    return job.command("compare", *job.options(), *SIZES, "--json", *extra)


@pytest.fixture(scope="module")
def compared(finished: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A finished comparison: its workspace and result."""
    home = tmp_path_factory.mktemp("compare") / "home"
    chosen = ("--branches", ",".join(CHOSEN), "--seeds", "1", "--results", str(home / "results.md"))
    done = run(finished.copy(home, *ENCODED), *chosen)
    assert done.returncode == 0, done.stderr
    return home, json.loads(done.stdout)


@pytest.fixture(scope="module")
def given(new: Job, compared: tuple[Path, dict]) -> dict:
    """A comparison of branches that may leave, at an epsilon that a person gave, in that workspace."""
    chosen = ("--branches", "dp-sgd-tuned,prior-descent", "--seeds", "2")
    done = run(new.at(compared[0]), *chosen, "--epsilon", str(GIVEN))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_branch_has_its_claim_and_kind(compared: tuple[Path, dict]) -> None:
    """Kinds are told apart; the formal ones meet the target that SWAG-PPM set, and do not exceed it."""
    _, result = compared
    branches = {branch["branch"]: branch for branch in result["branches"]}
    assert tuple(branches) == CHOSEN
    assert branches["non-private"]["guarantee_kind"] == "none"
    assert branches["non-private"]["epsilon"] is None
    assert branches["swag-ppm"]["guarantee_kind"] == "asymptotic-local"
    target = result["target_epsilon"]
    assert target == int(target)
    assert target - 1 < branches["swag-ppm"]["epsilon"] + 1
    for name in ("dp-sgd-tuned", "prior-descent"):
        assert branches[name]["guarantee_kind"] == "formal"
        assert branches[name]["epsilon"] == pytest.approx(target, rel=0.005)
        assert any("without account" in line for line in branches[name]["unprotected"])
    assert branches["dp-sgd"]["cost"]["epsilon_rdp_mironov"] == pytest.approx(target, rel=0.005)
    assert branches["dp-sgd"]["epsilon"] < target
    assert not any("without account" in line for line in branches["dp-sgd"]["unprotected"])


def test_the_report_is_internal_and_self_contained(compared: tuple[Path, dict]) -> None:
    """It says so on its face, names every branch, holds its figures, and loads nothing from elsewhere."""
    home, result = compared
    file = Path(result["report"])
    assert file.is_relative_to(home / "private")
    text = file.read_text()
    assert "Internal. These figures are computed from private records" in text
    for branch in result["branches"]:
        assert branch["title"] in text
    assert text.count("<svg") == text.count("<figure") >= 5
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text
    assert not re.search(r"(?:src|href)=['\"](?!data:|#)", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_the_officers_page_recommends_nothing_where_every_epsilon_is_from_the_records(
    compared: tuple[Path, dict],
) -> None:
    """`match` is for study, and SWAG-PPM's claim is no formal one: the page says so, and shows what each loses."""
    _, result = compared
    text = Path(result["decision"]).read_text()
    assert result["recommendation"].startswith("Nothing here should be released")
    assert html.escape(result["recommendation"], quote=False) in text.replace("&#39;", "'")
    assert "its epsilon comes from these records" in text
    assert "How much does each branch lose, and at which ε?" in text
    assert "not audited" in text
    assert not re.search(r"(?:src|href)=['\"](?!data:|#)", text)
    links = set(re.findall(r'href="#(plan-[^"]+)"', text))
    assert links
    assert links <= set(re.findall(r'id="([^"]+)"', text))


def test_two_protocols_and_several_epsilons_are_one_report(new: Job, compared: tuple[Path, dict]) -> None:
    """Two tables of one command; formal branches at each epsilon; the page recommends one of them, with its loss."""
    chosen = ("--branches", "non-private,prior-descent", "--seeds", "1", "--epsilon", str(GIVEN))
    both = ("--protocols", "paper,all-records", "--epsilons", "2")
    done = run(new.at(compared[0]), *chosen, *both)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["protocols"]) == ["paper", "all-records"]
    for name, taken in result["protocols"].items():
        formal = taken["branches"][1]
        (further,) = taken["further"]["2"]
        assert (formal["branch"], further["branch"]) == ("prior-descent", "prior-descent")
        assert (formal["epsilon"], further["epsilon"]) == pytest.approx((GIVEN, 2.0), rel=0.005)
        assert taken["recommendation"].startswith("Release Prior descent (formal, ε"), name
        assert "Non-private" in taken["recommendation"]
        assert "it was not audited" in taken["recommendation"]
    assert len(result["plans"]) == 4
    assert "prior-descent at epsilon 2" in result["plans"]
    text = Path(result["report"]).read_text()
    assert text.count("Table 1: privacy and utility") == 2
    assert "All records, in their natural distribution" in text
    assert len(set(re.findall(r'<h3 id="(plan-[^"]+)"', text))) == 4
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_results_for_publication_hold_no_code(compared: tuple[Path, dict]) -> None:
    """Aggregates only: no table by code, no path of the workspace."""
    home, _ = compared
    text = (home / "results.md").read_text()
    assert "Table 1" in text
    assert "Table 3" not in text
    assert str(home) not in text
    assert (home / "results" / "frontier.svg").is_file()


def test_each_claim_is_in_the_ledger_and_nothing_is_charged(new: Job, compared: tuple[Path, dict]) -> None:
    """One internal row a branch and seed."""
    rows = [row for row in new.at(compared[0]).ledger() if row["label"].startswith("compare: ")]
    rows = rows[: len(CHOSEN)]  # later comparisons of this file add theirs
    assert {row["label"].split(",")[0].removeprefix("compare: ") for row in rows} == set(CHOSEN)
    assert {row["state"] for row in rows} == {"internal"}
    assert not any(row["charges"] for row in rows)
    kinds = {row["label"].split(",")[0].removeprefix("compare: "): row["guarantee_kind"] for row in rows}
    assert kinds["non-private"] == "none"
    assert kinds["prior-descent"] == "formal"


def test_an_epsilon_taken_from_the_records_is_for_study(compared: tuple[Path, dict], given: dict) -> None:
    """`match`: no plan of what aims at it, and its claim says where the target is from; a number given: a plan."""
    _, result = compared
    assert set(result["plans"]) == {"swag-ppm", "swag-ppm-reweighted"}
    has_target = {"dp-sgd", "dp-sgd-tuned", "prior-descent"}
    for branch in result["branches"]:
        assert (MATCHED in branch["unprotected"]) == (branch["branch"] in has_target)
    assert set(given["plans"]) == {"dp-sgd-tuned", "prior-descent"}
    assert not any(MATCHED in branch["unprotected"] for branch in given["branches"])


def test_a_plan_at_an_epsilon_taken_from_the_records_is_refused(compared: tuple[Path, dict], given: dict) -> None:
    """A plan that says so of itself releases nothing, whoever wrote it."""
    planned = PlannedRelease.load(Path(given["plans"]["prior-descent"]))
    claim = planned.plan.claim
    matched = claim.model_copy(update={"unprotected_inputs": (*claim.unprotected_inputs, MATCHED)})
    of_match = planned.model_copy(update={"plan": planned.plan.model_copy(update={"claim": matched})})
    context = Context(home=str(compared[0]), device="cpu")
    planned.check(context)
    with pytest.raises(MechanismError, match="taken from the records"):
        of_match.check(context)


def test_a_branch_with_a_formal_claim_is_released_by_the_same_path(
    new: Job, compared: tuple[Path, dict], given: dict, told: CommandRunner, tmp_path: Path
) -> None:
    """Reserved, charged to the formal account, bundled with its own words; again, the same bundle and no new charge."""
    plan = given["plans"]["prior-descent"]
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
    assert any("after a comparison" in line for line in statement["unprotected_inputs"])
    assert "one fit with noise" in (folder / "README.md").read_text()
    assert json.loads(job.command("release", plan, "--json").stdout) == made


def test_a_plan_edited_by_hand_is_refused(new: Job, compared: tuple[Path, dict], given: dict, tmp_path: Path) -> None:
    """A smaller epsilon, or another artifact, in the plan's file: nothing is reserved."""
    home, result = compared[0], given
    plan = json.loads(Path(result["plans"]["dp-sgd-tuned"]).read_text())
    cheaper = json.loads(json.dumps(plan))
    cheaper["plan"]["claim"]["epsilon"] /= 2
    quieter = json.loads(json.dumps(plan))
    quieter["plan"]["event"]["segments"][0]["noise_multiplier"] *= 2
    other = json.loads(json.dumps(plan))
    other["candidate"]["fitted"] = json.loads(Path(result["plans"]["prior-descent"]).read_text())["candidate"]["fitted"]
    context = Context(home=str(home), device="cpu")
    for changed, said in (
        (plan, None),
        (cheaper, "does not support its claim"),
        (quieter, "not what ran"),
        (other, "artifacts are not those"),
    ):
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(changed))
        planned = PlannedRelease.load(file)
        if said is None:
            planned.check(context)
            continue
        with pytest.raises((StorageError, MechanismError), match=said):
            planned.check(context)
    file.write_text("{}")
    done = new.at(home).command("release", str(file))
    assert done.returncode == 2, done.stderr
    assert "is not a release plan" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainable", "prior"), [("lora", "none"), ("full", "titles"), ("lora", "titles"), ("full", "none")]
)
def test_the_other_trainable_parts_compare_too(
    trainable: str, prior: str, new: Job, tiny_roberta: Path, tmp_path: Path
) -> None:
    """Ghost clipping, schedules, class weights and SWAG-PPM on a tiny RoBERTa, each with its claim, from titles too.

    Nightly: `tasks/fitting/test_chain.py` takes each part from a file to a release, and
    `tasks/auditing/test_token_trials.py` fits DP-SGD of tokens.
    """
    settings = {
        "model.encoder": str(tiny_roberta),
        "model.trainable": trainable,
        "model.prior": prior,
        "model.pooling": "first" if prior == "none" else "mean",
        "model.max_length": "16",
        "model.lora_rank": "2",
        "pseudo_posterior.risk_draws": "3",
        "pseudo_posterior.sensitivity_draws": "3",
    }
    branches = (
        "non-private,swag-ppm,dp-sgd,dp-sgd-class-weighted,sad" if trainable == "full" else "dp-sgd-class-weighted,sad"
    )
    job = new.at(tmp_path / "home", settings=(*new.settings, *(f"{name}={value}" for name, value in settings.items())))
    done = run(job, "--branches", branches, "--seeds", "1", "--epsilon", "8")
    assert done.returncode == 0, done.stderr
    result = {branch["branch"]: branch for branch in json.loads(done.stdout)["branches"]}
    assert ",".join(result) == branches
    for name in ("dp-sgd-class-weighted", "sad"):
        assert result[name]["guarantee_kind"] == "formal"
        assert result[name]["epsilon"] == pytest.approx(8, rel=0.005)
    assert all(0 <= branch["mean"]["weighted_f1"] <= 1 for branch in result.values())


def test_running_again_computes_nothing(new: Job, compared: tuple[Path, dict]) -> None:
    """The same figures, from the same stages; two slots change nothing."""
    home, result = compared
    before = {p: p.stat().st_mtime_ns for p in (home / "private" / "stages").rglob("manifest.json")}
    again = run(new.at(home), "--branches", ",".join(CHOSEN), "--seeds", "1", "--set", "rivals.slots=2")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["branches"] == result["branches"]
    assert {p: p.stat().st_mtime_ns for p in (home / "private" / "stages").rglob("manifest.json")} == before


def test_bad_settings_are_refused_by_name(new: Job, told: CommandRunner, tmp_path: Path) -> None:
    """One line that names the option, without a traceback."""
    given = ("compare", *new.options(), *SIZES, "--home", tmp_path / "home")
    for extra, named in (
        (("--delta", "1"), "delta"),
        (("--branches", "dp-sdg"), "branch dp-sdg does not exist"),
        (("--epsilon", "-1"), "--epsilon"),
        (("--set", "rivals.slots=2", "--set", "model.trainable=full"), "--slots"),
        (("--branches", "prior-descent", "--set", "model.trainable=full"), "prior-descent"),
    ):
        code, error = told(*given, *extra)
        assert (code, error.count("\n")) == (2, 1), error
        assert named in error
    # seen once the records are counted
    larger = ("--branches", "dp-sgd", "--epsilon", "4", "--set", "rivals.batch_size=5000")
    done = run(new.at(tmp_path / "home"), *larger)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last.startswith("error: "), "--batch-size" in last) == (2, True, True), done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_its_pages_are_accessible(compared: tuple[Path, dict], given: dict) -> None:
    """Report and decision, by axe."""
    check_accessible_file(Path(compared[1]["report"]), Path(given["decision"]))
