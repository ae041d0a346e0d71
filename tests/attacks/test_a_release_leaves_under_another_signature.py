"""Would win: a fit, licence or draw that no one signed, under the reservation of a plan that
someone did.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from cases import release_plan
from cryptography.hazmat.primitives.asymmetric import ec
from ledger_sites import append_past
from refusals import of_kind
from releases import make_audit

from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint
from storage.bundle.seal import release_key
from storage.demo_data import write_demo_data
from storage.errors import InputError, StorageError
from storage.ledger import Ledger, Policy
from storage.ledger.content import release_terms
from storage.ledger.decisions import sign
from storage.ledger.entries import Reserved
from storage.ledger.keys import public_pem
from storage.ledger.recovery import Step, draw_path, recover
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing import approval, drawing, publish
from tasks.releasing.case import ReleaseCase
from tasks.releasing.ledger_access import open_ledger
from tasks.releasing.output import Output
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

DECLARES = """
what was signed is what is released
| a fit of ε 900, a licence or a precision under the key of a signed plan, killed when reserved or
drawn; another fit's weights where the draw lies, under either plan's digest; the kept plan written
over or removed; settings that are not the fit's
| anyone who writes to the workspace and has the bundle-signing key  nothing is charged and then
refused
| five titles; accounts and hosts called by a word of every bundle
| what only the drawn weights could show
"""

OFFICER = ec.generate_private_key(ec.SECP256R1())
POLICY = Policy.parse(
    {
        "name": "strict",
        "approvals": {
            "minimum": 1,
            "approvers": {"Officer": public_pem(OFFICER.public_key()).decode()},
        },
        "default": {"formal": {"epsilon": 5, "delta": 1e-3}},
    }
)
SETTINGS = BundleParameters()


class Killed(BaseException):
    """Ends a run where it is, as SIGKILL would."""


def ledger_at(context: Context) -> Ledger:
    return open_ledger(context, SETTINGS, key=release_key(context.workspace))


@pytest.fixture(scope="module")
def site(
    tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Context, Callable[..., PlannedRelease]]:
    """A workspace under a policy with one officer, and what plans the fit of an epsilon under a
    label.
    """
    home = tmp_path_factory.mktemp("owned")
    written = write_demo_data(home / "source", records=200, seed=3)
    context = Context(home=str(home / "home"), device="cpu")
    context.workspace.create()
    ledger_at(context).change_policy(POLICY, requester="lead", reason="start")
    columns = {"source": str(written.csv), "codelist": str(written.codelist), "population": "demo"}
    model = {
        "encoder": str(tiny_bert),
        "trainable": "head",
        "pooling": "mean",
        "max_length": 32,
        "prior": "titles",
    }

    def planned(epsilon: float, label: str) -> PlannedRelease:
        parameters = RetrainParameters.model_validate(
            {
                "data": columns | {"ingest": {"sampling": "per-record"}},
                "model": model,
                "method": {"name": "prior-descent", "target_epsilon": epsilon},
                "release": {"label": label},
            }
        )
        plan = tiny_jobs.planned(context, parameters, tiny_jobs.fitted(context, parameters))
        return publish.save_plan(context, plan, parameters.release).planned

    return context, planned


def signed(context: Context, planned: PlannedRelease) -> PlannedRelease:
    terms = release_terms(planned.plan)
    decision = sign(
        OFFICER, subject="release", decision="approve", digest=planned.digest, terms=terms
    )
    approval.accept_decision(context, ReleaseCase.of(planned, ledger_at(context)), decision)
    return planned


def killed(
    context: Context, planned: PlannedRelease, state: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Releases, killed when its row is in this state; returns the release's id."""

    def die(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        owner, step = (drawing, "draw_once") if state == "reserved" else (publish, "_bundle")
        patch.setattr(owner, step, die)
        with pytest.raises(Killed):
            release_plan(context, planned, SETTINGS)
    row = ledger_at(context).find(planned.plan.idempotency_key)
    assert row is not None
    assert row.state == state
    return str(row.release_id)


def renamed(other: PlannedRelease, reserved: PlannedRelease) -> PlannedRelease:
    names = ("idempotency_key", "parameters_digest", "release_label")
    copied = {name: getattr(reserved.plan, name) for name in names}
    return other.model_copy(
        update={"plan": other.plan.model_copy(update=copied), "method": reserved.method}
    )


def refused(context: Context, planned: PlannedRelease, release_id: str, *kinds: str) -> None:
    """A release is refused, nothing of it is drawn or bundled, and the row stays as it was."""
    ledger = ledger_at(context)
    before = ledger.release(release_id)
    with pytest.raises(StorageError, check=of_kind(*kinds)):
        release_plan(context, planned, SETTINGS)
    assert ledger.release(release_id) == before
    assert not (context.workspace.bundles / release_id).exists()


@pytest.mark.parametrize("state", ["reserved", "drawn"])
def test_a_fit_of_epsilon_900_under_the_signature_for_epsilon_1(
    site: tuple[Context, Callable[..., PlannedRelease]], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Killed, then released from a plan of another fit, licence or precision under the same key;
    then as signed.
    """
    context, planned = site
    quiet, loud = signed(context, planned(1, f"quiet-{state}")), planned(900, f"loud-{state}")
    release_id = killed(context, quiet, state, monkeypatch)
    mixed = renamed(loud, quiet)
    refused(context, mixed, release_id, "another-plan")
    for output in (Output(licence="MIT"), Output(precision="bfloat16")):
        refused(
            context,
            quiet.model_copy(update={"output": output}),
            release_id,
            "another-plan",
        )
    ledger = ledger_at(context)
    with pytest.raises(StorageError, check=of_kind("another-plan")):
        ledger.mark_drawn(release_id, draw_digest="d" * 64, plan_digest=mixed.digest)
    with pytest.raises(StorageError, check=of_kind("another-plan")):
        ledger.commit(release_id, bundle_digest="b" * 64, plan_digest=mixed.digest)
    with pytest.raises(StorageError, check=of_kind("another-plan")):
        ledger.reserve(quiet.plan, plan_digest=loud.digest)
    done = release_plan(context, quiet, SETTINGS)
    theta = checkpoint.load(draw_path(context.workspace, release_id))[0]["theta"]
    fitted = checkpoint.load(quiet.candidate.fitted.path / "theta.safetensors")[0]["theta"]
    assert bool((theta == fitted).all())
    assert (
        float(json.loads((Path(done.bundle) / "privacy_statement.json").read_text())["epsilon"])
        <= 1
    )


def test_an_audit_between_reservation_and_draw(
    site: tuple[Context, Callable[..., PlannedRelease]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What contradicts the claim stops the draw, too, not the reservation alone. At an ε of its
    own: an audit contradicts every fit of its method on these records, and other tests release at ε
    1.
    """
    context, planned = site
    quiet = signed(context, planned(0.5, "audited-late"))
    release_id = killed(context, quiet, "reserved", monkeypatch)
    found = make_audit(quiet, 5.0)
    ledger_at(context).record(
        found.model_copy(update={"data_fingerprint": quiet.plan.data_fingerprint})
    )
    refused(context, quiet, release_id, "blocked")


@pytest.mark.parametrize("state", ["reserved", "drawn"])
def test_weights_of_another_fit_where_the_draw_lies(
    site: tuple[Context, Callable[..., PlannedRelease]], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Before the draw and after it, under the description of the reserved plan and
    under its own.
    """
    context, planned = site
    quiet, loud = signed(context, planned(1, f"swapped-{state}")), planned(900, f"swapping-{state}")
    release_id = killed(context, quiet, state, monkeypatch)
    draw = draw_path(context.workspace, release_id)
    theta = checkpoint.load(loud.candidate.fitted.path / "theta.safetensors")[0]["theta"]
    described = {
        "release_id": release_id,
        "plan": quiet.plan.idempotency_key,
        "plan_digest": quiet.digest,
    }
    draw.parent.mkdir(parents=True, exist_ok=True)
    for plan_digest in (quiet.digest, loud.digest):
        checkpoint.save(draw, {"theta": theta}, described | {"plan_digest": plan_digest})
        refused(
            context, quiet, release_id, "sample-of-another-stage", "another-sample", "not-a-sample"
        )
    (finding,) = [one for one in recover(ledger_at(context), context.workspace) if one.done]
    assert finding.step is Step.BURN


def test_a_plan_whose_settings_are_not_the_fits(
    site: tuple[Context, Callable[..., PlannedRelease]],
) -> None:
    """The settings of the key are compared with the recipes: another epsilon, population, seed or
    column is refused.
    """
    context, planned = site
    quiet, loud = planned(1, "derived"), planned(900, "derived-from")
    with pytest.raises(MechanismError, check=of_kind("plan-differs", saying="target_epsilon")):
        renamed(loud, quiet).check(context)
    method = quiet.method
    edits = (
        method | {"data": method["data"] | {"population": "other"}},
        method | {"seed": 7},
        method
        | {"data": method["data"] | {"ingest": method["data"]["ingest"] | {"train_before": 2000}}},
    )
    for edited in edits:
        with pytest.raises(MechanismError, check=of_kind("plan-differs", saying="method.")):
            quiet.model_copy(update={"method": edited}).check(context)


def test_a_reserved_plan_that_was_written_over(
    site: tuple[Context, Callable[..., PlannedRelease]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kept content has another digest, or is gone: nothing is drawn."""
    context, planned = site
    quiet, loud = signed(context, planned(1, "kept")), planned(900, "keeping")
    release_id = killed(context, quiet, "reserved", monkeypatch)
    kept = context.workspace.private / "plans" / "reserved" / f"{quiet.digest}.json"
    content = kept.read_bytes()
    kept.write_text(renamed(loud, quiet).model_dump_json())
    refused(context, quiet, release_id, "another-plan")
    kept.unlink()
    with pytest.raises(InputError, check=of_kind("unreadable-file", saying="No such file")):
        release_plan(context, quiet, SETTINGS)
    kept.write_bytes(content)
    assert release_plan(context, quiet, SETTINGS).release_id == release_id


def test_a_reservation_that_nobody_signed(
    site: tuple[Context, Callable[..., PlannedRelease]],
) -> None:
    """Written past the program, over the cap, with an approval by a key that is no one's: the
    unchanged worker refuses the plan as before, and draws nothing. Nor does it reserve what is
    signed, since what the row spent is not known. (Damages the ledger: the last here.)
    """
    context, planned = site
    loud, ledger = planned(900, "nobodys"), ledger_at(context)
    quiet = signed(context, planned(1, "after-nobodys"))
    with pytest.raises(StorageError, check=of_kind("over-cap")):
        release_plan(context, loud, SETTINGS)
    loud.save_reserved(context)
    stranger = ec.generate_private_key(ec.SECP256R1())
    decision = sign(
        stranger,
        subject="release",
        decision="approve",
        digest=loud.digest,
        terms=release_terms(loud.plan),
    )
    forged = Reserved(
        release_id="f" * 16,
        plan=loud.plan,
        policy_digest=ledger.policy().digest,
        plan_digest=loud.digest,
        decisions=(decision,),
        approvals=("Officer",),
    )
    append_past(ledger, forged)
    with pytest.raises(StorageError, check=of_kind("over-cap")):
        release_plan(context, loud, SETTINGS)
    assert not list((context.workspace.private / "releases").glob(f"{'f' * 16}/*"))
    assert len(ledger.verify().bad) == 1
    with pytest.raises(
        StorageError, check=of_kind("stopped-ledger", saying="without the signature")
    ):
        release_plan(context, quiet, SETTINGS)
    assert ledger_at(context).find(quiet.plan.idempotency_key) is None
