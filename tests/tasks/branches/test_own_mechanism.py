"""A mechanism defined only in this file: it appears in compare, audit, plan and results, and is
refused a release. And what it costs its siblings: nothing. Their stages keep their keys, whatever
is registered beside them.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import tiny_jobs
import torch
from cases import release_plan
from ingested import ingested
from refusals import of_kind
from torch import Tensor

from mechanisms import mechanism as registry
from mechanisms.errors import MechanismError
from mechanisms.mechanism import (
    CalibratedMechanism,
    Fitted,
    Plan,
    Records,
    Run,
    Task,
    kinds,
    registered,
)
from mechanisms.model import checkpoint
from mechanisms.model.inputs import Inputs
from mechanisms.privacy import claims, gaussian_cost
from mechanisms.privacy.events import Claim, Event, GaussianReleaseEvent
from mechanisms.privacy.noise import SecretStream, new_key
from storage.artifacts import Store
from tasks.auditing import run as auditing
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import ComparisonSettings, choose
from tasks.branches.experiment import Study
from tasks.branches.plan import plan_release
from tasks.comparing import results, run
from tasks.comparing.summary import summarise
from tasks.fitting import scores
from tasks.method import standard_methods
from tasks.parameters import RetrainParameters
from tasks.releasing import publish
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context, Step, run_step


class VoteEvent(Event, frozen=True):
    """A table of class votes with Gaussian noise: an event of this mechanism's own."""

    mechanism: Literal["noisy-votes"] = "noisy-votes"
    noise_multiplier: float


@claims.claims(VoteEvent, formal=True)
def _claim(event: VoteEvent, *, delta: float, unit: dict[str, Any]) -> Claim:
    """One record is one vote: the cost of one Gaussian release, of m votes for a
    unit of m records.
    """

    release = GaussianReleaseEvent(
        what="votes", noise_multiplier=event.noise_multiplier, l2_sensitivity=1.0
    )
    epsilon = gaussian_cost.epsilon_of_event(
        release, delta=delta, records_per_unit=unit["max_records_per_unit"]
    )
    return Claim(
        guarantee_kind="formal",
        epsilon=epsilon,
        delta=delta,
        epsilon_add_remove=epsilon,
        neighbouring_relation="add-remove",
        accountant=gaussian_cost.ACCOUNTANT,
        assumptions=("one record is one vote",),
        **unit,
    )


@dataclass(frozen=True)
class Votes:
    """Shares of the classes, float32 [classes]: what it says of any record. It knows no
    `release_to`.
    """

    shares: Tensor

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        return self.shares.double().log_softmax(0).expand(len(inputs), -1)

    def save(self, folder: Path) -> None:
        checkpoint.save(folder / "votes.safetensors", {"shares": self.shares}, {})


class NoisyVotes(CalibratedMechanism, frozen=True):
    """Says the share of each class, from a noisy count, whatever the record."""

    kind: Literal["noisy-votes"] = "noisy-votes"

    def calibrate(self, task: Task) -> float:
        assert self.target_epsilon is not None
        return gaussian_cost.calibrate(
            lambda noise: GaussianReleaseEvent(
                what="votes", noise_multiplier=noise, l2_sensitivity=1.0
            ),
            target_epsilon=self.target_epsilon,
            delta=self.delta or task.delta,
            records_per_unit=task.records_per_unit,
        )

    def event(self, noise: float, task: Task) -> VoteEvent:
        return VoteEvent(noise_multiplier=noise)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        assert isinstance(plan.event, VoteEvent)
        counts = torch.bincount(records.labels, minlength=run.classes).double()
        std = Fraction(plan.event.noise_multiplier)
        SecretStream(new_key()).add_rounded_normal_(counts, std=std, purpose="votes", step=0)
        return Fitted(Votes(counts.clamp(min=1).log()), plan.event, {"losses": [1.0]})

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> Votes:
        return Votes(checkpoint.load(folder / "votes.safetensors")[0]["shares"])


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> ComparisonSettings:
    """Registered for one test, and a line of a profile that names it."""
    monkeypatch.setattr(registry, "_KINDS", dict(kinds()))
    registered(NoisyVotes)
    branch = {"name": "votes", "title": "Noisy votes", "kind": "noisy-votes"}
    return ComparisonSettings(target_epsilon=4.0, epochs=2, branches=(branch,))


