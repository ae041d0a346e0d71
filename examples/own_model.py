"""SWAG, risk weights and the sensitivity of a torch model of one's own, on features of one's own.

Any `nn.Module` that maps float32 [n, width] to logits [n, classes] goes in place of the two layers below. The mechanism
takes its trainable parameters as one vector; what comes out is one repeatable draw, its Delta, and the claim.
"""

import torch
from torch import nn

from mechanisms.mechanism import Records, Run, Task
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.training import OptimiserPhase
from mechanisms.posterior.risks import PseudoPosteriorConfig
from mechanisms.posterior.swag import SwagConfig
from mechanisms.privacy.claims import claim_of
from mechanisms.swag_ppm import SwagPpm

WIDTH, CLASSES = 8, 3


def invented(n: int, *, seed: int) -> Records:
    """Features around one corner for each class: records of nobody."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    features = 2 * torch.eye(CLASSES, WIDTH)[labels] + torch.randn(n, WIDTH, generator=generator)
    return Records(FeatureInputs(features), labels)


def two_layers() -> Classifier:
    """The untrained model, the same at every call: each round of SWAG-PPM starts from it."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    config = ModelConfig(encoder="none", trainable="head")
    return Classifier(config=config, whole=module, part=module, pool=None, device=torch.device("cpu"))


def main() -> None:
    """Fit the posterior without weights, then the weighted one; say what a draw of it costs."""
    training, test = invented(300, seed=1), invented(300, seed=2)
    mechanism = SwagPpm(
        round="weighted",
        fine_tune=OptimiserPhase(optimiser="adamw", learning_rate=0.01, epochs=5, batch_size=16),
        collect=OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=10, batch_size=16),
        moments=SwagConfig(rank=5),
        pseudo_posterior=PseudoPosteriorConfig(risk_draws=100, sensitivity_draws=100),
    )
    plan = mechanism.plan(Task(records=len(training), classes=CLASSES))
    fitted = plan.fit(training, Run(classes=CLASSES, seed=7, classifier=two_layers))
    claim = claim_of(fitted.event, delta=None, privacy_unit="record", max_records_per_unit=1, unprotected_inputs=())
    right = fitted.model.log_probabilities(test.inputs).argmax(1) == test.labels
    print(f"Delta {fitted.figures['sensitivity']:.3f}, accuracy of one draw {right.double().mean():.3f}")
    print(claim.model_dump_json(indent=2))


if __name__ == "__main__":
    main()
