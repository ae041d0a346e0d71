"""Holds the results of ingest: counts of records used and dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from storage.ingest.config import CohortsSource

LabelSpaceSource = Literal["codelist", "observed"]


@dataclass(frozen=True)
class IngestResult:
    """Holds the counts of one ingest: aggregate figures, and `report` with counts per code, which stays private."""

    rows_read: int
    train: int
    test: int
    holdout: int
    codes_observed: int
    """Codes with a record in the sample."""
    label_space: int
    """Classes of the coder: the whole code list, or the codes observed."""
    label_space_source: LabelSpaceSource
    cohorts: tuple[str, ...]
    """The declared cohorts, or those of the sampled records; sorted."""
    cohorts_source: CohortsSource
    fingerprint: str
    """SHA-256 over the sampled records; see `storage.ingest.writer`."""
    report: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class SourceCheck:
    """Describes a source after its first megabyte."""

    columns: tuple[str, ...]
    bytes: int
    estimated_rows: int
    """Estimated from the first megabyte; too high where narratives have line breaks. Exact for Parquet."""


@dataclass(frozen=True)
class SourcePreview:
    """Counts a whole source without sampling or writing a record."""

    rows: int
    usable: int
    dropped: dict[str, int]
    sampled: dict[str, int]
    """Records by split, with `holdout` where it has a share."""
    left_out: dict[str, int]
    """Usable records that the sampling leaves out, by reason."""
    codes: int
    """Codes of the list, or those observed without one."""
    codes_observed: int
    cohorts: tuple[str, ...]
    reading: tuple[str, ...]
    """How each file is read: its name, rows, format, and rows that are skipped."""
    notes: tuple[str, ...]
    """Marks read as blank, spellings, and dates that read in two ways."""
