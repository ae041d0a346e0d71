"""Ingests a file of records: validates, samples and splits it."""

from storage.ingest.config import IngestConfig, Name
from storage.ingest.pipeline import (
    IngestResult,
    SourcePreview,
    Units,
    check_early,
    check_source,
    ingest,
    preview,
    read_codes,
    units_of,
)
from storage.ingest.sampling import SPLITS
from storage.ingest.survey import ALL

__all__ = [
    "ALL",
    "SPLITS",
    "IngestConfig",
    "IngestResult",
    "Name",
    "SourcePreview",
    "Units",
    "check_early",
    "check_source",
    "ingest",
    "preview",
    "read_codes",
    "units_of",
]
