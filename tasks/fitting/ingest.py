"""Declares the stage that reads, validates, samples and splits the records."""

from __future__ import annotations

from typing import Any

from storage import ingest as ingestion
from storage.artifacts import file_digest
from storage.datasets import load_codes
from storage.errors import Missing
from storage.json_values import Figures
from tasks.parameters import DataParameters
from tasks.running.stage import Step, Work


def ingest_records(data: DataParameters) -> Step:
    sources = data.sources
    for path in filter(None, (*sources, data.codelist_path)):
        if not path.is_file():
            raise Missing(f"file {path} does not exist. Check the path", kind="no-file")
    named = {
        "classification": data.classification,
        "classification_version": data.classification_version,
    }
    config: dict[str, Any] = {**named, "ingest": data.ingest.model_dump(mode="json")}
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
        counted = (
            "rows_read",
            "train",
            "test",
            "codes_observed",
            "label_space",
            "label_space_source",
        )
        figures = named | {name: getattr(result, name) for name in counted}
        figures["fingerprint"] = work.context.store.keyed(result.fingerprint)
        figures |= {"cohorts_source": result.cohorts_source, "sampling": data.ingest.sampling}
        return figures | {"records": result.train + result.test, "cohorts": list(result.cohorts)}

    return Step(
        name="ingest",
        label="ingest",
        config=config,
        inputs={},
        body=body,
        modules=("storage.ingest",),
        record_digests={"source": " ".join(map(file_digest, sources))},
    )
