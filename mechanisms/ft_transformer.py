"""A transformer for tables (Gorishniy et al. 2021) by class-weighted DP-SGD (Rosenblatt et al. 2025, algorithm 4).

Numbers and categories are tokens of `rtdl_revisiting_models.FTTransformer`. Per-record gradients come from `torch.func`
(its layers have no rule in Opacus): vmap of grad, clipped, times the weight of the record's class, which is at most 1
and follows from private counts. Dropout is off. Both noises are solved together: `counts_factor` times the steps' noise
multiplier on the counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from mechanisms import dp_sgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Aimed, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import checkpoint
from mechanisms.model.inputs import Inputs
from mechanisms.model.seeding import seeded
from mechanisms.privacy import class_counts
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, GaussianReleaseEvent, NoiseSegment
from mechanisms.privacy.likeness import alike
from mechanisms.privacy.noise import SecretStream
from mechanisms.tables.columns import Columns, features_of
from mechanisms.tables.once import once

FILE = "transformer.safetensors"
_BLOCK = 256
"""Records whose gradients are in memory at once."""


@registered
class FtTransformer(Aimed, frozen=True):
    """Sizes of the network, and the descent. Width, depth, heads and epochs are the paper's."""

    model_config = ConfigDict(title="FTTransformer")
    reads: ClassVar[frozenset[str]] = frozenset({"features"})

    kind: Literal["ft-transformer"] = "ft-transformer"
    width: int = Field(default=32, ge=8, le=512, title="Width")
    depth: int = Field(default=6, ge=1, le=24, title="Blocks")
    heads: int = Field(default=8, ge=1, le=32, title="Heads")
    epochs: int = Field(default=20, ge=1, le=1000, title="Epochs")
    batch_size: int = Field(default=256, ge=1, title="Expected batch of the Poisson samples")
    learning_rate: float = Field(default=1e-3, gt=0, le=1, title="Learning rate", description="Of Adam.")
    l2_clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False, title="Clip")
    counts_factor: float = Field(default=5.0, gt=0, le=1e3, title="Noise of the counts", description="Over a step's.")
    smallest_count: float = Field(default=5.0, gt=0, le=1e9, title="Smallest count", description="After the noise.")

    def plan(self, task: Task) -> Plan:
        """Solve the noise so that counts and descent together meet the target.

        Raises:
            MechanismError: the target cannot be met.
        """
        settled = self.at(task)
        event = dp_sgd.solved(partial(_event, settled, task.records), settled, task)
        return Plan(mechanism=settled, event=event, records=task.records)

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """Noise, steps, and epsilon by several accountants."""
        return dp_sgd.cost_figures(plan, task)

    def makes(self, event: Event | None, task: Task) -> bool:
        """Counts and steps at one noise."""
        counts = event.events[0] if isinstance(event, ComposedEvent) else None
        own = isinstance(counts, GaussianReleaseEvent)
        return own and alike(event, _event(self, task.records, counts.noise_multiplier / self.counts_factor))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Counts, weights, steps.

        Raises:
            MechanismError: the library is not installed, or training diverged.
        """
        features = features_of(records.inputs)
        columns = Columns.of(run.schema, features.shape[1], bins=1)
        event = plan.event
        assert isinstance(event, ComposedEvent)

        def make(stream: SecretStream) -> Transformer:
            with seeded(run.seed, "ft-transformer"):
                network = _network(self, columns, run.classes)
            model = Transformer(network, columns, self, run.classes)
            self._descend(model, features, records.labels, event, stream)
            return model

        return Fitted(once(run.folder, FILE, load=Transformer.load, make=make), event)

    def _descend(
        self, model: Transformer, features: Tensor, labels: Tensor, event: ComposedEvent, stream: SecretStream
    ) -> None:
        counts, sgd = event.events[0], dp_sgd.descent_of(event)
        assert isinstance(counts, GaussianReleaseEvent)
        noisy = class_counts.release_counts(
            labels, num_labels=model.classes, noise_multiplier=counts.noise_multiplier, stream=stream
        )
        settings = ClassWeightsConfig(noise_multiplier=counts.noise_multiplier, smallest_count=self.smallest_count)
        weights = class_counts.class_weights(noisy, settings)[labels]
        numbers, codes = model.inputs(features)
        names = [name for name, _ in model.network.named_parameters()]
        shapes = [p.shape for p in model.network.parameters()]
        sizes = [p.numel() for p in model.network.parameters()]
        theta = nn.Parameter(nn.utils.parameters_to_vector(model.network.parameters()).detach().clone())
        optimiser = torch.optim.Adam([theta], lr=self.learning_rate)

        def loss(flat: Tensor, number: Tensor, code: Tensor, label: Tensor) -> Tensor:
            parts = flat.split(sizes)
            own = {n: part.view(shape) for n, part, shape in zip(names, parts, shapes, strict=True)}
            said = functional_call(model.network, own, _arguments(number[None], code[None]))
            return nn.functional.cross_entropy(said, label[None])

        each = vmap(grad(loss), in_dims=(None, 0, 0, 0))
        segment = sgd.segments[0]
        for step in range(segment.steps):
            total = torch.zeros_like(theta.data)
            index = stream.poisson_sample(len(labels), prob=sgd.sampling_prob, purpose="sample", step=step)
            for part in index.split(_BLOCK):
                if len(part):
                    gradients = each(theta.detach(), numbers[part], codes[part], labels[part])
                    factor = (segment.l2_clip_norm / gradients.norm(dim=1).clamp(min=1e-12)).clamp(max=1)
                    total += (factor * weights[part]) @ gradients
            std = segment.noise_multiplier * segment.l2_clip_norm
            stream.add_normal_(total, std=std, purpose="gradient noise", step=step)
            theta.grad = total / (sgd.sampling_prob * len(labels))
            optimiser.step()
        if not bool(torch.isfinite(theta).all()):
            raise MechanismError(f"training diverged: lower learning_rate (now {self.learning_rate:g})")
        nn.utils.vector_to_parameters(theta.detach(), model.network.parameters())

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> Transformer:
        """The network."""
        return Transformer.load(folder)


@dataclass(frozen=True)
class Transformer:
    """A fitted network over columns."""

    network: nn.Module
    columns: Columns
    config: FtTransformer
    classes: int

    def inputs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers float32 [n, numeric columns] in [-1, 1], and codes int64 [n, categorical columns]."""
        parts = features.split(list(self.columns.widths), dim=1)
        numbers = [2 * part.float() - 1 for part in parts if part.shape[1] == 1]
        codes = [part.argmax(1)[:, None] for part in parts if part.shape[1] > 1]
        n = len(features)
        return (
            torch.cat(numbers, dim=1) if numbers else torch.zeros(n, 0),
            torch.cat(codes, dim=1) if codes else torch.zeros(n, 0, dtype=torch.int64),
        )

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        """Float64 [n, classes]."""
        numbers, codes = self.inputs(features_of(inputs))
        with torch.no_grad():
            said = [
                self.network(*_arguments(number, code))
                for number, code in zip(numbers.split(4096), codes.split(4096), strict=True)
            ]
        return torch.cat(said).double().log_softmax(-1)

    def save(self, folder: Path) -> None:
        """One file."""
        meta = {
            "widths": self.columns.widths,
            "bins": self.columns.bins,
            "config": self.config.model_dump(mode="json"),
            "classes": self.classes,
        }
        checkpoint.save(folder / FILE, dict(self.network.state_dict()), meta)

    @classmethod
    def load(cls, folder: Path) -> Transformer:
        """Read what `save` wrote."""
        tensors, meta = checkpoint.load(folder / FILE)
        columns = Columns(tuple(meta["widths"]), meta["bins"])
        config = FtTransformer.model_validate(meta["config"])
        network = _network(config, columns, meta["classes"])
        network.load_state_dict(tensors)
        return cls(network, columns, config, meta["classes"])


