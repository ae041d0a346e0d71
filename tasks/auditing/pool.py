"""Stage: the pool that an audit tosses coins for: every record of both halves, canaries, and what is never planted.

The test half is the held-out share: drawn at random at ingest, code by code, and never trained on. A share of its own
(`data.ingest.holdout_share`) would be as random, smaller, and taken from training; a test half is there in any case.
Its records are trained on in reference trials alone, which no release comes from.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanisms.model import checkpoint, classifier
from mechanisms.model.classifier import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import derive_seed
from storage.artifacts import ArtifactRef
from storage.datasets import load_split
from storage.errors import InputError
from tasks.fitting.prepared import SPLITS, load_inputs
from tasks.running.stage import Step, Work

FAMILIES = ("in-distribution", "mislabelled", "rare-token", "near-duplicate", "alpha-mover")
NEVER = -1
"""Family of rows that take part in no trial: the originals of mislabelled canaries, and references of exposure."""
_PLANTED, _REFERENCES = 16, 32
"""Rare-token canaries whose exposure is measured, and sequences never planted that each is ranked among."""


@dataclass(frozen=True)
class Pool:
    """features float32 [n, width], labels and family int64 [n]; references int64 [planted, 1 + references].

    Of several fields labels are [n, fields], -1 where a record lacks one; a wrong code is then wrong in each.
    Rows start with the training half, then the test half, each in the order of its split. A row of `references` is a
    planted sequence followed by those that it is ranked among, all under its code.
    """

    features: Tensor
    labels: Tensor
    family: Tensor
    references: Tensor
    train: int
    test: int

    @staticmethod
    def load(folder: Path) -> Pool:
        """Read what the stage wrote."""
        tensors, meta = checkpoint.load(folder / "pool.safetensors")
        return Pool(**tensors, train=meta["train"], test=meta["test"])

    def coins(self, *, seed: int, trial: int) -> Tensor:
        """Who takes part in a trial, bool [n]: a fair coin for each record, and for the canaries that are its turn.

        The canary that moves other records' weights takes turns with the others, whose large losses would hide it.
        """
        pick = torch.Generator().manual_seed(derive_seed(seed, "audit", "coins", trial))
        tossed = torch.rand(len(self.family), generator=pick) < 0.5
        return tossed & self.on_trial(trial)

    def on_trial(self, trial: int) -> Tensor:
        """Rows for which a coin is tossed in this trial, bool [n]."""
        mover = self.family == FAMILIES.index("alpha-mover")
        crafted = (self.family > 0) & ~mover
        return (self.family == 0) | (mover if trial % 2 else crafted)


def pool(model: ModelConfig, *, canaries: int, seed: int, dataset: ArtifactRef, prepared: ArtifactRef) -> Step:
    """Features of records, canaries and references. Its run refuses more canaries than there are records for."""
    return Step(
        name="audit-pool",
        label="audit pool",
        config={"model": model.model_dump(mode="json"), "canaries": canaries, "seed": seed},
        inputs={"dataset": dataset, "prepared": prepared},
        body=partial(_pool, model=model, canaries=canaries, seed=seed),
        modules=("tasks.auditing.pool",),
    )


def _pool(work: Work, *, model: ModelConfig, canaries: int, seed: int) -> Mapping[str, Any]:
    halves = [load_inputs(work.inputs["prepared"], split) for split in SPLITS]
    features = torch.cat([_features(records) for records, _ in halves])
    labels = torch.cat([given for _, given in halves])
    if 2 * canaries > len(labels):
        raise InputError(
            f"--canaries: {canaries} need {2 * canaries} records and there are {len(labels)}; "
            f"give at most {len(labels) // 2}"
        )
    texts = [text for split in SPLITS for text in load_split(work.inputs["dataset"], split)["text"]]
    family = torch.zeros(len(labels), dtype=torch.int64)
    pick = np.random.default_rng(derive_seed(seed, "audit", "canaries"))
    columns = labels.unsqueeze(1) if labels.dim() == 1 else labels
    observed = [torch.unique(own[own >= 0]).numpy() for own in columns.T]
    chosen = pick.permutation(len(labels))[: 2 * canaries]
    originals, copied = chosen[:canaries], chosen[canaries:]

    wrong = np.array([_another(columns[i].tolist(), observed, pick) for i in originals])
    family[torch.from_numpy(originals)] = NEVER
    rare_codes = np.stack([pick.choice(known, canaries) for known in observed], axis=1)
    twins = [_altered(texts[int(i)]) for i in copied]
    planted = [_gibberish(derive_seed(seed, "audit", "rare", i)) for i in range(canaries + _REFERENCES)]
    encoded = _encode(work, model, [*twins, *planted], seed=seed)
    twin, rare, others = encoded.split([len(twins), canaries, _REFERENCES])
    exposed = min(_PLANTED, canaries)
    mover, mover_codes = _mover(features, columns)
    parts: list[tuple[Tensor, Any, int]] = [
        (features[torch.from_numpy(originals)], wrong, FAMILIES.index("mislabelled")),
        (rare, rare_codes, FAMILIES.index("rare-token")),
        (twin, columns[torch.from_numpy(copied)].numpy(), FAMILIES.index("near-duplicate")),
        (mover[None], np.array([mover_codes]), FAMILIES.index("alpha-mover")),
        *((others, np.tile(rare_codes[i], (_REFERENCES, 1)), NEVER) for i in range(exposed)),
    ]
    every = torch.cat([columns, *(torch.as_tensor(codes, dtype=torch.int64) for _, codes, _ in parts)])
    first_rare = len(labels) + canaries
    first_reference = len(labels) + 3 * canaries + 1
    made = Pool(
        features=torch.cat([features, *(part for part, _, _ in parts)]).contiguous(),
        labels=every.view(-1, *labels.shape[1:]),
        family=torch.cat([family, *(torch.full((len(part),), which) for part, _, which in parts)]),
        references=torch.tensor(
            [
                [first_rare + i, *range(first_reference + i * _REFERENCES, first_reference + (i + 1) * _REFERENCES)]
                for i in range(exposed)
            ]
        ),
        train=len(halves[0][1]),
        test=len(halves[1][1]),
    )
    tensors = {name: getattr(made, name) for name in ("features", "labels", "family", "references")}
    checkpoint.save(work.out / "pool.safetensors", tensors, {"train": made.train, "test": made.test})
    return {"records": made.train + made.test, "canaries": 3 * canaries + 1}


def _features(records: Any) -> Tensor:
    assert isinstance(records, FeatureInputs)
    return records.features


def _encode(work: Work, model: ModelConfig, texts: Sequence[str], *, seed: int) -> Tensor:
    encoder = classifier.build(model, num_labels=2, seed=seed, device=classifier.device_of(work.context.device))
    return encoder.encode(classifier.tokenize(model, list(texts))).features


def _altered(text: str) -> str:
    """A second report of the same case: the last word gone, two words more."""
    words = text.split()
    return " ".join([*words[: max(1, len(words) - 1)], "as", "reported"])


def _gibberish(seed: int) -> str:
    """A narrative of words that no narrative has."""
    pick = random.Random(seed)
    words = ("".join(pick.choice("bcdfghjklmnpqrstvwxz") + pick.choice("aeiou") for _ in range(3)) for _ in range(8))
    return " ".join(words) + "."


def _another(own: Sequence[int], observed: Sequence[np.ndarray], pick: np.random.Generator) -> list[int]:
    """Another code in each field that a record has; where a field knows no other, its own."""
    return [
        code if code < 0 or len(known) == 1 else int(pick.choice(known[known != code]))
        for code, known in zip(own, observed, strict=True)
    ]


def _mover(features: Tensor, columns: Tensor) -> tuple[Tensor, list[int]]:
    """The most typical narrative of the (first field's) largest code, under each field's rarest: no fit can give it a
    small loss.

    The largest risk is the scale of all weights (alpha = 1 - r / max r), so its presence raises everybody else's.
    """
    counts = [torch.bincount(own[own >= 0]) for own in columns.T]
    rarest = [int(torch.where(count > 0, count, count.max() + 1).argmin()) for count in counts]
    typical = features[columns[:, 0] == int(counts[0].argmax())]
    return typical[(typical - typical.mean(0)).norm(dim=1).argmin()], rarest
