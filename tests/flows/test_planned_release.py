"""What a plan is held against and who pays for it: nothing written manually, no other ledger or
key, one draw.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import release_plan
from jobs import Job
from refusals import of_kind
from releases import release_key

from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint
from storage.errors import InputError, StorageError
from storage.ledger import keys
from storage.ledger.recovery import draw_path
from storage.paths import Workspace
from tasks.parameters import BundleParameters
from tasks.releasing import drawing, publish
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


@pytest.fixture
def planned(finished: Job) -> PlannedRelease:
    (file,) = (finished.home / "private" / "plans").glob("*.json")
    return PlannedRelease.load(file)


@pytest.fixture
def context(finished: Job) -> Context:
    return Context(home=str(finished.home))


EDITS: dict[str, Callable[[Any], Any]] = {
    "std_scale": lambda d: d["candidate"]["mechanism"]["moments"].update(std_scale=1e-12),
    "seed": lambda d: d["candidate"].update(seed=1),
    "model": lambda d: d["candidate"]["model"].update(max_length=64),
    "cohorts": lambda d: d["plan"].update(cohorts=["1999"]),
    "data_fingerprint": lambda d: d["plan"].update(data_fingerprint="0" * 64),
    "records": lambda d: d["plan"].update(records_rounded=10**6),
    "privacy_unit": lambda d: d["plan"]["claim"].update(privacy_unit="person"),
    "unprotected_inputs": lambda d: d["plan"]["claim"].update(unprotected_inputs=[]),
    "event": lambda d: d["plan"]["event"].update(sensitivity_draws=10**6),
    "claim.assumptions": lambda d: d["plan"]["claim"].update(assumptions=[]),
    "claim.draws": lambda d: d["plan"]["claim"].update(draws=10**6, mc_failure_prob=1e-6),
    "claim.epsilon": lambda d: d["plan"]["claim"].update(epsilon=0.1),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_plan_edited_by_hand_is_refused(
    context: Context, planned: PlannedRelease, name: str
) -> None:
    """Each field that the artifacts know better; the message names it."""
    planned.check(context)
    content = planned.model_dump(mode="json")
    EDITS[name](content)
    with pytest.raises(
        MechanismError, check=of_kind("plan-differs", saying=name.partition(" (")[0])
    ):
        PlannedRelease.model_validate_json(json.dumps(content)).check(context)


def test_a_plan_of_other_artifacts_is_refused(context: Context, planned: PlannedRelease) -> None:
    """The prepared inputs of another data set, say: their digest is in the recipe of what was
    measured.
    """
    made = planned.candidate
    other = made.model_copy(update={"prepared": made.dataset})
    with pytest.raises(MechanismError, check=of_kind("plan-differs", saying="prepared")):
        planned.model_copy(update={"candidate": other}).check(context)


def test_what_was_drawn_here_is_not_drawn_again_for_an_empty_ledger(
    context: Context, planned: PlannedRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace knows which ledger it used: refused before another is made."""
    monkeypatch.setenv("AUTOCODER_LEDGER_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(StorageError, check=of_kind("ledger-missing")):
        release_plan(context, planned, BundleParameters())
    assert not (tmp_path / "empty.db").exists()


def test_the_machines_signing_key_wins(
    context: Context, planned: PlannedRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No setting puts another in its place, and where it is missing the workspace's own does not
    step in.
    """
    key, _ = keys.new_keys(tmp_path / "keys")
    monkeypatch.setenv("AUTOCODER_SIGNING_KEY", str(key))
    used = publish._release_key(context, BundleParameters())
    assert used.public_key() == keys.load_private_key(key).public_key()
    with pytest.raises(InputError, check=of_kind("signing-key-fixed")):
        publish._release_key(context, BundleParameters(signing_key=str(tmp_path / "other.pem")))
    monkeypatch.setenv("AUTOCODER_SIGNING_KEY", str(tmp_path / "gone.pem"))
    with pytest.raises(InputError, check=of_kind("unreadable-file", saying="gone.pem")):
        publish._release_key(context, BundleParameters())


@pytest.mark.parametrize("dies", ["os.link", "checkpoint.sync"])
def test_who_died_after_drawing_has_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    """Killed between the draw's file and its final name: the same draw is resumed, no second one is
    made.
    """
    context = Context(home=str(Workspace(tmp_path / "home").create().home))
    row: Any = SimpleNamespace(release_id="0" * 16, state="reserved", draw_digest=None)
    taken: list[torch.Tensor] = []

    class Source:
        is_sampled = True

        def require_draw(self, context: Context, theta: torch.Tensor) -> None:
            pass

        def draw(self, context: Context) -> torch.Tensor:
            taken.append(torch.randn(4))
            return taken[-1]

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    planned: Any = SimpleNamespace(
        plan=SimpleNamespace(idempotency_key="k", event=None), candidate=Source(), digest="0" * 64
    )
    with monkeypatch.context() as patched:
        if dies == "os.link":
            patched.setattr(drawing.os, "link", killed)
        else:
            real = checkpoint.sync

            def sync(path: Path) -> None:
                real(path)
                if (path / "draw.safetensors").exists():
                    raise KeyboardInterrupt

            patched.setattr(checkpoint, "sync", sync)
        with pytest.raises(KeyboardInterrupt):
            drawing.draw_once(context, row, planned, release_key())
    draw = drawing.draw_once(context, row, planned, release_key())
    file = draw_path(context.workspace, row.release_id)
    assert len(taken) == 1
    assert torch.equal(draw.sample.theta, taken[0])
    assert torch.equal(checkpoint.load(file)[0]["theta"], taken[0])
    assert [p.name for p in file.parent.iterdir()] == ["draw.safetensors"]
