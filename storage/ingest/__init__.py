"""Ingest: a file of records, checked, sampled and split."""

from storage.ingest.config import IngestConfig
from storage.ingest.pipeline import check_source, ingest
from storage.ingest.report import IngestResult, SourceCheck

__all__ = ["IngestConfig", "IngestResult", "SourceCheck", "check_source", "ingest"]
