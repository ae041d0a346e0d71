"""A formal release: from a file to a bundle under the mechanism's own name, once, at the epsilon
that was given.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from pydantic import ValidationError
from refusals import of_kind

from mechanisms.errors import MechanismError
from storage.artifacts import ArtifactRef
from storage.demo_data import write_demo_data
from storage.errors import InputError
from storage.json_values import Config
from tasks.branches.experiment import Study
from tasks.branches.released import find_stages, released_branch
from tasks.parameters import RetrainParameters
from tasks.releasing import publish
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context, Step, run_step


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return tiny_jobs.workspace(tmp_path_factory.mktemp("formal"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    written = write_demo_data(tmp_path_factory.mktemp("data"), records=300, seed=3)
    ingest = {"sampling": "per-record"}
    return {
        "source": str(written.csv),
        "codelist": str(written.codelist),
        "population": "demo",
        "ingest": ingest,
    }


def _method(wanted: dict[str, Any]) -> dict[str, Any]:
    """Prior descent at a target, with other settings; an ellipsis leaves one out."""
    whole = {"name": "prior-descent", "target_epsilon": 3.0} | wanted
    return {name: value for name, value in whole.items() if value is not ...}


def parameters(data: Mapping[str, Any], encoder: Path, **wanted: Any) -> RetrainParameters:
    model = {
        "encoder": str(encoder),
        "trainable": "head",
        "pooling": "mean",
        "max_length": 32,
        "prior": "titles",
    }
    return RetrainParameters.model_validate(
        {"data": data, "model": model, "method": _method(wanted)}
    )


def method(context: Context, chosen: RetrainParameters) -> Config:
    """What a dry run looks a release up by, once the records were read."""
    return find_stages(context, chosen, lambda step: step.find(context.store))[0].method


def test_from_a_file_to_one_release(
    context: Context, data: Mapping[str, Any], tiny_bert: Path
) -> None:
    """The statement has the epsilon that was given, the delta, the mechanism's name and the titles
    as a public input; the same again is the same release; another epsilon is another method; a plan
    without its prior is refused.
    """
    chosen = parameters(data, tiny_bert)

    def released() -> tuple[publish.Released, PlannedRelease]:
        planned = tiny_jobs.planned(context, chosen, tiny_jobs.fitted(context, chosen))
        case = publish.save_plan(context, planned, chosen.release)
        assert PlannedRelease.load(case.file) == case.planned
        return publish.release(context, case, chosen.release), case.planned

    done, planned = released()
    statement = json.loads((Path(done.bundle) / "privacy_statement.json").read_text())
    assert (statement["mechanism"], statement["guarantee_kind"]) == ("prior-descent", "formal")
    assert float(statement["delta"]) == 1e-5
    assert 3 * 0.995 <= float(statement["epsilon"]) <= 3
    assert any("titles of the codes" in line for line in statement["assumptions"])
    assert not any(
        "comparison" in line or "decide about" in line for line in statement["unprotected_inputs"]
    )
    assert released()[0] == done
    other = parameters(data, tiny_bert, target_epsilon=4.0)
    assert method(context, other) != method(context, chosen) == planned.method
    untitled = planned.candidate.model.model_copy(update={"prior": "none"})
    told = planned.model_copy(
        update={"candidate": planned.candidate.model_copy(update={"model": untitled})}
    )
    with pytest.raises(MechanismError, check=of_kind("plan-differs")):
        told.check(context)


def test_a_dry_run_names_the_stages_that_a_run_takes(
    data: Mapping[str, Any], tiny_bert: Path, tmp_path: Path
) -> None:
    """Before there are records, after the run, and in the same order; it makes nothing."""
    here = tiny_jobs.workspace(tmp_path)
    chosen, seen, ran = parameters(data, tiny_bert), list[tuple[str, bool]](), list[str]()

    def look(step: Step) -> ArtifactRef | None:
        found = step.find(here.store)
        seen.append((step.label, found is not None))
        return found

    def run_and_note(step: Step) -> ArtifactRef:
        ran.append(step.label)
        return run_step(here, step)

    find_stages(here, chosen, look)
    before, seen[:] = list(seen), []
    branch, terms = released_branch(chosen)
    Study.of(here, chosen, terms, [branch], run_and_note).experiment(branch).run_all()
    find_stages(here, chosen, look)
    assert [label for label, _ in before] == [label for label, _ in seen] == ran
    assert [found for _, found in before] == [False] * len(ran)
    assert [found for _, found in seen] == [True] * len(ran)


@pytest.mark.parametrize(
    ("wanted", "refusal"),
    [
        ({"target_epsilon": None}, of_kind("no-target-epsilon")),
        ({"name": "non-private", "target_epsilon": ...}, of_kind("unprotected-method")),
    ],
)
def test_what_cannot_be_is_refused_first(
    data: Mapping[str, Any], tiny_bert: Path, wanted: dict[str, Any], refusal: of_kind
) -> None:
    """No epsilon, and a method that protects nothing."""
    with pytest.raises(InputError, check=refusal):
        released_branch(parameters(data, tiny_bert, **wanted))


def test_settings_of_the_mechanism_reach_the_event(
    context: Context, data: Mapping[str, Any], tiny_bert: Path
) -> None:
    plain = parameters(data, tiny_bert)
    narrow = parameters(data, tiny_bert, weight_noise=0.25)
    branch, _ = released_branch(narrow)
    assert branch.mechanism.model_dump()["weight_noise"] == 0.25
    assert released_branch(plain)[0].mechanism.model_dump()["weight_noise"] is None
    assert method(context, narrow) != method(context, plain)


@pytest.mark.parametrize(
    ("settings", "place", "kind"),
    [
        ({"weight_nois": 1}, ("method", "weight_nois"), "extra_forbidden"),
        ({"weight_noise": -1}, ("method", "weight_noise"), "greater_than"),
        ({"target_epsilon": 9000}, ("method", "target_epsilon"), "less_than_equal"),
        ({"kind": "non-private"}, ("method",), "value_error"),
        ({"name": "nothing"}, ("method",), "value_error"),
        ({"name": "swag-ppm", "delta": 1e-5}, ("method", "delta"), "extra_forbidden"),
    ],
)
def test_settings_that_are_none(
    data: Mapping[str, Any],
    tiny_bert: Path,
    settings: dict[str, Any],
    place: tuple[str, ...],
    kind: str,
) -> None:
    """Refused at the setting's place, when the parameters are read."""
    with pytest.raises(ValidationError) as refused:
        parameters(data, tiny_bert, **settings)
    (fault,) = refused.value.errors()
    assert (fault["loc"], fault["type"]) == (place, kind)


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ({"formal": {"target_epsilon": 3}}, "method.target_epsilon"),
        ({"fit": {"seed": 3}}, "seed"),
        ({"fit": {"adamw": {"epochs": 3}}}, "method.fine_tune"),
        ({"pseudo_posterior": {"c": 0.5}}, "method.pseudo_posterior"),
    ],
)
def test_parameters_of_earlier_versions_are_refused_by_their_new_names(
    data: Mapping[str, Any], old: dict[str, Any], now: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        RetrainParameters.model_validate({"data": data} | old)
    (fault,) = refused.value.errors()
    assert str(fault["ctx"]["error"]).endswith(f" is now {now}")
