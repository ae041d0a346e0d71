"""Would win: "not contradicted" for a claim that the audit contradicts, or could not have."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
import torch
from refusals import of_kind

from mechanisms.model.inputs import FeatureInputs
from storage.errors import InputError
from tasks.auditing import bounds as audit_bounds
from tasks.auditing import measure
from tasks.auditing import run as auditing
from tasks.auditing.pool import Pool
from tasks.auditing.result import BranchAudit
from tasks.auditing.settings import AuditParameters
from tasks.auditing.trials import Trials
from tasks.branches.branch import ComparisonSettings
from tasks.method import standard_methods
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context, run_step

DECLARES = """
an audit that could not have refuted a claim does not clear it
| reruns, draws and seeds chosen so that nothing could be refuted; a bound that the settings exclude
| attacks that no one has invented yet
"""

OWN_DRAWS = 20
"""Of the candidate, for risks and for Delta."""


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> RetrainParameters:
    """A head whose SWAG-PPM claims some 1.9 for one record more or less."""
    data = tiny_jobs.demo(tmp_path_factory.mktemp("data"), records=1200)
    draws: dict[str, Any] = {"risk_draws": OWN_DRAWS, "sensitivity_draws": OWN_DRAWS}
    return tiny_jobs.retrain(
        data, tiny_roberta, round_name="weighted", epochs=(10, 6), rate=0.02, **draws
    )


@pytest.fixture(scope="module")
def reran(chosen: RetrainParameters, tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A workspace with the stages of an audit of four candidates, whose reruns the tests share."""
    context = tiny_jobs.workspace(tmp_path_factory.mktemp("reran"))
    audits(context, chosen, seeds=4)
    return context


def another(reran: Context, home: Path) -> Context:
    """A workspace with the same reruns, no measurement of them, and a ledger of its own that knows
    of no audit.
    """
    shutil.copytree(
        reran.workspace.private,
        home / "private",
        ignore=shutil.ignore_patterns("ledger.*", "audit"),
    )
    return tiny_jobs.workspace(home)


def audits(
    context: Context, chosen: RetrainParameters, *, seeds: int = 1, **changes: Any
) -> tuple[BranchAudit, ...]:
    """Audits of SWAG-PPM at consecutive seeds; its reruns and their coins follow from the first
    seed.
    """
    settings = {"trials": 32, "trial_draws": 5, "canaries": 4, "gradient_canaries": 0}
    done = auditing.run(
        context,
        chosen,
        ComparisonSettings(target_epsilon=5.0),
        AuditParameters.model_validate(settings | changes),
        (standard_methods()["swag-ppm"],),
        run_step=partial(run_step, context),
        seeds=seeds,
    )
    return done.branches


def pretend(monkeypatch: pytest.MonkeyPatch, *, wrong: float, claims: float) -> None:
    """Reruns whose draws tell at once who took part, but of a share; and what each of them claims
    for itself.
    """
    real = Trials.load

    def told(folder: Path, name: str) -> Trials:
        found = real(folder, name)
        pick = torch.Generator().manual_seed(1)
        shown = found.included ^ (torch.rand(found.included.shape, generator=pick) < wrong)
        ell = torch.where(shown, -0.01, -3.0) + 0.001 * torch.rand(found.ell.shape, generator=pick)
        epsilon = claims + 0.01 * torch.rand(len(ell), generator=pick, dtype=torch.float64)
        return Trials(found.included, ell.clamp(max=-1e-4), found.right, epsilon)

    monkeypatch.setattr(measure.Trials, "load", told)


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [(1.0, "contradicted"), (8.0, "inconclusive")],
    ids=["as the candidate", "more"],
)
def test_reruns_that_claim_as_much_as_could_be_measured(
    chosen: RetrainParameters,
    reran: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    claims: float,
    verdict: str,
) -> None:
    """Every guess is right. Nothing in reruns that claim 8 counts against a claim of 2: so nothing
    in them could have, and the audit clears nothing.
    """
    pretend(monkeypatch, wrong=0.0, claims=claims)
    (audited,) = audits(another(reran, tmp_path), chosen)
    natural = audited.figures.bounds[0]
    assert natural.correct == natural.guesses
    assert natural.reach > (audited.epsilon_add_remove or 0) > 1.5
    assert audited.verdict == verdict


def test_reruns_with_more_draws_than_the_candidate(
    chosen: RetrainParameters, tmp_path: Path
) -> None:
    """Delta is a maximum over draws: with enough of them every rerun claims more than could be
    measured.
    """
    with pytest.raises(InputError, check=of_kind("too-many-draws"), match=r"60.*20.*swag-ppm"):
        audits(tiny_jobs.workspace(tmp_path), chosen, trial_draws=60)


def pool_of(natural: int, crafted: int) -> Pool:
    family = torch.cat([torch.zeros(natural), torch.ones(crafted)]).long()
    rows = torch.zeros(len(family), dtype=torch.int64)
    return Pool(FeatureInputs(torch.zeros(len(rows), 1)), rows, family, natural // 2, natural // 2)


def test_a_seed_whose_coins_leave_no_natural_rerun() -> None:
    """Coins follow from the seed, which the person who fits chooses: among 100 some exist by which
    a canary and what a rerun claims, is in each odd rerun that is measured. Natural reruns do
    without it.
    """
    pool, trials = pool_of(200, 1), 16
    canary = pool.family == 1
    measured = [t for t in range(trials // 2 + trials // 8, trials) if t % 2]
    # what its coins would be if it had one in every odd rerun
    everywhere = pool.family.clone()
    everywhere[canary] = 0
    always = Pool(pool.inputs, pool.labels, everywhere, pool.train, pool.test)
    ground = [
        s for s in range(100) if all(bool(always.coins(seed=s, trial=t)[canary]) for t in measured)
    ]
    assert len(ground) > 3
    for seed in ground:
        included = torch.stack([pool.coins(seed=seed, trial=t) for t in range(trials)])
        pick = torch.Generator().manual_seed(seed)
        ell = torch.where(included, -0.01, -3.0) + 0.001 * torch.rand(
            included.shape, generator=pick
        )
        claims = torch.where(included[:, pool.family > 0].any(1), 50.0, 1.0).double()
        made = Trials(included, ell.clamp(max=-1e-4), included, claims)
        natural = audit_bounds.trial_bounds(pool, made, delta=0.0, alpha=0.006)[0]
        assert natural.claimed == 1.0, seed
        assert natural.refutes > 2.5, seed
