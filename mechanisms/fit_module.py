"""Trains a custom torch module and loss with SWAG-PPM in one call.

The call fits and claims exactly like the pipeline with the same settings, but for a user's module
(`mechanisms.model.custom_module`). Nothing is recorded: there is no ledger, plan or bundle, so the
caller must add up the cost of several calls on the same records. For DP-SGD with a custom module,
use `PrivacyEngine` of Opacus.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mechanisms.estimator import fit_once
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.custom_module import (
    CustomModule,
    Dataset,
    Loss,
    copy_of,
    inputs_of,
    is_cross_entropy,
    records_of,
    unchanged_buffers,
)
from mechanisms.model.training import Progress
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.privacy.events import Claim, Event
from mechanisms.swag_ppm import SwagPpm

_PUBLIC = "the model as it was given, its layers and the parameters that training starts at"
_GIBBS = (
    "the likelihood is exp(-loss) of a loss that the caller brought; it was checked to be at "
    "least 0 at these records "
    "and samples, not at others"
)


@dataclass(frozen=True)
class Private:
    """The result of one call.

    Attributes:
        model: a copy of the module, in evaluation mode, with the parameters that the claim covers.
        claim: epsilon, delta or the reason why there is none, the kind of guarantee, neighbours,
            unit, and assumptions.
        figures: aggregates of the run. Figures in nats are computed from the records without
            protection and are not covered by the claim.
        event: numerical description of the run, from which the claim is computed.
    """

    model: nn.Module
    claim: Claim
    figures: Mapping[str, Any]
    event: Event


def swag_ppm(
    model: nn.Module,
    loss: Loss,
    dataset: Dataset,
    *,
    draws: int = 500,
    round: Literal["weighted", "reweighted"] = "reweighted",
    fine_tune: OptimiserPhase | None = None,
    collect: OptimiserPhase | None = None,
    moments: SwagConfig | None = None,
    c: float = 1.0,
    g: float = 0.0,
    k: float = 0.95,
    records_per_unit: int = 1,
    privacy_unit: str = "record",
    unprotected_inputs: tuple[str, ...] = (),
    device: torch.device | str = "cpu",
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
    key: bytes | None = None,
) -> Private:
    """Draws once from a SWAG pseudo posterior (Chew et al.) and reports its asymptotic, local
    guarantee.

    The draw uses the operating system's entropy and has no seed. Delta is also measured at the
    draw, and the larger value is claimed. **A small epsilon of this kind is no evidence of
    privacy**: audit it.

    Args:
        model: maps a batch [b, ...] to one tensor [b, ...], each record independently. It is
            copied, not changed.
        loss: maps (output, target) of one record, as a batch of one, to a number: a negative
            log-likelihood of a discrete target, never below 0, such as cross-entropy.
        dataset: (inputs [n, ...], targets [n, ...]), or a dataset with a length that yields such
            pairs. It is read once.
        draws: number of draws S over which risks and Delta are maximised. A fresh draw exceeds
            Delta with probability 1/(S+1).
        round: the posterior from which the release is drawn.
        fine_tune: first phase of a round. None: AdamW at 0.001 for 10 epochs, batches of 32.
        collect: second phase. None: SGD at 0.05 for 20 epochs. The paper's learning rates are for a
            large pretrained model.
        moments: rank and scale of the posterior.
        c: slope of the weight map.
        g: offset of the weight map.
        k: constant of equation 7.
        records_per_unit: largest number of records per privacy unit. The caller must ensure that no
            unit has more.
        privacy_unit: name of the privacy unit.
        unprotected_inputs: other ways in which records influenced the call, such as tuning. They
            are listed in the claim.
        seed: seed of record order, masks and the draws that are only measured. None of these is
            released.
        folder: private folder for posterior and checkpoints, which is kept. None uses a temporary
            folder and deletes it.
        key: 32 bytes that determine the draw, for tests only. None uses the operating system's
            entropy.

    Raises:
        MechanismError: the module mixes records or changes a buffer, the loss is below 0, or
            training diverged.

    Examples:
        >>> x, y = torch.eye(2).repeat(50, 1), torch.tensor([0, 1]).repeat(50)
        >>> private = swag_ppm(nn.Linear(2, 2), nn.functional.cross_entropy, (x, y), draws=20)
        >>> private.model(x[:1]).shape, private.claim.draws
        (torch.Size([1, 2]), 20)
    """
    inputs, targets = records_of(dataset)
    adapted = copy_of(model, loss, inputs, targets, device=torch.device(device))
    records = Records(inputs_of(inputs, model), targets)
    mechanism = SwagPpm(
        round=round,
        fine_tune=fine_tune
        or OptimiserPhase(optimiser="adamw", learning_rate=1e-3, epochs=10, batch_size=32),
        collect=collect
        or OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=20, batch_size=32),
        moments=moments,
        pseudo_posterior=PseudoPosteriorConfig(
            risk_draws=draws, sensitivity_draws=draws, c=c, g=g, k=k
        ),
    )
    # the module defines the number of classes, and the plan does not depend on it
    task = Task(records=len(records), classes=1, records_per_unit=records_per_unit)
    run = Run(
        classes=1, seed=seed, classifier=lambda: adapted, folder=folder, progress=progress, key=key
    )
    with unchanged_buffers(adapted.part):
        fitted, claim = fit_once(
            mechanism.plan(task),
            records,
            run,
            task,
            privacy_unit=privacy_unit,
            unprotected_inputs=unprotected_inputs,
            public_inputs=(_PUBLIC,),
        )
    if not is_cross_entropy(loss):
        claim = claim.model_copy(update={"assumptions": (*claim.assumptions, _GIBBS)})
    return Private(_copied(model, adapted), claim, fitted.figures, fitted.event)


def _copied(model: nn.Module, own: CustomModule) -> nn.Module:
    copied = copy.deepcopy(model).to(own.device)
    trained: dict[str, Tensor] = dict(own.part.named_parameters())
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(trained[name])
            parameter.grad = None
    return copied.eval()
