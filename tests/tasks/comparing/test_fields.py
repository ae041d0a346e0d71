"""Several fields from a file to figures by field; what cannot be done with them yet is refused by name."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_jobs
from pydantic import ValidationError

from mechanisms.errors import MechanismError
from mechanisms.model import metrics
from storage.demo_data import write_demo_data
from storage.errors import InputError
from storage.ledger.content import anticipated
from tasks.branches.branch import Terms, choose
from tasks.bundle import fill
from tasks.comparing import assessment, protocols, report, summary, tables
from tasks.comparing import run as comparison
from tasks.fitting import fits
from tasks.fitting.ingest import ingest_records
from tasks.fitting.model_inputs import fields_of, load_inputs
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing.claims import method_digest
from tasks.releasing.plan import PlannedRelease
from tasks.retraining import run as retraining
from tasks.running.stage import Context, run_step

SETTINGS = Terms(target_epsilon=6, delta=1e-5, epochs=2)


def parameters(folder: Path, encoder: Path, **changed: Any) -> RetrainParameters:
    """Of invented narratives that are coded in `nature` and, but for every fourth, in `length`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = write_demo_data(folder / "data", records=160, seed=3)
    with written.csv.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for at, row in enumerate(rows):
        row["Length"] = "" if at % 4 == 3 else ("long" if len(row["Final Narrative"]) % 2 else "short")
    source = folder / "in.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "length.csv").write_text("code,title\nlong,A long story\nshort,A short story\nnone,No story\n")
    ingest = {
        "fields": {
            "nature": {"label_column": "Nature", "codelist": str(written.codelist)},
            "length": {"label_column": "Length", "codelist": str(folder / "length.csv")},
        }
    }
    model = {"encoder": str(encoder), "trainable": "head", "pooling": "mean", "max_length": 32, "prior": "titles"}
    model |= {"prior_sentences": {"length": "It was {}."}}
    chosen = {"data": {"source": str(source), "ingest": ingest}, "model": model}
    fit = tiny_jobs.retrain({"source": "x", "ingest": {}}, encoder).fit.model_dump(mode="json")
    return RetrainParameters.model_validate(chosen | {"fit": fit} | changed)


def compare(context: Context, wanted: RetrainParameters, branches: str) -> comparison.Comparison:
    chosen = choose(branches, model=wanted.model, data=wanted.data)
    return comparison.run(context, wanted, SETTINGS, chosen, do=partial(run_step, context))


def planned_of(compared: comparison.Comparison) -> PlannedRelease:
    """The one plan that is written of a comparison; it names both fields, and its artifacts support it."""
    (file,) = comparison.write_plans(compared, prefect_run_id=None).values()
    planned = PlannedRelease.load(Path(file))
    planned.check(compared.study.context)
    assert planned.fields == ("nature", "length")
    return planned


def test_fields_are_compared_one_by_one(tiny_bert: Path, tmp_path: Path) -> None:
    """Each field's F1 is that of its own classes on the records that have it; one claim is made, and one plan of it."""
    context, wanted = tiny_jobs.workspace(tmp_path / "home"), parameters(tmp_path, tiny_bert)
    compared = compare(context, wanted, "non-private-titles,prior-descent")
    study, store = compared.study, context.store
    sizes = study.at(compared.outcomes[1].branch).task.fields
    assert [field["name"] for field in study.facts["fields"]] == ["nature", "length"]
    assert sizes == (study.facts["fields"][0]["label_space"], 3)
    labels = load_inputs(store.open(study.prepared), "test")[1].numpy()
    assert (labels[:, 1] < 0).any()
    fields = fields_of(store.open(study.dataset))
    assert fields is not None
    for outcome in compared.outcomes:
        model = outcome.branch.model(wanted)
        step = fits.predict(
            outcome.branch.name, outcome.mechanism, model, seed=outcome.seed, fitted=outcome.fitted, **study.records
        )
        found = step.find(store)
        assert found is not None
        given = fits.predictions(store.open(found), "test")
        for place, name in enumerate(("nature", "length")):
            there = labels[:, place] >= 0
            own = given["log_probabilities"][:, fields.spans[place]].argmax(1).numpy()[there]
            expected = metrics.classification(labels[there, place], own)
            assert outcome.figures[f"{name}.weighted_f1"] == pytest.approx(expected.weighted_f1)
            assert outcome.figures[f"{name}.macro_f1"] == pytest.approx(expected.macro_f1)
        both = [outcome.figures[f"{name}.macro_f1"] for name in ("nature", "length")]
        assert outcome.figures["macro_f1"] == pytest.approx(float(np.mean(both)))
    formal = compared.outcomes[1]
    assert formal.claim.epsilon == pytest.approx(6, rel=0.005)
    assert formal.cost["separate_each_epsilon"] < 6 < formal.cost["separate_together_epsilon"] < 12
    rows = assessment.assess(compared, {})
    assert rows[1].figures.refused == ""
    planned = planned_of(compared)
    told = planned.model_copy(update={"fields": ("length", "nature")})
    with pytest.raises(MechanismError, match="fields: not what ran"):
        told.check(context)
    said = summary.summarise(compared.outcomes, context)
    errors = [one.record_errors["weighted_f1"] for one in said]
    paired = said[0].paired_errors["weighted_f1"][said[1].branch]
    assert 0 < paired <= sum(errors)
    assert rows[1].figures.minus(rows[0].figures).of_records == pytest.approx(paired)
    assert tables.differences_table(said)[1][0][1] == f"{errors[0]:.3f}"
    head, cells = tables.fields_table(said, ("nature", "length"))
    assert head == ["branch", "nature: F1 w / m", "length: F1 w / m", "mean of the fields"]
    assert cells[1][1] == f"{formal.figures['nature.weighted_f1']:.3f} / {formal.figures['nature.macro_f1']:.3f}"
    assert len(tables.separate_table(said, 2)[1]) == 1


