"""Fits that ranks share, for tests: a module's function, which followers import by name."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from small_heads import KEY
from torch import nn

from mechanisms import dp_sgd
from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Records, Run
from mechanisms.model import checkpoint, inputs, ranks, training
from mechanisms.model import classifier as classifiers
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.privacy.events import decode
from tasks.running.stage import Work


def fit(work: Work, settings: Mapping[str, Any]) -> list[float]:
    """Fits as told, and saves what this rank came to as `theta-RANK` in the scratch folder."""
    records = inputs.load(work.inputs["records"])
    labels = checkpoint.load(work.inputs["labels"])[0]["labels"]
    model = ModelConfig.model_validate(settings["model"])
    built = classifiers.build(model, num_labels=4, seed=0, device="cpu")
    for module in built.part.modules():  # each rank has masks of its own
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if "phase" in settings:
        phase = OptimiserPhase.model_validate(settings["phase"])
        weights = torch.linspace(0, 1, len(labels))
        losses = training.train(
            built,
            records,
            labels,
            phase=phase,
            seed=0,
            purpose="test",
            weights=weights,
            folder=work.scratch,
            checkpoint_seconds=0,
            progress=_dying(settings),
        )
    else:
        config, event = DpSgd.model_validate(settings["config"]), decode(settings["event"])
        # the followers' key is another: they have to take rank 0's
        key = KEY if ranks.rank() == 0 else bytes(32)
        run = Run(
            4,
            0,
            lambda: built,
            folder=work.scratch,
            checkpoint_seconds=0,
            key=key,
            progress=_dying(settings),
        )
        fitted = dp_sgd.descend(config, event, Records(records, labels), run)
        assert fitted.event == event
        losses = fitted.figures["losses"]
    checkpoint.save(work.scratch / f"theta-{ranks.rank()}", {"theta": built.flat}, {})
    return losses


def _dying(settings: Mapping[str, Any]) -> training.Progress | None:
    def progress(done: int, total: int) -> None:
        if ranks.rank() == 1 and done >= settings["dies_at"]:
            os._exit(9)

    return progress if "dies_at" in settings else None


def theta(scratch: Path, rank: int) -> torch.Tensor:
    return checkpoint.load(scratch / f"theta-{rank}")[0]["theta"]
