"""Defines two ways to take records from the same file: as in the paper, and all of them."""

from __future__ import annotations

from typing import Any, Literal

from storage.ingest import IngestConfig
from tasks.parameters import RetrainParameters

Protocol = Literal["paper", "all-records"]
TITLES: dict[Protocol, str] = {
    "paper": "The paper's protocol: at most 200 records per code, codes with two at least, random halves",
    "all-records": "All records, in their natural distribution",
}
_SAMPLING: dict[Protocol, dict[str, Any]] = {
    "paper": {
        "sampling": "stratified",
        "cap_per_code": 200,
        "min_per_code": 2,
        "test_share": 0.5,
        "train_before": None,
    },
    "all-records": {"sampling": "per-record", "cap_per_code": None, "min_per_code": 1},
}


def apply_protocol(parameters: RetrainParameters, protocol: Protocol) -> RetrainParameters:
    """Returns the same run on the protocol's records. With all records, a date that splits training from test stays."""
    sampling = parameters.data.ingest.model_dump() | _SAMPLING[protocol]
    data = parameters.data.model_copy(update={"ingest": IngestConfig.model_validate(sampling)})
    return parameters.model_copy(update={"data": data})


def protocol_of(ingest: IngestConfig) -> Protocol | None:
    """Returns the protocol that a run follows by its settings, or None."""
    for name, sampling in _SAMPLING.items():
        if all(getattr(ingest, field) == value for field, value in sampling.items()):
            return name
    return None


def protocol_title(parameters: RetrainParameters) -> str:
    """Describes the records that were taken."""
    ingest = parameters.data.ingest
    name = protocol_of(ingest)
    text = "The records as the profile takes them" if name is None else TITLES[name]
    later = ingest.train_before
    return text if later is None else f"{text}, scored on records dated from {later:%Y-%m-%d}"
