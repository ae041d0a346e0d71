"""Declares the stage that reads, validates, samples and splits the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from storage import ingest as ingestion
from storage.artifacts import ArtifactRef, Store, file_digest
from storage.datasets import load_codes
from storage.errors import Missing
from storage.json_values import Figures, Json
from tasks.parameters import DataParameters
from tasks.running.stage import Step, Work

if TYPE_CHECKING:
    from storage.ingest.config import CohortsSource, Sampling
    from storage.ingest.pipeline import LabelSpaceSource


class Classification(TypedDict, total=False):
    """What the codes belong to, by name; empty: nothing published."""

    classification: str
    classification_version: str


class IngestFigures(Classification):
    """The aggregate figures of an ingest, as the manifest of its stage has them."""

    rows_read: int
    records: int
    """Of both halves."""
    train: int
    test: int
    codes_observed: int
    """Codes with a record in the sample."""
    label_space: int
    """Classes of the coder: the whole code list, or the codes observed."""
    label_space_source: LabelSpaceSource
    cohorts: list[str]
    cohorts_source: CohortsSource
    sampling: Sampling
    fingerprint: str
    """Of the sampled records, keyed by the workspace."""


def ingest_figures(store: Store, dataset: ArtifactRef) -> IngestFigures:
    """Returns the aggregate figures of records that were ingested."""
    return cast("IngestFigures", store.figures(dataset))


def ingest_records(data: DataParameters) -> Step:
    sources = data.sources
    for path in filter(None, (*sources, data.codelist_path)):
        if not path.is_file():
            raise Missing(f"file {path} does not exist. Check the path", kind="no-file")
    config: dict[str, Json] = {
        "classification": data.classification,
        "classification_version": data.classification_version,
        "ingest": data.ingest.model_dump(mode="json"),
    }
    if data.codelist_path is not None:
        config["codelist"] = file_digest(data.codelist_path)

    index = data.coding_index
    if index is not None:
        config["examples"] = index.digest

    def body(work: Work) -> Figures:
        result = ingestion.ingest(
            sources,
            work.out,
            data.ingest,
            data.codelist_path,
            progress=lambda done, total: work.progress(done, total or done),
        )
        if index is not None:
            index.labels(load_codes(work.out))
            index.save(work.out)
        figures: IngestFigures = {
            "classification": data.classification,
            "classification_version": data.classification_version,
            "rows_read": result.rows_read,
            "train": result.train,
            "test": result.test,
            "codes_observed": result.codes_observed,
            "label_space": result.label_space,
            "label_space_source": result.label_space_source,
            "fingerprint": work.context.store.keyed(result.fingerprint),
            "cohorts_source": result.cohorts_source,
            "sampling": data.ingest.sampling,
            "records": result.train + result.test,
            "cohorts": list(result.cohorts),
        }
        return cast("Figures", figures)

    return Step(
        name="ingest",
        label="ingest",
        config=config,
        inputs={},
        body=body,
        modules=("storage.ingest",),
        record_digests={"source": " ".join(map(file_digest, sources))},
    )