@pytest.mark.parametrize("branch", ["swag-ppm"])
def test_a_draw_of_several_fields_is_planned_and_fits_a_bundle(tiny_bert: Path, tmp_path: Path, branch: str) -> None:
    """Its claim is 2 Delta of a record's fields together; the bundle that it would be passes the gate."""
    few = {"pseudo_posterior": {"risk_draws": 20, "sensitivity_draws": 20}}
    context, wanted = tiny_jobs.workspace(tmp_path / "home"), parameters(tmp_path, tiny_bert, **few)
    compared = compare(context, wanted, branch)
    (outcome,) = compared.outcomes
    assert outcome.claim.epsilon == pytest.approx(2 * outcome.event.model_dump()["sensitivity"])
    planned = planned_of(compared)
    fill.rehearse(context, anticipated(planned.plan, audit=None), planned.candidate, BundleParameters())
    if planned.candidate.measured is not None:
        drawn = planned.candidate.sensitivity_at(context, planned.candidate.take(context))
        assert drawn is not None
        assert 0 < drawn < 10 * outcome.event.model_dump()["sensitivity"]
    if branch == "swag-ppm":
        assert outcome.sensitivity is not None
        largest, smallest = report.weights_by_quartile(context, compared.study.prepared, outcome.sensitivity)
        labels = load_inputs(context.store.open(compared.study.prepared), "train")[1]
        codes = sum(len(labels[:, at][labels[:, at] >= 0].unique()) for at in range(2))
        assert 0 < len(smallest) < len(largest) <= int((labels >= 0).sum())
        assert len(smallest) >= codes // 4, "a record at least of each code"


def test_a_code_list_is_known_by_what_it_holds(tiny_bert: Path, tmp_path: Path) -> None:
    """Moved, it makes the same stage and no other release; with another line it does."""
    wanted, store = parameters(tmp_path, tiny_bert), Context(home=str(tmp_path / "home")).store

    def known_by(codelist: Path) -> tuple[str, str]:
        told = wanted.model_dump(mode="json")
        told["data"]["ingest"]["fields"]["length"]["codelist"] = str(codelist)
        read = RetrainParameters.model_validate(told)
        return ingest_records(read.data).key(store), method_digest(read)

    stage, method = ingest_records(wanted.data).key(store), method_digest(wanted)
    moved = tmp_path / "moved.csv"
    moved.write_text((tmp_path / "length.csv").read_text())
    assert known_by(moved) == (stage, method)
    moved.write_text((tmp_path / "length.csv").read_text() + "tall,A tall story\n")
    assert known_by(moved)[0] != stage
    assert known_by(moved)[1] != method


@pytest.mark.parametrize("branch", ["prior-descent", "dp-sgd-tuned"])
def test_a_dry_run_prices_one_release_a_field(tiny_bert: Path, tmp_path: Path, branch: str) -> None:
    """Beside the joint's charge; where steps sample and where delta is 0 too."""
    settings = {"sampling_prob": 0.5} if branch == "dp-sgd-tuned" else {}
    formal = {"formal": {"branch": branch, "target_epsilon": 4.0, "delta": 1e-5, "mechanism": settings}}
    wanted, context = parameters(tmp_path, tiny_bert, **formal), tiny_jobs.workspace(tmp_path / "home")
    apart = retraining.dry_run(wanted, context).separately
    assert apart is not None
    assert 2 <= apart.each_epsilon < 4 < apart.together_epsilon <= 8


@pytest.mark.parametrize("branch", ["dp-sgd-class-weighted"])
def test_a_formal_fit_of_several_fields_is_planned(tiny_bert: Path, tmp_path: Path, branch: str) -> None:
    """One claim for all of them, and a plan whose bundle passes the gate."""
    context, wanted = tiny_jobs.workspace(tmp_path / "home"), parameters(tmp_path, tiny_bert)
    compared = compare(context, wanted, branch)
    (outcome,) = compared.outcomes
    assert outcome.claim.guarantee_kind == "formal"
    assert outcome.claim.epsilon == pytest.approx(6, rel=0.01)
    assert outcome.cost["separate_each_epsilon"] < 6 < outcome.cost["separate_together_epsilon"]
    planned = planned_of(compared)
    fill.rehearse(context, anticipated(planned.plan, audit=None), planned.candidate, BundleParameters())


def test_what_is_not_there_yet_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    """The paper's sampling, which is by the code of one field."""
    wanted = parameters(tmp_path, tiny_bert)
    with pytest.raises(InputError, match="--protocols: `paper`"):
        protocols.apply_protocol(wanted, "paper")
    assert protocols.apply_protocol(wanted, "all-records").data.ingest == wanted.data.ingest


def test_contradictions_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    """A code list beside those of the fields, an encoder that trains, and a sentence of no field."""
    content = parameters(tmp_path, tiny_bert).model_dump(mode="json")
    for section, name, value, said in (
        ("data", "codelist", "x.csv", "codelist is for one field"),
        ("model", "trainable", "full", "linear heads on one frozen encoding"),
        ("model", "prior_sentences", {"part": "{}"}, "part is not in data.ingest.fields"),
    ):
        changed = content | {section: content[section] | {name: value}}
        with pytest.raises(ValidationError, match=said):
            RetrainParameters.model_validate(changed)
