"""From a table or images to a trained linear head: no encoder is asked for, and bounds say where they are from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_jobs
import torch
from pydantic import ValidationError

from mechanisms.errors import MechanismError
from mechanisms.model import encoder_files
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.schema import FILE, FeatureSchema
from storage.errors import InputError
from tasks.branches import plan as branch_plan
from tasks.branches.branch import Terms, choose
from tasks.branches.swag_chain import run_chain
from tasks.comparing import run as comparison
from tasks.comparing.assessment import NO_BUNDLE, assess
from tasks.fitting import data
from tasks.fitting.ingest import ingest_records
from tasks.fitting.model_inputs import load_inputs
from tasks.parameters import RetrainParameters
from tasks.releasing import preflight
from tasks.releasing.recommendation import exclusion_reason
from tasks.running.stage import Context, run_step

BOUNDS: dict[str, Any] = {"numeric": {"length": [0, 2], "weight": None}, "categorical": {"sex": ["F", "I", "M"]}}


@pytest.fixture
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for an encoder fails the test."""

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("an encoder was asked for")

    for name in ("load", "shape", "digest_parts", "revision"):
        monkeypatch.setattr(encoder_files, name, asked)


def parameters(source: Path, ingest: dict[str, Any], **changed: Any) -> RetrainParameters:
    """Of a linear head on the features themselves, and no release; `changed` sections count instead."""
    chosen = tiny_jobs.retrain({"source": str(source), "ingest": ingest}, Path("none"), model={"pooling": "none"})
    return RetrainParameters.model_validate(chosen.model_dump(mode="json") | {"release": {"enabled": False}} | changed)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "in.csv"
    rows = [f"{n / 10},{'FIM'[n % 3]},{100 + n},{n % 2}" for n in range(40)]
    path.write_text("\n".join(["length,sex,weight,label", *rows]))
    return path


@pytest.mark.usefixtures("no_encoder")
def test_a_table_is_prepared_measured_and_fitted(tmp_path: Path, table: Path) -> None:
    """Public bounds clip, open ones are those of the training half and said to be; the whole chain runs."""
    context = Context(home=str(tmp_path / "home"), device="cpu")
    chosen = parameters(table, {"kind": "table", "table": BOUNDS})
    estimate = preflight.check(context, chosen)
    assert estimate.parameters == 5 * 100
    made = run_chain(chosen, lambda step: run_step(context, step))
    assert made.dataset is not None
    assert made.prepared is not None
    assert made.evaluated is not None
    facts, figures = context.store.figures(made.dataset), context.store.figures(made.prepared)
    assert (facts["features"], facts["bounds_source"], figures["bounds_source"]) == (5, "records", "records")
    folder = context.store.open(made.prepared)
    inputs, labels = load_inputs(folder, "train")
    assert isinstance(inputs, FeatureInputs)
    assert (inputs.features.dtype, tuple(inputs.features.shape), len(labels)) == (torch.float32, (20, 5), 20)
    assert inputs.features.min() == 0
    assert inputs.features.max() == 1
    assert (inputs.features[:, 1:4].sum(1) == 1).all()
    schema = FeatureSchema.load(folder / FILE)
    assert schema.names == ("length", "sex=F", "sex=I", "sex=M", "weight")
    assert schema.columns[0].bounds == (0, 2)
    assert [column.bounds_source for column in schema.columns] == ["public", "public", "records"]
    trained = context.store.figures(made.posteriors["reweighted"])
    assert trained["parameters"] == 5 * 2 + 2


@pytest.mark.usefixtures("no_encoder")
def test_images_are_scaled_by_a_public_bound(tmp_path: Path) -> None:
    """Pixels lie in [0, 1], the shape is kept, and nothing is taken from the records."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (30, 2, 3, 1), dtype=np.uint8)
    np.savez(tmp_path / "in.npz", images=pixels, labels=np.arange(30) % 2)
    context = Context(home=str(tmp_path / "home"), device="cpu")
    chosen = parameters(tmp_path / "in.npz", {"kind": "images"})
    preflight.check(context, chosen)
    dataset = run_step(context, ingest_records(chosen.data))
    prepared = run_step(context, data.prepare(chosen.model, dataset, seed=1))
    assert context.store.figures(dataset)["bounds_source"] == "public"
    inputs, _ = load_inputs(context.store.open(prepared), "test")
    assert isinstance(inputs, FeatureInputs)
    assert {round(value * 255) for value in inputs.features.flatten().tolist()} <= set(pixels.flatten().tolist())
    assert FeatureSchema.load(context.store.open(prepared) / FILE).shape == (2, 3, 1)


def test_a_release_is_refused_before_training(tmp_path: Path, table: Path) -> None:
    """At pre-flight, and by whatever else asks for the encoder that a bundle would hold."""
    chosen = parameters(table, {"kind": "table", "table": BOUNDS}, release={"enabled": True})
    with pytest.raises(InputError, match="a model on `table` data has no bundle yet: compare and audit it"):
        preflight.check(Context(home=str(tmp_path), device="cpu"), chosen, to_release=True)
    with pytest.raises(MechanismError, match="no bundle yet"):
        encoder_files.resolve(chosen.model.encoder)


@pytest.mark.usefixtures("no_encoder")
def test_a_comparison_plans_nothing_that_a_release_refuses(tmp_path: Path, table: Path) -> None:
    """The branch has a claim, and no bundle could hold its model: it is neither planned nor recommended."""
    context = Context(home=str(tmp_path / "home"), device="cpu")
    chosen = parameters(table, {"kind": "table", "table": BOUNDS})
    settings = Terms(target_epsilon=5)
    branches = choose("swag-ppm", model=chosen.model)
    compared = comparison.run(context, chosen, settings, branches, do=partial(run_step, context))
    assert compared.outcomes[0].claim.epsilon is not None
    planned = branch_plan.plan_release(compared.study, compared.outcomes[0], prefect_run_id=None)
    with pytest.raises(MechanismError, match="has no bundle"):
        planned.check(context)
    assert comparison.write_plans(compared, prefect_run_id=None) == {}
    (row,) = assess(compared, {})
    assert exclusion_reason(row.figures) == NO_BUNDLE


def test_kind_and_model_go_together(table: Path) -> None:
    """A table with an encoder, and narratives without one, are contradictions; with `none` an encoder is left out."""
    with pytest.raises(ValidationError, match=r"data\.ingest\.kind `table` has no encoder\. Set model\.pooling=none"):
        parameters(table, {"kind": "table"}, model={"encoder": "x", "trainable": "head", "pooling": "mean"})
    with pytest.raises(ValidationError, match="does not read narratives"):
        parameters(table, {})
    with pytest.raises(ValidationError, match="no encoder to train"):
        ModelConfig.model_validate({"pooling": "none", "trainable": "full"})
    assert ModelConfig.model_validate({"encoder": "x", "pooling": "none"}).encoder == "none"
