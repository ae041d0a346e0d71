"""Tables of numbers and categories: their files, features in [0, 1], and conversion to and from
codes.

Bins and categories are public: they come from the suite, or are equal parts of [0, 1]. No bin edge
depends on the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import Claim


@dataclass(frozen=True)
class Columns:
    """The features of each column, in order: one for a number, otherwise as many as categories."""

    widths: tuple[int, ...]
    bins: int = 8
    """Number of equal parts of [0, 1] for numbers."""

    def __len__(self) -> int:
        return len(self.widths)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.bins if width == 1 else width for width in self.widths)

    def encode(self, features: Tensor) -> Tensor:
        """Returns codes int64 [n, columns] for features in [0, 1], float [n, d]."""
        parts = features.split(list(self.widths), dim=1)
        codes = [
            (part[:, 0] * self.bins).long().clamp(0, self.bins - 1)
            if part.shape[1] == 1
            else part.argmax(1)
            for part in parts
        ]
        return torch.stack(codes, dim=1)

    def decode(self, codes: Tensor, draws: torch.Generator) -> Tensor:
        """Returns features float64 [n, d] for codes int64 [n, columns]. Numbers are
        uniform in their bin.
        """
        parts: list[Tensor] = []
        for code, width in zip(codes.unbind(1), self.widths, strict=True):
            if width == 1:
                within = torch.rand(len(code), generator=draws, dtype=torch.float64)
                parts.append(((code + within) / self.bins)[:, None])
            else:
                parts.append(one_hot(code, width).double())
        return torch.cat(parts, dim=1)

    def unit(self, features: Tensor) -> Tensor:
        """Returns records of norm at most 1, float64 [n, d + 1]: numbers in [-1, 1], one-hots and a
        constant, divided by the root of columns + 1. The bound holds by construction for any
        record.
        """
        parts = features.split(list(self.widths), dim=1)
        scaled = [
            2 * part - 1 if part.shape[1] == 1 else one_hot(part.argmax(1), part.shape[1])
            for part in parts
        ]
        return (
            torch.cat([*scaled, torch.ones_like(features[:, :1])], dim=1) / (len(self) + 1) ** 0.5
        )


@dataclass(frozen=True)
class Table:
    """Records of two classes: features float64 [n, d] in [0, 1], labels int64 [n]
    (1 is the rare class).
    """

    features: Tensor
    labels: Tensor
    columns: Columns

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Table:
        return replace(self, features=self.features[rows], labels=self.labels[rows])


@dataclass(frozen=True)
class Fit:
    """The result of a system: log-probabilities float64 [n, 2] of features float64
    [n, d], and its claim.
    """

    scores: Callable[[Tensor], Tensor]
    claim: Claim


System = Callable[[Table, float, float, int], Fit]
"""(training records, epsilon for replacing one record, delta, seed of the other steps) -> fit. Its
noise has no seed, because it comes from the operating system's entropy.
"""


def frame_of(file: Path) -> pd.DataFrame:
    if not file.is_file():
        raise MechanismError(
            f"{file} does not exist. --data is a folder with one CSV per set, the "
            "label (0 or 1) last",
            kind="no-set",
        )
    return pd.read_csv(file, dtype=float)


def read(file: Path, described: Mapping[str, Any]) -> Table:
    """Reads a set and checks it against its description in `studies/suite.yaml`.

    Raises:
        MechanismError: the file does not match; the message names the file, the column, and the
            expected content.
    """
    frame = frame_of(file)
    numeric, values = described.get("numeric", {}), described.get("values", {})
    hot = {
        base: [c for c in frame if str(c).partition("=")[0] == base]
        for base in described.get("one_hot", ())
    }
    if lacking := [base for base, one_hot_columns in hot.items() if len(one_hot_columns) < 2]:
        raise MechanismError(f"{file.name} has no columns `{lacking[0]}=…`", kind="no-columns")
    expected: set[str] = {
        *numeric,
        *values,
        *(c for one_hot_columns in hot.values() for c in map(str, one_hot_columns)),
        "label",
    }
    if strange := sorted(expected.symmetric_difference(map(str, frame))):
        raise MechanismError(
            f"{file.name}: column `{strange[0]}` is not as described in the suite. Use the "
            "documented file",
            kind="another-column",
        )
    counts = (len(frame), int((frame["label"] == 1).sum()))
    if (
        counts != (described["records"], described["minority"])
        or not frame["label"].isin([0, 1]).all()
    ):
        raise MechanismError(
            f"{file.name} has {counts[0]:,} records, {counts[1]:,} of label 1; the suite expects "
            f"{described['records']:,} and {described['minority']:,}. Check the version of the set",
            kind="another-version",
        )
    features = []
    for name, (low, high) in numeric.items():
        features.append((frame[[name]].to_numpy().clip(low, high) - low) / (high - low))
    for name, allowed in values.items():
        if not frame[name].isin(allowed).all():
            raise MechanismError(
                f"{file.name}, column `{name}`: values must be {', '.join(map(str, allowed))}",
                kind="unknown-value",
            )
        features.append(frame[[name]].to_numpy() == np.array(allowed))
    for base, one_hot_columns in hot.items():
        if not (
            frame[one_hot_columns].isin([0, 1]).all(axis=None)
            and (frame[one_hot_columns].sum(axis=1) == 1).all()
        ):
            raise MechanismError(
                f"{file.name}: exactly one of the columns `{base}=…` must be 1 in every row",
                kind="not-one-hot",
            )
        features.append(frame[one_hot_columns].to_numpy())
    matrix = torch.from_numpy(np.concatenate(features, axis=1, dtype=float))
    if not torch.isfinite(matrix).all():
        raise MechanismError(f"{file.name} has cells that are not numbers", kind="not-numbers")
    widths = tuple(part.shape[1] for part in features)
    return Table(matrix, torch.tensor(frame["label"].to_numpy(dtype=int)), Columns(widths))


def projected(noisy: Tensor, total: Tensor) -> Tensor:
    """Returns the nearest non-negative rows with these totals: rows [..., cells], totals [...]. If
    the total is zero, cells are equal.

    It is least squares under what is known of a table (Duchi et al. 2008, the projection onto a
    simplex). Cells that are only noise become 0, whereas clipping negative cells would let noise
    accumulate.
    """
    cells = noisy.shape[-1]
    total = total.clamp(min=1e-6)[..., None]
    ordered = noisy.sort(dim=-1, descending=True).values
    excess = (ordered.cumsum(-1) - total) / torch.arange(1, cells + 1, dtype=noisy.dtype)
    count = (ordered > excess).sum(-1, keepdim=True).clamp(min=1)
    return (noisy - excess.gather(-1, count - 1)).clamp(min=0) / total
