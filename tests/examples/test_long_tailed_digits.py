"""The long-tailed digits: the counts that docs/images.md states, each image once, halves told apart by the date."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from long_tailed_digits import long_tailed

from storage.ingest import IngestConfig, ingest


def test_the_tail_and_the_halves(tmp_path: Path) -> None:
    """1,371 train with 400 to 20 of a digit, 100 of each test; ingest reads them so, with nothing dropped."""
    digits = np.arange(5000) % 10
    pixels = np.zeros((5000, 784))
    pixels[:, 0] = np.arange(5000) % 251
    arrays = long_tailed(pixels, digits)
    train = arrays["taken"] == "2026-01-01"
    assert np.bincount(arrays["labels"][train]).tolist() == [400, 288, 207, 149, 107, 77, 55, 40, 28, 20]
    assert np.bincount(arrays["labels"][~train]).tolist() == [100] * 10
    assert len(set(arrays["id"].tolist())) == len(arrays["id"]) == 2371
    assert (arrays["images"][:, 0, 0] == arrays["id"] % 251).all()
    np.savez(tmp_path / "digits.npz", **arrays)
    config = IngestConfig.model_validate(
        {
            "kind": "images",
            "label_column": "labels",
            "id_column": "id",
            "date_column": "taken",
            "train_before": "2026-01-02",
            "cap_per_code": None,
            "min_per_code": 1,
        }
    )
    (tmp_path / "out").mkdir()
    result = ingest(tmp_path / "digits.npz", tmp_path / "out", config, None)
    assert (result.train, result.test) == (1371, 1000)
