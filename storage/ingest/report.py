"""What ingest found, kept and dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from storage.ingest.config import CohortsSource

LabelSpaceSource = Literal["codelist", "observed"]


@dataclass(frozen=True)
class FieldResult:
    """Of one of several fields: codes with a record in the sample, classes, and where these are from."""

    codes_observed: int
    label_space: int
    label_space_source: LabelSpaceSource


@dataclass(frozen=True)
class IngestResult:
    """Counts of one ingest. All but `report` are aggregate figures; `report` holds counts a code and stays private."""

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
    """Those declared, or those of the sampled records; sorted."""
    cohorts_source: CohortsSource
    fingerprint: str
    """SHA-256 over the sampled records; see `storage.ingest.writer`."""
    fields: dict[str, FieldResult]
    """Of several fields, in their order; empty where there is one. The counts above are then those of all together."""
    report: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class SourceCheck:
    """What a first look at a source tells."""

    columns: tuple[str, ...]
    bytes: int
    estimated_rows: int
    """From the first megabyte; too high where narratives hold line breaks. Exact for Parquet and arrays."""
    features: int | None = None
    """Features a record, of a table or of images."""


@dataclass(frozen=True)
class Looked:
    """What reading a whole source once tells, without a record of it: nothing is sampled or written."""

    rows: int
    usable: int
    dropped: dict[str, int]
    sampled: dict[str, int]
    """Records by split, `holdout` where a share is kept."""
    left_out: dict[str, int]
    """Usable records that the sampling leaves out, by reason."""
    codes: int
    """Codes of the list, or those observed without one."""
    codes_observed: int
    cohorts: tuple[str, ...]
