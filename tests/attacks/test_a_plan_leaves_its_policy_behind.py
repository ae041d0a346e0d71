"""Would win: the release, under no policy or a laxer one, of a plan that was made under an
officer's.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cases import release_plan
from planned_chain import nothing_charged, planned_chain
from refusals import of_kind

from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Ledger, Policy
from storage.ledger.keys import new_keys
from tasks.bundle import fill
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing import ledger_access, publish
from tasks.releasing.case import ReleaseCase
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

DECLARES = """
what was planned under a policy is released under it
| the release's command without the policy; a laxer file; two first policies at one moment; a
  stricter policy while the bundle is rehearsed
| a retrain that names no policy, where none is in force, has the default's
"""

CAPS = "asymptotic-local: {epsilon: 1000}"
POLICY_CAPS = {"asymptotic-local": {"epsilon": 1000}}


@pytest.fixture(scope="module")
def made(
    chosen: tuple[Context, RetrainParameters], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Context, PlannedRelease]:
    """A plan made under a policy that asks for an officer's signature and an audit."""
    context, parameters = chosen
    public = new_keys(tmp_path_factory.mktemp("keys"))[1].read_text(encoding="utf-8")
    key = "\n".join(f"      {line}" for line in public.splitlines())
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    asked = (
        f"approvals:\n  minimum: 1\n  approvers:\n    B. Officer: |\n{key}\nrequire_audit: true\n"
    )
    policy.write_text(f"name: officers\n{asked}default: {{{CAPS}}}\n", encoding="utf-8")
    settings = parameters.release.model_copy(update={"policy": str(policy)})
    return context, publish.save_plan(context, planned_chain(context, parameters), settings).planned


def test_a_release_without_the_policy_is_held_against_it(
    made: tuple[Context, PlannedRelease],
) -> None:
    """The command that `retrain` prints names no policy; the default one asks no one."""
    context, planned = made
    ledger = ledger_access.open_ledger(context, BundleParameters())
    assert ledger.policy().name == "officers"
    assert ReleaseCase.read(context, planned, ledger).approvals.missing == 1
    with pytest.raises(
        (BudgetRefused, StorageError), check=of_kind("unaudited", saying="officers")
    ):
        release_plan(context, planned, BundleParameters())
    assert nothing_charged(context)


def test_a_release_under_a_laxer_policy_is_refused(
    made: tuple[Context, PlannedRelease], tmp_path: Path
) -> None:
    """Another file is put in force only by `ledger change-policy`, with the officer's signature."""
    context, planned = made
    (tmp_path / "lax.yaml").write_text(f"name: lax\ndefault: {{{CAPS}}}\n", encoding="utf-8")
    settings = BundleParameters(policy=str(tmp_path / "lax.yaml"))
    with pytest.raises((BudgetRefused, InputError), check=of_kind("unaudited", saying="officers")):
        release_plan(context, planned, settings)
    assert nothing_charged(context)


def test_a_policy_that_changes_after_the_gate(
    chosen: tuple[Context, RetrainParameters], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate let an unaudited plan pass; while its bundle is rehearsed, a policy that requires an
    audit is put in force. What the gate said counts no more.
    """
    context, parameters = chosen
    monkeypatch.setenv("AUTOCODER_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setattr(ledger_access, "journals_of", lambda workspace: ())
    lax = parameters.release.model_copy(update={"label": "raced"})
    ledger = ledger_access.open_ledger(context, lax)
    ledger.put_in_force(requester="operator")
    made = planned_chain(context, parameters.model_copy(update={"release": lax}))
    case = publish.save_plan(context, made, lax)

    def change(*_: object, **__: object) -> None:
        strict = {"name": "strict", "require_audit": True, "default": POLICY_CAPS}
        case.ledger.change_policy(Policy.parse(strict), requester="lead", reason="decided")

    monkeypatch.setattr(fill, "rehearse", change)
    with pytest.raises(BudgetRefused, check=of_kind("policy-changed", saying="strict")):
        publish.release(
            context, case, lax.model_copy(update={"accept_texts": case.planned.output.texts_digest})
        )
    assert not case.ledger.releases()


def test_two_first_policies_at_one_moment(tmp_path: Path) -> None:
    """One is in force, and planning under another is refused: not each under its own."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Ledger.open(url)
    policies = [
        Policy.parse({"name": f"p{n}", "default": {"asymptotic-local": {"epsilon": n + 1}}})
        for n in range(4)
    ]

    def plan_under(policy: Policy) -> str:
        try:
            return Ledger.open(url, policy=policy).put_in_force(requester="operator").name
        except InputError:
            return "told"

    with ThreadPoolExecutor(len(policies)) as planners:
        said = sorted(planners.map(plan_under, policies))
    ledger = Ledger.open(url)
    assert said == sorted([ledger.policy().name, "told", "told", "told"])
    assert [row.title for row in ledger.rows()] == [ledger.policy().name]
