"""Reruns of a branch run the branch's own mechanism."""

from __future__ import annotations

import pytest

from mechanisms.model.classifier import ModelConfig
from storage.artifacts import ArtifactRef
from storage.ingest import IngestConfig
from tasks.auditing.branches import trials_of
from tasks.auditing.settings import UNWEIGHTED, AuditParameters
from tasks.branches.branch import BRANCHES, Branch, CompareParameters
from tasks.parameters import DataParameters, RetrainParameters
from tasks.running.stage import Step

REF = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, kind="test")
PARAMETERS = RetrainParameters(
    data=DataParameters(source="nowhere.csv", ingest=IngestConfig()),
    model=ModelConfig(trainable="head", pooling="mean"),
)


def reruns(branch: Branch) -> tuple[Step, str]:
    """The stage of a branch's reruns and its mechanism's name there."""
    return trials_of(
        branch,
        PARAMETERS,
        CompareParameters(target_epsilon=4.0),
        AuditParameters(trials=16),
        target=4.0,
        records_per_unit=1,
        epsilon=4.0,
        pool=REF,
        dataset=REF,
        calibrated=REF if branch.kind == "formal" else None,
    )


@pytest.mark.parametrize(("name", "own"), [("private-posterior", "prior_std"), ("formal-head", "release_share")])
def test_a_linear_family_reruns_with_its_own_settings(name: str, own: str) -> None:
    """The settings are part of the stage's key, so that others mean other reruns; plain DP-SGD has none."""
    step, mechanism = reruns(BRANCHES[name])
    assert mechanism == name
    assert own in step.config["linear"]
    assert step.config["linear"]["target_epsilon"] == 4.0
    assert reruns(BRANCHES["dp-sgd-tuned"])[0].config["linear"] is None


def test_rounds_of_one_chain_share_their_reruns() -> None:
    """Unweighted, weighted and reweighted are one stage; a bound makes another mechanism."""
    stages = {
        name: reruns(branch)[0].config
        for name, branch in {"swag": UNWEIGHTED, **BRANCHES}.items()
        if name.startswith("swag")
    }
    assert stages["swag"] == stages["swag-ppm"] == stages["swag-ppm-reweighted"]
    bounded = stages["swag-ppm-censored"]["pseudo_posterior"]
    assert (bounded["mechanism"], bounded["target_epsilon"]) == ("censored", 4.0)
    assert stages["swag-ppm-both"] != stages["swag-ppm-censored"] != stages["swag"]
