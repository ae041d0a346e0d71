"""Plan, approve, release by the commands: a release that no one signed for does not happen. The
plan and its artifacts are those of the finished job; each test has a workspace and a ledger of its
own.
"""

import html
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import slow_imports
import typer
from in_process import command, invoke, write_policy
from jobs import Job
from refusals import of_kind

from flows.commands import approve as approve_command
from flows.commands.plan import offered, summary_of
from storage.errors import InputError, StorageError
from storage.ledger import Ledger, Policy, ReleaseRow
from storage.paths import Workspace
from tasks.parameters import LedgerParameters
from tasks.running.failures import SAFE


def approve(job: Job, plan: str, name: str) -> str:
    return command("approve", plan, "--key", job.home.parent / name / "signing-key.pem", "--yes")


def refuse(job: Job, plan: str, name: str) -> str:
    return command(
        *("approve", plan, "--refuse", "--reason", "too early", "--yes"),
        *("--key", str(job.home.parent / name / "signing-key.pem")),
    )


def releases(job: Job) -> list[ReleaseRow]:
    return list(Ledger.open(Workspace(job.home).ledger_url).releases())


def refusals(job: Job) -> list[str]:
    state = Ledger.open(Workspace(job.home).ledger_url).state()
    return [row.entry.reason for row in state.refusals.values()]


def test_a_retrain_that_could_not_release_is_refused_before_it_trains(
    site: tuple[Job, str],
) -> None:
    """The plan to approve is there only after the training; the text says how to go about it."""
    job, _ = site
    with pytest.raises(
        InputError,
        check=of_kind(
            "plan-needs-review",
            saying=("2 signed approvals", "--plan-only", "autocoder audit PLAN"),
        ),
    ):
        command("retrain", *job.options(), "--home", str(job.home), "--dry-run")


