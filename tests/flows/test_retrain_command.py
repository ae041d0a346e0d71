"""`autocoder train` as its user runs it: one release, reused stages, figures, clear refusals."""

import json
from collections import Counter
from pathlib import Path

import pytest
from in_process import CommandRunner
from jobs import Job, read_csv, write_csv


def test_it_ends_in_one_committed_release(finished: Job) -> None:
    """The ledger row carries the claim with its kind; the folder carries the same."""
    (row,) = finished.releases()
    assert row["state"] == "committed"
    assert row["mechanism"] == "swag-ppm"
    assert row["guarantee_kind"] == "asymptotic-local"
    assert float(row["epsilon"]) == pytest.approx(2 * float(row["sensitivity"]), abs=1e-9)
    assert row["delta"] is None
    assert row["draws"] == 40
    assert float(row["mc_failure_prob"]) == pytest.approx(1 / 41)
    assert row["data_fingerprint"]
    assert row["code_commit"]
    statement = json.loads(
        (finished.home / "bundles" / row["release_id"] / "privacy_statement.json").read_text()
    )
    assert statement["epsilon"] == row["epsilon"]
    assert statement["guarantee_kind"] == "asymptotic-local"


def test_every_epsilon_is_in_the_ledger(finished: Job) -> None:
    """Also those of the posteriors that nothing was released from."""
    internal = {row["label"]: row for row in finished.ledger() if row["kind"] == "evaluation"}
    earlier = [f"sensitivity of the {name} posterior, no release" for name in ("base", "weighted")]
    (released,) = (label for label in internal if label.startswith("fit: swag-ppm-reweighted"))
    for label in (*earlier, released):
        assert float(internal[label]["epsilon"]) > 0
        assert {"weighted_f1", "macro_f1", "accuracy"} <= set(internal[label]["details"])


def test_running_again_reuses_every_stage_and_releases_nothing_more(finished: Job) -> None:
    before, rows = finished.stages(), finished.releases()
    again = finished.run("--json")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("reused") == len(before) + 1
    assert json.loads(again.stdout)["release"]["release_id"] == rows[0]["release_id"]
    assert finished.stages() == before
    assert finished.releases() == rows


def test_the_dry_run_says_what_would_be_reused(finished: Job, tmp_path: Path) -> None:
    """All of a finished job; nothing in an empty workspace, which it does not create."""
    told = json.loads(finished.run("--dry-run", "--json").stdout)
    assert all(stage["reused"] for stage in told["stages"])
    assert told["estimated_disk_bytes"] > 0
    assert told["estimated_seconds"] == 0
    shown = finished.run("--dry-run").stdout
    assert "nothing: every stage is finished" in shown
    count = len(told["stages"])
    assert f"{count} of {count} stages" in shown
    assert told["records"]["train"] + told["records"]["test"] <= told["records"]["usable"], (
        "codes are capped"
    )
    assert told["release"] == {
        "release_id": finished.releases()[0]["release_id"],
        "state": "committed",
    }
    changed = json.loads(
        finished.run("--dry-run", "--json", "--set", "method.collect.learning_rate=0.02").stdout
    )
    reused = {stage["stage"] for stage in changed["stages"] if stage["reused"]}
    assert reused == {"ingest", "features"}
    assert changed["release"] is None
    empty = finished.at(tmp_path / "none")
    told = json.loads(empty.run("--dry-run", "--json").stdout)
    assert not any(stage["reused"] for stage in told["stages"])
    assert told["code_list"]["verdict"] == "published"
    assert not empty.home.exists()


def test_the_dry_run_finds_the_records_under_another_name(finished: Job) -> None:
    """What was spent there is spent, in the new name's account and in theirs; under their own
    nothing is said.
    """
    own = json.loads(finished.run("--dry-run", "--json").stdout)
    assert own["other_names"] == []
    spent = {one["spent"] for one in own["budget"]}
    told = json.loads(finished.run("--dry-run", "--json", "--population", "others").stdout)
    assert told["other_names"] == [own["population"]]
    assert {one["population"] for one in told["budget"]} == {"others", own["population"]}
    assert {one["spent"] for one in told["budget"]} == spent != {"0"}
    said = finished.run("--dry-run", "--population", "others").stdout
    assert "released under another population name" in " ".join(said.split())


MISTAKES = (
    ("--set", "method.moments.rank=9", "exceeds the snapshots"),
    ("--set", "model.encoder=/nowhere", "no folder /nowhere"),
    ("--set", "data.ingest.label_column=Natur", "--population"),
    ("--set", "data.ingest.date_column=EventDat", "EventDate"),
    ("--profile", "dmeo", "--profile: dmeo is unknown. Choose from demo, demo-formal, "),
    ("--device", "tpu9", "tpu9"),
    ("--set", "release.policy=/nowhere.yaml", "no file /nowhere.yaml"),
    ("--set", "data=[1]", "data is a section"),
)


