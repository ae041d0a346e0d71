"""Exports for the attack programs of others: their form, and who may read them."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from refusals import of_kind

from mechanisms.model import checkpoint
from mechanisms.model.inputs import FeatureInputs
from storage.errors import InputError
from storage.paths import Workspace
from tasks.auditing.export import export, place_of, require_one_model

SIZES = {"train": 7, "test": 4}
CODES = 3


@pytest.fixture
def candidate(tmp_path: Path) -> Any:
    """Features that are their own logits."""
    rng = torch.Generator().manual_seed(1)
    folder = tmp_path / "prepared"
    folder.mkdir()
    for split, size in SIZES.items():
        FeatureInputs(torch.randn(size, CODES, generator=rng)).save(folder / f"{split}.safetensors")
        labels = torch.arange(size) % CODES
        checkpoint.save(folder / f"{split}_labels.safetensors", {"labels": labels}, {})
    model = SimpleNamespace(predict=lambda inputs: inputs.features)
    return SimpleNamespace(
        prepared=folder,
        is_sampled=False,
        draw=lambda context: None,
        classifier=lambda context, theta: model,
    )


CONTEXT: Any = SimpleNamespace(store=SimpleNamespace(open=lambda folder: folder))


def test_sacro_ml_and_numpy_read_it(candidate: Any, tmp_path: Path) -> None:
    """The fields and files of SACRO-ML 2's target: CSV without a header, probabilities of both
    halves, codes as numbers; the same as logits, members first, without pickles.
    """
    place = export(CONTEXT, candidate, tmp_path / "out")
    target = yaml.safe_load((place / "target.yaml").read_text())
    for split, size in SIZES.items():
        scores = pd.read_csv(place / target[f"proba_{split}_path"], header=None).to_numpy()
        assert scores.shape == (size, CODES)
        assert np.allclose(scores.sum(1), 1)
        right = pd.read_csv(place / target[f"y_{split}_path"], header=None).to_numpy()
        assert right[:, 0].tolist() == [n % CODES for n in range(size)]
    logits, members = (np.load(place / f"{name}.npy") for name in ("logits", "members"))
    assert members.tolist() == [True] * SIZES["train"] + [False] * SIZES["test"]
    assert logits.shape == (sum(SIZES.values()), CODES)
    assert len(np.load(place / "labels.npy")) == len(logits)
    weights = np.exp(logits[: SIZES["train"]].astype(float))
    first = pd.read_csv(place / "proba_train.csv", header=None).to_numpy()
    assert np.allclose(first, weights / weights.sum(1, keepdims=True), atol=1e-8)


def test_only_its_owner_may_read_it(candidate: Any, tmp_path: Path) -> None:
    """Whatever the umask; and a folder that is there already is not written into."""
    before = os.umask(0)
    try:
        place = export(CONTEXT, candidate, tmp_path / "out")
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()}
    assert modes == {0o600}
    with pytest.raises(InputError, check=of_kind("export-exists")):
        place_of(Workspace(tmp_path), Path("plan.json"), place)


@pytest.mark.parametrize("folder", ["bundles/x", "bundles", "link/x"])
def test_an_export_leaves_with_a_bundle(tmp_path: Path, folder: str) -> None:
    """Nothing is written among the files that are given away, also not through a link."""
    home = Workspace(tmp_path)
    home.bundles.mkdir()
    (tmp_path / "link").symlink_to(home.bundles)
    with pytest.raises(InputError, check=of_kind("export-among-bundles")):
        place_of(home, Path("plan.json"), tmp_path / folder)
    assert place_of(home, Path("p.json"), None).is_relative_to(home.private.resolve())


def test_a_model_that_is_sampled_anew_is_not_exported(candidate: Any) -> None:
    require_one_model(candidate)
    candidate.is_sampled = True
    with pytest.raises(InputError, check=of_kind("no-single-model")):
        require_one_model(candidate)
