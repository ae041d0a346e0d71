"""Adapts a user's torch module and loss to the mechanism interface: parameters in one flat vector
and one loss per record.

A user's module can break the guarantee, so it is checked on synthetic records before it sees any
real record. The checks find layers that mix the records of a batch, and buffers that training would
fill with records.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import Batch, FeatureInputs, Inputs
from mechanisms.model.seeding import seeded
from mechanisms.model.transfer import to_device

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps (output of the module [1, ...], target [1, ...]) of one record to its loss, one number. A
torch loss with its usual mean or sum works, because the mean over one record is that record's
loss.
"""

_SMALL = 1 << 18
"""Number of parameters up to which one thread is faster than several."""
_ROUNDING = 1e-6


Dataset = tuple[Tensor, Tensor] | Sequence[Any] | torch.utils.data.Dataset[Any]
"""Inputs and targets, or records by index, each a pair (input, target)."""


@dataclass(frozen=True)
class RecordInputs:
    """Inputs [n, ...] of a module that is large enough to use all threads."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    @property
    def lengths(self) -> None:
        return None

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        return {"features": to_device(self.values[index], device)}


class CustomModule(Classifier):
    """A user's module and the loss that it minimises. `part` is the module. Its buffers are not
    trained.
    """

    def __init__(self, module: nn.Module, loss: Loss, *, device: torch.device) -> None:
        super().__init__(
            config=ModelConfig(pooling="none"), whole=module, part=module, pool=None, device=device
        )
        self.loss = loss

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, float32 [b]."""
        if is_cross_entropy(self.loss) and output.ndim == 2 and targets.dtype == torch.int64:
            return -output.float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
        record_loss = torch.func.vmap(
            lambda record, target: self.loss(record[None], target[None]).reshape(())
        )
        return record_loss(output, targets).float()

    def log_likelihood(self, batch: Batch, labels: Tensor) -> Tensor:
        """The negative loss of each record, float32 [b].

        Raises:
            MechanismError: a loss is below 0, so it is not a negative log-likelihood of a discrete
                target.
        """
        losses = self.losses(self.logits(batch), labels)
        if bool((losses < -_ROUNDING).any()):
            raise MechanismError(
                "the loss is below 0 for some records: swag_ppm takes a negative log-likelihood "
                "of a discrete target "
                "(cross-entropy), or a loss that is never below 0",
                kind="negative-loss",
            )
        return -losses.clamp(min=0)


def is_cross_entropy(loss: Loss) -> bool:
    """True for a torch loss with default arguments except `reduction`."""
    if loss is nn.functional.cross_entropy:
        return True
    if not isinstance(loss, nn.CrossEntropyLoss) or type(loss) is not nn.CrossEntropyLoss:
        return False
    plain = loss.weight is None and loss.label_smoothing == 0 and loss.ignore_index < 0
    return plain and loss.reduction in ("mean", "sum")


