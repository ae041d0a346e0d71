"""Settings for reading, validating, sampling and splitting records, as a form for operators."""

from __future__ import annotations

import re
import unicodedata
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from storage.tables.narratives import SEPARATOR, Narratives, template_fault
from storage.tables.options import AS_IT_LOOKS, ReadOptions, title_of
from storage.worded_text import Worded

Sampling = Literal["stratified", "per-record"]
Cohort = Literal["year", "quarter", "month", "none"]
_COHORTS: dict[Cohort, str] = {
    "year": r"\d{4}",
    "quarter": r"\d{4}-Q[1-4]",
    "month": r"\d{4}-(0[1-9]|1[0-2])",
}
CohortsSource = Literal["constant", "declared", "records"]


def _named(value: str) -> str:
    value = unicodedata.normalize(
        "NFC", value
    )  # two spellings of one name would have separate budgets
    allowed = all(unicodedata.category(sign)[0] in "LMN" or sign in "_.- " for sign in value)
    if not (allowed and value[:1].isalnum() and value == value.strip() and len(value) <= 64):
        raise ValueError(
            "must be a name of up to 64 letters and digits of any language, with blanks, dots, "
            "hyphens and underscores between them"
        )
    return value


_SIGNS = r"!-,/:-@\[-^`{-~"
_FORM = rf"^[^\s_.\-{_SIGNS}][^\x00-\x1f{_SIGNS}]{{0,63}}$"
_RULE = Worded(_FORM, "a name of up to 64 letters, digits, blanks, dots, hyphens and underscores")
Name = Annotated[str, AfterValidator(_named), WithJsonSchema({"type": "string"} | _RULE.schema())]
"""Name of a population or a release."""


