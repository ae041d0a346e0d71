"""Two ways to take records from the same file: as the paper does, and all of them."""

from __future__ import annotations

from typing import Any, Literal

from storage.errors import InputError
from storage.ingest import IngestConfig
from tasks.parameters import RetrainParameters

Protocol = Literal["paper", "all-records"]
TITLES: dict[Protocol, str] = {
    "paper": "The paper's protocol: at most 200 records a code, codes with two at least, halves drawn",
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


def under(parameters: RetrainParameters, protocol: Protocol) -> RetrainParameters:
    """The same run on what the protocol takes; with all records a date that the run trains before stays.

    Raises:
        InputError: it cannot take these records.
    """
    if protocol == "paper" and parameters.data.ingest.fields:
        raise InputError("--protocols: `paper` samples by the code of one field; several go with `all-records`")
    own = parameters.data.ingest.model_dump() | _SAMPLING[protocol]
    data = parameters.data.model_copy(update={"ingest": IngestConfig.model_validate(own)})
    return parameters.model_copy(update={"data": data})


def of(ingest: IngestConfig) -> Protocol | None:
    """The protocol that a run follows by itself, None where it is neither."""
    for name, sampling in _SAMPLING.items():
        if all(getattr(ingest, field) == value for field, value in sampling.items()):
            return name
    return None


def title(parameters: RetrainParameters) -> str:
    """What was taken, in words."""
    ingest = parameters.data.ingest
    name = of(ingest)
    said = "The records as the profile takes them" if name is None else TITLES[name]
    later = ingest.train_before
    return said if later is None else f"{said}, scored on what is dated from {later:%Y-%m-%d}"
