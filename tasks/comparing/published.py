"""Reads published figures and expected orderings from `deployments/published/`, for the records they concern."""

from __future__ import annotations

import csv
from typing import Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from storage import strict_yaml
from storage.errors import InputError
from tasks.catalogue import PUBLISHED
from tasks.parameters import DataParameters


class Quartiles(BaseModel, frozen=True, extra="forbid"):
    """Holds weighted and macro F1 of the codes in the largest and in the smallest quarter of class sizes."""

    top: tuple[float, float]
    bottom: tuple[float, float]


class Reported(BaseModel, frozen=True, extra="forbid"):
    """Holds the reported figures of one branch."""

    epsilon: float | None = None
    weighted_f1: float
    macro_f1: float
    quartiles: Quartiles | None = None


class Ordering(BaseModel, frozen=True, extra="forbid"):
    """Expects one branch's weighted F1 above another's."""

    higher: str
    lower: str
    why: str


class Effect(BaseModel, frozen=True, extra="forbid", populate_by_name=True):
    """Names two branches that differ in one thing, `of`."""

    of: str
    without: str
    within: str = Field(alias="with")


class Publication(BaseModel, frozen=True, extra="forbid"):
    """Holds one file: figures of one population's records, or, without figures, expectations of any records."""

    label: str
    source: str
    population: str | None = None
    classification: str = ""
    classification_version: str = ""
    sampling: dict[str, Any] = {}
    """Settings of `data.ingest` under which its figures compare with a run's; empty: any."""
    branches: dict[str, Reported] = {}
    over_delta: tuple[str, ...] = ()
    by_code: str | None = None
    orderings: tuple[Ordering, ...] = ()
    effects: tuple[Effect, ...] = ()

    @model_validator(mode="after")
    def _figures_have_their_records(self) -> Publication:
        if self.population is None and (self.branches or self.by_code):
            raise ValueError("branches and by_code need a population. Name the population of the figures")
        return self

    def concerns(self, data: DataParameters) -> bool:
        """Checks whether it compares with results on these records."""
        records = (self.population, self.classification, self.classification_version)
        named = records == (data.population, data.classification, data.classification_version)
        sampled = all(getattr(data.ingest, name) == value for name, value in self.sampling.items())
        return self.population is None or (named and sampled)

    @property
    def columns(self) -> list[str]:
        """Returns the columns of the table by code: `size`, then branches."""
        return [] if self.by_code is None else list(next(iter(self.codes().values())))

    def codes(self) -> dict[str, dict[str, float]]:
        """Reads, for each code, test records (`size`) and F1 by branch."""
        if self.by_code is None:
            return {}
        with (PUBLISHED / self.by_code).open(encoding="utf-8", newline="") as file:
            return {row.pop("code"): {k: float(v) for k, v in row.items()} for row in csv.DictReader(file)}


def publications_for(data: DataParameters) -> list[Publication]:
    """Reads the publications that concern these records, by file name."""
    read = []
    for file in sorted(PUBLISHED.glob("*.yaml")):
        try:
            read.append(Publication.model_validate(strict_yaml.load(file.read_text(encoding="utf-8"))))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "file"
            raise InputError(f"{file}: {where}: {first['msg']}") from None
    return [publication for publication in read if publication.concerns(data)]
