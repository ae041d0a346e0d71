"""Figures that others report, and what is expected, from `deployments/published/`: beside the records they concern."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from storage.errors import InputError
from tasks.parameters import DataParameters

FOLDER = Path(__file__).resolve().parents[2] / "deployments" / "published"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quartiles(_Strict):
    """Weighted and macro F1 of the codes in the largest and in the smallest quarter of class sizes."""

    top: tuple[float, float]
    bottom: tuple[float, float]


class Reported(_Strict):
    """What is reported of one branch."""

    epsilon: float | None = None
    weighted_f1: float
    macro_f1: float
    quartiles: Quartiles | None = None


class Ordering(_Strict):
    """A branch whose weighted F1 is expected above another's."""

    higher: str
    lower: str
    why: str


class Effect(_Strict):
    """Two branches that differ in one thing, `of`."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    of: str
    without: str
    within: str = Field(alias="with")


class Publication(_Strict):
    """One file: of the records of its population alone; or of any records, and then without figures."""

    label: str
    source: str
    population: str | None = None
    classification: str = ""
    classification_version: str = ""
    sampling: dict[str, Any] = {}
    """What `data.ingest` has to be for its figures to stand beside those of a run; empty: anything."""
    branches: dict[str, Reported] = {}
    over_delta: tuple[str, ...] = ()
    by_code: str | None = None
    orderings: tuple[Ordering, ...] = ()
    effects: tuple[Effect, ...] = ()

    @model_validator(mode="after")
    def _figures_have_their_records(self) -> Publication:
        if self.population is None and (self.branches or self.by_code):
            raise ValueError("branches, by_code: figures need the population that they are of")
        return self

    def concerns(self, data: DataParameters) -> bool:
        """Whether it may stand beside results on these records."""
        own = (self.population, self.classification, self.classification_version)
        named = own == (data.population, data.classification, data.classification_version)
        sampled = all(getattr(data.ingest, name) == value for name, value in self.sampling.items())
        return self.population is None or (named and sampled and not data.ingest.fields)

    @property
    def columns(self) -> list[str]:
        """What the table by code holds: `size`, then branches."""
        return [] if self.by_code is None else list(next(iter(self.codes().values())))

    def codes(self) -> dict[str, dict[str, float]]:
        """By code: test records (`size`), and F1 by branch."""
        if self.by_code is None:
            return {}
        with (FOLDER / self.by_code).open(encoding="utf-8", newline="") as file:
            return {row.pop("code"): {k: float(v) for k, v in row.items()} for row in csv.DictReader(file)}


def beside(data: DataParameters) -> list[Publication]:
    """The publications that concern these records, by file name.

    Raises:
        InputError: a file is none of these; names it and the field.
    """
    read = []
    for file in sorted(FOLDER.glob("*.yaml")):
        try:
            read.append(Publication.model_validate(yaml.safe_load(file.read_text(encoding="utf-8"))))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "file"
            raise InputError(f"{file}: {where}: {first['msg']}") from None
    return [publication for publication in read if publication.concerns(data)]
