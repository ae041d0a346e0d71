"""Options for reading a table, which override its detected settings."""

import codecs
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Quotes = Literal["double", "backslash", "none", "outer"]

MARKS: Final = (
    *(
        "NA",
        "N/A",
        "n/a",
        "#N/A",
        "<NA>",
        "NULL",
        "Null",
        "null",
        "NaN",
        "nan",
        "NAN",
        "None",
        "none",
        "(null)",
    ),
    *(".", "-", "--", "?", "[REDACTED]", "REDACTED", "#VALUE!", "#REF!", "#NAME?", "#DIV/0!"),
)
"""Cells that mark a missing value in R, SQL, pandas, spreadsheets, SAS and Stata."""

_NO_FILES = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
"""Codecs for names and for Python source code. The run time of `punycode` is quadratic."""


def title_of(name: str, _: object) -> str:
    """Title of a form field, derived from its name."""
    return name.capitalize().replace("_", " ")


class ReadOptions(BaseModel):
    """Settings of every command that reads a table. Unset fields are detected."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", title="Reading", field_title_generator=title_of
    )

    separator: str | None = Field(
        default=None,
        description=(
            "One character, or `tab`. Empty: the one of , ; tab | with which the first "
            "rows have equal widths."
        ),
    )
    quotes: Quotes | None = Field(
        default=None,
        description=(
            '`double`: "" is a quote inside a quoted cell. `backslash`: \\" is a quote. '
            "`none`: quotes are text. Empty: `double`, or `none` if the separator is a "
            "tab or | and quotes do not pair."
        ),
    )
    encoding: str | None = Field(
        default=None, description="Such as cp850, mac_roman or utf-16. Empty: UTF-8, or cp1252."
    )
    sheet: str | None = Field(
        default=None, description="Sheet of a workbook. Empty: the only one that has rows."
    )
    skip: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        title="Lines to skip",
        description="Number of lines above the header. Empty: only titles are skipped.",
    )
    names: tuple[str, ...] = Field(
        default=(),
        title="Names of columns",
        description="All column names of a file without a header, in order.",
    )
    widths: tuple[int, ...] = Field(
        default=(),
        title="Widths of columns",
        description=(
            "Width in characters of each column of a fixed-width file, in order; the last "
            "column takes the rest of the line. Requires the names of the columns, unless "
            "there is a header."
        ),
    )
    missing: tuple[str, ...] = Field(
        default=MARKS,
        title="Marks of missing values",
        description=(
            "Texts, codes, dates or ids that count as blank. A code that is on the code "
            "list remains a code."
        ),
    )
    bad_rows: Literal["refuse", "skip"] = Field(
        default="refuse",
        description=(
            "Rows with a different number of fields, or with unpaired quotes: refuse the "
            "file, or skip and count them."
        ),
    )

    @field_validator("separator")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}.get(
            value or "", value
        )
        if value is not None and (len(value) != 1 or value in '"\r\n\\ ' or not value.isascii()):
            raise ValueError(
                "separator is not one character, or a quote, a blank or a line end. Give , ; | "
                "or tab"
            )
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        try:
            codec = None if value is None else codecs.lookup(value)
            is_known = codec is None or (codec._is_text_encoding and codec.name not in _NO_FILES)
        except (LookupError, ValueError):
            is_known = False
        if not is_known:
            raise ValueError(
                "encoding is unknown. Give one such as utf-8, cp1252, cp850, mac_roman or utf-16"
            )
        return value

    @field_validator("widths")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(width < 1 for width in value) or len(value) == 1:
            raise ValueError("widths are of two columns or more, each of one character or more")
        return value

    @field_validator("names")
    @classmethod
    def _different(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value) or not all(name.strip() for name in value):
            raise ValueError("names are repeated or blank. Give each column its own")
        return value


AS_IT_LOOKS: Final = ReadOptions()
