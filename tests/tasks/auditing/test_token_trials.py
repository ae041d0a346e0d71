"""Reruns of mechanisms that train more than a head: each by its own fit on the tokens of those who
took part.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
import torch
from kills import killed_at

from mechanisms.mechanism import Plan, Records, Run
from mechanisms.model.inputs import TokenInputs
from mechanisms.model.seeding import derive_seed
from storage.artifacts import ArtifactRef
from tasks.auditing import pool as audit_pool
from tasks.auditing import trials
from tasks.auditing.run import reruns
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import ComparisonSettings
from tasks.branches.experiment import Study
from tasks.comparing import run as comparison
from tasks.fitting.model_inputs import build, label_count, load_inputs
from tasks.method import standard_methods
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context, run_step

TRIALS = 2
MODELS = {
    "full": {"trainable": "full"},
    "lora": {"trainable": "lora"},
    "a head of two layers": {"pooling": "first"},
}


def parameters(folder: Path, encoder: Path, model: dict[str, Any]) -> RetrainParameters:
    return tiny_jobs.retrain(
        tiny_jobs.demo(folder, records=60), encoder, model=model, round_name="weighted"
    )


def studied(context: Context, chosen: RetrainParameters, name: str) -> tuple[Study, ArtifactRef]:
    runner = partial(run_step, context)
    asked = ComparisonSettings(target_epsilon=5.0)
    study = comparison.run(context, chosen, asked, (standard_methods()[name],), run_step=runner)[
        0
    ].study
    step = audit_pool.pool(canaries=3, seed=chosen.seed, prepared=study.prepared)
    return study, runner(step)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_rerun_is_the_mechanisms_own_fit(
    tiny_roberta: Path, tmp_path: Path, model: dict[str, Any]
) -> None:
    """Of the posterior's second trial: on those whose coin fell so, at its own seed, the same
    answers to the bit.
    """
    chosen, context = (
        parameters(tmp_path / "data", tiny_roberta, model),
        tiny_jobs.workspace(tmp_path / "home"),
    )
    study, pool_ref = studied(context, chosen, "swag-ppm")
    ref, name = reruns(
        study,
        AuditParameters(trial_draws=3).model_copy(update={"trials": TRIALS}),
        standard_methods()["swag-ppm"],
        pool_ref,
        study.experiment(standard_methods()["swag-ppm"]).mechanism,
    )
    done = trials.Trials.load(context.store.open(ref), name)
    pool = audit_pool.Pool.load(context.store.open(pool_ref))
    seed = chosen.seed
    assert torch.equal(done.included[1], pool.coins(seed=seed, trial=1))
    assert 0 < int(done.included.sum()) < done.included.numel()
    assert bool(done.epsilon.isfinite().all())

    dataset = context.store.open(study.dataset)
    classifier = build(context, chosen.model, dataset, seed=seed)
    run = Run(
        label_count(dataset),
        derive_seed(seed, "audit", "trial", 1) >> 10,
        lambda: classifier,
        resampled=True,
    )
    mechanism, _ = study.experiment(standard_methods()["swag-ppm"]).mechanism.audited_as(
        3, batched=False
    )
    own = done.included[1]
    plan: Plan = mechanism.plan(study.experiment(standard_methods()["swag-ppm"]).task)
    fitted = plan.fit(Records(pool.inputs.select(own), pool.labels[own]), run)
    said = fitted.model.log_probabilities(pool.inputs)
    torch.testing.assert_close(
        done.ell[1], said.gather(1, pool.labels[:, None])[:, 0].float(), rtol=1e-4, atol=1e-5
    )
    assert not torch.equal(done.ell[0], done.ell[1])
    assert list((context.workspace.private / "stages" / "audit-trials").rglob("trial_*")) == []


def test_the_pool_holds_the_records_tokens_and_the_canaries(
    tiny_roberta: Path, tmp_path: Path
) -> None:
    """Records as they were prepared; a mislabelled canary reads as its original."""
    chosen, context = (
        parameters(tmp_path, tiny_roberta, MODELS["full"]),
        tiny_jobs.workspace(tmp_path / "home"),
    )
    study, ref = studied(context, chosen, "non-private")
    pool = audit_pool.Pool.load(context.store.open(ref))
    assert isinstance(pool.inputs, TokenInputs)
    assert len(pool.inputs) == len(pool.labels) == len(pool.family)

    def rows(inputs: TokenInputs) -> list[tuple[int, ...]]:
        return [
            tuple(inputs.ids[a:b].tolist())
            for a, b in zip(inputs.offsets[:-1], inputs.offsets[1:], strict=True)
        ]

    prepared = context.store.open(study.prepared)
    halves = [load_inputs(prepared, split)[0] for split in ("train", "test")]
    known = [row for half in halves if isinstance(half, TokenInputs) for row in rows(half)]
    every = rows(pool.inputs)
    assert every[: len(known)] == known
    canaries = (pool.family == audit_pool.FAMILIES.index("mislabelled")).nonzero()[:, 0].tolist()
    assert len(canaries) == 3
    assert all(every[i] in known for i in canaries)


def test_dp_sgd_of_tokens_is_rerun(tiny_roberta: Path, tmp_path: Path) -> None:
    """Each rerun claims what was planned: its noise is the plan's, anyone who took part."""
    chosen, context = (
        parameters(tmp_path, tiny_roberta, MODELS["lora"]),
        tiny_jobs.workspace(tmp_path / "home"),
    )
    study, pool_ref = studied(context, chosen, "dp-sgd-tuned")
    ref, name = reruns(
        study,
        AuditParameters().model_copy(update={"trials": TRIALS}),
        standard_methods()["dp-sgd-tuned"],
        pool_ref,
        study.experiment(standard_methods()["dp-sgd-tuned"]).mechanism,
    )
    done = trials.Trials.load(context.store.open(ref), name)
    assert done.epsilon.tolist() == pytest.approx([5.0] * TRIALS, rel=0.01)


def test_a_rerun_that_was_killed_goes_on_and_leaves_nothing_private(
    tiny_roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials that ended are not made again, and what is kept of one under way is in the stage's
    scratch folder.
    """
    chosen = parameters(tmp_path / "data", tiny_roberta, MODELS["full"])
    whole, broken = (tiny_jobs.workspace(tmp_path / name) for name in ("whole", "broken"))
    asked = AuditParameters(trial_draws=3).model_copy(update={"trials": TRIALS})
    ends: list[tuple[trials.Trials, int]] = []
    for context in (whole, broken):
        study, pool_ref = studied(context, chosen, "swag-ppm")
        branch = standard_methods()["swag-ppm"]
        mechanism = study.experiment(branch).mechanism
        make = partial(reruns, study, asked, branch, pool_ref, mechanism)
        if context is broken:
            with killed_at(monkeypatch, Plan, "fit", after=TRIALS - 1):
                make()
        folders: list[Path | None] = []
        real = Plan.fit

        def count(
            plan: Plan, records: Records, run: Run, folders: Any = folders, real: Any = real
        ) -> Any:
            folders.append(run.folder)
            return real(plan, records, run)

        with monkeypatch.context() as patched:
            patched.setattr(Plan, "fit", count)
            ref, name = make()
        assert all(folder and context.workspace.private in folder.parents for folder in folders)
        ends.append((trials.Trials.load(context.store.open(ref), name), len(folders)))
    (first, of_whole), (second, of_broken) = ends
    assert (of_whole, of_broken) == (TRIALS, 1)
    assert torch.equal(first.ell, second.ell)