def _network(config: FtTransformer, columns: Columns, classes: int) -> nn.Module:
    """The untrained network, without dropout.

    Raises:
        MechanismError: the library is not installed.
    """
    try:
        from rtdl_revisiting_models import FTTransformer
    except ImportError:
        raise MechanismError(
            "this mechanism needs rtdl-revisiting-models: pip install 'swag-ppm-autocoder[imbalance]'"
        ) from None
    how: dict[str, Any] = {"attention_dropout": 0.0, "ffn_dropout": 0.0, "residual_dropout": 0.0}
    return FTTransformer(
        n_cont_features=sum(width == 1 for width in columns.widths),
        cat_cardinalities=[width for width in columns.widths if width > 1],
        d_out=classes,
        n_blocks=config.depth,
        d_block=config.width,
        attention_n_heads=config.heads,
        ffn_d_hidden=None,
        ffn_d_hidden_multiplier=4 / 3,
        **how,
    ).eval()


def _arguments(numbers: Tensor, codes: Tensor) -> tuple[Tensor | None, Tensor | None]:
    return (numbers if numbers.shape[-1] else None, codes if codes.shape[-1] else None)


def _event(config: FtTransformer, records: int, noise_multiplier: float) -> ComposedEvent:
    counts = GaussianReleaseEvent(
        what="class counts",
        noise_multiplier=config.counts_factor * noise_multiplier,
        l2_sensitivity=class_counts.L2_SENSITIVITY,
    )
    prob = min(1.0, config.batch_size / records)
    steps = max(1, math.ceil(config.epochs / prob))
    segment = NoiseSegment(steps=steps, noise_multiplier=noise_multiplier, l2_clip_norm=config.l2_clip_norm)
    return ComposedEvent(events=(counts, DpSgdEvent(sampling_prob=prob, segments=(segment,))))
