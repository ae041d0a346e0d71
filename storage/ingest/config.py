"""How records are read, checked, sampled and split: a form that an operator fills in."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from storage.tables.narratives import SEPARATOR, Narratives, template_fault

Kind = Literal["text", "table", "images"]
_Bound = Annotated[float, Field(allow_inf_nan=False)]


class TableFeatures(BaseModel):
    """Feature columns of a table. What is given here is public; what is not is taken from the records."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Features of a table")

    numeric: dict[str, tuple[_Bound, _Bound] | None] = Field(
        default={},
        title="Numeric columns",
        description="`{height: [0, 1.2]}`: public bounds, to which values are clipped. `{height: null}`: the least and "
        "the largest value of the training records, which is recorded as an unprotected input.",
    )
    categorical: dict[str, tuple[str, ...]] = Field(
        default={}, title="Categorical columns", description="`{sex: [F, I, M]}`: the public list of values."
    )
    unlisted: Literal["refuse", "other"] = Field(
        default="refuse",
        title="Values not on a list",
        description="Refuse the file, or put them into a column `other` of their own.",
    )

    @property
    def named(self) -> tuple[str, ...]:
        """The feature columns; none: every column that says nothing else is a numeric one without bounds."""
        return (*self.numeric, *self.categorical)

    @field_validator("numeric")
    @classmethod
    def _ordered(cls, value: dict[str, tuple[float, float] | None]) -> dict[str, tuple[float, float] | None]:
        for name, bounds in value.items():
            if bounds is not None and bounds[0] >= bounds[1]:
                raise ValueError(f"bounds of {name!r}: the first must be below the second")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> TableFeatures:
        if twice := sorted(set(self.numeric) & set(self.categorical)):
            raise ValueError(f"column {twice[0]!r} is named as numeric and as categorical")
        for name, values in self.categorical.items():
            if not values or len(set(values)) < len(values) or any(value != value.strip() for value in values):
                raise ValueError(f"values of {name!r}: name one or more, none twice, without outer blanks")
        return self


class ImageFeatures(BaseModel):
    """Arrays of an .npz file. Labels, ids and units are arrays too, named as the columns of a table are."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Images")

    pixels: str = Field(
        default="images",
        min_length=1,
        title="Array of images",
        description="[n, h, w] or [n, h, w, channels]; whole numbers, or floats.",
    )
    largest: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        title="Largest pixel",
        description="What is scaled to 1; larger values are clipped. Empty: the largest number of the array's type, "
        "such as 255, or 1 for floats.",
    )


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

    kind: Kind = Field(
        default="text",
        title="Kind of records",
        description="`text`: narratives. `table`: columns of numbers and categories. `images`: arrays of an .npz file. "
        "The last two are features as they are and need no encoder (model.pooling=none).",
    )
    table: TableFeatures = TableFeatures()
    images: ImageFeatures = ImageFeatures()
    split_by_unit: bool = Field(
        default=False,
        title="Split by unit",
        description="All records of a unit go to the same split. On for images that have a unit column.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read as text, each once: what says which record it is and, of narratives, the text."""
        others = (self.label_column, self.id_column, self.unit_column, self.dates_from)
        texts = self.text_columns if self.kind == "text" else ()
        return tuple(dict.fromkeys([*texts, *(name for name in others if name is not None)]))

    @property
    def dates_from(self) -> str | None:
        """The date column, if cohorts are wanted at all."""
        return None if self.cohort == "none" else self.date_column

    @property
    def narratives(self) -> Narratives:
        """How the text columns become one text."""
        return Narratives(self.text_columns, self.template)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_kind(cls, values: Any) -> Any:
        """OSHA's columns and the paper's cap are defaults for narratives alone."""
        if not isinstance(values, dict) or values.get("kind", "text") == "text":
            return values
        label = "labels" if values["kind"] == "images" else "label"
        by_unit = values["kind"] == "images" and values.get("unit_column") is not None
        return {"label_column": label, "date_column": None, "cap_per_code": None, "split_by_unit": by_unit} | values

    @model_validator(mode="after")
    def _consistent(self) -> IngestConfig:
        if self.kind == "text" and (fault := template_fault(self.text_columns, self.template)):
            raise ValueError(fault)
        features = {"text": self.text_columns, "table": self.table.named, "images": (self.images.pixels,)}[self.kind]
        if self.label_column in features:
            field = {"text": "text_columns", "table": "table", "images": "images.pixels"}[self.kind]
            raise ValueError(f"label_column is among {field}: the coder would read the answer")
        if self.max_per_unit is not None and self.unit_column is None:
            raise ValueError("max_per_unit needs unit_column")
        if self.split_by_unit and self.unit_column is None:
            raise ValueError("split_by_unit needs unit_column")
        if self.cap_per_code is not None and self.cap_per_code < self.min_per_code:
            raise ValueError(f"cap_per_code ({self.cap_per_code}) is below min_per_code ({self.min_per_code})")
        if self.date_format is not None and not re.search(r"%[YycxDF]", self.date_format):
            raise ValueError("date_format gives no year; use %Y")
        return self

    @model_serializer(mode="wrap")
    def _without_unused_kinds(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what narratives do not use, so that their method keeps the digest that releases are found by."""
        values = serialise(self)
        unused = {"text": ("kind", "table", "images"), "table": ("images",), "images": ("table",)}[self.kind]
        if not self.split_by_unit and self.kind == "text":
            unused += ("split_by_unit",)
        return {name: value for name, value in values.items() if name not in unused}
