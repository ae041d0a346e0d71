"""Would win: an audit that says "not contradicted" of a claim that it refutes, or that it could not have refuted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
import torch
from releases import release_key

from mechanisms.model.inputs import FeatureInputs
from storage.errors import InputError
from storage.ledger import Evaluation, Ledger
from tasks.auditing import bounds as audit_bounds
from tasks.auditing import membership
from tasks.auditing import run as auditing
from tasks.auditing.audit_result import BranchAudit
from tasks.auditing.pool import Pool
from tasks.auditing.settings import AuditParameters, check
from tasks.auditing.trials import Trials
from tasks.branches.branch import Terms, standard_branches
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context, run_step

DECLARES = (
    (
        "an audit that could not have refuted a claim does not clear it",
        "reruns, draws, canaries, guesses and seeds chosen until one passes; a bound that the settings exclude",
        "attacks that nobody has invented yet",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

OWN_DRAWS = 20
"""Of the candidate, for risks and for Delta."""


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> RetrainParameters:
    """A head whose SWAG-PPM claims some 1.9 for one record more or less."""
    data = tiny_jobs.demo(tmp_path_factory.mktemp("data"), records=1200)
    draws: dict[str, Any] = {"risk_draws": OWN_DRAWS, "sensitivity_draws": OWN_DRAWS}
    return tiny_jobs.retrain(data, tiny_roberta, reweight=False, epochs=(10, 6), rate=0.02, **draws)


@pytest.fixture(scope="module")
def reran(chosen: RetrainParameters, tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A workspace with the stages of an audit of four candidates, whose reruns the tests share."""
    context = tiny_jobs.workspace(tmp_path_factory.mktemp("reran"))
    audits(context, chosen, seeds=4)
    return context


def another(reran: Context, home: Path) -> Context:
    """A workspace with the same reruns, no measurement of them, and a ledger of its own that knows of no audit."""
    shutil.copytree(reran.workspace.private, home / "private", ignore=shutil.ignore_patterns("ledger.*", "audit"))
    return tiny_jobs.workspace(home)


def audits(context: Context, chosen: RetrainParameters, *, seeds: int = 1, **changes: Any) -> tuple[BranchAudit, ...]:
    """Audits of SWAG-PPM at consecutive seeds; its reruns and their coins follow from the first seed."""
    settings = {"trials": 32, "trial_draws": 5, "canaries": 4, "gradient_canaries": 0}
    done = auditing.run(
        context,
        chosen,
        Terms(target_epsilon=5.0),
        AuditParameters.model_validate(settings | changes),
        (standard_branches()["swag-ppm"],),
        do=partial(run_step, context),
        seeds=seeds,
        prefect_run_id=None,
    )
    return done.branches


def pretend(monkeypatch: pytest.MonkeyPatch, *, wrong: float, claims: float) -> None:
    """Reruns whose draws tell at once who took part, but of a share; and what each of them claims for itself."""
    real = Trials.load

    def told(folder: Path, name: str) -> Trials:
        found = real(folder, name)
        pick = torch.Generator().manual_seed(1)
        shown = found.included ^ (torch.rand(found.included.shape, generator=pick) < wrong)
        ell = torch.where(shown, -0.01, -3.0) + 0.001 * torch.rand(found.ell.shape, generator=pick)
        epsilon = claims + 0.01 * torch.rand(len(ell), generator=pick, dtype=torch.float64)
        return Trials(found.included, ell.clamp(max=-1e-4), found.right, epsilon)

    monkeypatch.setattr(membership.Trials, "load", told)


@pytest.mark.parametrize(
    ("claims", "verdict"), [(1.0, "contradicted"), (8.0, "inconclusive")], ids=["as the candidate", "more"]
)
def test_reruns_that_claim_as_much_as_could_be_measured(
    chosen: RetrainParameters,
    reran: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    claims: float,
    verdict: str,
) -> None:
    """Every guess is right. Nothing in reruns that claim 8 counts against a claim of 2: so nothing in them could have,
    and the audit clears nothing.
    """
    pretend(monkeypatch, wrong=0.0, claims=claims)
    (audited,) = audits(another(reran, tmp_path), chosen)
    natural = audited.figures["bounds"][0]
    assert natural["correct"] == natural["guesses"]
    assert natural["reach"] > (audited.epsilon_add_remove or 0) > 1.5
    assert audited.verdict == verdict


def test_reruns_with_more_draws_than_the_candidate(chosen: RetrainParameters, tmp_path: Path) -> None:
    """Delta is a maximum over draws: with enough of them every rerun claims more than could be measured."""
    with pytest.raises(InputError, match="--trial-draws: 60 are more than the 20 draws of swag-ppm"):
        audits(tiny_jobs.workspace(tmp_path), chosen, trial_draws=60)


