"""A fit shared among ranks: one sample, noise once, one claim, the same parameters everywhere; a
rank may be lost.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import rank_bodies
import tiny_jobs
import torch
from refusals import of_kind

from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint
from mechanisms.model import classifier as classifiers
from mechanisms.model import ranks as model_ranks
from mechanisms.model.config import ModelConfig
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from storage.artifacts import Recipe, Stage
from tasks.running import ranks
from tasks.running.failures import StageError
from tasks.running.stage import Work

RECORDS = 21
SEGMENT = NoiseSegment(steps=6, noise_multiplier=2.0, l2_clip_norm=1.0)
PRIVATE = {
    "config": DpSgd(
        batch_size=10, epochs=3, optimiser="sgd", learning_rate=0.5, momentum=0.5
    ).model_dump(mode="json"),
    "event": DpSgdEvent(sampling_prob=10 / RECORDS, segments=(SEGMENT,)).model_dump(mode="json"),
}
# 21 records in batches of 4: the last batch leaves one rank without a record
PHASE = {
    "optimiser": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.5,
    "epochs": 3,
    "batch_size": 4,
    "max_grad_norm": 0.5,
}
FITS: dict[str, dict[str, Any]] = {
    "dp-sgd": PRIVATE,
    "phase": {"phase": PHASE | {"length_bucketing": True}},
}


def model_of(encoder: Path, trainable: Any) -> ModelConfig:
    return ModelConfig(encoder=str(encoder), trainable=trainable, max_length=32, lora_rank=2)


def work_in(
    folder: Path, model: ModelConfig, narratives: Callable[..., list[str]], processes: int
) -> Work:
    """The work of a stage in this folder, on the same records in each."""
    folder.mkdir(exist_ok=True)
    context = tiny_jobs.workspace(folder, processes=processes)
    records, labels = folder / "records.safetensors", folder / "labels.safetensors"
    classifiers.tokenize(model, narratives(RECORDS)).save(records)
    checkpoint.save(labels, {"labels": torch.arange(RECORDS) % 4}, {})
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    recipe: Recipe = {"config": {}, "inputs": {}, "code": ""}
    stage = Stage("fit", "", scratch, scratch, None, recipe, context.store)
    return Work(
        stage,
        context,
        {"records": records, "labels": labels},
        {},
        lambda done, total: None,
        "a fit",
    )


def fit(work: Work, model: ModelConfig, **settings: Any) -> list[float]:
    settings = {"model": model.model_dump(mode="json"), **settings}
    with ranks.shared(work, "rank_bodies:fit", settings):
        return rank_bodies.fit(work, settings)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "trainable", "processes"), [("dp-sgd", "lora", 3), ("phase", "full", 1)]
)
def test_ranks_come_to_what_one_process_comes_to(
    kind: str,
    trainable: str,
    processes: int,
    tiny_roberta: Path,
    narratives: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    """Two ranks, one of which is lost in the second epoch, and then another number of them. A
    second noise, another sample or a record counted twice would move the parameters by far more: a
    step's noise has a standard deviation of two clips.
    """
    model = model_of(tiny_roberta, trainable)
    alone = work_in(tmp_path / "one", model, narratives, 1)
    losses = fit(alone, model, **FITS[kind])
    broken = work_in(tmp_path / "two", model, narratives, 2)
    with pytest.raises(MechanismError, check=of_kind("process-ended")):
        fit(broken, model, **FITS[kind], dies_at=4 if kind == "dp-sgd" else 12)
    assert not (broken.scratch / "theta-0").exists()
    (file,) = broken.scratch.glob("*.safetensors")
    before = checkpoint.load(file)[1]["losses"]
    assert 1 <= len(before) < 3
    resumed = replace(broken, context=broken.context.model_copy(update={"processes": processes}))
    assert (
        fit(resumed, model, **FITS[kind])[: len(before)]
        == before
        == pytest.approx(losses[: len(before)], rel=1e-4)
    )
    ends = [rank_bodies.theta(resumed.scratch, rank) for rank in range(processes)]
    assert all(torch.equal(end, ends[0]) for end in ends)
    torch.testing.assert_close(ends[0], rank_bodies.theta(alone.scratch, 0), rtol=1e-4, atol=1e-5)


def test_a_dead_follower_is_named(
    tiny_roberta: Path, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    work = work_in(tmp_path, model_of(tiny_roberta, "full"), narratives, 2)
    with (
        pytest.raises(
            StageError, match=r"a fit: a process of the training did not start. fit: AttributeError"
        ),
        ranks.shared(work, "rank_bodies:nothing", {}),
    ):
        pytest.fail("the fit began")


def test_a_follower_that_does_not_start_in_time_is_ended(
    tiny_roberta: Path,
    narratives: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the file of what it printed."""
    monkeypatch.setattr(ranks, "_LONGEST_START", 0.01)
    work = work_in(tmp_path, model_of(tiny_roberta, "full"), narratives, 2)
    with (
        pytest.raises(StageError, match=r"\S+process-1\.log"),
        ranks.shared(work, "rank_bodies:nothing", {}),
    ):
        pytest.fail("the fit began")
    logs = work.scratch.with_name(f"{work.scratch.name}-processes")
    assert (logs / "process-1.log").exists()
    assert not list(work.scratch.glob("*.log")), "the folder of a fit has files of the fit alone"


def test_a_rank_waits_a_limited_time_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_ranks, "_LONGEST_START", timedelta(seconds=0.1))
    alone = model_ranks.joined(tmp_path / "meeting", rank=0, ranks=2, device=torch.device("cpu"))
    with pytest.raises(MechanismError, check=of_kind("processes-apart")), alone:
        pytest.fail("the fit began")


def test_a_retrain_by_two_processes(tiny_roberta: Path, tmp_path: Path) -> None:
    """Fine-tuning and SWAG of a whole encoder: the same snapshots and losses, moments and all."""
    data = tiny_jobs.demo(tmp_path / "data", records=60)
    chosen = tiny_jobs.retrain(
        data, tiny_roberta, model={"trainable": "full", "pooling": "first"}, round_name="weighted"
    )
    figures = []
    for processes in (1, 2):
        context = tiny_jobs.workspace(tmp_path / str(processes), processes=processes)
        made = tiny_jobs.fitted(context, chosen)
        figures.append(context.store.figures(made.of("base").fitted))
    assert figures[0]["snapshots"] == figures[1]["snapshots"] == 3
    assert figures[1]["losses"] == pytest.approx(
        figures[0]["losses"], rel=0.05
    )  # each rank has dropout masks of its own
