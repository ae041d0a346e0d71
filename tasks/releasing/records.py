"""The records of a release as the ledger's registry knows them: keyed marks, made here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.artifacts import ArtifactRef
from storage.datasets import load_split, split_file
from storage.egress.sequences import letters
from storage.ingest import IngestConfig
from storage.ledger.budget import RECORD
from storage.ledger.lost import keep_marks
from storage.ledger.records import RecordSet, has_registry_key, registry_key
from tasks.releasing.claims import privacy_unit
from tasks.running.stage import Context

_SPLITS = ("train", "test", "holdout")


def record_set(context: Context, dataset: ArtifactRef) -> RecordSet:
    """Marks of all sampled records, whichever split they are in, kept in the workspace as well.

    Codes and cohorts are not part of a mark: the same narrative under another code or period is the same record. Where
    the claim is about units, there are marks of theirs as well.
    """
    records = _marked(context, dataset, registry_key(context.workspace.private))
    keep_marks(context.workspace, records.digest, records.encode())
    return records


def known_records(context: Context, dataset: ArtifactRef) -> RecordSet | None:
    """The same marks, to look records up and no more: nothing is kept, and a workspace without a key gets none."""
    private = context.workspace.private
    return _marked(context, dataset, registry_key(private)) if has_registry_key(private) else None


def _marked(context: Context, dataset: ArtifactRef, key: bytes) -> RecordSet:
    return RecordSet.of(_records(context, dataset), key=key, units=_units(context, dataset))


def _units(context: Context, dataset: ArtifactRef) -> set[str]:
    ingest = IngestConfig.model_validate(context.store.recipe(dataset)["config"]["ingest"])
    if privacy_unit(ingest)[0] == RECORD:
        return set()
    folder = context.store.open(dataset)
    splits = [split for split in _SPLITS if split_file(folder, split).is_file()]
    columns = [load_split(folder, split).data.column("unit").to_pylist() for split in splits]
    return {unit for column in columns for unit in column if isinstance(unit, str)}


def _records(context: Context, dataset: ArtifactRef) -> Iterator[tuple[str | None, bytes]]:
    folder = context.store.open(dataset)
    for split in _SPLITS:
        if not split_file(folder, split).is_file():
            continue
        table = load_split(folder, split).data
        names = table.column("record_id").to_pylist()
        if "text" in table.column_names:
            contents = (letters(text) or text.encode() for text in table.column("text").to_pylist())
        else:
            contents = (np.asarray(values, dtype="<f8").tobytes() for values in table.column("values").to_pylist())
        for name, content in zip(names, contents, strict=True):
            yield (name if isinstance(name, str) else None), content
