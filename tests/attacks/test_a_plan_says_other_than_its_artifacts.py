"""Would win: a release under words, a licence or a key that someone wrote, or one that is charged
and then refused.
"""

import base64
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import release_plan
from planned_chain import nothing_charged
from refusals import of_kind
from releases import release_key

from mechanisms.errors import MechanismError
from storage.codelist import Code
from storage.errors import InputError, StorageError
from storage.ledger import Ledger, keys
from storage.ledger.policy import DEFAULT_POLICY
from storage.paths import Workspace
from tasks.bundle import fill, licence
from tasks.parameters import BundleParameters
from tasks.releasing import approval, ledger_access
from tasks.releasing.case import ReleaseCase
from tasks.releasing.output import Output
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

DECLARES = """
a plan says what its artifacts say
| 35 fields manually, base64 of records among them; a narrative, one encoded, or a path as an
officer's reason
| population, label, requester, commit  a licence is an SPDX name
| a file, its content, a digest, another name than signed
|
"""

RECORDS = base64.b64encode(b"the employee's left glove was pulled into the pulley " * 40).decode()


PLAN: dict[str, Any] = {
    # named by the issue
    "trust_model": "certified, formal (0.01, 0)",
    "randomness_source": RECORDS,
    "floating_point_caveat": "none",
    "idempotency_key": "../../../etc/x",
    # their neighbours
    "idempotency_key (another)": "0" * 64,
    "release_label": "certified, formal (0.01, 0)",
    "population": "demo, certified",
    "parameters_digest": RECORDS[:300],
    "lock_digest": RECORDS[:300],
    "code_commit": RECORDS[:300],
    "supersedes": RECORDS[:300],
    "prefect_run_id": RECORDS[:300],
    "cohorts": ["certified, formal (0.01, 0)"],
    "artifact_digests": {"certified": "formal (0.01, 0)"},
}
CLAIM: dict[str, Any] = {
    "accountant": "certified, formal (0.01, 0)",
    "assumptions": ["none"],
    "delta_text": "0",
    "delta": 0.0,
    "guarantee_kind": "formal",
    "privacy_unit": "anyone who",
    "epsilon_add_remove": 0.0001,
    "neighbouring_relation": "replace-one",
    "unprotected_inputs": [RECORDS[:300]],
}
EVENT: dict[str, Any] = {"snapshots": 99, "rank": 99, "reweighted": False, "sensitivity": 0.001}
EDITS: dict[str, Callable[[Any], Any]] = {
    **{
        name: (lambda d, n=name, v=value: d["plan"].update({n.partition(" ")[0]: v}))
        for name, value in PLAN.items()
    },
    **{
        f"claim {n}": (lambda d, n=n, v=v: d["plan"]["claim"].update({n: v}))
        for n, v in CLAIM.items()
    },
    **{
        f"event {n}": (lambda d, n=n, v=v: d["plan"]["event"].update({n: v}))
        for n, v in EVENT.items()
    },
    "one more unprotected input": lambda d: d["plan"]["claim"]["unprotected_inputs"].append(
        RECORDS[:300]
    ),
    "one twice": lambda d: d["plan"]["claim"]["unprotected_inputs"].append(
        d["plan"]["claim"]["unprotected_inputs"][-1]
    ),
    "another order": lambda d: d["plan"]["claim"]["unprotected_inputs"].reverse(),
    "no ledger": lambda d: d["plan"].update(ledger=None),
    "a field more": lambda d: d["plan"].update(note=RECORDS),
    "a licence's words": lambda d: d.update(
        output={"precision": "float32", "licence": "my own words"}
    ),
    "a licence that is no name": lambda d: d.update(
        output={"precision": "float32", "licence": "Certified-1.0"}
    ),
    "a licence that nobody has": lambda d: d.update(output={"licence": "sha256:" + "0" * 64}),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_word_written_by_hand(
    made: tuple[Context, PlannedRelease], tmp_path: Path, name: str
) -> None:
    """Refused before anything is charged, whatever field it is in."""
    context, planned = made
    content = planned.model_dump(mode="json")
    EDITS[name](content)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    with pytest.raises((StorageError, MechanismError)):
        release_plan(context, PlannedRelease.load(file), BundleParameters())
    assert nothing_charged(context)


def test_a_plan_carried_into_another_workspace(
    made: tuple[Context, PlannedRelease], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is; with the other ledger written into it; with the artifacts copied under the old
    plan.
    """
    context, planned = made
    other = Context(home=str(Workspace(tmp_path / "new").create().home), device="cpu")
    ledger = ledger_access.open_ledger(other, BundleParameters(), key=release_key())
    mark = ledger.ensure_genesis_row(requester="operator")
    with pytest.raises(StorageError, check=of_kind("plan-of-another-ledger")):
        release_plan(other, planned, BundleParameters())
    moved = planned.model_copy(update={"plan": planned.plan.model_copy(update={"ledger": mark})})
    with pytest.raises(StorageError, check=of_kind("artifact-of-another-workspace")):
        release_plan(other, moved, BundleParameters())
    stages = Path(context.home) / "private" / "stages"
    shutil.copytree(stages, Path(other.home) / "private" / "stages", copy_function=os.link)
    with pytest.raises(StorageError, check=of_kind("artifact-of-another-workspace")):
        release_plan(other, moved, BundleParameters())
    with (
        monkeypatch.context() as patch,
        pytest.raises(StorageError, check=of_kind("another-ledger")),
    ):
        patch.setenv("AUTOCODER_LEDGER_URL", other.workspace.ledger_url)
        release_plan(context, planned, BundleParameters())
    assert nothing_charged(context)
    assert nothing_charged(other)


def test_a_licence_that_is_none(made: tuple[Context, PlannedRelease], tmp_path: Path) -> None:
    """A private key, records in base64, a narrative, a public text: no file is a licence, whatever
    is in it.
    """
    context, planned = made
    key, _ = keys.new_keys(tmp_path / "keys")
    for content in (key.read_bytes(), RECORDS.encode(), b"You may use this model for coding."):
        file = tmp_path / "licence"
        file.write_bytes(content)
        for name in (str(file), content.decode(), "sha256:" + "0" * 64):
            with pytest.raises(InputError, check=of_kind("unknown-licence")):
                Output.from_settings(BundleParameters(licence=name))
            with pytest.raises(InputError, check=of_kind("unknown-licence")):
                release_plan(context, planned, BundleParameters(licence=name))
    assert nothing_charged(context)


def test_a_licence_other_than_the_one_signed(made: tuple[Context, PlannedRelease]) -> None:
    """At the release; nor other weights. The digest that officers sign changes with each."""
    context, planned = made
    other = Output.from_settings(BundleParameters(licence="MIT"))
    assert planned.model_copy(update={"output": other}).digest != planned.digest
    for settings in (BundleParameters(licence="MIT"), BundleParameters(precision="bfloat16")):
        with pytest.raises(InputError, check=of_kind("another-precision", "another-licence")):
            release_plan(context, planned, settings)
    assert "spdx.org/licenses/MIT" in licence.text_of("MIT")
    assert nothing_charged(context)


def test_a_title_that_nobody_signed(
    made: tuple[Context, PlannedRelease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between plan and release, or in a plan that does not list it: refused before anything is
    charged.
    """
    context, planned = made
    real = fill.load_codes

    def codes(folder: Path) -> list[Code]:
        first, *others = real(folder)
        return [Code(first.code, "recall 7"), *others]

    monkeypatch.setattr(fill, "load_codes", codes)
    with pytest.raises(StorageError, check=of_kind("unsigned-texts")):
        release_plan(context, planned, BundleParameters())
    monkeypatch.undo()
    fewer = planned.model_copy(
        update={"output": planned.output.model_copy(update={"texts": ("code list: 1 x",)})}
    )
    other = planned.model_copy(
        update={"output": planned.output.model_copy(update={"encoder": "0" * 64})}
    )
    for changed in (fewer, other):
        with pytest.raises(MechanismError, check=of_kind("plan-differs", saying="output.")):
            release_plan(
                context, changed, BundleParameters(accept_texts=changed.output.texts_digest)
            )
    assert nothing_charged(context)


def test_texts_that_nobody_read(made: tuple[Context, PlannedRelease]) -> None:
    """Where the policy asks for no signature, their digest has to be stated; an approval covers
    them otherwise.
    """
    context, planned = made
    ledger = Ledger.open(context.workspace.ledger_url, key=release_key())
    output = planned.output.model_copy(update={"texts": ("code list: 1 A matter of our own",)})
    listed = ReleaseCase.of(planned.model_copy(update={"output": output}), ledger)
    for accepted in (None, "0" * 16):
        with pytest.raises(
            StorageError, check=of_kind("unread-texts", saying="1 texts")
        ) as refused:
            approval.require_read(listed, accepted)
        assert "matter" not in str(refused.value)
    approval.require_read(listed, output.texts_digest)
    approval.require_read(ReleaseCase.of(planned, ledger), None)
    signed = DEFAULT_POLICY.model_copy(
        update={"approvals": DEFAULT_POLICY.approvals.model_copy(update={"minimum": 1})}
    )
    approval.require_read(replace(listed, policy=signed), None)
