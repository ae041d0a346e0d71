"""Ingest: a file of records, checked, sampled and split."""

from storage.ingest.columns import ALL
from storage.ingest.config import IngestConfig
from storage.ingest.pipeline import check_source, ingest, look
from storage.ingest.report import IngestResult, Looked, SourceCheck
from storage.ingest.sampling import SPLITS

__all__ = ["ALL", "SPLITS", "IngestConfig", "IngestResult", "Looked", "SourceCheck", "check_source", "ingest", "look"]
