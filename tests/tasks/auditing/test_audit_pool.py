"""The pool of an audit: canaries that the records have room for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from refusals import of_kind

from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import derive_seed
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.auditing import pool

REF = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, kind="test")


def test_more_canaries_than_records_are_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each canary is a record of its own; the largest number that fits is named."""
    half = FeatureInputs(torch.zeros(5, 4)), torch.zeros(5, dtype=torch.int64)
    monkeypatch.setattr(pool, "load_inputs", lambda folder, split: half)
    step = pool.pool(canaries=11, seed=0, prepared=REF)
    work: Any = cast(Any, SimpleNamespace(inputs={"prepared": None, "dataset": None}))
    with pytest.raises(InputError, check=of_kind("too-many-canaries"), match=r"11.*10.*10"):
        step.body(work)


def pool_of(labels: torch.Tensor, folder: Path, monkeypatch: pytest.MonkeyPatch) -> pool.Pool:
    """The pool of two halves of 30 records with these labels."""
    half = FeatureInputs(torch.randn(30, 4, generator=torch.Generator().manual_seed(1))), labels
    monkeypatch.setattr(pool, "load_inputs", lambda folder, split: half)
    work: Any = SimpleNamespace(inputs={"prepared": None, "dataset": None}, out=folder)
    pool.pool(canaries=8, seed=0, prepared=REF).body(work)
    return pool.Pool.load(folder)


def test_a_pool_of_one_field_is_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Labels of one column, drawn in the order of earlier audits."""
    labels = torch.randint(4, (30,), generator=torch.Generator().manual_seed(0))
    made = pool_of(labels, tmp_path, monkeypatch)
    assert made.labels.shape == (len(made.inputs),)
    pick = np.random.default_rng(derive_seed(0, "audit", "canaries"))
    observed = torch.unique(labels).numpy()
    originals = pick.permutation(60)[:8]
    wrong = [
        pick.choice(observed[observed != int(torch.cat([labels, labels])[i])]) for i in originals
    ]
    assert made.labels[made.family == pool.FAMILIES.index("mislabelled")].tolist() == wrong