class IngestConfig(BaseModel):
    """Columns of the source, and the sampling of Chew et al., section 3.1.

    The defaults read OSHA's Severe Injury Reports as published.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", title="Columns and sampling", field_title_generator=title_of
    )

    text_columns: tuple[str, ...] = Field(
        default=("Final Narrative",),
        min_length=1,
        description=(
            "Columns that the classifier reads, such as the narrative, or job title and incident."
        ),
    )
    template: str | None = Field(
        default=None,
        description="How several text columns are joined: `{Job title}: {Narrative}`, every text "
        "column once or more. "
        f"Empty: the columns that are not blank, with `{SEPARATOR.strip()}` between them.",
    )
    label_column: str = Field(
        default="Nature",
        title="Code column",
        description=(
            "The code to learn. It is read as text without outer spaces, and 111.0 is "
            "read as 111. Records without a code are dropped and counted."
        ),
    )
    codelist_columns: tuple[str, ...] = Field(
        default=(),
        title="Columns of the code list",
        description=(
            "Columns of code and title. If each level has its own code column, list all "
            "of them and the title's last. Empty: `code` and `title`, or the only columns "
            "with these words."
        ),
    )
    codelist_read: ReadOptions = Field(
        default=AS_IT_LOOKS,
        title="Reading of the code list",
        description="How the code list is read.",
    )
    read: ReadOptions = Field(
        default=AS_IT_LOOKS, title="Reading", description="How the file of records is read."
    )
    id_column: str | None = Field(
        default=None,
        title="Record id column",
        description=(
            "Unique name of a record. Empty: the row number, counted from 1 after the header."
        ),
    )
    unit_column: str | None = Field(
        default=None,
        description=(
            "Person or establishment, if this and not the record is to be protected. "
            "Records without one are then dropped and counted."
        ),
    )
    date_column: str | None = Field(
        default="EventDate",
        description="Determines the cohort of a record. Empty: one cohort, `all`.",
    )
    date_format: str | None = Field(
        default=None,
        description=(
            "In strptime's notation, such as %d.%m.%Y. Empty: 2015-01-31 or 1/31/2015, "
            "month first, optionally followed by a time."
        ),
    )
    cohort: Cohort = Field(
        default="year", description="The reference period to which a budget belongs."
    )
    cohorts: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        title="Declared cohorts",
        description=(
            "All cohorts to which a release is charged and that it lists, such as 2015 or "
            "2015-Q1, whether or not they have records. Empty: those of the records; "
            "their names are then listed as not covered by epsilon."
        ),
    )
    outside_cohorts: Literal["refuse", "drop"] = Field(
        default="refuse",
        title="Records of other cohorts",
        description="If cohorts are declared: refuse the file, or drop and count such records.",
    )
    cap_per_code: int | None = Field(
        default=200, ge=1, description="Largest number of records used per code. Empty: all."
    )
    min_per_code: int = Field(
        default=2,
        ge=1,
        title="Minimum per code",
        description="Codes with fewer records than this are dropped.",
    )
    test_share: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="Share of each code's records for evaluation, after the holdout is taken.",
    )
    train_before: date | None = Field(
        default=None,
        description=(
            "Train on records dated before this day and evaluate on the rest; test_share "
            "is then ignored. Empty: the split is random."
        ),
    )
    sampling: Sampling = Field(
        default="stratified",
        description=(
            "`stratified`: the paper's protocol; which records are used depends on the "
            "other records. `per-record`: split and holdout by a hash of the record's id "
            "(or, without an id column, of its content) that is keyed with the seed; "
            "without a cap or a minimum per code, so that adding or removing a record "
            "never moves another one."
        ),
    )
    holdout_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description=(
            "Share of each code's records that is used for neither training nor "
            "evaluation, but for audits."
        ),
    )
    max_per_unit: int | None = Field(
        default=None,
        ge=1,
        title="Records per unit",
        description=(
            "Largest number of records used per unit; requires the unit column. Empty: all."
        ),
    )
    unknown_codes: Literal["refuse", "drop", "match"] = Field(
        default="refuse",
        title="Codes not on the list",
        description=(
            "Refuse the file; drop and count such records; or match them with the only "
            "listed code that differs in leading or trailing zeros, points, hyphens, "
            "case, or a title after a dash, and refuse the others."
        ),
    )
    finer_codes: Literal["refuse", "cut"] = Field(
        default="refuse",
        title="Codes finer than the list",
        description=(
            "Codes that are not on the list but begin with a listed one: treat them like "
            "other unlisted codes, or shorten them to the longest listed code with which "
            "they begin, and count them."
        ),
    )
    several_codes: Literal["keep", "first", "each"] = Field(
        default="keep",
        title="Several codes in one cell",
        description=(
            "Codes separated by ; | , + & / or spaces: keep the cell as one code; read "
            "the first code; or make a record of each, which requires a unit column that "
            "is the same for all of them. Such records are counted."
        ),
    )
    lost_zeros: Literal["keep", "restore"] = Field(
        default="keep",
        title="Codes that may have lost zeros",
        description=(
            "Listed codes such as 86.1 if the list also has 86.10: keep them as codes of "
            "the level above, or restore the zeros that a spreadsheet removed."
        ),
    )
    label_space: Literal["codelist", "observed"] = Field(
        default="codelist",
        title="Codes of the model",
        description=(
            "`codelist`: every code of the list, whether or not a record has it. "
            "`observed`: the codes of the sampled records, with their titles; which codes "
            "these are depends on the records and is not covered by epsilon. Without a "
            "code list, always the observed ones."
        ),
    )
    codes_are_names: bool = Field(
        default=False,
        description="Without a code list, each code is a public name and serves as its own title.",
    )
    empty_text: Literal["drop", "refuse"] = Field(
        default="drop",
        title="Empty narratives",
        description="Drop and count records without text, or refuse the file.",
    )
    seed: int = Field(
        default=20260101,
        ge=0,
        lt=2**53,
        description=(
            "Seed of the sampling and the split, which makes them repeatable. It must not "
            "depend on the records."
        ),
    )

    split_by_unit: bool = Field(
        default=False,
        description="All records of a unit go to the same split.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read, without repetition: text, label, id, unit and date."""
        other_columns = (self.label_column, self.id_column, self.unit_column, self.dates_from)
        return tuple(
            dict.fromkeys(
                [*self.text_columns, *(name for name in other_columns if name is not None)]
            )
        )

    @property
    def column_options(self) -> dict[str, str]:
        options = {
            self.id_column: "data.ingest.id_column",
            self.unit_column: "data.ingest.unit_column",
            self.dates_from: '--date, "" for none',
            self.label_column: "--label",
        }
        options |= dict.fromkeys(self.text_columns, "--text")
        return {name: by for name, by in options.items() if name is not None}

    @property
    def dates_from(self) -> str | None:
        """The date column, if cohorts or a split by date use it."""
        return self.date_column if self.cohort != "none" or self.train_before is not None else None

    @property
    def dated_cohorts(self) -> bool:
        """Whether cohorts depend on dates. Otherwise there is a single cohort."""
        return self.cohort != "none" and self.date_column is not None

    @property
    def cohorts_source(self) -> CohortsSource:
        if not self.dated_cohorts:
            return "constant"
        return "declared" if self.cohorts is not None else "records"

    @property
    def records_per_unit(self) -> int:
        """The largest number of records per privacy unit: `max_per_unit`, or 1 if the unit is a
        record.
        """
        return 1 if self.unit_column is None else self.max_per_unit or 1

    @property
    def narratives(self) -> Narratives:
        return Narratives(self.text_columns, self.template)

    @model_validator(mode="before")
    @classmethod
    def _other_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if values.get("sampling") != "per-record":
            return values
        return {"cap_per_code": None, "min_per_code": 1} | values

    @field_validator("text_columns", mode="before")
    @classmethod
    def _one_column(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("cohorts", mode="before")
    @classmethod
    def _years_as_text(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple(
            str(cell) if isinstance(cell, int) and not isinstance(cell, bool) else cell
            for cell in value
        )

    @model_validator(mode="after")
    def _consistent(self) -> IngestConfig:
        unit, day, capped = (
            self.unit_column is not None,
            self.train_before is not None,
            self.cap_per_code is not None,
        )
        names = self.cohorts or ()
        example = {"year": "2015", "quarter": "2015-Q1", "month": "2015-01"}.get(self.cohort)
        odd = [
            name
            for name in names
            if not re.fullmatch(_COHORTS.get(self.cohort, ""), name, re.ASCII)
        ]
        strange = next(iter(odd), None)
        faults = {
            template_fault(self.text_columns, self.template): True,
            (
                "label_column is among text_columns, so the classifier would read the answer. "
                "Remove "
                "it there"
            ): (self.label_column in self.text_columns),
            "label_column is empty. Name the column of the codes": not self.label_column,
            "max_per_unit has no unit_column. Name it": self.max_per_unit is not None and not unit,
            "split_by_unit has no unit_column. Name it": self.split_by_unit and not unit,
            (
                f"cap_per_code ({self.cap_per_code}) is below min_per_code ({self.min_per_code}). "
                "Change one"
            ): ((self.cap_per_code or self.min_per_code) < self.min_per_code),
            (
                "train_before has no date_column. Name it, or drop train_before (--set "
                "data.ingest.train_before=null)"
            ): (day and self.date_column is None),
            (
                "split_by_unit and train_before conflict: a unit may have records on both sides "
                "of a "
                "date. Drop one"
            ): (day and self.split_by_unit),
            "cohorts need dates. Set date_column and cohort, or leave cohorts empty": names
            and not self.dated_cohorts,
            (
                "several_codes=each makes records of one report, which count together: name the "
                "person or the id of the report with unit_column, and set max_per_unit and "
                "split_by_unit (or train_before)"
            ): self.several_codes == "each"
            and not (unit and self.max_per_unit and (self.split_by_unit or day)),
            "codelist_columns has one column. Name those of code and title": (
                len(self.codelist_columns) == 1
            ),
            "cohorts: a name is repeated. Give it once": len(set(names)) < len(names),
            f"cohorts: {strange!r} is not a {self.cohort}. Write it as {example}": odd,
            "sampling=per-record excludes a cap and a minimum per code, by which one record "
            "moves others. Set "
            "cap_per_code to null and min_per_code to 1": (
                self.sampling == "per-record" and (capped or self.min_per_code != 1)
            ),
            "date_format has no year. Use %Y": self.date_format
            and not re.search(r"%[YycxDF]", self.date_format),
        }
        if fault := next((fault for fault, holds in faults.items() if fault and holds), None):
            raise ValueError(fault)
        return self
