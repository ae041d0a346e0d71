"""Exports a planned model's predictions on its records, for external attack tools.

The files contain figures per record and are as private as the records. SACRO-ML reads the folder
directly (`sacroml.attacks.target.Target.load`, version 2: `target.yaml` and CSV without a header).
LeakPro attacks a model through an object that returns logits, which `logits.npy` provides.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mechanisms.model.scorer import softmax
from storage.durable import sync
from storage.errors import Contradiction
from storage.paths import Workspace
from tasks.fitting.candidate import Candidate
from tasks.fitting.model_inputs import SPLITS, load_inputs
from tasks.running.stage import Context

FOLDER = "audit-exports"
"""Folder within the private folder of a workspace."""


def place_of(workspace: Workspace, plan: Path, folder: Path | None) -> Path:
    """Returns the folder to write to, by default a folder for the plan in the workspace's private
    folder.

    Raises:
        InputError: the folder exists already, or is in a place from which files are passed on.
    """
    place = (folder or workspace.private / FOLDER / plan.stem).resolve()
    # guard: test_an_export_leaves_with_a_bundle
    if place.is_relative_to(workspace.bundles.resolve()):
        raise Contradiction(
            f"--export: {place} is among the bundles, which are passed on. Choose a private folder",
            kind="export-among-bundles",
        )
    if place.exists():
        raise Contradiction(
            f"--export: {place} already exists. Remove it, or choose another folder",
            kind="export-exists",
        )
    return place


def require_one_model(candidate: Candidate) -> None:
    """Refuses a mechanism that samples a new model for every release, because there is no single
    model to attack.
    """
    if candidate.is_sampled:
        raise Contradiction(
            "--export: each release of this mechanism is another sample, so there is no single "
            "model with predictions to export. Without --export, `autocoder audit` attacks its "
            "samples",
            kind="no-single-model",
        )


def export(context: Context, candidate: Candidate, place: Path) -> Path:
    """Writes the predictions on the training and the held-out records to a new folder that only
    its owner may read.
    """
    model = candidate.classifier(context, candidate.draw(context))
    logits: dict[str, NDArray[np.float32]] = {}
    labels: dict[str, NDArray[np.int64]] = {}
    for split in SPLITS:
        inputs, right = load_inputs(context.store.open(candidate.prepared), split)
        logits[split] = np.asarray(model.predict(inputs), np.float32)
        labels[split] = np.asarray(right, np.int64)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    try:
        _write(partial, logits, labels)
        partial.rename(place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(place.parent)
    return place


def _write(
    folder: Path,
    logits: Mapping[str, NDArray[np.float32]],
    labels: Mapping[str, NDArray[np.int64]],
) -> None:
    for split in SPLITS:
        scores = softmax(logits[split].astype(np.float64))
        _csv(folder / f"proba_{split}.csv", scores, "%.9g")
        _csv(folder / f"y_{split}.csv", labels[split][:, None], "%d")
    columns = {
        f"{kind}_{split}": f"{kind}_{split}.csv" for kind in ("proba", "y") for split in SPLITS
    }
    target = {"dataset_name": "autocoder", "features": {}}
    target |= {f"{name}_path": file for name, file in columns.items()}
    with _opened(folder / "target.yaml") as file:
        file.write(json.dumps(target, indent=1).encode())  # JSON is YAML
    members = [np.full(len(labels[split]), split == "train") for split in SPLITS]
    arrays = {
        "logits": np.concatenate([logits[split] for split in SPLITS]),
        "labels": np.concatenate([labels[split] for split in SPLITS]),
        "members": np.concatenate(members),
    }
    for name, values in arrays.items():
        with _opened(folder / f"{name}.npy") as file:
            np.save(file, values, allow_pickle=False)


def _csv(path: Path, values: NDArray[Any], form: str) -> None:
    with _opened(path) as file:
        np.savetxt(file, values, fmt=form, delimiter=",")


def _opened(path: Path) -> BinaryIO:
    """Opens a new file that only its owner may read, whatever the umask."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