def pool_of(natural: int, crafted: int) -> Pool:
    """Records alone, without what a model reads of them."""
    family = torch.cat([torch.zeros(natural), torch.ones(crafted)]).long()
    rows = torch.zeros(len(family), dtype=torch.int64)
    return Pool(FeatureInputs(torch.zeros(len(rows), 1)), rows, family, natural // 2, natural // 2)


def test_a_seed_whose_coins_leave_no_natural_rerun() -> None:
    """Coins follow from the seed, which whoever fits chooses: among 100 they find some by which a canary, and with it
    what a rerun claims, is in each odd rerun that is measured. Natural reruns do without it.
    """
    pool, trials = pool_of(200, 1), 16
    canary = pool.family == 1
    measured = [t for t in range(trials // 2 + trials // 8, trials) if t % 2]
    # what its coins would be if it had one in every odd rerun
    everywhere = pool.family.clone()
    everywhere[canary] = 0
    always = Pool(pool.inputs, pool.labels, everywhere, pool.train, pool.test)
    ground = [s for s in range(100) if all(bool(always.coins(seed=s, trial=t)[canary]) for t in measured)]
    assert len(ground) > 3
    for seed in ground:
        included = torch.stack([pool.coins(seed=seed, trial=t) for t in range(trials)])
        pick = torch.Generator().manual_seed(seed)
        ell = torch.where(included, -0.01, -3.0) + 0.001 * torch.rand(included.shape, generator=pick)
        claims = torch.where(included[:, pool.family > 0].any(1), 50.0, 1.0).double()
        made = Trials(included, ell.clamp(max=-1e-4), included, claims)
        natural = audit_bounds.trial_bounds(pool, made, delta=0.0, confidence=0.997)[0]
        assert natural.claimed == 1.0, seed
        assert natural.refutes > 2.5, seed


def test_few_gradient_canaries(chosen: RetrainParameters) -> None:
    """Twenty, all guessed right, would refute epsilon 5, and half of the noise shows in them once in twenty times: an
    audit that clears whatever it is given.
    """
    with pytest.raises(InputError, match="--gradient-canaries: 20 are too few for a result"):
        check(chosen, AuditParameters(gradient_canaries=20))


def _bounds(audited: BranchAudit) -> dict[str, tuple[float, float]]:
    """Each bound that reruns gave, and what it could have been."""
    return {one["name"]: (one["epsilon"], one["reach"]) for one in audited.figures["bounds"]}


def test_audits_that_test_nothing_before_the_one_that_does(
    chosen: RetrainParameters, reran: Context, tmp_path: Path
) -> None:
    """Without reruns another number of canaries changes nothing, nor do draws; at another
    confidence the same is held against another rate. Nine such audits take nothing from the reruns after them.
    """
    (alone,) = audits(another(reran, tmp_path / "alone"), chosen)
    context = another(reran, tmp_path / "spent")
    for number in range(4):
        audits(context, chosen, trials=0, canaries=5 + number)
    audits(context, chosen, trials=0, trial_draws=10)
    for number in range(4):
        audits(context, chosen, trials=0, confidence=0.9 + number / 100)
    (after,) = audits(context, chosen)
    assert after.figures["attempt"] <= 2
    assert _bounds(after) == _bounds(alone)
    assert any(reach > 0 for _, reach in _bounds(alone).values())


def test_reruns_asked_for_at_many_confidences(chosen: RetrainParameters, reran: Context, tmp_path: Path) -> None:
    """The same reruns are one attempt, under any settings."""
    context = another(reran, tmp_path)
    for number in range(4):
        audits(context, chosen, confidence=0.9 + number / 100)
    (after,) = audits(context, chosen)
    assert after.figures["attempt"] == 1


def test_many_candidates_beside_the_one(chosen: RetrainParameters, reran: Context, tmp_path: Path) -> None:
    """Candidates at other seeds take nothing from the reruns, which they share."""
    (alone,) = audits(another(reran, tmp_path / "alone"), chosen)
    first, *_ = audits(another(reran, tmp_path / "many"), chosen, seeds=4)
    assert _bounds(first) == _bounds(alone)


@pytest.fixture
def spent(chosen: RetrainParameters, reran: Context, tmp_path: Path) -> Context:
    """A workspace in which the claim has had 999 audits, by every kind of evidence."""
    context = another(reran, tmp_path / "spent")
    audits(context, chosen, trials=0)
    ledger = Ledger.open(context.workspace.ledger_url, key=release_key())
    (row,) = [row for row in ledger.rows() if row.kind == "audit"]
    many = {"attempts": {"reruns": 999}, "evidence": {"reruns": "0" * 64}}
    ledger.record(
        Evaluation(
            kind="audit", label="audit", population=row.population or "", requester="operator", event=None,
            data_fingerprint=row.data_fingerprint or "", details=row.details | many,
        )
    )  # fmt: skip
    return context


Pretend = Callable[..., None]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Reruns of one's choice."""
    return partial(pretend, monkeypatch)


WRONG = 0.08
"""Share of guesses by which a claim of 1.9 is refuted at the rate of a first audit, and not at a millionth of it."""


def test_a_contradiction_after_very_many_audits(
    chosen: RetrainParameters, reran: Context, spent: Context, tmp_path: Path, pretended: Pretend
) -> None:
    """What would be contradicted by a first audit is never cleared by a later one; nor is it contradicted, which would
    happen to some true claim. It says why.
    """
    pretended(wrong=WRONG, claims=1.0)
    (first,) = audits(another(reran, tmp_path / "first"), chosen)
    assert first.verdict == "contradicted"
    (late,) = audits(spent, chosen)
    assert late.epsilon_lower_bound < (late.epsilon_add_remove or 0) < first.epsilon_lower_bound
    assert max(one["reach"] for one in late.figures["bounds"]) > (late.epsilon_add_remove or 0)
    assert late.verdict == "inconclusive"


def test_trying_again_until_one_passes(chosen: RetrainParameters, spent: Context, pretended: Pretend) -> None:
    """After an audit that a first one would have been contradicted by, luck in the next clears nothing."""
    pretended(wrong=WRONG, claims=1.0)
    audits(spent, chosen)
    pretended(wrong=0.3, claims=1.0)
    (lucky,) = audits(spent, chosen, trials=33)
    assert lucky.epsilon_lower_bound < 1.0
    assert lucky.verdict == "inconclusive"
