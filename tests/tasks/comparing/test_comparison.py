"""Aggregates of a comparison, and the paper's numbers that stand beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Task
from mechanisms.model.classifier import ModelConfig
from mechanisms.privacy.events import Claim, NonPrivateEvent
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from storage.ingest import IngestConfig
from tasks.branches.branch import CompareParameters, choose, standard
from tasks.branches.outcome import Outcome
from tasks.comparing import published
from tasks.comparing.summary import matched, summarise
from tasks.parameters import DataParameters, RetrainParameters

PARAMETERS = RetrainParameters(data=DataParameters(source="nowhere.csv", ingest=IngestConfig()))


def outcome(seed: int, **figures: Any) -> Outcome:
    """A non-private outcome with these figures."""
    ref = ArtifactRef.model_construct(name="x", key="x", sha256="0" * 64, folder=str(Path("x")))
    claim = Claim(guarantee_kind="none", neighbouring_relation="add-remove", accountant="none")
    branch = standard()["non-private"]
    return Outcome(
        branch=branch,
        seed=seed,
        mechanism=branch.mechanism,
        event=NonPrivateEvent(epochs=1),
        claim=claim,
        fitted=ref,
        measured=ref,
        figures=figures,
        losses=[],
        cost={},
    )


def test_mean_and_spread_over_seeds() -> None:
    """By hand: 0.2, 0.4, 0.6 have mean 0.4 and sample standard deviation 0.2; a zero that JSON made an int counts."""
    rows = [outcome(s, weighted_f1=f, bottom=b, gap=g) for s, f, b, g in ((1, 0.2, 0, 0.1), (2, 0.4, 0.3, None))]
    (summary,) = summarise([*rows, outcome(3, weighted_f1=0.6, bottom=0.3, gap=0.2)])
    assert summary.mean["weighted_f1"] == pytest.approx(0.4)
    assert summary.spread["weighted_f1"] == pytest.approx(0.2)
    assert summary.mean["bottom"] == pytest.approx(0.2)
    assert "gap" not in summary.mean
    assert summary.seeds == 3


def test_the_target_is_rounded_up_from_the_largest() -> None:
    """No formal rival gets less than SWAG-PPM came out with at any seed."""
    assert matched([4.35, 4.6, 4.1]) == 5
    assert matched([4.0]) == 4


def test_the_papers_table_3_gives_its_table_1() -> None:
    """153 codes; averages of the rounded F1 agree with the aggregates that the paper prints, to its two decimals."""
    rows = published.per_code()
    assert len(rows) == 153
    total = sum(row["size"] for row in rows.values())
    for column, branch in (("non_private", "non-private"), ("swag_ppm", "swag-ppm"), ("dp_sgd", "dp-sgd")):
        weighted = sum(row["size"] * row[column] for row in rows.values()) / total
        macro = sum(row[column] for row in rows.values()) / len(rows)
        assert (weighted, macro) == pytest.approx(published.AGGREGATE[branch], abs=0.011)


def test_the_paper_setting_is_the_papers() -> None:
    """Batch 512, rate 1e-3, clip 1, 30 epochs, AdamW, Mironov's conversion (section 3.2)."""
    task = Task(records=5346, classes=153, target_epsilon=4)
    config = standard()["dp-sgd"].settled(PARAMETERS, CompareParameters()).plan(task).mechanism
    assert isinstance(config, DpSgd)
    assert (config.batch_size, config.learning_rate, config.l2_clip_norm, config.epochs) == (512, 1e-3, 1.0, 30)
    assert (config.optimiser, config.calibrate_by, config.delta) == ("adamw", "rdp-mironov", 1e-4)
    swept = standard()["dp-sgd-delta-0.99"]
    assert (swept.mechanism, swept.delta) == (standard()["dp-sgd"].mechanism, 0.99)


def test_branches_are_chosen_by_name() -> None:
    """Each once, in the order asked for; unknown ones and those without a mechanism are refused."""
    head = ModelConfig(trainable="head", pooling="mean")
    assert [b.name for b in choose("formal-head, dp-sgd,formal-head", model=head)] == ["formal-head", "dp-sgd"]
    assert len(choose("all", model=head)) == len(standard()) - 1  # SWAG without weights is for audits
    with pytest.raises(InputError, match="no branch nothing"):
        choose("nothing", model=head)
    with pytest.raises(InputError, match="at least one"):
        choose(" , ", model=head)
    lora = ModelConfig(trainable="lora")
    assert "formal-head" not in [b.name for b in choose("all", model=lora)]
    with pytest.raises(InputError, match="formal-head needs"):
        choose("formal-head", model=lora)
