"""A table's features as codes, one a column, and back.

Bins and categories are public: they come from the schema, or are equal parts of [0, 1]. Nothing here looks at records
to decide where a bin ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.mechanism import Mechanism, Model, Run
from mechanisms.model.inputs import FeatureInputs, Inputs
from mechanisms.model.schema import FeatureSchema


class TableModel(Model, Protocol):
    """A model that is one file."""

    @classmethod
    def load(cls, folder: Path) -> Model:
        """Reads what `save` wrote."""
        ...


class OfTables(Mechanism, frozen=True):
    """A mechanism that reads the columns of a table, and the kind of model that it leaves."""

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    tables: ClassVar[bool] = True
    leaves: ClassVar[type[TableModel]]

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> Model:
        """Reads the model's file."""
        return self.leaves.load(folder)


def features_of(inputs: Inputs) -> Tensor:
    """Features float64 [n, d], clipped to [0, 1]; refuses tokens."""
    if not isinstance(inputs, FeatureInputs):
        raise MechanismError("this mechanism reads tables: data.ingest.kind `table`, or cached features")
    return inputs.features.double().clamp(0, 1)


@dataclass(frozen=True)
class Columns:
    """The features that each column takes, in order: one for a number, as many as categories otherwise."""

    widths: tuple[int, ...]
    bins: int
    """Equal parts of [0, 1] that numbers fall into."""

    @classmethod
    def of(cls, schema: FeatureSchema | None, features: int, *, bins: int) -> Columns:
        """Builds the columns of a schema, or of so many numbers; refuses a schema of other features."""
        widths = (1,) * features if schema is None else tuple(len(column.names) for column in schema.columns)
        if sum(widths) != features:
            raise MechanismError(f"the schema has {sum(widths)} features, the records {features}: plan again")
        return cls(widths, bins)

    def __len__(self) -> int:
        return len(self.widths)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values that each column's code may take."""
        return tuple(self.bins if width == 1 else width for width in self.widths)

    def encode(self, features: Tensor) -> Tensor:
        """Codes int64 [n, columns] of features in [0, 1], float [n, d]."""
        parts = features.split(list(self.widths), dim=1)
        codes = [
            (part[:, 0] * self.bins).long().clamp(0, self.bins - 1) if part.shape[1] == 1 else part.argmax(1)
            for part in parts
        ]
        return torch.stack(codes, dim=1)

    def decode(self, codes: Tensor, generator: torch.Generator) -> Tensor:
        """Features float32 [n, d] of codes int64 [n, columns]: numbers are uniform in their bin."""
        parts: list[Tensor] = []
        for code, width in zip(codes.unbind(1), self.widths, strict=True):
            if width == 1:
                within = torch.rand(len(code), generator=generator, dtype=torch.float64)
                parts.append(((code + within) / self.bins)[:, None])
            else:
                parts.append(torch.nn.functional.one_hot(code, width).double())
        return torch.cat(parts, dim=1).float()

    def unit(self, features: Tensor) -> Tensor:
        """Records of norm at most 1, float64 [n, d + 1]: numbers in [-1, 1], one-hots, a constant, over the root of
        columns + 1. The bound holds by construction, whatever a record says."""
        parts = features.split(list(self.widths), dim=1)
        scaled = [2 * part - 1 if part.shape[1] == 1 else _one_hot(part) for part in parts]
        constant = torch.ones(len(features), 1, dtype=features.dtype)
        return torch.cat([*scaled, constant], dim=1) / (len(self) + 1) ** 0.5


def _one_hot(part: Tensor) -> Tensor:
    """One category, also where a record has several or none: norm 1."""
    return torch.nn.functional.one_hot(part.argmax(1), part.shape[1]).to(part.dtype)


def projected(noisy: Tensor, total: Tensor) -> Tensor:
    """The nearest non-negative rows with these totals: rows [..., cells], totals [...]; no total, equal cells.

    Least squares under what is known of a table (Duchi et al. 2008, the projection onto a simplex): cells that are
    noise alone become 0 instead of piling up, as they do where negative ones are cut off.
    """
    cells = noisy.shape[-1]
    total = total.clamp(min=1e-6)[..., None]
    ordered = noisy.sort(dim=-1, descending=True).values
    excess = (ordered.cumsum(-1) - total) / torch.arange(1, cells + 1, dtype=noisy.dtype)
    count = (ordered > excess).sum(-1, keepdim=True).clamp(min=1)
    return (noisy - excess.gather(-1, count - 1)).clamp(min=0) / total
