"""Stage: builds the pool of rows for which an audit tosses coins: all records, and canaries, which
are records with a wrong code.

The held-out records are never trained on. They are drawn at random at ingest, within each code, or
are the records dated on or after `train_before`. In reruns a coin
decides for each record of both sets. Held-out records are trained on only in reruns,
which are never released.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mechanisms.model import checkpoint, inputs
from mechanisms.model.inputs import FeatureInputs, TokenInputs
from mechanisms.model.seeding import derive_seed
from storage.artifacts import ArtifactRef
from storage.errors import OutOfRange
from storage.json_values import Figures
from tasks.fitting.model_inputs import SPLITS, load_inputs
from tasks.running.stage import Step, Work

FAMILIES = ("in-distribution", "mislabelled")
NEVER = -1
"""Family of rows that take part in no trial: the originals of mislabelled canaries."""


@dataclass(frozen=True)
class Pool:
    """The model's inputs for n rows; labels and family are int64 [n].

    The training records come first, then the held-out records, each in the order of its
    split.
    """

    inputs: FeatureInputs | TokenInputs
    labels: Tensor
    family: Tensor
    train: int
    test: int

    @staticmethod
    def load(folder: Path) -> Pool:
        tensors, meta = checkpoint.load(folder / "pool.safetensors")
        return Pool(
            inputs.load(folder / "inputs.safetensors"),
            **tensors,
            train=meta["train"],
            test=meta["test"],
        )

    def coins(self, *, seed: int, trial: int) -> Tensor:
        """Draws the rows of a trial, bool [n], with a fair coin for each record, and for each
        canary if the trial has canaries.
        """
        pick = torch.Generator().manual_seed(derive_seed(seed, "audit", "coins", trial))
        tossed = torch.rand(len(self.family), generator=pick) < 0.5
        return tossed & self.on_trial(trial)

    def on_trial(self, trial: int) -> Tensor:
        """Returns the rows that have a coin toss in this trial, bool [n]."""
        # guard: test_a_seed_whose_coins_leave_no_natural_rerun
        canaries = (self.family > 0) & (not self.natural(trial))
        return (self.family == 0) | canaries

    @staticmethod
    def natural(trial: int) -> bool:
        """True for every second trial. Such a trial has no canaries, whatever the coins are,
        because anyone who knows the seed can compute them.
        """
        return trial % 2 == 1


def pool(*, canaries: int, seed: int, prepared: ArtifactRef) -> Step:
    """Declares the records and canaries as model inputs. Refuses more canaries than the records
    allow.
    """
    return Step(
        name="audit-pool",
        label="audit pool",
        config={"canaries": canaries, "seed": seed},
        inputs={"prepared": prepared},
        body=partial(_pool, canaries=canaries, seed=seed),
        modules=("tasks.auditing.pool",),
    )


def _pool(work: Work, *, canaries: int, seed: int) -> Figures:
    halves = [load_inputs(work.inputs["prepared"], split) for split in SPLITS]
    records = inputs.joined([_narrowed(half) for half, _ in halves])
    labels = torch.cat([half_labels for _, half_labels in halves])
    if canaries > len(labels):
        raise OutOfRange(
            f"--canaries: {canaries} are more than the {len(labels)} records. Use "
            f"at most {len(labels)}.",
            kind="too-many-canaries",
        )
    family = torch.zeros(len(labels), dtype=torch.int64)
    pick = np.random.default_rng(derive_seed(seed, "audit", "canaries"))
    observed = torch.unique(labels).numpy()
    originals = pick.permutation(len(labels))[:canaries]
    wrong = torch.tensor(
        [int(pick.choice(observed[observed != int(labels[i])])) for i in originals]
    )
    family[torch.from_numpy(originals)] = NEVER
    planted = torch.full((canaries,), FAMILIES.index("mislabelled"))
    result = Pool(
        inputs=inputs.joined([records, records.select(torch.from_numpy(originals))]),
        labels=torch.cat([labels, wrong]),
        family=torch.cat([family, planted]),
        train=len(halves[0][1]),
        test=len(halves[1][1]),
    )
    result.inputs.save(work.out / "inputs.safetensors")
    tensors = {"labels": result.labels, "family": result.family}
    checkpoint.save(
        work.out / "pool.safetensors", tensors, {"train": result.train, "test": result.test}
    )
    return {"records": result.train + result.test, "canaries": canaries}


def _narrowed(records: inputs.Inputs) -> FeatureInputs | TokenInputs:
    assert isinstance(records, FeatureInputs | TokenInputs)
    return records
