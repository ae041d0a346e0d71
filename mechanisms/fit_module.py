"""Fits a custom torch module and loss under SWAG-PPM, in one call.

The call fits and claims as a branch of the pipeline with the same settings does; what is new is the
module (`mechanisms.model.custom_module`). Nothing is written down: there is no ledger, no plan and
no bundle, so the caller adds up what several calls on the same records cost. For DP-SGD of a custom
module, use Opacus' `PrivacyEngine`.
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
    """Holds what one call returns.

    model: a copy of the given one, in evaluation mode, with the parameters that the claim is of.
    claim: epsilon, delta or why there is none, the type of guarantee, neighbours, unit, and its
    assumptions. figures: aggregates of the run; those in nats are read from the records without
    protection and are no part of what is claimed. event: what ran, in numbers, which the claim is
    computed from.
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
    """One draw from a SWAG pseudo posterior (Chew et al.), and what its guarantee, asymptotic and
    local, amounts to.

    The draw is made here, once, with the operating system's entropy and no seed; Delta is measured
    at it too, and the larger value is claimed. **A small epsilon of this kind is no evidence of
    privacy**: audit it.

    Args:
        model: maps a batch [b, ...] to one tensor [b, ...], each record by itself. It is copied,
            not changed.
        loss: (output, target) of one record as a batch of one -> one number: a negative
            log-likelihood of a discrete target, never below 0, such as cross-entropy.
        dataset: (inputs [n, ...], targets [n, ...]), or a data set with a length of such pairs.
            Read once.
        draws: S, over which risks and Delta are taken; a fresh draw exceeds Delta with probability
            1/(S+1).
        round: the posterior that is drawn from.
        fine_tune: the first phase of a round. None: AdamW at 0.001 for 10 epochs, batches of 32.
        collect: the second phase. None: SGD at 0.05 for 20 epochs. The paper's rates are for a
            large pretrained model.
        moments: rank of the posterior and its scale.
        c: slope of the weight map; `g` is its offset, and `k` that of equation 7.
        records_per_unit: how many records one unit may have. The caller sees to it that none has
            more.
        unprotected_inputs: what else of the records reached the call, such as tuning; stated with
            the claim.
        seed: of orders, masks and the draws that are measured, none of which is released.
        folder: private; holds posterior and checkpoints, and stays. None: a temporary one, which
            goes.
        key: 32 bytes that the draw follows from, only for tests. None: the operating system's
            entropy.

    Raises:
        MechanismError: the module mixes records or changes a buffer; the loss is below 0; training
            diverged.

    Examples:
        >>> x, y = torch.eye(2).repeat(50, 1), torch.tensor([0, 1]).repeat(50)
        >>> private = swag_ppm(nn.Linear(2, 2), nn.functional.cross_entropy, (x, y), draws=20)
        >>> private.model(x[:1]).shape, private.claim.draws
        (torch.Size([1, 2]), 20)
    """
    inputs, targets = records_of(dataset)
    own = copy_of(model, loss, inputs, targets, device=torch.device(device))
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
    # the number of classes is the module's: the mechanism does not plan by it
    task = Task(records=len(records), classes=1, records_per_unit=records_per_unit)
    run = Run(
        classes=1, seed=seed, classifier=lambda: own, folder=folder, progress=progress, key=key
    )
    with unchanged_buffers(own.part):
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
    return Private(_copied(model, own), claim, fitted.figures, fitted.event)


def _copied(model: nn.Module, own: CustomModule) -> nn.Module:
    copied = copy.deepcopy(model).to(own.device)
    trained: dict[str, Tensor] = dict(own.part.named_parameters())
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(trained[name])
            parameter.grad = None
    return copied.eval()
