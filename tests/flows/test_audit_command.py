"""`audit`, the gate and `approve --despite-audit`, on a mechanism that claims much less than it
leaks. Weights of 0.02 shrink every loss that the claim is computed from; an optimiser that rescales
its gradients hardly notices. So the claim is a fiftieth of an unweighted one, and the leak stays:
what an audit is there to find.
"""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import command, write_policy
from jobs import Job
from refusals import of_kind

from storage.bundle.folder import PAGE
from storage.errors import InputError
from storage.ledger import BudgetRefused, Ledger
from storage.paths import Workspace
from tasks.releasing import approval, plan_page
from tasks.releasing.case import ReleaseCase
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

LEAKY = (
    *(
        "method.fine_tune.epochs=10",
        "method.collect.epochs=4",
        "method.moments.rank=3",
        "method.pseudo_posterior.risk_draws=40",
    ),
    *(
        "method.pseudo_posterior.sensitivity_draws=40",
        "method.pseudo_posterior.c=0.02",
        "method.name=swag-ppm",
    ),
    "release.enabled=false",
)


@dataclass(frozen=True)
class Site:
    job: Job
    plan: str
    audited: dict
    exit_code: int

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(Workspace(self.job.home).ledger_url)


@pytest.fixture(scope="module")
def site(new: Job, tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("audit")
    policy = write_policy(folder, "officer", minimum=0)
    job = new.at(Workspace(folder / "home").create().home, settings=LEAKY)
    change = (
        "--policy",
        str(policy),
        "--requester",
        "lead",
        "--reason",
        "start",
        "--home",
        str(job.home),
    )
    command("ledger", "change-policy", *change)
    planned = job.run("--json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)["plan"]
    done = job.command("audit", plan, "--trials", "16", "--canaries", "4", "--json")
    assert "Traceback" not in done.stderr
    return Site(job, plan, json.loads(done.stdout), done.returncode)


def test_the_leak_is_found_and_the_claim_contradicted(site: Site) -> None:
    """Claim and measurement side by side, with exit code 3."""
    assert site.exit_code == 3
    (swag,) = site.audited["branches"]
    assert swag["mechanism"] == "swag-ppm"
    assert swag["epsilon"] < 0.1
    assert swag["figures"]["epsilon_lower_bound"] > 1.0
    assert swag["verdict"] == "contradicted"
    assert swag["confidence"] == 0.95
    assert {bound["name"] for bound in swag["figures"]["bounds"]} == {
        "in-distribution",
        "mislabelled",
    }
    assert swag["epsilon_add_remove"] == swag["epsilon"] / 2


def test_what_the_gate_would_stop_is_said_before_anybody_is_asked_to_sign(site: Site) -> None:
    """A plan without the audit that the policy wants ends with that sentence, though signatures are
    missing too.
    """
    planned = PlannedRelease.load(Path(site.plan))
    rule = SimpleNamespace(minimum=1)
    asking: Any = SimpleNamespace(
        require_audit=True, audit_reach=1.0, name="strict", digest="own", approvals=rule
    )
    with pytest.raises(BudgetRefused, check=of_kind("blocked")):
        approval.may_release(
            replace(ReleaseCase.of(planned, site.ledger), policy=asking), deployed=True
        )
    other = planned.model_copy(
        update={"candidate": planned.candidate.model_copy(update={"seed": 1})}
    )
    unaudited: Any = SimpleNamespace(
        find=lambda key: None,
        policy=lambda: asking,
        rows=tuple,
        measurements=tuple,
    )
    with pytest.raises(BudgetRefused, check=of_kind("unaudited")):
        approval.may_release(ReleaseCase.of(other, unaudited), deployed=True)


def test_contradicted_blocked_overridden_released(site: Site, tmp_path: Path) -> None:
    """No draw before an officer has signed, with a reason; then the line is in row, statement,
    certificate and card.
    """
    blocked = site.job.command("release", site.plan)
    assert blocked.returncode == 2
    assert "contradicts the claim: claimed ε 0.0" in blocked.stderr
    assert "autocoder approve --despite-audit" in blocked.stderr
    assert "Traceback" not in blocked.stderr
    labels = [row.title for row in site.ledger.rows()]
    assert "release blocked: contradicted by an audit" in labels
    assert not site.ledger.releases()

    key = str(site.job.home.parent / "officer" / "signing-key.pem")
    with pytest.raises(
        InputError, check=of_kind("contradicted")
    ):  # what `release` would refuse is not signed
        command("approve", site.plan, "--key", key, "--yes")
    with pytest.raises(InputError, check=of_kind("empty-reason")):
        command("approve", site.plan, "--despite-audit", "--key", key, "--reason", " ")
    command("keys", "new", "--out", str(tmp_path / "stranger"))
    stranger = str(tmp_path / "stranger" / "signing-key.pem")
    with pytest.raises(InputError, check=of_kind("not-an-approver")):
        command("approve", site.plan, "--despite-audit", "--key", stranger, "--reason", "memo 12")
    told = command("approve", site.plan, "--despite-audit", "--key", key, "--reason", "memo 12")
    assert "next: autocoder release" in told
    with pytest.raises(InputError, check=of_kind("no-terminal")):
        command("approve", site.plan, "--key", key)
    assert "approved by" in command("approve", site.plan, "--key", key, "--yes")

    done = site.job.command("release", site.plan, "--json")
    assert done.returncode == 0, done.stderr
    release = json.loads(done.stdout)["release_id"]
    bundle = site.job.home / "bundles" / release
    said = json.loads((bundle / "privacy_statement.json").read_text())["audit"]
    assert said["verdict"] == "contradicted"
    assert said["overridden_by"] == "officer"
    assert re.fullmatch(
        r"claimed ε 0\.0\S+ \(ε 0\.0\S+ for one record more or less\), measured at least ε \S+ "
        r"\(95% .*16 training runs.*\): contradicted; overridden by officer",
        said["line"],
    )
    (row,) = [one for one in site.ledger.releases() if one.state == "committed"]
    assert row.reserved.audit is not None
    assert row.reserved.audit.line == said["line"]
    here = ("--home", str(site.job.home), "--out", str(tmp_path / "certificate.md"))
    command("ledger", "export", "page", "--release", release, *here)
    planned = PlannedRelease.load(Path(site.plan))
    context = Context(home=str(site.job.home))
    plan = plan_page.markdown(plan_page.page_of(ReleaseCase.read(context, planned, site.ledger)))
    certificate = (tmp_path / "certificate.md").read_text()
    measured = (
        said["line"].split("; overridden")[0].removeprefix("c")
    )  # a sentence of the plan begins with it
    for told in (certificate, (bundle / PAGE).read_text(), plan):
        assert measured in told.replace("\\", "")
    assert "SWAG's Gaussian is the pseudo posterior. *Otherwise:*" in plan
    command("ledger", "verify", "--home", str(site.job.home))


def test_a_plan_is_audited_with_what_it_was_made_with(site: Site, tmp_path: Path) -> None:
    """The plan alone says which fit, records and branch; its row counts for the gate."""
    with pytest.raises(InputError, check=of_kind("invalid-settings", saying="16")):
        command("audit", site.plan, "--trials", "5")
    before = len(site.ledger.measurements())
    done = site.job.command("audit", site.plan, "--trials", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("swag-ppm, seed "), done.stdout
    released = bool(site.ledger.releases())
    assert ("\nThis plan is release " if released else "\nto do: increase --trials") in done.stdout
    row = list(site.ledger.measurements())[before]
    planned = PlannedRelease.load(Path(site.plan))
    assert row.evaluation.artifact_digests["audited"] == planned.candidate.fitted.sha256

    bare = tmp_path / "bare.json"
    bare.write_bytes(Path(site.plan).read_bytes())
    with pytest.raises(InputError, check=of_kind("no-settings", saying="bare.settings")):
        command("audit", str(bare), "--home", str(tmp_path))
