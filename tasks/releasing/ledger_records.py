"""Writes and reads the ledger's rows about fits on the same records: evaluations,
comparisons, audits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef, digest
from storage.datasets import load_cells, load_table, split_file
from storage.ingest import IngestConfig
from storage.ingest.cell_digests import normal_form
from storage.json_values import Figures
from storage.ledger import Evaluated, Evaluation, Subject
from storage.ledger.budget import RECORD
from storage.ledger.models import Sample
from storage.ledger.records import RecordSet, has_registry_key, registry_key
from storage.ledger.recovery import save_marks
from tasks.fitting.ingest import ingest_figures
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import TRUST_MODEL, privacy_unit, settings_of
from tasks.releasing.ledger_access import open_ledger
from tasks.running.provenance import provenance
from tasks.running.stage import Context

_SPLITS = ("train", "test", "holdout")


def save_record_set(context: Context, dataset: ArtifactRef) -> RecordSet:
    """Returns the marks of all sampled records in every split, and saves them in the workspace.

    A mark does not depend on code, cohort, template or other columns, because the record is the
    same with any of them. If the claim is about units, the units are marked as well.
    """
    records = _marked(context, dataset, registry_key(context.workspace.private))
    save_marks(context.workspace, records)
    return records


def find_record_set(context: Context, dataset: ArtifactRef) -> RecordSet | None:
    """Returns the same marks for look-ups only. Saves nothing, and returns None for
    a workspace without a key.
    """
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
    columns = [load_table(folder, split).column("unit").to_pylist() for split in splits]
    return {unit for column in columns for unit in column if isinstance(unit, str)}


def _records(context: Context, dataset: ArtifactRef) -> Iterator[bytes]:
    """Yields the content that marks the records: each id, and each text cell.

    Two releases share records if one of these is in both. An id that may be a running number marks
    no record, because every file has such ids.
    """
    folder = context.store.open(dataset)
    read = ingest_figures(context.store, dataset)["rows_read"]
    tables = [load_table(folder, split) for split in _SPLITS if split_file(folder, split).is_file()]
    for table in tables:
        names = table.column("record_id").to_pylist()
        yield from (b"id\0" + normal_form(name) for name in names if not _running(name, read))
    yield from load_cells(folder)


def _running(name: str | int, rows: int) -> bool:
    return not isinstance(name, str) or (name.isdecimal() and int(name) <= rows)


def record_evaluation(
    context: Context,
    parameters: RetrainParameters,
    *,
    subject: Subject | None = None,
    label: str = "",
    dataset: ArtifactRef,
    refs: Mapping[str, ArtifactRef],
    details: Figures,
    event: Event | None = None,
    claim: Claim | None = None,
    kind: Literal["evaluation", "audit"] = "evaluation",
    key: str | None = None,
    settings: str | None = None,
    prefect_run_id: str | None,
) -> Evaluated:
    """Writes one internal row, or returns the row that these artifacts already have under this
    label. Charges nothing.

    Args:
        label: label for readers; by default the subject's.
        details: figures that may be in the ledger. Numbers are rounded to six decimals.
        key: idempotency key; by default from label, population and artifacts.
        settings: digest of the row's settings; by default of the parameters without the
            release.
    """
    facts = ingest_figures(context.store, dataset)
    artifacts = {name: ref.sha256 for name, ref in refs.items()}
    label = label or ("" if subject is None else subject.label)
    return open_ledger(context, parameters.release).record(
        Evaluation(
            kind=kind,
            subject=subject,
            label=label,
            population=parameters.data.population,
            cohorts=tuple(facts["cohorts"]),
            data_fingerprint=facts["fingerprint"],
            records_rounded=facts["records"],
            event=event,
            claim=claim,
            trust_model=TRUST_MODEL,
            **vars(provenance()),
            parameters_digest=settings or digest(settings_of(parameters)),
            artifact_digests=artifacts,
            requester=parameters.release.requester,
            prefect_run_id=prefect_run_id,
            idempotency_key=key
            or digest({"label": label, "population": parameters.data.population, "of": artifacts}),
            sample=sample_of(context, dataset),
            details={n: round(v, 6) if isinstance(v, float) else v for n, v in details.items()},
        )
    )


@lru_cache(maxsize=8)
def sample_of(context: Context, dataset: ArtifactRef) -> Sample:
    return save_record_set(context, dataset).sample
