"""Would win: the one code that is not known, by trying candidates against a digest that follows
from the records.
"""

import csv
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from releases import release_key
from sealed_bundle import plan

from storage import ingest as ingestion
from storage.artifacts import digest, file_digest
from storage.bundle.proof import proof_of
from storage.demo_data import write_demo_data
from storage.ingest import IngestConfig
from storage.ledger import Ledger, report
from storage.ledger.content import anticipated
from tasks.bundle.statement import statement, statement_page
from tasks.fitting.candidate import Candidate
from tasks.fitting.ingest import ingest_records
from tasks.parameters import BundleParameters, DataParameters
from tasks.releasing import ledger_access, plan_page
from tasks.releasing.case import ReleaseCase
from tasks.releasing.plan import PlannedRelease
from tasks.running.parts import Part, PartRequest
from tasks.running.stage import Context, Step, run_step

DECLARES = """
no digest that leaves tells a record
| each of 46 candidates for the one unknown code, tried against everything that is printed, in a
bundle or in Prefect's database
| anyone who has the registry's key
"""

_DIGEST = re.compile(r"(?=[0-9]*[a-f])[0-9a-f]{12,}")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    written = write_demo_data(tmp_path_factory.mktemp("records"), records=160, seed=3)
    return {
        "source": str(written.csv),
        "codelist": str(written.codelist),
        "population": "demo",
        "ingest": {},
    }


def outputs(home: Path, records: dict[str, Any]) -> dict[str, str]:
    """All that leaves of one release, and all that Prefect is given, by name."""
    context = Context(home=str(home), device="cpu")
    context.workspace.create()
    dataset = run_step(context, ingest_records(DataParameters.model_validate(records)))
    model: Any = {"encoder": "e", "trainable": "head", "pooling": "mean", "max_length": 32}
    made: Any = {
        "dataset": dataset,
        "prepared": dataset,
        "fitted": dataset,
        "mechanism": {"kind": "non-private"},
        "is_sampled": False,
        "model": model,
        "seed": 5,
    }
    candidate = Candidate.model_validate(made)
    facts = context.store.figures(dataset)
    key = digest({"data": facts["fingerprint"], "method": "m", "label": "first"})
    released = plan("first", candidate).model_copy(
        update={"data_fingerprint": facts["fingerprint"]}
    )
    planned = PlannedRelease(
        plan=released.model_copy(update={"idempotency_key": key}), candidate=candidate
    )
    ledger = ledger_access.open_ledger(context, BundleParameters(), key=release_key())
    planned = planned.attach_ledger(ledger, context)
    file = Path(planned.file(context).name)
    page = plan_page.page_of(ReleaseCase.read(context, planned, ledger, file=file))
    row = ledger.reserve(planned.plan, plan_digest=planned.digest)
    release_id = str(row.release_id)
    ledger.mark_drawn(release_id, draw_digest="d" * 64, plan_digest=planned.digest)
    files: dict[str, str] = {"model": "e" * 64}
    committed = ledger.commit(release_id, bundle_digest=digest(files), plan_digest=planned.digest)
    claimed = statement(anticipated(planned.plan, audit=None), sampling="per-record")
    step = Step("risks", "risks", {}, {"dataset": dataset, "prepared": dataset}, lambda work: {})
    inputs = {name: ref for name, ref in step.inputs.items() if ref is not None}
    part = {
        "settings": Part(end=1),
        "inputs": inputs,
        "key": step.key(context.store),
        "home": None,
        "device": "cpu",
    }
    payload = PartRequest[Part].model_validate(part)
    return {
        "certificate": report.page(ledger, release_id),
        "plan page": plan_page.markdown(page) + plan_page.html(page),
        "statement": json.dumps(claimed) + statement_page(claimed),
        "proof": json.dumps(proof_of(committed, files, key=None)),
        "Prefect": payload.model_dump_json() + planned.file(context).name + planned.digest,
        "ledger": json.dumps([row.as_json() for row in ledger.rows()]),
    }


def test_no_digest_follows_from_the_records_alone(
    records: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same records in two workspaces: no digest of one is in what the other prints, but those
    of no record.
    """
    monkeypatch.delenv("AUTOCODER_REGISTRY_KEY")
    one, other = outputs(tmp_path / "one", records), outputs(tmp_path / "other", records)
    fixed = set(_DIGEST.findall(json.dumps([*_settings(tmp_path / "one")])))
    for name, text in one.items():
        common = set(_DIGEST.findall(text)) & set(_DIGEST.findall(other[name]))
        assert common <= fixed, name


def _settings(home: Path) -> list[str]:
    """What follows from code, settings and this test: the same for any records."""
    ledger = Ledger.open(f"sqlite:///{home / 'ledger.db'}", key=release_key())
    values = [ledger.policy().digest, "d" * 64, "0" * 64, digest({"model": "e" * 64}), "e" * 64]
    return values + [
        str(value)
        for row in ledger.releases()
        for value in (row.plan.lock_digest, row.plan.code_commit)
    ]


def test_each_candidate_for_the_last_code(records: dict[str, Any], tmp_path: Path) -> None:
    """The attacker repeats the ingest with each: nothing printed has a digest of any, the true one
    included.
    """
    printed = "".join(outputs(tmp_path / "one", records).values())
    source = Path(records["source"])
    with source.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    config = IngestConfig()
    column = lines[0].index(config.label_column)
    codes = sorted({row[column] for row in lines[1:]})
    truth = lines[77][column]
    hits = {}
    for number, candidate in enumerate(codes):
        lines[77][column] = candidate
        guessed = tmp_path / f"{number}.csv"
        with guessed.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(lines)
        out = tmp_path / f"out-{number}"
        out.mkdir()
        place = source if candidate == truth else guessed
        found = ingestion.ingest(place, out, config, Path(records["codelist"]))
        tried = [found.fingerprint, file_digest(place)]
        tried += [file_digest(file) for file in sorted(out.iterdir())]
        tried += [hashlib.sha256(one.encode()).hexdigest() for one in tried]
        hits[candidate] = [one for one in tried if one[:12] in printed]
    assert len(hits) == 46
    assert truth in hits
    assert not any(hits.values())
