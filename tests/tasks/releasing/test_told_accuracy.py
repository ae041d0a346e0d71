"""A release tells its partner how often its model is right, at no further cost, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_jobs
import torch
import yaml
from cases import page_of_plan, release_plan
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from kills import killed_at
from refusals import of_kind
from releases import release_key
from sealed_bundle import answers_by_the_card

from mechanisms.model import checkpoint, export
from mechanisms.model.scorer import Graph, softmax
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.accuracy_table import temperature_of
from mechanisms.privacy.events import ParallelEvent
from storage.bundle import folder as bundle
from storage.bundle.check import check
from storage.bundle.stated import clear_scores
from storage.bundle.trust import Trust
from storage.demo_data import DemoData, write_demo_data
from storage.errors import StorageError
from storage.ledger.content import anticipated
from storage.ledger.recovery import draw_path
from tasks.bundle import fill
from tasks.bundle.thresholds import read_thresholds
from tasks.coding.coder import open_bundle
from tasks.pages.render import share_with_ends
from tasks.parameters import BundleParameters, ReleaseParameters, RetrainParameters
from tasks.releasing import drawing, plan_page, publish
from tasks.releasing.held_out_table import Answers
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.samples import Sample
from tasks.running.stage import Context

Planner = Callable[..., PlannedRelease]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return tiny_jobs.workspace(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="module")
def planner(context: Context, tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Planner:
    """Plans a formal release of 600 records at epsilon 4, by label and other settings."""

    @cache
    def generated(seed: int) -> DemoData:
        return write_demo_data(tmp_path_factory.mktemp("data"), records=600, seed=seed)

    def plan(
        label: str,
        *,
        ingest: Mapping[str, Any] | None = None,
        population: str = "demo",
        seed: int = 3,
        **formal: Any,
    ) -> Any:
        written = generated(seed)
        data = {
            "source": str(written.csv),
            "codelist": str(written.codelist),
            "population": population,
            "ingest": {"sampling": "per-record", "test_share": 0.5} | dict(ingest or {}),
        }
        model = {
            "encoder": str(tiny_bert),
            "trainable": "head",
            "pooling": "mean",
            "max_length": 32,
            "prior": "titles",
        }
        chosen = RetrainParameters.model_validate(
            {
                "data": data,
                "model": model,
                "method": {"name": "prior-descent", "target_epsilon": 4.0} | formal,
                "release": {"label": label},
            }
        )
        planned = tiny_jobs.planned(context, chosen, tiny_jobs.fitted(context, chosen))
        return publish.save_plan(context, planned, chosen.release).planned

    return plan


def settings(planned: PlannedRelease) -> BundleParameters:
    return ReleaseParameters(label=planned.plan.release_label)


def test_the_table_is_in_the_bundle_and_costs_no_more(context: Context, planner: Planner) -> None:
    """The stated interval is about the model's accuracy on the held-out records; epsilon is that of
    the training alone, and the same again is the same release.
    """
    planned = planner("told")
    event = planned.plan.event
    assert isinstance(event, ParallelEvent)
    assert (event.split, planned.untold) == ("record", None)
    done = release_plan(context, planned, settings(planned))
    folder = Path(done.bundle)
    told = json.loads((folder / bundle.ACCURACY).read_text())
    statement = json.loads((folder / bundle.STATEMENT).read_text())
    assert statement["accuracy_stated"]
    assert statement["mechanism"] == "prior-descent"
    assert 4 * 0.995 <= float(statement["epsilon"]) <= 4
    answers = Answers.of(context, planned.candidate, planned.candidate.draw(context))
    exact = float((answers.logits.argmax(1) == answers.labels).float().mean())
    width = told["right"]["high"] - told["right"]["low"]
    assert 0 < width <= 0.2
    assert abs(told["right"]["estimate"] - exact) <= width
    assert abs(told["records"] - len(answers.labels)) <= 60
    assert sum(group["share"] for group in told["groups"]) == pytest.approx(1, abs=0.3)
    thresholds = read_thresholds(folder / bundle.THRESHOLDS)
    assert thresholds["fitted_on"] == "released-table"
    assert thresholds["reached"]["accuracy_of_all"] == pytest.approx(exact, abs=width)
    assert_told_where_partners_look(folder, told)
    assert_sets_hold_the_code(folder, answers)
    page = page_of_plan(context, planned, file=planned.file(context))
    assert (
        f"{told['right']['estimate']:.1%}" in dict(plan_page.facts(page))["accuracy for partners"]
    )
    assert "What partners are told" in plan_page.html(page)
    assert release_plan(context, planned, settings(planned)) == done


def assert_sets_hold_the_code(folder: Path, answers: Answers) -> None:
    """`code --coverage` has limits of the table, with a confidence, at the bundle's own scores."""
    coder = open_bundle(folder).with_sets(0.8)
    assert coder.sets is not None
    assert (coder.sets.confidence, coder.sets.codes) == (0.95, {})
    assert 0 < coder.sets.limit < 1
    stated = json.loads((folder / bundle.ACCURACY).read_text())
    scores = softmax(answers.logits.numpy() / stated["temperature"])
    sets = coder.sets.members(scores, coder.model.codes)
    right = [label in inside for label, inside in zip(answers.labels.tolist(), sets, strict=True)]
    assert np.mean(right) >= 0.8
    assert np.mean([len(inside) for inside in sets]) < len(coder.model.codes)


