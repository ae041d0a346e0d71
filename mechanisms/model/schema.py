"""Describes the features of a table or of images: kind, bounds and categories of each column.

A linear head reads the features that `encode` gives. Mechanisms that bin or count (trees, marginals) read the schema.
Bounds and lists that stand in the configuration are public; those taken from the records say so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel
from torch import Tensor

FILE = "schema.json"


class FeatureColumn(BaseModel, frozen=True):
    """One column of the source; a categorical one makes as many features as it has categories."""

    name: str
    kind: Literal["numeric", "categorical"]
    bounds: tuple[float, float] | None = None
    """Of a numeric column: clipped to these, then scaled to [0, 1]."""
    bounds_source: Literal["public", "records"] = "public"
    categories: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of its features."""
        return (self.name,) if self.kind == "numeric" else tuple(f"{self.name}={value}" for value in self.categories)


class FeatureSchema(BaseModel, frozen=True):
    """All columns, in the order of the features."""

    columns: tuple[FeatureColumn, ...]
    shape: tuple[int, ...] | None = None
    """Of an image, whose flattened pixels the columns are."""

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the features, [d]."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def bounds_source(self) -> Literal["public", "records"]:
        """`records` where the bounds of any column were taken from the training records, or are to be."""
        numeric = [column for column in self.columns if column.kind == "numeric"]
        open_or_taken = any(column.bounds is None or column.bounds_source == "records" for column in numeric)
        return "records" if open_or_taken else "public"

    def bounded_by(self, values: Tensor) -> FeatureSchema:
        """The same with open bounds closed by the least and largest of values float [n, columns]."""
        columns = []
        for at, column in enumerate(self.columns):
            if column.kind == "numeric" and column.bounds is None:
                low, high = float(values[:, at].min()), float(values[:, at].max())
                taken = {"bounds": (low, high if high > low else low + 1), "bounds_source": "records"}
                column = column.model_copy(update=taken)
            columns.append(column)
        return self.model_copy(update={"columns": tuple(columns)})

    def encode(self, values: Tensor) -> Tensor:
        """Makes features float32 [n, d] in [0, 1] of values float [n, columns]: numbers, or places among categories."""
        features: list[Tensor] = []
        for at, column in enumerate(self.columns):
            value = values[:, at]
            if column.kind == "categorical":
                features.append(torch.nn.functional.one_hot(value.long(), len(column.categories)).float())
            elif column.bounds is None:
                raise ValueError(f"column {column.name} has no bounds")
            else:
                low, high = column.bounds
                features.append(((value.clamp(low, high) - low) / (high - low)).float()[:, None])
        return torch.cat(features, dim=1)

    def save(self, folder: Path) -> None:
        """Write `schema.json`, with the names of the features for whoever reads it by eye."""
        content = self.model_dump(mode="json") | {"names": list(self.names)}
        (folder / FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> FeatureSchema:
        """Read what `save` wrote, or what ingest left of the columns."""
        return cls.model_validate_json(path.read_bytes())
