"""Trials side by side do what the chain does one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_heads import MakeLinear
from torch import Tensor, nn

from mechanisms.audit import trials
from mechanisms.audit.trials import Records, Round
from mechanisms.errors import MechanismError
from mechanisms.model import training
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.training import OptimiserPhase
from mechanisms.posterior import risks, swag
from mechanisms.posterior.risks import PseudoPosteriorConfig
from mechanisms.posterior.swag import SwagConfig

ADAMW = OptimiserPhase(optimiser="adamw", learning_rate=0.02, epochs=3, batch_size=4, weight_decay=0.01)
SGD = OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=4, batch_size=4, momentum=0.5)
CONFIG = PseudoPosteriorConfig(risk_draws=20, sensitivity_draws=20)
ROUNDS = (
    Round("base", weighted=False, bounded=None),
    Round("weighted", weighted=True, bounded=None),
    Round("reweighted", weighted=True, bounded=None),
)
STRICT = (
    Round("base", weighted=False, bounded=None),
    Round("both", weighted=True, bounded=BoundedLikelihood.for_epsilon(6.0)),
)


def _one_at_a_time(
    head: Classifier, features: Tensor, labels: Tensor, rounds: tuple[Round, ...], *, seed: int, folder: Path
) -> dict[str, tuple[Tensor, float]]:
    """The chain by the code that the retrain runs; (draw, epsilon) of each round."""
    inputs, start = FeatureInputs(features=features), head.flat.clone()
    alpha: Tensor | None = None
    done = risks.RiskPass(torch.empty(0), torch.empty(0))
    found = {}
    for this in rounds:
        if this.name == "reweighted" and alpha is not None:
            alpha = risks.reweight(alpha, done.risk, k=CONFIG.k)
        weights = alpha if this.weighted else None
        head.flat.copy_(start)
        for phase, purpose in ((ADAMW, "fine-tune"), (SGD, "swag")):
            state = swag.init(head.num_parameters, rank=3, folder=folder / this.name)
            training.train(
                head,
                inputs,
                labels,
                phase=phase,
                seed=seed,
                purpose=purpose,
                weights=weights,
                bounded=this.bounded,
                state=state if purpose == "swag" else None,
            )
        swag.save(state, temperature=1.0 if this.bounded is None else this.bounded.temperature)
        post = swag.load(folder / this.name)
        purpose = "risk" if this.name == "base" else "sensitivity"
        done = risks.risk_pass(head, inputs, labels, post, draws=range(20), seed=seed, purpose=purpose, weights=weights)
        if this.name == "base":
            alpha = risks.risk_weights(done.risk, c=CONFIG.c, g=CONFIG.g)
        risks.load_draw(head, post, seed=seed, purpose="audit", draw=0)
        ones = torch.ones(len(labels)) if weights is None else weights
        delta = max(done.sensitivity, risks.at_draw(head, inputs, labels, weights=ones))
        found[this.name] = (head.flat.clone(), 2 * (delta if this.bounded is None else this.bounded.bound))
    head.flat.copy_(start)
    return found


@pytest.mark.parametrize("rounds", [ROUNDS, STRICT], ids=["weighted", "both"])
def test_a_trial_is_the_chain(linear: MakeLinear, tmp_path: Path, rounds: tuple[Round, ...]) -> None:
    """Three trials of uneven size give the draws and epsilons of three retrains on their records, to 1e-4: only the
    order of summation differs. The test also sees a difference: another trial's draw is far away.
    """
    head, inputs, labels = linear(40, width=5, labels=4)
    included = torch.rand(3, 40, generator=torch.Generator().manual_seed(5)) < torch.tensor([[0.4], [0.9], [0.6]])
    records = Records(inputs.features, labels, included, seeds=(11, 12, 13))
    drawn = trials.chain(
        records,
        trials.from_flat(head.flat, classes=4),
        rounds=rounds,
        fine_tune=ADAMW,
        collect=SGD,
        moments=SwagConfig(rank=3),
        config=CONFIG,
    )
    for t, seed in enumerate(records.seeds):
        own = included[t]
        one = _one_at_a_time(head, inputs.features[own], labels[own], rounds, seed=seed, folder=tmp_path / str(t))
        for name, (theta, epsilon) in one.items():
            expected = trials.from_flat(theta, classes=4)
            assert torch.allclose(drawn[name].theta[t], expected, atol=1e-4), (name, t)
            assert float(drawn[name].epsilon[t]) == pytest.approx(epsilon, abs=1e-3)
            assert (drawn[name].theta[(t + 1) % 3] - expected).abs().max() > 0.05


def test_log_likelihood_is_the_classifiers(linear: MakeLinear) -> None:
    """Both layouts give the same log-likelihoods and say the same of the most probable label."""
    head, inputs, labels = linear(30, width=6, labels=5)
    ell, right = trials.log_likelihood(
        trials.from_flat(head.flat, classes=5)[None],
        torch.cat([inputs.features, torch.ones(30, 1)], 1),
        labels,
    )
    batch = inputs.batch(torch.arange(30), head.device)
    assert torch.allclose(ell[0], head.log_likelihood(batch, labels), atol=1e-5)
    assert torch.equal(right[0], head.logits(batch).argmax(-1) == labels)
    assert isinstance(head.part, nn.Linear)


def test_what_trials_do_not_know_is_refused(linear: MakeLinear) -> None:
    """A gradient cap, or a rate that falls over trials of unlike length, would silently be another mechanism; an empty
    trial has nothing to fit.
    """
    head, inputs, labels = linear(8)
    included = torch.ones(2, 8, dtype=torch.bool)
    included[1, 0] = False
    records = Records(inputs.features, labels, included, seeds=(1, 2))
    start = trials.from_flat(head.flat, classes=4).repeat(2, 1, 1)
    for change in ({"schedule": "linear"}, {"max_grad_norm": 1.0}):
        phase = ADAMW.model_copy(update=change)
        with pytest.raises(MechanismError, match="constant learning rate"):
            next(trials.fit(start, records, phase=phase, purpose="x"))
    with pytest.raises(MechanismError, match="at least one record"):
        Records(inputs.features, labels, torch.zeros(1, 8, dtype=torch.bool), seeds=(1,))