@pytest.mark.parametrize(
    "step", ["storage.ledger.Ledger.refuse", "tasks.releasing.approval.save_decision"]
)
def test_a_refusal_that_died_half_way_is_made_good_by_the_same_command(
    site: tuple[Job, str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Wherever it died: no refusal is beside the plan that the ledger does not have, and there is
    one row.
    """
    job, plan = site
    approve(job, plan, "officer")
    decisions = Path(plan).with_name(f"{Path(plan).stem}.decisions")
    before = {path: path.read_bytes() for path in decisions.iterdir()}

    def dies(*_: object) -> None:
        raise KeyboardInterrupt  # nothing of ours catches it

    with monkeypatch.context() as patch:
        patch.setattr(step, dies)
        with pytest.raises(AssertionError):
            refuse(job, plan, "officer")
    assert {path: path.read_bytes() for path in decisions.iterdir()} == before, (
        "the approval stands till the ledger has it"
    )
    assert refuse(job, plan, "officer").startswith("refused by officer: ledger row")
    assert refuse(job, plan, "officer").startswith("refused by officer: ledger row")
    assert refusals(job) == ["officer refused: too early"]


def test_two_signatures_release_and_one_does_not(site: tuple[Job, str]) -> None:
    job, plan = site
    assert approve(job, plan, "officer") == "approved by officer; 1 more needed\n"
    with pytest.raises(InputError, check=of_kind("repeated-approval")):
        approve(job, plan, "officer")
    write_policy(job.home.parent, "stranger", minimum=1)  # a file that is not in force lends no key
    with pytest.raises(InputError, check=of_kind("not-an-approver"), match=r"director, officer"):
        approve(job, plan, "stranger")
    refused = job.command("release", plan)
    assert refused.returncode == 2
    assert "1 of 2 signed approvals missing" in refused.stderr
    assert releases(job) == []

    said = approve(job, plan, "director").splitlines()
    assert said == ["approved by director", f"next: autocoder release {plan}"]
    done = job.command(*shlex.split(said[1])[2:])
    assert done.returncode == 0, done.stderr
    assert "release: about 15 s (a rough guess" in done.stderr
    assert "release" in json.loads((job.home / "private" / "timings.json").read_text())
    (row,) = releases(job)
    assert (row.state, sorted(row.reserved.approvals)) == ("committed", ["director", "officer"])
    shown = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert Path(shown["bundle"].split()[1]).name == row.release_id
    assert shown["released"].startswith(f"released  {row.release_id}: estimated, ε ")
    assert f"autocoder handover {row.release_id}" in shown["next"]
    assert "this ε is an estimate" in done.stderr
    command("ledger", "verify", "--home", str(job.home))


def test_a_plan_names_each_command_up_to_its_release(site: tuple[Job, str]) -> None:
    """`approve` too, while the policy asks for signatures that are missing."""
    job, plan = site
    sign = f"autocoder approve {plan} --key KEY.pem"
    release = f"autocoder release {plan}"

    def following() -> tuple[str, ...]:
        return summary_of(plan, str(job.home), LedgerParameters()).to_release

    assert following() == (sign, release)
    assert offered(following()) == [f"next: {sign}", f"then: {release}"]
    approve(job, plan, "officer")
    assert following() == (sign, release), "one of two signatures"
    approve(job, plan, "director")
    assert following() == (release,)


def test_the_prompt_states_the_epsilon_of_the_page(site: tuple[Job, str], tmp_path: Path) -> None:
    """All decimals that the page has, and none but these."""
    job, plan = site
    key = job.home.parent / "officer" / "signing-key.pem"
    page = tmp_path / "plan.html"
    command("plan", plan, "--html", page)
    (stated,) = re.findall(r"<b>ε ([0-9.]+)</b>", page.read_text())
    asked = invoke("approve", plan, "--key", key, "--yes", "--print")[2]
    assert asked.splitlines()[0].endswith(f", ε {stated}, requested by operator")
    claimed = json.loads(command("plan", plan, "--json"))["claim"]["epsilon"]
    assert 0 <= float(stated) - claimed < 1e-4, "rounded up in the fourth decimal"


def test_what_is_signed_is_read_first(site: tuple[Job, str], tmp_path: Path) -> None:
    """`plan show` in the terminal, as JSON and as a page; `approve` quotes leakage and budget
    before it signs. Looking changes nothing that is signed.
    """
    job, plan = site
    for done in slow_imports.run([["plan", plan], ["status", "--home", str(job.home)]], tmp_path):
        assert done.imported == (), done.said
    digest = json.loads(command("plan", plan, "--json"))["facts"]["digest"]
    code, shown, err = invoke("plan", plan)
    assert code == 0
    assert "this ε is an estimate" in err
    assert "▲ warning  What did attacks measure?" in shown
    assert "was not audited" in shown
    assert "under policy strict" in shown
    assert not re.search(r"\d\.\d{7}", shown)
    page = tmp_path / "plan.html"
    assert "objection" in command("plan", plan, "--html", page)
    assert "was not audited" in page.read_text()
    with pytest.raises(InputError, check=of_kind("no-folder", saying="--html")):
        command("plan", plan, "--html", tmp_path / "none" / "plan.html")
    key = str(job.home.parent / "officer" / "signing-key.pem")
    code, out, err = invoke("approve", plan, "--key", key, "--yes")
    assert (code, out) == (0, "approved by officer; 1 more needed\n")
    quoted = [err.index(text) for text in ("was not audited", "under policy strict")]
    assert max(quoted) < err.index("signed: digest")
    judged = re.search(r"(\d+) answers? for you to judge", err)
    assert err.count("● review:") == (int(judged[1]) if judged else 0), "what is counted is quoted"
    assert digest[:12] in err
    assert f"assumptions: autocoder plan {plan} lists them" in " ".join(err.split())


def test_a_desk_without_the_records_signs_by_copies_of_plan_and_ledger(
    site: tuple[Job, str], tmp_path: Path
) -> None:
    """The officer's folder has two files; what is printed there releases at the agency."""
    job, plan = site
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "plan.json").write_bytes(Path(plan).read_bytes())
    command("ledger", "export", "copy", "--home", job.home, "--out", desk / "ledger.db")
    assert (desk / "ledger.db").stat().st_mode & 0o077 == 0
    there = (desk / "plan.json", "--home", desk)
    shown = command("plan", *there)
    assert "under policy strict" in shown
    told = " ".join(shown.split())
    assert "Only names were compared" in told
    assert f"autocoder audit {desk}" not in told, "a desk has no records to audit"
    command("plan", *there, "--html", tmp_path / "plan.html")
    page = html.unescape((tmp_path / "plan.html").read_text())
    decide = page[page.index("<h2>Decide") :]
    sign = f"autocoder approve {desk / 'plan.json'} --home {desk}"
    assert f"{sign} --key KEY.pem --print > approval.txt" in decide
    assert f'{sign} --refuse --key KEY.pem --reason "…" --print > refusal.txt' in decide
    assert "autocoder release" not in decide
    with pytest.raises(InputError, check=of_kind("another-workspace")):
        command("approve", *there, "--key", tmp_path / "officer" / "signing-key.pem", "--yes")
    words: list[str] = []
    for name in ("officer", "director"):
        key = tmp_path / name / "signing-key.pem"
        code, token, err = invoke("approve", *there, "--key", key, "--print", "--yes")
        assert code == 0
        assert f"details: autocoder plan {desk / 'plan.json'} --home {desk}" in err
        told = " ".join(err.split())
        assert "Is the code list public? Not checked" in told
        assert f"autocoder plan {desk / 'plan.json'} --home {desk} lists them" in told
        (tmp_path / f"{name}.txt").write_text(token)
        words += ["--approval", str(tmp_path / f"{name}.txt")]
    assert sorted(path.name for path in desk.iterdir()) == ["ledger.db", "plan.json"]
    one = job.command("release", plan, *words[:2])
    assert "1 of 2 signed approvals missing" in one.stderr
    done = job.command("release", plan, *words)
    assert done.returncode == 0, done.stderr
    (row,) = releases(job)
    assert (row.state, sorted(row.reserved.approvals)) == ("committed", ["director", "officer"])


def test_a_plan_of_a_workspace_that_is_closed_to_the_reader_is_read(
    site: tuple[Job, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The officer has an account on the agency's machine, which may not look into `private`."""
    job, plan = site
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "plan.json").write_bytes(Path(plan).read_bytes())
    command("ledger", "export", "copy", "--home", job.home, "--out", desk / "ledger.db")
    here = Path.is_dir

    def closed(path: Path) -> bool:
        if path.is_relative_to(job.home / "private"):
            raise PermissionError(13, "Permission denied", str(path))
        return here(path)

    monkeypatch.setattr(Path, "is_dir", closed)
    assert "under policy strict" in command("plan", desk / "plan.json", "--home", desk)


def test_signatures_do_not_cover_a_plan_that_was_changed(site: tuple[Job, str]) -> None:
    """One field of what is drawn from: the approvals are stale."""
    job, plan = site
    for name in ("officer", "director"):
        approve(job, plan, name)
    content = json.loads(Path(plan).read_text())
    content["candidate"]["mechanism"]["moments"]["std_scale"] = 0.5
    Path(plan).write_text(json.dumps(content))
    changed = job.command("release", plan)
    assert changed.returncode == 2
    assert "an earlier version of this" in changed.stderr
    assert releases(job) == []


def test_a_refusal_ends_it(site: tuple[Job, str]) -> None:
    """Recorded with its reason, and not to be had by later approvals."""
    job, plan = site
    assert refuse(job, plan, "director").startswith("refused by director")
    with pytest.raises(InputError, check=of_kind("plan-refused", saying=("director", "too early"))):
        approve(job, plan, "officer")
    after = job.command("release", plan)
    assert after.returncode == 2
    assert "director refused: too early" in after.stderr
    assert refusals(job) == ["director refused: too early"]
    assert releases(job) == []
    state = Ledger.open(Workspace(job.home).ledger_url).state()
    (row,) = state.refusals.values()
    answers = json.loads(command("plan", plan, "--json"))["answers"]
    told = next(answer["answer"] for answer in answers if answer["key"] == "decision")
    for part in ("director", row.entry.decision.signed_at[:10], "too early", f"row {row.sequence}"):
        assert part in told


def test_a_refusal_is_confirmed_too(site: tuple[Job, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal nothing is signed; at one, "no" signs nothing either."""
    job, plan = site
    key = job.home.parent / "officer" / "signing-key.pem"
    words = ("approve", plan, "--refuse", "--reason", "too early", "--key", key)
    with pytest.raises(InputError, check=of_kind("no-terminal")):
        invoke(*words)
    assert refusals(job) == []
    asked: list[str] = []

    def declines(question: str, **_: object) -> None:
        asked.append(question)
        raise typer.Abort

    monkeypatch.setattr(approve_command, "_is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", declines)
    code, *_ = invoke(*words)
    assert (code, len(asked)) == (1, 1)
    assert refusals(job) == []
    monkeypatch.setattr("typer.confirm", lambda question, **_: asked.append(question))
    code, *_ = invoke(*words)
    assert (code, asked[0]) == (0, asked[1])
    assert "too early" in asked[0]
    assert refusals(job) == ["officer refused: too early"]


def test_a_printed_refusal_says_what_the_release_will_do(site: tuple[Job, str]) -> None:
    """It is called a refusal and not a signature, and the release records it and fails."""
    job, plan = site
    key = job.home.parent / "officer" / "signing-key.pem"
    code, token, err = invoke(
        *("approve", plan, "--refuse", "--reason", "too early", "--key", key, "--yes", "--print")
    )
    assert code == 0
    assert "refused: digest" in err
    assert "signed: digest" not in err
    assert "`release` will record this refusal, and then fail" in err
    (job.home.parent / "refusal.txt").write_text(token)
    done = job.command("release", plan, "--approval", str(job.home.parent / "refusal.txt"))
    assert done.returncode != 0
    assert refusals(job) == ["officer refused: too early"]


@pytest.mark.parametrize("refusing", [(), ("--refuse", "--reason", "too early")])
def test_a_signature_that_would_not_count_is_refused_before_the_prompt(
    finished: Job, site: tuple[Job, str], tmp_path: Path, refusing: tuple[str, ...]
) -> None:
    """Without --yes and without a terminal, so that the prompt would be refused as such."""
    _, plan = site
    write_policy(tmp_path, "stranger", minimum=1)
    key = tmp_path / "stranger" / "signing-key.pem"
    with pytest.raises(InputError, check=of_kind("not-an-approver")):
        invoke("approve", plan, "--key", key, *refusing)
    open_to_all = finished.copy(tmp_path / "open")
    free = open_to_all.planned_as(finished)
    with pytest.raises(InputError, check=of_kind("no-signature-asked", saying="policy default")):
        invoke("approve", free, "--key", key, *refusing)


def test_without_a_policy_a_deployment_releases_nothing(finished: Job, tmp_path: Path) -> None:
    """Synthetic records neither; no one is asked at the command."""
    from flows.server import approvals
    from tasks.releasing import approval
    from tasks.releasing.case import ReleaseCase
    from tasks.releasing.plan import PlannedRelease
    from tasks.running.stage import Context

    context = Context(home=str(Workspace(tmp_path / "home").create().home))
    ledger = Ledger.open(Workspace(tmp_path / "home").ledger_url)
    (file,) = (finished.home / "private" / "plans").glob("*.json")
    demo = PlannedRelease.load(file)
    real = demo.model_copy(update={"plan": demo.plan.model_copy(update={"population": "injuries"})})

    def wait(planned: PlannedRelease) -> None:
        approvals.wait(context, ReleaseCase.read(context, planned, ledger), days=1)

    case = ReleaseCase.read(context, real, ledger)
    approval.require_unrefused(case)
    assert approval.may_release(case, deployed=False)
    for planned in (demo, real):
        with pytest.raises(StorageError, check=of_kind("no-policy")):
            wait(planned)
    open_to_all = {"name": "own", "default": {"asymptotic-local": {"epsilon": 100}}}
    ledger.change_policy(Policy.parse(open_to_all), requester="lead", reason="decided")
    wait(real)


def test_the_retrain_asks_for_a_release_on_the_release_workers_own_device(
    finished: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that was trained on a GPU is released by a worker that need not have one."""
    from flows import deployed
    from flows import release as flow
    from tasks.parameters import ReleaseParameters
    from tasks.releasing.plan import PlannedRelease
    from tasks.running.run import Run
    from tasks.running.stage import Context

    (file,) = (finished.home / "private" / "plans").glob("*.json")
    sent: list[dict] = []

    def run_deployment(name: str, *, parameters: dict, **_: object) -> SimpleNamespace:
        sent.append(parameters)
        return SimpleNamespace(id=name)

    monkeypatch.setattr("prefect.deployments.run_deployment", run_deployment)
    run = Run()
    run.shows = True
    context = Context(home=str(tmp_path), device="cuda", run=run)
    flow.request(context, PlannedRelease.load(file), file, ReleaseParameters(), "release/release")
    (parameters,) = sent
    assert deployed.release.validate_parameters(parameters)["device"] == "auto"


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"device": "cuda"}, of_kind("no-cuda")),
        (
            {"ledger": {"signing_key": "/gone/key.pem"}},
            of_kind("unreadable-file", saying="/gone/key.pem"),
        ),
        (
            {"ledger": {"licence": "/gone/LICENCE"}},
            of_kind("unknown-licence", saying="release.licence: /gone/LICENCE"),
        ),
    ],
)
def test_what_could_not_release_is_told_before_anybody_is_asked(
    site: tuple[Job, str], monkeypatch: pytest.MonkeyPatch, wrong: dict, refusal: of_kind
) -> None:
    from flows import deployed
    from mechanisms.model import devices
    from tasks.running.failures import StageError

    job, plan = site
    monkeypatch.setattr(devices, "has_cuda", lambda: False)
    parameters = deployed.release.validate_parameters({"plan": plan, "home": str(job.home)} | wrong)
    with pytest.raises((*SAFE, StageError), check=refusal):
        deployed.release.fn(**parameters)
