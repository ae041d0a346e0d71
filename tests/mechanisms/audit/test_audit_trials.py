"""Trials side by side do what the chain does one at a time."""

from pathlib import Path

import pytest
import torch
from refusals import of_kind
from small_heads import MakeLinear
from torch import nn

from mechanisms.audit import trials
from mechanisms.audit.trials import Records
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Records as OwnRecords
from mechanisms.mechanism import Run, Task
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.linear_head import from_flat
from mechanisms.posterior import risks
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.swag_ppm import ROUNDS, PosteriorDraw, RoundName, SwagPpm

ADAMW = OptimiserPhase(optimiser="adamw", learning_rate=0.02, epochs=3, batch_size=4, pull=0.01)
SGD = OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=4, batch_size=4, momentum=0.5)
CONFIG = PseudoPosteriorConfig(risk_draws=20, sensitivity_draws=20)


def test_a_trial_is_the_chain(linear: MakeLinear, tmp_path: Path) -> None:
    """Three trials of uneven size give the log-likelihoods and sensitivities of three retrains on
    their records, to 1e-3: only the order of summation differs. The test also sees a difference:
    another trial's draw is far away.
    """
    last: RoundName = "reweighted"
    head, inputs, labels = linear(40, width=5, labels=4)
    start = head.flat.clone()
    included = torch.rand(3, 40, generator=torch.Generator().manual_seed(5)) < torch.tensor(
        [[0.4], [0.9], [0.6]]
    )
    pool = Records(inputs.features, labels, included, seeds=(11, 12, 13))
    settings = {
        "fine_tune": ADAMW,
        "collect": SGD,
        "moments": SwagConfig(rank=3),
        "pseudo_posterior": CONFIG,
    }
    task = Task(records=40, classes=4, target_epsilon=6.0)
    plan = SwagPpm(round=last, **settings).plan(task)
    assert isinstance(plan.mechanism, SwagPpm)
    reruns = plan.mechanism.fit_many(plan, pool, from_flat(start, classes=4))
    assert tuple(reruns) == ROUNDS[last]
    for name, t in ((name, t) for name in ROUNDS[last] for t in range(3)):
        own = included[t]
        head.flat.copy_(start)
        folder = tmp_path / name / str(t)
        run = Run(
            classes=4, seed=pool.seeds[t], classifier=lambda: head, folder=folder, resampled=True
        )
        alone = SwagPpm.model_validate({"round": name, **settings}).plan(task)
        fitted = alone.fit(OwnRecords(FeatureInputs(inputs.features[own]), labels[own]), run)
        assert isinstance(fitted.model, PosteriorDraw)
        risks.load_draw(head, fitted.model.posterior, seed=pool.seeds[t], purpose="audit", draw=0)
        ell = fitted.model.log_probabilities(inputs).gather(1, labels[:, None])[:, 0].float()
        assert torch.allclose(reruns[name].ell[t], ell, atol=1e-3), (name, t)
        assert (reruns[name].ell[(t + 1) % 3] - ell).abs().max() > 0.05
        event, stated = reruns[name].events[t], fitted.event
        # the drawn parameters count too, and may raise a maximum over draws
        at_draw = float((-ell[own]).max()) if name == "base" else 0.0
        assert (
            event.model_dump()["sensitivity"]
            >= max(stated.model_dump()["sensitivity"], at_draw) - 1e-3
        )
        assert (
            event.model_dump()["sensitivity"]
            <= float((-ell).max()) + stated.model_dump()["sensitivity"]
        )


def test_log_likelihood_is_the_classifiers(linear: MakeLinear) -> None:
    """Both layouts give the same log-likelihoods and say the same of the most probable label."""
    head, inputs, labels = linear(30, width=6, labels=5)
    ell, right = trials.log_likelihood(
        from_flat(head.flat, classes=5)[None],
        torch.cat([inputs.features, torch.ones(30, 1)], 1),
        labels,
    )
    batch = inputs.batch(torch.arange(30), head.device)
    assert torch.allclose(ell[0], head.log_likelihood(batch, labels), atol=1e-5)
    assert torch.equal(right[0], head.logits(batch).argmax(-1) == labels)
    assert isinstance(head.part, nn.Linear)


def test_what_trials_do_not_know_is_refused(linear: MakeLinear) -> None:
    """A gradient cap, or a rate that falls over trials of unlike length, would silently be another
    mechanism; an empty trial has nothing to fit.
    """
    head, inputs, labels = linear(8)
    included = torch.ones(2, 8, dtype=torch.bool)
    included[1, 0] = False
    records = Records(inputs.features, labels, included, seeds=(1, 2))
    start = from_flat(head.flat, classes=4).repeat(2, 1, 1)
    for change in ({"schedule": "linear"}, {"max_grad_norm": 1.0}):
        phase = ADAMW.model_copy(update=change)
        with pytest.raises(MechanismError, check=of_kind("unsupported-phase")):
            next(trials.fit(start, records, phase=phase, purpose="x"))
    with pytest.raises(MechanismError, check=of_kind("empty-trials")):
        Records(inputs.features, labels, torch.zeros(1, 8, dtype=torch.bool), seeds=(1,))