def assert_told_where_partners_look(folder: Path, told: Any) -> None:
    """Card and its metadata, and bill of materials, have the figures of `accuracy.json`."""
    card = (folder / bundle.CARD).read_text()
    metadata = yaml.safe_load(card.split("---\n")[1])
    (result,) = metadata["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == told["right"]["estimate"]
    sections = [line for line in card.splitlines() if line.startswith("## ")]
    assert sections[0] == "## How often it is right"
    assert share_with_ends(told["right"]) in card
    drawn = (folder / bundle.RELIABILITY).read_text()
    assert drawn.count("<circle") == len(clear_scores(told))
    assert f"]({bundle.RELIABILITY})" in card
    text = (folder / bundle.MATERIALS).read_text()
    problem = JsonStrictValidator(SchemaVersion.V1_7).validate_str(text)
    assert problem is None, problem
    stated = json.loads(text)["metadata"]
    analysis = stated["component"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert float(analysis[0]["value"]) == told["right"]["estimate"]
    answers = (folder / bundle.ANSWERS).read_text()
    assert "| How useful is the product? | The agency states" in answers
    assert f"{told['right']['estimate']:.1%}" in answers
    assert not (folder / bundle.RECORD).exists()
    assert stated["timestamp"]
    assert stated["tools"]["components"][0]["name"] == "autocoder"


def test_units_have_their_table_too(context: Context, planner: Planner) -> None:
    """Establishments of at most two records, each in one half: the release is for a whole unit, its
    table has noise for two records, and the bundle verifies with the agency's key alone.
    """
    ingest = {"unit_column": "Establishment", "max_per_unit": 2, "split_by_unit": True}
    planned = planner("units", population="sites", seed=4, ingest=ingest, target_epsilon=8.0)
    event = planned.plan.event
    assert isinstance(event, ParallelEvent)
    assert event.split == "unit"
    parts = [
        gaussian_cost.cost(part, delta=float(planned.plan.claim.delta or 0), records_per_unit=2)
        for part in (event.training, event.of_evaluation)
    ]
    epsilon = planned.plan.claim.epsilon
    assert epsilon is not None
    assert epsilon == pytest.approx(max(part.epsilon for part in parts), rel=1e-9)
    assert 8 * 0.995 <= epsilon <= 8
    assert parts[1].epsilon == pytest.approx(epsilon, rel=1e-6)
    done = release_plan(context, planned, settings(planned))
    folder = Path(done.bundle)
    agency = publish._release_key(context, settings(planned)).public_key()
    sound = check(folder, Trust(agency))
    statement = sound.contents[bundle.STATEMENT]
    assert statement["accuracy_stated"]
    assert statement["max_records_per_unit"] == 2
    assert "Establishment" in statement["privacy_unit"]
    told = sound.contents[bundle.ACCURACY]
    assert told["test_half"]["unit"] == "unit"
    answers = Answers.of(context, planned.candidate, planned.candidate.draw(context))
    exact = float((answers.logits.argmax(1) == answers.labels).float().mean())
    assert told["right"]["low"] - 0.05 <= exact <= told["right"]["high"] + 0.05


def test_every_program_gives_the_same_scores(
    context: Context, planner: Planner, tmp_path: Path
) -> None:
    """The temperature of the table is in the weights: torch, onnxruntime by the card's program, and
    the coder of `autocoder code` and the service agree, on scores that are not those of the fit.
    """
    planned = planner("one score")
    candidate, event = planned.candidate, planned.plan.event
    assert isinstance(event, ParallelEvent)
    answers = Answers.of(context, candidate, candidate.draw(context))
    wrong = replace(answers, labels=answers.logits.argmin(1))
    table = wrong.draw(event)
    told = temperature_of(table.temperature, event.evaluation[0])
    assert told > 2
    row = anticipated(planned.plan, audit=None)
    fill.fill(
        tmp_path,
        context,
        row,
        candidate,
        candidate.draw(context),
        BundleParameters(),
        planned.output.texts,
        table=table,
    )
    coder = open_bundle(tmp_path)
    assert coder.temperature == 1
    texts = [f"{word} of {part}" for word in ("fracture", "burn") for part in ("arm", "leg", "eye")]
    released = export.load(tmp_path)
    scores = np.asarray(released.logits(texts).double().softmax(-1))
    others = {
        "graph": softmax(np.asarray(Graph.load(tmp_path).logits(texts))),
        "coder": coder.scores(texts),
    }
    for name, own in others.items():
        assert np.abs(own - scores).max() <= 1e-6, name
    codes, best = answers_by_the_card(tmp_path, texts)
    first = np.asarray(codes).reshape(len(texts), -1)[:, 0]
    assert list(first) == [released.codes[place] for place in scores.argmax(1)]
    best = np.asarray(best).reshape(len(texts), -1)[:, 0]
    assert np.abs(best - scores.max(1)).max() <= 1e-6
    plain = candidate.classifier(context, candidate.draw(context))
    export.save(plain, tmp_path / "plain", codes=released.codes)
    unscaled = export.load(tmp_path / "plain").logits(texts)
    assert torch.allclose(released.logits(texts) * told, unscaled, rtol=1e-4, atol=1e-5)


def test_no_noise_is_drawn_twice(
    context: Context, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the scores are computed, a release goes on; killed after noise was drawn, before
    its file is there, it ends.
    """
    planned = planner("killed")
    drawn: list[Any] = []
    draw = Answers.draw
    monkeypatch.setattr(
        Answers, "draw", lambda own, event: drawn.append(draw(own, event)) or drawn[-1]
    )
    with killed_at(monkeypatch, Answers, "of"):
        release_plan(context, planned, settings(planned))
    assert not drawn
    with killed_at(monkeypatch, drawing, "_signed_draw"):
        release_plan(context, planned, settings(planned))
    assert len(drawn) == 1
    with pytest.raises(StorageError, check=of_kind("killed-while-sampling")):
        release_plan(context, planned, settings(planned))
    assert len(drawn) == 1


def test_a_table_that_another_program_put_there(
    context: Context, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fit's own parameters next to another table, before there is a digest in the ledger."""
    planned = planner("foreign")
    with killed_at(monkeypatch, Answers, "of"):
        release_plan(context, planned, settings(planned))
    ledger = publish.open_ledger(context, settings(planned))
    row = ledger.find(planned.plan.idempotency_key)
    assert row is not None
    sample = Sample.draw(context, planned, note=lambda: None)
    file = draw_path(context.workspace, str(row.release_id))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(drawing._signed_draw(sample, row, planned, release_key()))
    with pytest.raises(StorageError, check=of_kind("unsigned-sample")):
        release_plan(context, planned, settings(planned))
    cut = sample.tensors | {"accuracy": sample.tensors["accuracy"][:-1]}
    _, described = checkpoint.from_bytes(file.read_bytes())
    file.write_bytes(checkpoint.to_bytes(cut, described))
    with pytest.raises(StorageError, check=of_kind("not-a-sample")):
        release_plan(context, planned, settings(planned))


@pytest.mark.parametrize(
    ("ingest", "formal", "why"),
    [
        ({"sampling": "stratified"}, {}, "coupled"),
        ({"test_share": 0.05}, {}, "few"),
        ({}, {"target_epsilon": 0.05}, "few"),
    ],
)
def test_a_half_that_other_records_decide_is_told_nothing_of(
    context: Context,
    planner: Planner,
    ingest: dict[str, Any],
    formal: dict[str, Any],
    why: str,
) -> None:
    """Nor one that is too small; the plan's page says why."""
    planned = planner(f"untold-{why}-{len(formal)}", ingest=ingest, **formal)
    assert planned.untold is not None
    assert planned.untold == why
    assert planned.plan.event == planned.plan.event.of_training
    page = page_of_plan(context, planned, file=planned.file(context))
    assert plan_page.REASONS[planned.untold] in dict(plan_page.facts(page))["accuracy for partners"]
    assert np.isfinite(planned.plan.claim.epsilon or np.nan)
