"""Makes the figures of an ingest, for tests that run none."""

from __future__ import annotations

from typing import Any, cast

from tasks.fitting.ingest import IngestFigures

_FIGURES: IngestFigures = {
    "rows_read": 4000,
    "records": 4000,
    "train": 2000,
    "test": 2000,
    "codes_observed": 9,
    "label_space": 9,
    "label_space_source": "codelist",
    "cohorts": ["2015", "2016"],
    "cohorts_source": "declared",
    "sampling": "per-record",
    "fingerprint": "0" * 64,
}


def ingested(**changed: Any) -> IngestFigures:
    """Returns figures, some of them changed."""
    return cast("IngestFigures", {**_FIGURES, **changed})
