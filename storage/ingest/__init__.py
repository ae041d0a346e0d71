"""From a file of records to sampled, split, fingerprinted Parquet: read twice in a stream, texts never held at once."""

from storage.ingest.config import IngestConfig
from storage.ingest.pipeline import IngestResult, SourceCheck, check_source, ingest
from storage.ingest.report import ValidationReport

__all__ = ["IngestConfig", "IngestResult", "SourceCheck", "ValidationReport", "check_source", "ingest"]
