"""Reruns of a branch run the branch's own mechanism, with the run's own settings."""

from pathlib import Path
from typing import Any

import pytest
from ingested import ingested
from refusals import of_kind

from mechanisms.model.config import ModelConfig
from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from storage.ingest import IngestConfig
from tasks.auditing.run import reruns
from tasks.auditing.settings import AuditParameters, trial_draws_of
from tasks.branches.branch import ComparisonSettings, mechanism_for
from tasks.branches.experiment import Study
from tasks.method import standard_methods
from tasks.parameters import DataParameters, RetrainParameters
from tasks.running.stage import Context, Step

REF = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, kind="test")
PARAMETERS = RetrainParameters(
    data=DataParameters(source="nowhere.csv", ingest=IngestConfig()),
    model=ModelConfig(trainable="head", pooling="mean"),
)


def studied(tmp_path: Path) -> tuple[Study, list[Step]]:
    """A study that runs nothing, and the stages that it is asked for."""
    steps: list[Step] = []
    context, facts = Context(home=str(tmp_path)), ingested(label_space=100)
    terms = ComparisonSettings(target_epsilon=4.0)
    return Study(
        context, PARAMETERS, terms, REF, REF, facts, lambda one: steps.append(one) or REF
    ), steps


def asked(tmp_path: Path, name: str) -> tuple[list[Step], str]:
    """The stages of a branch's reruns, the plan first, and its mechanism's name there."""
    study, steps = studied(tmp_path)
    branch, settings = standard_methods()[name], AuditParameters(trials=16, trial_draws=7)
    _, mechanism = reruns(study, settings, branch, REF, study.experiment(branch).mechanism)
    return steps, mechanism


def test_a_linear_mechanism_reruns_with_its_own_settings(tmp_path: Path) -> None:
    """The settings are in the plan that the reruns read, so that others mean other reruns."""
    name, own = "prior-descent", "steps"
    (plan, trials), mechanism = asked(tmp_path, name)
    assert mechanism == name
    config: Any = plan.config
    assert own in config["mechanism"]
    assert config["task"]["target_epsilon"] == 4.0
    assert set(trials.inputs) == {"pool", "dataset", "plan"}
    others: Any = asked(tmp_path, "dp-sgd-tuned")[0][0].config
    assert own not in others["mechanism"]


def test_reruns_have_no_more_draws_than_the_candidate() -> None:
    """The usual number is cut to its own, more is refused by name; mechanisms without draws take
    any number.
    """
    (swag, formal) = (
        mechanism_for(standard_methods()[name], PARAMETERS, ComparisonSettings())
        for name in ("swag-ppm", "dp-sgd")
    )
    assert isinstance(swag, SwagPpm)
    assert swag.pseudo_posterior is not None
    fewer = swag.pseudo_posterior.model_copy(update={"sensitivity_draws": 20})
    few = swag.model_copy(update={"pseudo_posterior": fewer})
    assert trial_draws_of("a", swag, AuditParameters()) == 50
    assert trial_draws_of("a", swag, AuditParameters(trial_draws=500)) == 500
    assert trial_draws_of("a", few, AuditParameters()) == 20
    assert trial_draws_of("a", formal, AuditParameters(trial_draws=100_000)) == 100_000
    for mechanism, draws, own in ((swag, 501, 500), (few, 51, 20)):
        with pytest.raises(InputError, check=of_kind("too-many-draws", saying=(draws, own))):
            trial_draws_of("a", mechanism, AuditParameters(trial_draws=draws))


def test_rounds_of_one_chain_share_their_reruns(tmp_path: Path) -> None:
    """Weighted and reweighted are one plan, with the audit's own number of draws."""
    plans = {
        name: asked(tmp_path, name)
        for name, branch in standard_methods().items()
        if isinstance(branch.mechanism, SwagPpm)
    }
    configs: dict[str, Any] = {name: steps[0].config for name, (steps, _) in plans.items()}
    assert configs["swag-ppm"] == configs["swag-ppm-reweighted"]
    assert [plans[name][1] for name in configs] == ["weighted", "reweighted"]
    assert configs["swag-ppm"]["mechanism"]["pseudo_posterior"]["risk_draws"] == 7