def test_a_mistake_ends_in_one_line_and_leaves_nothing(
    new: Job, told: CommandRunner, tmp_path: Path
) -> None:
    """Exit code 2, the option or name in the text, no traceback, no half-written output; the last
    as a process.
    """
    job = new.at(tmp_path / "home")

    def left_nothing() -> bool:
        made = {path.relative_to(job.home) for path in job.home.rglob("*")}
        return not made & {Path("private/stages"), Path("ledger.db")} and not list(
            job.home.glob("bundles/*")
        )

    for option, value, said in MISTAKES:
        key = value.partition("=")[0]
        settings = tuple(one for one in job.settings if not one.startswith(f"{key}="))
        options = job.at(job.home, settings=settings).options()
        if option in options and option != "--set":
            place = options.index(option)
            del options[place : place + 2]
        code, error = told("train", *options, "--home", job.home, option, value)
        assert (code, "Traceback" in error) == (2, False), error
        assert said in error
        assert "secret" not in error
        assert left_nothing()
    done = job.run("--set", "model.encoder=no-such-model-anywhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-model-anywhere" in done.stderr
    assert "Traceback" not in done.stderr
    assert left_nothing()


def test_without_a_code_list_the_dry_run_advises_one(new: Job, tmp_path: Path) -> None:
    """Titles cost no epsilon: anyone who leaves them out learns it before anything is computed."""
    columns = (
        "--text",
        "Final Narrative",
        "--label",
        "Nature",
        "--population",
        "demo",
        "--epsilon",
        "2",
    )
    given = ("retrain", "--profile", "formal", "--data", str(new.data), *columns, "--dry-run")
    job = new.at(tmp_path / "home")
    assert "advice          use --codelist" in job.command(*given).stdout
    named = (
        "--codelist",
        str(new.codelist),
        "--classification",
        "OIICS",
        "--classification-version",
        "2.01",
    )
    listed = job.command(*given, *named)
    assert listed.returncode == 0, listed.stderr
    assert "advice" not in listed.stdout


def test_titles_that_nobody_read_are_refused_before_training(new: Job, tmp_path: Path) -> None:
    """With --release nothing behind ingest runs. A plan lists them; its digest releases them, and
    no other one does.
    """
    counted = Counter(row["Nature"] for row in read_csv(new.data))
    (narrative, *_) = (
        row["Final Narrative"] for row in read_csv(new.data) if 2 <= counted[row["Nature"]] <= 20
    )
    listed = read_csv(new.codelist)
    listed[4]["title"] = narrative[:80]
    few = write_csv(tmp_path / "few.csv", read_csv(new.data)[:120])
    job = new.at(tmp_path / "home", data=few, codelist=write_csv(tmp_path / "own.csv", listed))
    shown = job.run("--dry-run").stdout
    assert "It has the entries of demo-data except entry 5" in " ".join(shown.split())
    refused = job.run()
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "warning: code list: not a published list" in refused.stderr
    assert (
        "error: --codelist: the bundle would contain 46 titles of no published list"
        in refused.stderr
    )
    assert {name.partition("/")[0] for name in job.stages()} == {"ingest"}

    planned = job.run("--plan-only", "--json")
    assert planned.returncode == 0, planned.stderr
    result = json.loads(planned.stdout)
    few, warning = sorted(result["warnings"])
    assert "training records for" in few
    assert warning.startswith("code list: not a published list: the plan lists its 46 entries")
    page = json.loads(job.command("plan", result["plan"], "--json").stdout)
    assert any(narrative[:80] in text for text in page["texts"]), "who decides reads every text"
    for accepted in ((), ("--accept-texts", "0" * 16)):
        stopped = job.command("release", result["plan"], *accepted)
        assert stopped.returncode != 0
        assert "46 texts of no published list" in stopped.stderr
        assert not job.releases()
    for said in (shown, refused.stderr, planned.stdout, planned.stderr, stopped.stderr):
        assert narrative[:40] not in said
    done = job.command("release", result["plan"], "--accept-texts", page["texts_digest"])
    assert done.returncode == 0, done.stderr
    assert len(job.releases()) == 1


@pytest.mark.servers
def test_a_budget_that_is_spent_refuses_before_anything_is_drawn(
    finished: Job, served: Job, tmp_path: Path
) -> None:
    """The cap is below the epsilon: the arithmetic is reported, and there is neither draw nor
    bundle.
    """
    policy = tmp_path / "policy.yaml"
    policy.write_text("name: tight\npopulations:\n  demo:\n    asymptotic-local: {epsilon: 0.01}\n")
    job = finished.copy(tmp_path / "home")
    job = job.at(job.home, env=served.env | {"PREFECT_HOME": str(job.home / "prefect")})
    done = job.run("--set", f"release.policy={policy}")
    assert done.returncode == 2, done.stderr
    assert "0.01" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((job.home / "bundles").iterdir())
    assert not (job.home / "private" / "releases").exists()
    kept = [
        path.read_bytes()
        for path in (job.home / "prefect" / "storage").rglob("*")
        if path.is_file()
    ]
    assert kept == [], "Prefect keeps nothing of a refused run"
