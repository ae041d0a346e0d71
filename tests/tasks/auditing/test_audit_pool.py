"""The pool of an audit: canaries that the records have room for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from mechanisms.model.classifier import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.auditing import pool

REF = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, kind="test")


def test_more_canaries_than_records_are_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the canaries copy a record's text and half its features; the largest number that fits is named."""
    half = FeatureInputs(torch.zeros(5, 4)), torch.zeros(5, dtype=torch.int64)
    monkeypatch.setattr(pool, "load_inputs", lambda folder, split: half)
    step = pool.pool(ModelConfig(), canaries=6, seed=0, dataset=REF, prepared=REF)
    work: Any = cast(Any, SimpleNamespace(inputs={"prepared": None, "dataset": None}))
    with pytest.raises(InputError, match="--canaries: 6 need 12 records and there are 10; give at most 5"):
        step.body(work)