def records_of(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """All inputs [n, ...] and targets [n, ...], read once, so that random transforms of a dataset
    are applied once per record.

    Raises:
        MechanismError: not n pairs of one shape, or an input is not finite.
    """
    pairs: Any = dataset.tensors if isinstance(dataset, torch.utils.data.TensorDataset) else dataset
    try:
        if not (isinstance(pairs, tuple) and all(isinstance(part, Tensor) for part in pairs)):
            pairs = torch.utils.data.default_collate([pairs[i] for i in range(len(pairs))])
        inputs, targets = (torch.as_tensor(part).detach().cpu() for part in pairs)
        if not len(inputs) == len(targets) > 0:
            raise ValueError("no records, or other targets")
    except (TypeError, ValueError, IndexError, RuntimeError, AttributeError):
        raise MechanismError(
            "dataset: expected tensors (inputs, targets) with records in their "
            "first dimension, or a list or data set of pairs (input, target) of "
            "one shape",
            kind="records-form",
        ) from None
    inputs = inputs.float() if inputs.dtype in (torch.float64, torch.float16) else inputs
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise MechanismError(
            "dataset: some inputs are not finite. Fill them in, or leave their records out",
            kind="inputs-not-finite",
        )
    return inputs, targets


def inputs_of(values: Tensor, model: nn.Module) -> Inputs:
    """Wraps records in the type that selects the number of threads for a module of this size."""
    small = sum(p.numel() for p in model.parameters()) <= _SMALL
    return FeatureInputs(values) if small else RecordInputs(values)


def copy_of(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, *, device: torch.device
) -> CustomModule:
    """Copies the model and checks it on synthetic records. The caller's model is never changed.

    Raises:
        MechanismError: the module or loss cannot be used. The text says what to change.
    """
    for name, p in model.named_parameters():
        if p.requires_grad and p.dtype != torch.float32:
            raise MechanismError(
                f"parameter `{name}` is {p.dtype}. Train in torch.float32 (model.float())",
                kind="parameter-type",
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise MechanismError(
            "model: no parameter has requires_grad, so nothing would be trained",
            kind="nothing-to-train",
        )
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise MechanismError(
            "loss: it has parameters, which would not be trained. Make them part of the model",
            kind="loss-with-parameters",
        )
    if getattr(loss, "weight", None) is not None and getattr(loss, "reduction", "") == "mean":
        raise MechanismError(
            "loss: in the mean over one record its weight cancels out. Use reduction='sum'",
            kind="weight-cancels",
        )
    adapted = CustomModule(copy.deepcopy(model), loss, device=device)
    _try(adapted, inputs, targets)
    return adapted


def _try(model: CustomModule, inputs: Tensor, targets: Tensor) -> None:
    shape = tuple(inputs.shape[1:])
    with seeded(0, "synthetic records"):
        few = (
            torch.randn(3, *shape)
            if inputs.is_floating_point()
            else torch.randint(0, 2, (3, *shape))
        )
    x, y = (
        few.to(inputs.dtype).to(model.device),
        torch.zeros_like(targets[:1]).expand(3, *targets.shape[1:]).to(model.device),
    )
    with (
        unchanged_buffers(model.part),
        torch.no_grad(),
        _error_context("the model or its loss fails"),
    ):
        together, alone = (
            model.logits({"features": x}),
            [model.logits({"features": record[None]}) for record in x],
        )
        if not torch.allclose(together, torch.cat(alone), rtol=1e-3, atol=1e-4):
            raise MechanismError(
                "the model mixes records: its answer for a record changes with "
                "the others of a batch. Compute nothing across the first "
                "dimension, and replace batch normalisation with group or layer "
                "normalisation",
                kind="mixed-records",
            )
        if model.loss(together[:1], y[:1]).numel() != 1:
            raise MechanismError(
                "the loss of one record must be one number. Use its mean or sum",
                kind="loss-not-one-number",
            )
    of_classes = (
        is_cross_entropy(model.loss) and targets.dtype == torch.int64 and together.ndim == 2
    )
    if of_classes and not 0 <= int(targets.min()) <= int(targets.max()) < together.shape[1]:
        raise MechanismError(
            f"dataset: a target is outside 0 to {together.shape[1] - 1}, the classes of the "
            "model. Correct it",
            kind="target-outside-classes",
        )
    model.part.train()
    with (
        unchanged_buffers(model.part),
        torch.no_grad(),
        _error_context("the model fails in training mode"),
    ):
        model.logits({"features": x})
    model.part.eval()


@contextmanager
def unchanged_buffers(part: nn.Module) -> Iterator[None]:
    """Refuses changes of buffers and frozen parameters, which are released with the model and
    without noise.

    Raises:
        MechanismError: a value changed inside the block.
    """
    before = {name: (buffer, buffer.detach().clone()) for name, buffer in _untrained(part)}
    yield
    after = dict(_untrained(part))
    for name in sorted(before.keys() | after.keys()):
        buffer, value = before.get(name, (None, None))
        if (
            buffer is None
            or value is None
            or after.get(name) is not buffer
            or not torch.equal(buffer, value)
        ):
            raise MechanismError(
                f"`{name}` of the model, a buffer or a frozen parameter, changes while it runs: "
                "it would carry the "
                "records past the noise. Use layers without running statistics",
                kind="changing-buffer",
            )


def _untrained(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from part.named_buffers()
    yield from ((name, p) for name, p in part.named_parameters() if not p.requires_grad)


@contextmanager
def _error_context(what: str) -> Iterator[None]:
    try:
        yield
    except MechanismError:
        raise
    except Exception as error:
        raise MechanismError(
            f"{what} on synthetic records ({type(error).__name__}: {error})",
            kind="fails-on-synthetic-records",
        ) from error
