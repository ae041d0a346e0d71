"""A torch module and a loss of one's own, as what the mechanisms train: parameters in one flat vector, a loss a record.

Whoever brings a module brings everything that can be wrong with one, so it is looked at before a record is: layers that
mix the records of a batch, buffers that training would fill with records. What it is tried on is invented.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import Batch, FeatureInputs, Inputs
from mechanisms.model.seeding import seeded

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output of the module [1, ...], target [1, ...]) of one record -> its loss, one number. A loss of torch with its
usual mean or sum does: the mean over one record is that record's."""

_SMALL = 1 << 18
"""Parameters up to which one thread is faster than several."""
_ROUNDING = 1e-6


@runtime_checkable
class Indexed(Protocol):
    """Records by number: a torch `Dataset` of known length, or a list, of pairs (input, target)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Dataset = tuple[Tensor, Tensor] | Indexed


@dataclass(frozen=True)
class RecordInputs:
    """Inputs of a module that is large enough for all threads, [n, ...]."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    @property
    def lengths(self) -> None:
        """Every record has the same shape."""
        return None

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        """Inputs at `index`, [b, ...]."""
        return {"features": self.values[index].to(device, non_blocking=True)}


class OwnModel(Classifier):
    """A module of one's own and what it minimises. `part` is the module; its buffers are not trained.

    Args:
        likelihood: the loss is a negative log-likelihood, which is never below 0 for a discrete target; one that is
            below all the same is an error.
    """

    def __init__(self, module: nn.Module, loss: Loss, *, device: torch.device, likelihood: bool = False) -> None:
        super().__init__(config=ModelConfig(pooling="none"), whole=module, part=module, pool=None, device=device)
        self.loss = loss
        self._likelihood = likelihood

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, float32 [b]."""
        if is_cross_entropy(self.loss) and output.ndim == 2 and targets.dtype == torch.int64:
            return -output.float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
        each = torch.func.vmap(lambda one, target: self.loss(one[None], target[None]).reshape(()))
        return each(output, targets).float()

    def log_likelihood(self, batch: Batch, labels: Tensor) -> Tensor:
        """The loss with the other sign, float32 [b].

        Raises:
            MechanismError: it is said to be a log-likelihood, and is above 0.
        """
        losses = self.losses(self.logits(batch), labels)
        if self._likelihood and bool((losses < -_ROUNDING).any()):
            raise MechanismError(
                "the loss is below 0 for some records: swag_ppm takes a negative log-likelihood of a discrete target "
                "(cross-entropy), or a loss that is never below 0"
            )
        return -(losses.clamp(min=0) if self._likelihood else losses)


def is_cross_entropy(loss: Loss) -> bool:
    """Checks whether it is one of torch's with nothing set but its reduction."""
    if loss is nn.functional.cross_entropy:
        return True
    if not isinstance(loss, nn.CrossEntropyLoss) or type(loss) is not nn.CrossEntropyLoss:
        return False
    plain = loss.weight is None and loss.label_smoothing == 0 and loss.ignore_index < 0
    return plain and loss.reduction in ("mean", "sum")


