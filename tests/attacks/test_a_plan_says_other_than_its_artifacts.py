"""Would win: a release under words, a licence or a key that somebody wrote, or one that is charged and then refused."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planned_chain import nothing_charged

from mechanisms.errors import MechanismError
from storage.codelist import Code
from storage.egress import leaks
from storage.errors import InputError, StorageError
from storage.ledger import heads
from storage.paths import Workspace
from tasks.bundle import fill, licence
from tasks.parameters import BundleParameters
from tasks.releasing import publish
from tasks.releasing.plan import Output, PlannedRelease
from tasks.running.stage import Context

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
    "privacy_unit": "whoever",
    "epsilon_add_remove": 0.0001,
    "neighbouring_relation": "replace-one",
    "unprotected_inputs": [RECORDS[:300]],
}
EVENT: dict[str, Any] = {"snapshots": 99, "rank": 99, "reweighted": False, "sensitivity": 0.001}
EDITS: dict[str, Callable[[Any], Any]] = (
    {name: (lambda d, n=name, v=value: d["plan"].update({n.partition(" ")[0]: v})) for name, value in PLAN.items()}
    | {f"claim {n}": (lambda d, n=n, v=v: d["plan"]["claim"].update({n: v})) for n, v in CLAIM.items()}
    | {f"event {n}": (lambda d, n=n, v=v: d["plan"]["event"].update({n: v})) for n, v in EVENT.items()}
    | {
        "one more unprotected input": lambda d: d["plan"]["claim"]["unprotected_inputs"].append(RECORDS[:300]),
        "one twice": lambda d: d["plan"]["claim"]["unprotected_inputs"].append(
            d["plan"]["claim"]["unprotected_inputs"][-1]
        ),
        "another order": lambda d: d["plan"]["claim"]["unprotected_inputs"].reverse(),
        "no ledger": lambda d: d["plan"].update(ledger=None),
        "a field more": lambda d: d["plan"].update(note=RECORDS),
        "a licence's words": lambda d: d.update(output={"precision": "float32", "licence": "my own words"}),
        "a licence that is no name": lambda d: d.update(output={"precision": "float32", "licence": "Certified-1.0"}),
        "a licence that nobody has": lambda d: d.update(output={"licence": "sha256:" + "0" * 64}),
    }
)


@pytest.mark.parametrize("name", EDITS)
def test_a_word_written_by_hand(made: tuple[Context, PlannedRelease], tmp_path: Path, name: str) -> None:
    """Refused before anything is charged, whatever field it stands in."""
    context, planned = made
    content = planned.model_dump(mode="json")
    EDITS[name](content)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    with pytest.raises((StorageError, MechanismError)):
        publish.release.fn(context, PlannedRelease.load(file), BundleParameters())
    assert nothing_charged(context)


def test_a_plan_carried_into_another_workspace(made: tuple[Context, PlannedRelease], tmp_path: Path) -> None:
    """As it is; with the other ledger written into it; with the artifacts copied under the old plan."""
    context, planned = made
    other = Context(home=str(Workspace(tmp_path / "new").create().home), device="cpu")
    ledger = publish.open_ledger(other, BundleParameters())
    mark = ledger.begun(requester="operator")
    with pytest.raises(StorageError, match="was made under"):
        publish.release.fn(other, planned, BundleParameters())
    moved = planned.model_copy(update={"plan": planned.plan.model_copy(update={"ledger": mark})})
    with pytest.raises(StorageError, match="lies in another workspace"):
        publish.release.fn(other, moved, BundleParameters())
    stages = Path(context.home) / "private" / "stages"
    shutil.copytree(stages, Path(other.home) / "private" / "stages", copy_function=os.link)
    with pytest.raises(StorageError, match="lies in another workspace"):
        publish.release.fn(other, moved, BundleParameters())
    with pytest.raises(StorageError, match="has used ledger"):
        publish.release.fn(context, planned, BundleParameters(ledger_url=other.workspace.ledger_url))
    assert nothing_charged(context)
    assert nothing_charged(other)


def test_a_licence_that_is_none(made: tuple[Context, PlannedRelease], tmp_path: Path) -> None:
    """A private key, its number alone, data in base64, no text, a long one: refused when the plan is made."""
    context, planned = made
    key, _ = heads.new_keys(tmp_path / "keys")
    texts = {
        "key": key.read_bytes(),
        "its body": b"".join(key.read_bytes().splitlines()[1:-1]),
        "a number": b"the number is 4f3c2a1b0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f3a",
        "records": RECORDS.encode(),
        "no text": bytes(range(256)),
        "long": b"You may. " * 10_000,
        "empty": b" \n",
    }
    for name, content in texts.items():
        file = tmp_path / "licence"
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"release\.licence"):
            Output.of(context, BundleParameters(licence=str(file)))
        with pytest.raises(InputError, match=r"licence"):
            publish.release.fn(context, planned, BundleParameters(licence=str(file)))
        assert nothing_charged(context), name


def test_a_licence_other_than_the_one_signed(made: tuple[Context, PlannedRelease], tmp_path: Path) -> None:
    """At the release, or in the workspace; nor other weights. The digest that officers sign changes with each."""
    context, planned = made
    file = tmp_path / "licence"
    file.write_text("You may use this model for coding.\n")
    pinned = Output.of(context, BundleParameters(licence=str(file)))
    assert planned.model_copy(update={"output": pinned}).digest != planned.digest
    settled = pinned.settled(context, BundleParameters())
    assert fill.licence_of(context, settled) == ("You may use this model for coding.\n", None)
    for other in (
        BundleParameters(licence=str(file)),
        BundleParameters(licence="MIT"),
        BundleParameters(precision="bfloat16"),
    ):
        with pytest.raises(InputError, match="which was approved"):
            publish.release.fn(context, planned, other)
    kept = context.workspace.private / "licences" / pinned.licence.removeprefix("sha256:")
    kept.write_text(RECORDS)
    with pytest.raises(StorageError, match="not the text that the plan pins"):
        fill.licence_of(context, settled)
    assert "spdx.org/licenses/MIT" in licence.text_of(context.workspace.private, "MIT")
    assert nothing_charged(context)


def test_a_narrative_as_a_licence(made: tuple[Context, PlannedRelease], tmp_path: Path) -> None:
    """Pinned and signed as it may be, the gate reads it like everything else, before the draw."""
    from storage.datasets import load_split

    context, planned = made
    narrative = max(load_split(context.store.open(planned.candidate.dataset), "train")["text"], key=len)
    file = tmp_path / "licence"
    file.write_text(f"You may.\n{narrative}\n")
    output = Output.of(context, BundleParameters(licence=str(file)))
    with pytest.raises(StorageError, match=r"LICENSE: holds a part of a private narrative"):
        publish.release.fn(context, planned.model_copy(update={"output": output}), BundleParameters())
    assert nothing_charged(context)


TITLES = ("precision machinery, class 2", "recall 7", "/home/ann/records", "2024-01-02T03:04", "weighted f1 0.93")


@pytest.mark.parametrize("title", TITLES)
def test_a_title_that_the_gate_refuses(
    made: tuple[Context, PlannedRelease], monkeypatch: pytest.MonkeyPatch, title: str
) -> None:
    """Told before the draw: nothing is charged for what cannot leave."""
    context, planned = made
    real = fill.load_spaces

    def spaces(folder: Path) -> dict[str, list[Code]]:
        (name, (first, *others)), *rest = real(folder).items()
        return {name: [Code(first.code, title), *others], **dict(rest)}

    monkeypatch.setattr(fill, "load_spaces", spaces)
    with pytest.raises(StorageError, match=r"codelist\.csv"):
        publish.release.fn(context, planned, BundleParameters())
    assert nothing_charged(context)


@pytest.mark.parametrize("name", ["pipeline", "agency", "operator", "hospital", "records", "xylotheque"])
def test_a_user_or_host_whose_name_is_a_word(
    made: tuple[Context, PlannedRelease], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A word that every bundle has tells nobody; the rehearsal passes. A name that is none is looked for as before."""
    from storage.ledger.content import anticipated

    context, planned = made
    monkeypatch.setattr(leaks.getpass, "getuser", lambda: name)
    monkeypatch.setattr(leaks.socket, "gethostname", lambda: f"{name}.example")
    settings = planned.output.settled(context, BundleParameters())
    row = anticipated(planned.plan, audit={"line": "audited by xylotheque"} if name == "xylotheque" else None)
    if name == "xylotheque":
        with pytest.raises(StorageError, match="names the user, the host"):
            fill.rehearse(context, row, planned.candidate, settings)
    else:
        fill.rehearse(context, row, planned.candidate, settings)


def test_a_reason_that_carries_something(made: tuple[Context, PlannedRelease]) -> None:
    """What an officer writes is in the statement: a narrative, one in base64, a place of the machine are refused in the
    rehearsal, before anything is charged.
    """
    from storage.datasets import load_split
    from storage.ledger.content import anticipated

    context, planned = made
    narrative = max(load_split(context.store.open(planned.candidate.dataset), "train")["text"], key=len)
    settings = planned.output.settled(context, BundleParameters())
    for reason in (narrative, base64.b64encode(narrative.encode()).decode(), "see /home/ann/memo", narrative[::-1]):
        row = anticipated(planned.plan, audit={"line": f"contradicted; overridden by Anna: {reason}"})
        with pytest.raises(StorageError, match=r"bundle: \S+: holds"):
            fill.rehearse(context, row, planned.candidate, settings)
    assert nothing_charged(context)
