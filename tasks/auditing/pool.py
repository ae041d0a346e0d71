"""Stage: builds the pool of rows for which an audit tosses coins: all records, canaries, and rows never planted.

The test half is the held-out share, never trained on: drawn at random at ingest, code by code, or what is dated on or
after `train_before`. In reruns a coin decides for each record of both halves. Records of the test half are trained on
in reruns alone, which are never released.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanisms.model import checkpoint, classifier, inputs
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, TokenInputs
from mechanisms.model.seeding import derive_seed
from storage.artifacts import ArtifactRef
from storage.datasets import load_table
from storage.errors import InputError
from tasks.fitting.model_inputs import SPLITS, load_inputs
from tasks.fitting.prior import lexicon_of
from tasks.running.stage import Step, Work

FAMILIES = ("in-distribution", "mislabelled", "rare-token", "near-duplicate", "alpha-mover")
NEVER = -1
"""Family of rows that take part in no trial: the originals of mislabelled canaries, and references of exposure."""
_PLANTED, _REFERENCES = 16, 32
"""Rare-token canaries whose exposure is measured, and the unplanted sequences that each is ranked among."""


@dataclass(frozen=True)
class Pool:
    """Holds the model's inputs of n rows; labels and family int64 [n]; references int64 [planted, 1 + references].

    Rows start with the training half, then the test half, each in the order of its split. A row of `references` is a
    planted sequence followed by those that it is ranked among, all under its code.
    """

    inputs: FeatureInputs | TokenInputs
    labels: Tensor
    family: Tensor
    references: Tensor
    train: int
    test: int

    @staticmethod
    def load(folder: Path) -> Pool:
        """Loads the output of the stage."""
        tensors, meta = checkpoint.load(folder / "pool.safetensors")
        return Pool(inputs.load(folder / "inputs.safetensors"), **tensors, train=meta["train"], test=meta["test"])

    def coins(self, *, seed: int, trial: int) -> Tensor:
        """Draws the rows of a trial, bool [n]: a fair coin for each record, and for the canaries of its turn.

        The canary that moves other records' weights alternates with the others, whose large losses would hide it, and
        both with trials of records alone (`natural`).
        """
        pick = torch.Generator().manual_seed(derive_seed(seed, "audit", "coins", trial))
        tossed = torch.rand(len(self.family), generator=pick) < 0.5
        return tossed & self.on_trial(trial)

    def on_trial(self, trial: int) -> Tensor:
        """Returns the rows for which a coin is tossed in this trial, bool [n]."""
        mover = self.family == FAMILIES.index("alpha-mover")
        crafted = (self.family > 0) & ~mover
        # guard: which reruns are natural is no matter of coins
        planted = crafted if trial % 2 == 0 else mover & (not self.natural(trial))
        return (self.family == 0) | planted

    @staticmethod
    def natural(trial: int) -> bool:
        """Returns True for every fourth trial, which has no canary whatever the coins: the seed reveals them."""
        return trial % 4 == 3


def pool(model: ModelConfig, *, canaries: int, seed: int, dataset: ArtifactRef, prepared: ArtifactRef) -> Step:
    """Declares records, canaries and references as the model reads them; refuses too few records for the canaries."""
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
    records = inputs.joined([_narrowed(half) for half, _ in halves])
    labels = torch.cat([given for _, given in halves])
    if 2 * canaries > len(labels):
        raise InputError(
            f"--canaries: {canaries} need {2 * canaries} records, and the data have {len(labels)}. "
            f"Give at most {len(labels) // 2}."
        )
    dataset = work.inputs["dataset"]
    texts = [text for split in SPLITS for text in load_table(dataset, split).column("text").to_pylist()]
    family = torch.zeros(len(labels), dtype=torch.int64)
    pick = np.random.default_rng(derive_seed(seed, "audit", "canaries"))
    observed = torch.unique(labels).numpy()
    chosen = pick.permutation(len(labels))[: 2 * canaries]
    originals, copied = chosen[:canaries], chosen[canaries:]

    wrong = np.array([int(pick.choice(observed[observed != int(labels[i])])) for i in originals])
    family[torch.from_numpy(originals)] = NEVER
    rare_codes = pick.choice(observed, canaries)
    twins = [_altered(texts[int(i)]) for i in copied]
    planted = [_gibberish(derive_seed(seed, "audit", "rare", i)) for i in range(canaries + _REFERENCES)]
    read = _read(work, model, [*twins, *planted], as_features=isinstance(records, FeatureInputs), seed=seed)
    twin, rare, others = (read.take(rows) for rows in torch.arange(len(read)).split([canaries, canaries, _REFERENCES]))
    exposed = min(_PLANTED, canaries)
    counts = torch.bincount(labels)
    largest = (labels == int(counts.argmax())).nonzero()[:, 0]
    rarest = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    mover = largest[_most_typical(work, model, records.take(largest), [texts[i] for i in largest.tolist()], seed=seed)]
    parts: list[tuple[FeatureInputs | TokenInputs, Any, int]] = [
        (records.take(torch.from_numpy(originals)), wrong, FAMILIES.index("mislabelled")),
        (rare, rare_codes, FAMILIES.index("rare-token")),
        (twin, labels[torch.from_numpy(copied)].numpy(), FAMILIES.index("near-duplicate")),
        (records.take(mover[None]), np.array([rarest]), FAMILIES.index("alpha-mover")),
        *((others, np.repeat(rare_codes[i], _REFERENCES), NEVER) for i in range(exposed)),
    ]
    every = torch.cat([labels, *(torch.as_tensor(codes, dtype=torch.int64) for _, codes, _ in parts)])
    first_rare = len(labels) + canaries
    first_reference = len(labels) + 3 * canaries + 1
    result = Pool(
        inputs=inputs.joined([records, *(part for part, _, _ in parts)]),
        labels=every,
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
    result.inputs.save(work.out / "inputs.safetensors")
    tensors = {name: getattr(result, name) for name in ("labels", "family", "references")}
    checkpoint.save(work.out / "pool.safetensors", tensors, {"train": result.train, "test": result.test})
    return {"records": result.train + result.test, "canaries": 3 * canaries + 1}


def _narrowed(records: inputs.Inputs) -> FeatureInputs | TokenInputs:
    assert isinstance(records, FeatureInputs | TokenInputs)
    return records


def _read(
    work: Work, model: ModelConfig, texts: Sequence[str], *, as_features: bool, seed: int
) -> FeatureInputs | TokenInputs:
    """Returns texts as the model reads them: tokens, states below its last layers, or features of its encoder."""
    tokens = classifier.tokenize(model, list(texts))
    device = classifier.device_of(work.context.device)
    lexicon = lexicon_of(work.context, model, work.inputs["dataset"])
    words = None if lexicon is None else lexicon.words(texts)
    if not as_features:
        return replace(tokens, words=words, states=classifier.states(model, tokens, device=device))
    features = classifier.build(model.frozen(), num_labels=2, seed=seed, device=device).encode(tokens)
    if lexicon is None or words is None:
        return features
    return FeatureInputs(lexicon.join(features.features, words))


def _altered(text: str) -> str:
    """Returns a second report of the same case: the last word dropped, two words added."""
    words = text.split()
    return " ".join([*words[: max(1, len(words) - 1)], "as", "reported"])


def _gibberish(seed: int) -> str:
    """Returns a narrative of words that no narrative has."""
    pick = random.Random(seed)
    words = ("".join(pick.choice("bcdfghjklmnpqrstvwxz") + pick.choice("aeiou") for _ in range(3)) for _ in range(8))
    return " ".join(words) + "."


def _most_typical(work: Work, model: ModelConfig, records: inputs.Inputs, texts: Sequence[str], *, seed: int) -> Tensor:
    """Returns the record of the largest code nearest to their mean, int64 [].

    Under the rarest code no fit can give it a small loss. The largest risk is the scale of all weights
    (alpha = 1 - r / max r), so its presence raises those of all others.
    """
    features = records if isinstance(records, FeatureInputs) else _read(work, model, texts, as_features=True, seed=seed)
    assert isinstance(features, FeatureInputs)
    return (features.features - features.features.mean(0)).norm(dim=1).argmin()
