"""Every stage for every trainable part, without Prefect around it; and what a
release of each is.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from kills import killed_at
from refusals import of_kind
from tiny_jobs import Made, fitted, retrain

from mechanisms.model import checkpoint
from mechanisms.posterior import risks
from storage.errors import StorageError
from tasks.parameters import RetrainParameters
from tasks.releasing import ledger_access, preflight, publish
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.publish import Released
from tasks.running.stage import Context

Trained = tuple[Context, RetrainParameters, Made]
PARTS = [
    *(("full", "first"), ("lora", "mean"), ("head", "first"), ("head", "mean")),
    *(
        pytest.param(*both, marks=pytest.mark.long)
        for both in (("full", "mean"), ("lora", "first"))
    ),
]
"""Each part and each pooling; nightly, what else they can be together."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tiny_jobs.demo(tmp_path_factory.mktemp("data"), population="demo")


def release(context: Context, chosen: RetrainParameters, made: Made) -> Released:
    case = publish.save_plan(context, tiny_jobs.planned(context, chosen, made), chosen.release)
    assert PlannedRelease.load(case.file) == case.planned
    return publish.release(context, case, chosen.release)


@pytest.fixture(scope="module")
def trained(
    data: dict[str, Any], tiny_roberta: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    context, chosen = (
        tiny_jobs.workspace(tmp_path_factory.mktemp("trained")),
        retrain(data, tiny_roberta),
    )
    return context, chosen, fitted(context, chosen)


def copied(trained: Trained, home: Path) -> Trained:
    context = tiny_jobs.workspace(home)
    stages = Path(trained[0].home) / "private" / "stages"
    shutil.copytree(stages, home / "private" / "stages", copy_function=os.link, dirs_exist_ok=True)
    return context, trained[1], fitted(context, trained[1])


@pytest.mark.parametrize(("trainable", "pooling"), PARTS)
def test_every_part_goes_from_file_to_release(
    data: dict[str, Any], tiny_roberta: Path, tmp_path: Path, trainable: str, pooling: str
) -> None:
    """And the folder that leaves loads in a plain library, with codes as labels."""
    context = tiny_jobs.workspace(tmp_path)
    chosen = retrain(data, tiny_roberta, model={"trainable": trainable, "pooling": pooling})
    made = fitted(context, chosen)
    done = release(context, chosen, made)
    assert release(context, chosen, made) == done, "a second attempt returns the first release"
    assert float(done.epsilon) > 0
    text = "Employee fell from a ladder."
    if pooling == "first":
        from transformers import pipeline

        (answer,) = pipeline("text-classification", done.bundle)(text)
        assert answer["label"].isdigit()
    else:
        from sentence_transformers import SentenceTransformer

        assert SentenceTransformer(done.bundle, device="cpu").encode([text]).shape == (1, 46)
    for path in Path(done.bundle).rglob("*.json"):
        assert str(tmp_path) not in path.read_text()
        assert str(tiny_roberta) not in path.read_text()
    last = made.outcomes[-1]
    running = last.mechanism.running_sensitivity(last.fitted.path)
    assert running is not None
    assert list(running) == sorted(running)
    assert running[-1] == pytest.approx(context.store.figures(last.fitted)["sensitivity"])


def test_another_method_or_label_is_another_plan(trained: Trained) -> None:
    """The same records and method keep their key; the place of the file and the requester do not
    matter.
    """
    context, chosen, made = trained

    def key(**changes: Any) -> str:
        changed = chosen.model_copy(update={"release": chosen.release.model_copy(update=changes)})
        return tiny_jobs.planned(context, changed, made).plan.idempotency_key

    assert key() == key(requester="someone else")
    assert key() != key(label="second")


def test_what_is_in_the_way_is_not_committed(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between draw and commit a bundle is edited, or the draw removed: refused. One edited later is
    reported too.
    """
    context, chosen, made = copied(trained, tmp_path)
    with killed_at(monkeypatch, publish.Ledger, "commit"):
        release(context, chosen, made)
    (folder,) = context.workspace.bundles.iterdir()
    card, draw = (
        folder / "README.md",
        next((tmp_path / "private" / "releases").rglob("draw.safetensors")),
    )
    built, drawn = card.read_text(), draw.read_bytes()
    card.write_text(built + "edited")
    with pytest.raises(StorageError, check=of_kind("bundle-of-another-build")):
        release(context, chosen, made)
    card.write_text(built)
    draw.unlink()
    with pytest.raises(StorageError, check=of_kind("sample-gone")):
        release(context, chosen, made)
    draw.write_bytes(drawn)
    assert release(context, chosen, made).bundle == str(folder)
    card.write_text(built + "edited")
    with pytest.raises(StorageError, check=of_kind("another-bundle")):
        release(context, chosen, made)


def test_a_unit_of_several_records_costs_as_many_times(
    data: dict[str, Any], tiny_roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the Delta at the draw exceeds the planned one: epsilon is 2 m Delta, add/remove m
    Delta.
    """
    context = tiny_jobs.workspace(tmp_path)
    ingest = {"unit_column": "Establishment", "max_per_unit": 3}
    chosen = retrain(data | {"ingest": ingest}, tiny_roberta)
    made = fitted(context, chosen)
    monkeypatch.setattr(risks, "at_draw", lambda *a, **k: 5.0)
    wide = tmp_path / "policy.yaml"
    wide.write_text("name: wide\npopulations: {demo: {asymptotic-local: {epsilon: 100}}}\n")
    policy = chosen.release.model_copy(update={"policy": str(wide)})
    done = release(context, chosen.model_copy(update={"release": policy}), made)
    row = ledger_access.open_ledger(context, policy).release(done.release_id)
    assert row.claim.max_records_per_unit == 3
    assert (row.sensitivity, row.epsilon, row.exact.epsilon_add_remove) == (5, 30, 15)


def test_a_disk_that_fills_up_is_told_and_the_stage_resumes(
    data: dict[str, Any], tiny_roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC in the middle of training: one clear line, nothing finished; with space again it
    continues.
    """
    context = tiny_jobs.workspace(tmp_path)
    chosen = retrain(data, tiny_roberta)
    real, calls = checkpoint.save, 0

    def full(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(arguments[0]))
        real(*arguments)

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(StorageError, check=of_kind("disk", saying="no space")):
        fitted(context, chosen)
    monkeypatch.setattr(checkpoint, "save", real)
    assert len(fitted(context, chosen).outcomes) == 3


def test_too_little_disk_is_refused_before_work(
    data: dict[str, Any], tiny_roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space and what the run would write are reported."""
    monkeypatch.setattr(preflight, "_MARGIN", 1 << 60)
    with pytest.raises(StorageError, check=of_kind("disk-space")):
        preflight.check(Context(home=str(tmp_path)), retrain(data, tiny_roberta), {})
