"""How records are read, checked, sampled and split: a form that an operator fills in."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")

SEPARATOR = " | "
"""Between text columns where no template is given."""


class IngestConfig(BaseModel):
    """Columns of the source, and the sampling of Chew et al., section 3.1.

    The defaults read OSHA's Severe Injury Reports as published.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", title="Columns and sampling")

    text_columns: tuple[str, ...] = Field(
        default=("Final Narrative",),
        min_length=1,
        title="Text columns",
        description="Columns that the coder reads, such as the narrative, or job title, activity, incident and object.",
    )
    template: str | None = Field(
        default=None,
        title="Template",
        description="How several text columns are joined: `{Job title}: {Narrative}`, every text column once or more. "
        f"Empty: the columns that are not blank, with `{SEPARATOR.strip()}` between them.",
    )
    label_column: str = Field(
        default="Nature",
        min_length=1,
        title="Code column",
        description="The code to learn. Read as text; outer blanks go, and 111.0 is read as 111. Records without a "
        "code are dropped and counted.",
    )
    id_column: str | None = Field(
        default=None,
        title="Record id column",
        description="Unique name of a record. Empty: the row number, counted from 1 after the header.",
    )
    unit_column: str | None = Field(
        default=None,
        title="Unit column",
        description="Person or establishment, where it and not the record is to be protected. Records without one "
        "are then dropped and counted.",
    )
    date_column: str | None = Field(
        default="EventDate",
        title="Date column",
        description="Gives the cohort of a record. Empty: one cohort, `all`.",
    )
    date_format: str | None = Field(
        default=None,
        title="Date format",
        description="In strptime's letters, such as %d.%m.%Y. Empty: 2015-01-31 or 1/31/2015, month first, with or "
        "without a time behind.",
    )
    cohort: Literal["year", "quarter", "month", "none"] = Field(
        default="year", title="Cohort", description="The reference period that a budget belongs to."
    )
    cap_per_code: int | None = Field(
        default=200, ge=1, title="Cap a code", description="Records kept of a code at most. Empty: all."
    )
    min_per_code: int = Field(
        default=2, ge=1, title="Minimum a code", description="Codes with fewer records than this are dropped."
    )
    test_share: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        title="Test share",
        description="Share of each code's records kept for evaluation, after the holdout is taken.",
    )
    holdout_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        title="Holdout share",
        description="Share of each code's records that nothing trains on or evaluates with, for audits.",
    )
    max_per_unit: int | None = Field(
        default=None,
        ge=1,
        title="Records a unit",
        description="Records kept of one unit at most; needs the unit column. Empty: all.",
    )
    unknown_codes: Literal["refuse", "drop"] = Field(
        default="refuse", title="Codes not on the list", description="Refuse the file, or drop and count such records."
    )
    empty_text: Literal["drop", "refuse"] = Field(
        default="drop", title="Empty narratives", description="Drop and count records without text, or refuse the file."
    )
    seed: int = Field(
        default=20260101, ge=0, lt=2**53, title="Seed", description="Of the sampling and the split; repeatable."
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read, each once."""
        others = (self.label_column, self.id_column, self.unit_column, self.dates_from)
        return tuple(dict.fromkeys([*self.text_columns, *(name for name in others if name is not None)]))

    @property
    def dates_from(self) -> str | None:
        """The date column, if cohorts are wanted at all."""
        return None if self.cohort == "none" else self.date_column

    @model_validator(mode="after")
    def _consistent(self) -> IngestConfig:
        if len(set(self.text_columns)) < len(self.text_columns):
            raise ValueError("text_columns names a column twice")
        if self.label_column in self.text_columns:
            raise ValueError("label_column is among text_columns: the coder would read the answer")
        if self.template is not None:
            self._check_template(self.template)
        if self.max_per_unit is not None and self.unit_column is None:
            raise ValueError("max_per_unit needs unit_column")
        if self.cap_per_code is not None and self.cap_per_code < self.min_per_code:
            raise ValueError(f"cap_per_code ({self.cap_per_code}) is below min_per_code ({self.min_per_code})")
        if self.date_format is not None and not re.search(r"%[YycxDF]", self.date_format):
            raise ValueError("date_format gives no year; use %Y")
        return self

    def _check_template(self, template: str) -> None:
        named = set(_PLACEHOLDER.findall(template))
        if re.search(r"[{}]", _PLACEHOLDER.sub("", template)):
            raise ValueError("template has a brace without its partner, or an empty pair")
        if unknown := sorted(named - set(self.text_columns)):
            raise ValueError(f"template names {unknown[0]!r}, which is not among text_columns")
        if unused := [name for name in self.text_columns if name not in named]:
            raise ValueError(f"template leaves out text column {unused[0]!r}; name it or remove it from text_columns")

    def join(self, values: tuple[str, ...]) -> str:
        """One text from a record's text columns, in their order; outer blanks are gone."""
        trimmed = [value.strip() for value in values]
        if self.template is None:
            return SEPARATOR.join(value for value in trimmed if value)
        fields = dict(zip(self.text_columns, trimmed, strict=True))
        return _PLACEHOLDER.sub(lambda match: fields[match[1]], self.template).strip()
