"""The shared training loop: optimiser phases, per-record weights, checkpoints at the end of some
epochs, and resumption.

A phase minimises, batch by batch,

  - (1/b) * sum_i alpha_i * l_i(theta) + pull/2 * ||theta - start||^2

with risk weights alpha_i (1 if there are none) and batch size b. The divisor is b, not the sum of
the weights, so that a record of weight 0 counts as absent without increasing the influence of the
other records in its batch.

The ranks of a fit share each batch. Rank 0 keeps the checkpoint and the observer.

A resumed run equals an uninterrupted one bit for bit: the order of records and the dropout masks
are functions of (seed, phase, epoch), and the checkpoint contains the parameters and the
optimiser's state. A checkpoint is written at the end of an epoch if enough time has passed since
the last one, and at the end of the phase. Epochs after the last checkpoint are computed again.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint, ranks
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.feed import Feed
from mechanisms.model.inputs import FeatureInputs, Inputs
from mechanisms.model.pace import CHECKPOINT_SECONDS, Pace
from mechanisms.model.precision import computing, rounded_once
from mechanisms.model.seeding import generator, seeded
from mechanisms.model.threads import fitting

Progress = Callable[[int, int], None]
"""Called with (completed steps, total steps)."""

_BUCKET = 50
"""Number of batches in a length bucket: large enough to remain random, small enough to avoid most
padding.
"""


class EpochState:
    """An observer of epochs. Its tensors are saved with the checkpoint and restored on
    resumption.
    """

    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors to save if a checkpoint of the epoch that just ended is written."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], epoch: int) -> None:
        """Restores the tensors that `tensors` returned after `epoch` epochs."""

    def after_epoch(self, epoch: int, theta: Tensor) -> None:
        """Called with the parameters float32 [P] at the end of epoch `epoch` (1 is the first)."""


def train(
    classifier: Classifier,
    inputs: Inputs,
    labels: Tensor,
    *,
    phase: OptimiserPhase,
    seed: int,
    purpose: str,
    weights: Tensor | None = None,
    folder: Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    state: EpochState | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Runs one phase in place on `classifier.flat`; returns the mean weighted loss of each epoch,
    in nats.

    Args:
        labels: int64 [n], index into the label space.
        weights: risk weights alpha, float32 [n] in [0, 1]; None means 1 for every record.
        purpose: identifies the phase in seeds, so that two phases do not share their shuffles.
        folder: folder of the checkpoint; None keeps none. An existing checkpoint of the same run is
            resumed.
        checkpoint_seconds: least time between two checkpoints; 0 writes one per epoch.

    Raises:
        MechanismError: the loss is no longer finite, or the checkpoint belongs to another run.
    """
    optimiser = _optimiser(classifier, phase)
    pulled = [(p, p.detach().clone()) for p in classifier.parameters if phase.pull]
    run = {
        "phase": phase.model_dump(mode="json"),
        "seed": seed,
        "purpose": purpose,
        "records": len(inputs),
    }
    state = state or EpochState()
    losses: list[float] = []
    file = folder / "checkpoint.safetensors" if folder is not None else None
    if file is not None and file.exists():
        losses = _resume(file, classifier, optimiser, run, state)

    pace = Pace(checkpoint_seconds)
    n, device = len(inputs), classifier.device
    weights = None if weights is None else weights.to(device)
    labels, feed = labels.to(device), Feed.of(inputs, device)
    precision = "float32" if isinstance(inputs, FeatureInputs) else classifier.precision
    per_epoch, total = math.ceil(n / phase.batch_size), phase.steps(n)
    classifier.part.train()
    try:
        for epoch in range(len(losses) + 1, phase.epochs + 1):
            batches = [*epoch_batches(inputs, phase=phase, seed=seed, purpose=purpose, epoch=epoch)]
            own = feed.batches([_own_share(index) for index in batches])
            loss_sum = torch.zeros((), device=device)
            own_masks = (ranks.rank(),) if ranks.rank() else ()
            masks = seeded(seed, purpose, "dropout", epoch, *own_masks, device=device)
            with masks, fitting(inputs), rounded_once(classifier.part, precision):
                for step, (index, (where, batch)) in enumerate(
                    zip(batches, own, strict=True), start=(epoch - 1) * per_epoch
                ):
                    share = len(ranks.share(index)) > 0
                    with computing(
                        precision, device
                    ):  # entered for each step, because it caches the weights
                        ell = classifier.log_likelihood(batch, labels[where])
                    ell = ell if weights is None else ell * weights[where]
                    loss = -ell.sum() * share / len(index)
                    optimiser.zero_grad(set_to_none=True)
                    loss.backward()
                    ranks.add_up_gradients(classifier.parameters)
                    for p, start in pulled:
                        if p.grad is not None:
                            p.grad.add_(p.detach() - start, alpha=phase.pull)
                    if phase.max_grad_norm is not None:
                        torch.nn.utils.clip_grad_norm_(classifier.parameters, phase.max_grad_norm)
                    if phase.schedule == "linear":
                        for group in optimiser.param_groups:
                            group["lr"] = group["first_rate"] * (1 - step / total)
                    optimiser.step()
                    loss_sum += loss.detach() * len(index)
                    if progress is not None and step % 16 == 0:
                        progress(step, total)
            ranks.add_up(loss_sum)
            losses.append(float(loss_sum) / n)
            # A single non-finite parameter makes the sum non-finite, at a twentieth of the cost of
            # checking each one.
            if not math.isfinite(losses[-1]) or not math.isfinite(classifier.flat.sum()):
                raise MechanismError(
                    f"training diverged in epoch {epoch} of phase {purpose} ({phase.optimiser}): "
                    f"lower learning_rate (now {phase.learning_rate:g}) or set max_grad_norm",
                    kind="diverged",
                )
            state.after_epoch(epoch, classifier.flat)
            due = epoch == phase.epochs or pace.is_due()
            if file is not None and not ranks.rank() and due:
                _save(file, classifier, optimiser, run, state, losses)
                pace.restart()
            if progress is not None:
                progress(epoch * per_epoch, total)
    finally:
        classifier.part.eval()
    return losses