def test_the_walk(tiny_roberta: Path, tmp_path: Path, settings: ComparisonSettings) -> None:
    """Compared beside a sibling, in the results, audited with reruns; its release is refused."""
    context = tiny_jobs.workspace(tmp_path / "home")
    chosen = tiny_jobs.retrain(tiny_jobs.demo(tmp_path, population="demo"), tiny_roberta)
    branches = choose("non-private,votes", chosen, settings.all_branches)
    runner = partial(run_step, context)
    groups = run.run(context, chosen, settings, branches, run_step=runner)
    (votes,), study = groups[1].outcomes, groups[1].study
    assert (votes.branch.name, votes.claim.guarantee_kind, votes.event.mechanism) == (
        "votes",
        "formal",
        "noisy-votes",
    )
    assert votes.claim.epsilon == pytest.approx(4, rel=0.006)
    assert (
        "Noisy votes"
        in (results.write(groups, summarise(groups, context)) / "results.md").read_text()
    )

    audit = AuditParameters(trials=16, canaries=2)
    (audited,) = auditing.run(
        context, chosen, settings, audit, branches[1:], run_step=runner
    ).branches
    # so few reruns and canaries could not have shown an epsilon of 4, and the audit says so
    assert (audited.mechanism, audited.verdict) == ("noisy-votes", "inconclusive")
    assert 0 <= audited.figures.epsilon_lower_bound <= audited.figures.reach < 4
    assert audited.figures.trials == 16

    assert run.write_plans(groups) == {}
    planned = plan_release(study, votes)
    file = publish.save_plan(context, planned, chosen.release).file
    planned = PlannedRelease.load(file)
    assert isinstance(planned.plan.event, VoteEvent), "decoded by its tag"
    with pytest.raises(MechanismError, check=of_kind("no-bundle-format", saying="noisy-votes")):
        release_plan(context, planned, chosen.release)
    assert not list(context.workspace.bundles.glob("*"))


def keys(study: Study, names: tuple[str, ...]) -> dict[str, str]:
    steps: dict[str, Step] = {}
    for name in names:
        experiment = study.experiment(study.terms.all_branches[name], 0)
        steps[f"plan {name}"] = experiment.plan()
        steps[f"fit {name}"] = experiment.fit(name, experiment.mechanism, planned=study.dataset)
    return {name: step.key(study.context.store) for name, step in steps.items()}


def test_siblings_keep_their_keys(
    tmp_path: Path, settings: ComparisonSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mechanism more, another metric, another page: plans and fits of the others stay found. A
    change of a mechanism's own file, or of what it imports, changes its own key and no sibling's; a
    metric changes the scores.
    """
    from storage import code_version
    from storage.artifacts import ArtifactRef

    ref = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, kind="test")
    context = Context(home=str(tmp_path), device="cpu")
    chosen = RetrainParameters.model_validate({"data": {"source": "nowhere.csv", "ingest": {}}})
    study = Study(context, chosen, settings, ref, ref, ingested(), lambda step: ref)
    names = ("non-private", "dp-sgd", "prior-descent", "votes")
    score = scores.score("x", seed=0, dataset=ref, prepared=ref, predictions=ref)

    own: list[bool] = []

    def changed(*modules: str) -> tuple[set[str], bool]:
        """Siblings whose fit would run again if these modules were edited, and whether scores
        would.
        """
        before, scored = keys(study, names), score.key(Store(tmp_path))
        files = {code_version._file(module) for module in modules}
        read = Path.read_bytes

        def edited(path: Path) -> bytes:
            return read(path) + (b"\nEDITED = True\n" if path in files else b"")

        code_version.code_version.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", edited)
            after, rescored = keys(study, names), score.key(Store(tmp_path))
        code_version.code_version.cache_clear()
        own.append(before["fit votes"] != after["fit votes"])
        rerun = {name for name in names if before[f"fit {name}"] != after[f"fit {name}"]}
        return rerun - {"votes"}, scored != rescored

    assert changed("mechanisms.prior_descent") == ({"prior-descent"}, False)
    assert changed("mechanisms.model.linear_head") == ({"non-private", "prior-descent"}, False)
    assert changed("mechanisms.swag_ppm", "mechanisms.posterior.target") == (set(), False)
    assert changed("mechanisms.audit.gradient_canaries", "mechanisms.audit.curves") == (
        set(),
        False,
    )
    assert changed(__name__) == (set(), False)
    assert own[-1], "a mechanism's own file is part of its key wherever it lies"
    assert changed("mechanisms.model.metrics", "tasks.fitting.scores") == (set(), True)
    assert changed("tasks.comparing.results", "tasks.comparing.summary", "tasks.pages.render") == (
        set(),
        False,
    )
    assert changed("tasks.running.progress", "tasks.running.stage", "storage.ledger.ledger") == (
        set(),
        False,
    )
    assert changed("mechanisms.dp_sgd")[0] == {"dp-sgd"}
    assert changed("mechanisms.mechanism")[0] == set(names) - {"votes"}


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"name": "own", "kind": "nothing"}, of_kind("invalid-setting", saying="`nothing`")),
        (
            {"name": "own", "kind": "dp-sgd", "noise": 1},
            of_kind("invalid-setting", saying="own.noise"),
        ),
        (
            {"name": "release", "kind": "non-private"},
            of_kind("invalid-setting", saying="`release`"),
        ),
        ({"name": "own"}, of_kind("invalid-setting", saying="`own`")),
        ("dp-sgd", of_kind("invalid-setting", saying="dictionary")),
    ],
)
def test_a_branch_that_cannot_be_is_named(body: Any, refusal: of_kind) -> None:
    from storage.errors import InputError
    from tasks.method import parse_method

    with pytest.raises(InputError, check=refusal):
        parse_method(body, "branches")


def test_two_mechanisms_of_one_kind_are_refused(settings: ComparisonSettings) -> None:
    """A kind is a tag: two classes under it could be taken for each other."""

    class Other(NoisyVotes, frozen=True):
        pass

    with pytest.raises(TypeError, match=r"`noisy-votes` is .*NoisyVotes already"):
        registered(Other)
    assert settings.all_branches.keys() == {*standard_methods(), "votes"}