def records_of(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """All inputs [n, ...] and targets [n, ...], read once: what a data set does at random it does once a record.

    Raises:
        MechanismError: they are not n pairs of tensors of one shape, or an input is not finite.
    """
    given: Any = dataset.tensors if isinstance(dataset, torch.utils.data.TensorDataset) else dataset
    if isinstance(given, tuple) and all(isinstance(part, Tensor) for part in given):
        if len(given) != 2:
            raise MechanismError(f"dataset: {len(given)} tensors; give inputs and targets")
        inputs, targets = given
    else:
        inputs, targets = _stacked(given)
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        raise MechanismError("dataset: inputs and targets need one first dimension, the records")
    if not len(inputs):
        raise MechanismError("dataset: no records")
    inputs = inputs.detach().float() if inputs.dtype in (torch.float64, torch.float16) else inputs.detach()
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise MechanismError("dataset: some inputs are not finite; fill them or leave their records out")
    return inputs.cpu(), targets.detach().cpu()


def _stacked(dataset: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(dataset, Indexed):
        raise MechanismError(
            "dataset: give a pair of tensors (inputs, targets), or a data set with a length of pairs (input, target); "
            "a loader or a stream would not say how many records there are"
        )
    pairs = [dataset[i] for i in range(len(dataset))]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise MechanismError("dataset: every record has to be a pair (input, target)")
    inputs, targets = ([torch.as_tensor(pair[side]) for pair in pairs] for side in (0, 1))
    if len({value.shape for value in inputs}) > 1 or len({value.shape for value in targets}) > 1:
        raise MechanismError("dataset: records differ in shape; pad them to one")
    if not inputs:
        raise MechanismError("dataset: no records")
    return torch.stack(inputs), torch.stack(targets)


def inputs_of(values: Tensor, model: nn.Module) -> Inputs:
    """Records in the form that says how many threads a module of this size wants."""
    small = sum(p.numel() for p in model.parameters()) <= _SMALL
    return FeatureInputs(values) if small else RecordInputs(values)


def maker_of(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, *, device: torch.device, likelihood: bool = False
) -> Callable[[], OwnModel]:
    """Returns a function that copies the model as it was given; the caller's is never written to.

    Raises:
        MechanismError: no such mechanism can train it; the text names the layer and says what to do.
    """
    _check_layers(model)
    _check_loss(loss)

    def make() -> OwnModel:
        return OwnModel(copy.deepcopy(model), loss, device=device, likelihood=likelihood)

    _try(make(), inputs, targets)
    return make


def _check_layers(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise MechanismError("model: give a torch.nn.Module")
    for name, layer in model.named_modules():
        label = f"layer `{name or 'model'}` ({type(layer).__name__})"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise MechanismError(f"{label} mixes records: replace batch by group or layer normalisation")
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
            raise MechanismError(f"{label} keeps statistics of the records: set track_running_stats=False")
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and (layer.max_norm or layer.scale_grad_by_freq):
            raise MechanismError(f"{label} has max_norm or scale_grad_by_freq, which mix records: leave them out")
        if any(nn.parameter.is_lazy(p) for p in layer.parameters(recurse=False)):
            raise MechanismError(f"{label} has no parameters yet: run the model once on an invented record")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise MechanismError("model: no parameter has requires_grad, so nothing would be trained")
    for name, p in trained.items():
        if p.dtype != torch.float32:
            raise MechanismError(f"parameter `{name}` is {p.dtype}; train in torch.float32 (model.float())")


def _check_loss(loss: Loss) -> None:
    if not callable(loss):
        raise MechanismError("loss: give a function of (output, target), such as torch.nn.functional.cross_entropy")
    if not isinstance(loss, nn.Module):
        return
    if any(True for _ in loss.parameters()):
        raise MechanismError("loss: it has parameters, which would not be trained; make them part of the model")
    if getattr(loss, "weight", None) is not None and getattr(loss, "reduction", "") == "mean":
        raise MechanismError("loss: in the mean over one record its weight cancels out; give it reduction='sum'")


def _try(model: OwnModel, inputs: Tensor, targets: Tensor) -> None:
    """Runs the module on invented records, and refuses what it may not do: fail, mix records, change a buffer."""
    shape = tuple(inputs.shape[1:])
    with seeded(0, "invented records"):
        few = torch.randn(3, *shape) if inputs.is_floating_point() else torch.randint(0, 2, (3, *shape))
        x, y = few.to(inputs.dtype).to(model.device), torch.zeros_like(targets[:1]).expand(3, *targets.shape[1:])
        y = y.to(model.device)
        with unchanged_buffers(model.part), torch.no_grad():
            with _error_context(f"the model fails on invented records of shape {list(x.shape)}"):
                together, alone = model.logits({"features": x}), [model.logits({"features": one[None]}) for one in x]
            if not isinstance(together, Tensor) or together.shape[:1] != (3,):
                raise MechanismError("the model has to answer one tensor, [records, ...]")
            if not torch.allclose(together, torch.cat(alone), rtol=1e-3, atol=1e-4):
                raise MechanismError(
                    "the model mixes records: its answer for a record changes with the others of a batch. Compute "
                    "nothing across the first dimension"
                )
            with _error_context("the loss fails on the model's output for one invented record"):
                number = model.loss(together[:1], y[:1])
            if not isinstance(number, Tensor) or number.numel() != 1:
                raise MechanismError("the loss of one record has to be one number: use its mean or sum")
        of_classes = is_cross_entropy(model.loss) and targets.dtype == torch.int64 and together.ndim == 2
        if of_classes and not 0 <= int(targets.min()) <= int(targets.max()) < together.shape[1]:
            raise MechanismError(
                f"dataset: a target is outside 0 to {together.shape[1] - 1}, the classes of the model. Correct it"
            )
        model.part.train()
        with unchanged_buffers(model.part), torch.no_grad(), _error_context("the model fails in training mode"):
            model.logits({"features": x})
        model.part.eval()


@contextmanager
def unchanged_buffers(part: nn.Module) -> Iterator[None]:
    """Refuses changed buffers and frozen parameters: they leave with the model, without noise.

    Raises:
        MechanismError: one has another value after the block than before.
    """
    before = {name: (buffer, buffer.detach().clone()) for name, buffer in _untrained(part)}
    yield
    after = dict(_untrained(part))
    for name in sorted(before.keys() | after.keys()):
        buffer, value = before.get(name, (None, None))
        if buffer is None or value is None or after.get(name) is not buffer or not torch.equal(buffer, value):
            raise MechanismError(
                f"`{name}` of the model, a buffer or a frozen parameter, changes while it runs: it would carry the "
                "records past the noise. Use layers without running statistics"
            )


def _untrained(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers and frozen parameters, by name."""
    yield from part.named_buffers()
    # guard: what is not trained does not change
    yield from ((name, p) for name, p in part.named_parameters() if not p.requires_grad)


@contextmanager
def _error_context(what: str) -> Iterator[None]:
    """An error of the module's own, on invented records, as one that says where it arose."""
    try:
        yield
    except MechanismError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise MechanismError(f"{what} ({type(error).__name__}: {lines[0]})") from error