def _own_share(index: Tensor) -> Tensor:
    """This rank's records of a batch. A rank that has none computes one for nothing, so that the
    same parameters have gradients in every rank.
    """
    share = ranks.share(index)
    return share if len(share) else index[:1]


def epoch_batches(
    inputs: Inputs, *, phase: OptimiserPhase, seed: int, purpose: str, epoch: int
) -> Iterator[Tensor]:
    """Index batches of one epoch: a seeded shuffle, optionally grouped by length within large
    buckets.
    """
    order = torch.randperm(len(inputs), generator=generator(seed, purpose, "order", epoch))
    lengths = inputs.lengths
    if not phase.length_bucketing or lengths is None:
        yield from order.split(phase.batch_size)
        return
    batches: list[Tensor] = []
    for bucket in order.split(_BUCKET * phase.batch_size):
        batches += bucket[lengths[bucket].argsort(descending=True, stable=True)].split(
            phase.batch_size
        )
    for i in torch.randperm(len(batches), generator=generator(seed, purpose, "batches", epoch)):
        yield batches[int(i)]


def _optimiser(classifier: Classifier, phase: OptimiserPhase) -> torch.optim.Optimizer:
    common: Any = {"lr": phase.learning_rate, "weight_decay": 0.0, "fused": True}
    head = classifier.head_parameters if phase.head_rate != 1 else ()
    rest = [p for p in classifier.parameters if not any(p is parameter for parameter in head)]
    groups: Any = [
        {"params": members, "lr": rate, "first_rate": rate}
        for members, rate in (
            (rest, phase.learning_rate),
            ([*head], phase.learning_rate * phase.head_rate),
        )
        if members
    ]
    if phase.optimiser == "adamw":
        return torch.optim.AdamW(groups, **common)
    return torch.optim.SGD(groups, momentum=phase.momentum, **common)


def _save(
    file: Path,
    classifier: Classifier,
    optimiser: torch.optim.Optimizer,
    run: Mapping[str, object],
    state: EpochState,
    losses: list[float],
) -> None:
    tensors: dict[str, Tensor] = {"theta": classifier.flat}
    tensors |= {f"state.{name}": t for name, t in state.tensors().items()}
    for slot, entries in optimiser.state_dict()["state"].items():
        tensors |= {
            f"optimiser.{slot}.{name}": t for name, t in entries.items() if isinstance(t, Tensor)
        }
    checkpoint.save(file, tensors, {"losses": losses, "run": run})


def _resume(
    file: Path,
    classifier: Classifier,
    optimiser: torch.optim.Optimizer,
    run: Mapping[str, object],
    state: EpochState,
) -> list[float]:
    tensors, meta = checkpoint.load(file)
    if meta.get("run") != run or tensors["theta"].shape != classifier.flat.shape:
        raise MechanismError(
            f"checkpoint {file} belongs to another phase, seed, data or model. "
            "Remove it to start over",
            kind="another-checkpoint",
        )
    classifier.flat.copy_(tensors["theta"])
    slots: dict[int, dict[str, Tensor]] = {}
    for name, t in tensors.items():
        if name.startswith("optimiser."):
            _, slot, entry = name.split(".", 2)
            slots.setdefault(int(slot), {})[entry] = t.clone()
    optimiser.load_state_dict(
        {"state": slots, "param_groups": optimiser.state_dict()["param_groups"]}
    )
    observed = {
        name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")
    }
    state.restore(observed, len(meta["losses"]))
    return list(meta["losses"])
