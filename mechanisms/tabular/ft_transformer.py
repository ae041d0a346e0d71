"""A transformer for tables (Gorishniy et al. 2021) by class-weighted DP-SGD (Rosenblatt et al. 2025, algorithm 4).

Numbers and categories are tokens of `rtdl_revisiting_models.FTTransformer`. Per-record gradients come from `torch.func`
(`mechanisms.model.per_record`; its layers have no rule in Opacus), clipped, times the weight of the record's class,
which is at most 1 and follows from private counts. Dropout is off. Both noises are solved together: `counts_factor`
times the steps' noise multiplier on the counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.descent.noisy_descent import NoisyDescent, Optimised, SampledSum, clip_factors
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Descending, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import checkpoint
from mechanisms.model.ghost import Coefficients
from mechanisms.model.inputs import FeatureInputs, Inputs
from mechanisms.model.per_record import PerRecordClipping
from mechanisms.model.seeding import seeded
from mechanisms.privacy import class_counts
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, GaussianReleaseEvent, NoiseSegment, descent_of
from mechanisms.tabular.columns import Columns, OfTables, TableModel, features_of

FILE = "transformer.safetensors"
_BLOCK = 256
"""Records whose gradients are in memory at once."""


@dataclass(frozen=True)
class Transformer:
    """A fitted network over columns."""

    network: _Network
    columns: Columns
    config: FtTransformer
    classes: int

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        """Float64 [n, classes]."""
        with torch.no_grad():
            logits = [self.network(some) for some in features_of(inputs).split(4096)]
        return torch.cat(logits).double().log_softmax(-1)

    def save(self, folder: Path) -> None:
        """One file."""
        meta = {
            "widths": self.columns.widths,
            "bins": self.columns.bins,
            "config": self.config.model_dump(mode="json"),
            "classes": self.classes,
        }
        checkpoint.save(folder / FILE, dict(self.network.network.state_dict()), meta)

    @classmethod
    def load(cls, folder: Path) -> Transformer:
        """Read what `save` wrote."""
        tensors, meta = checkpoint.load(folder / FILE)
        columns = Columns(tuple(meta["widths"]), meta["bins"])
        config = FtTransformer.model_validate(meta["config"])
        network = _Network(config, columns, meta["classes"])
        network.network.load_state_dict(tensors)
        return cls(network, columns, config, meta["classes"])


class _Network(nn.Module):
    """Reads features float [n, d] in [0, 1] by columns, without dropout; it needs the library of the extra."""

    def __init__(self, config: FtTransformer, columns: Columns, classes: int) -> None:
        try:
            from rtdl_revisiting_models import FTTransformer
        except ImportError:
            raise MechanismError("this mechanism needs rtdl-revisiting-models: pip install '.[imbalance]'") from None
        super().__init__()
        self._widths = list(columns.widths)
        how: dict[str, Any] = {"attention_dropout": 0.0, "ffn_dropout": 0.0, "residual_dropout": 0.0}
        self.network = FTTransformer(
            n_cont_features=sum(width == 1 for width in columns.widths),
            cat_cardinalities=[width for width in columns.widths if width > 1],
            d_out=classes,
            n_blocks=config.depth,
            d_block=config.width,
            attention_n_heads=config.heads,
            ffn_d_hidden=None,
            ffn_d_hidden_multiplier=4 / 3,
            **how,
        )
        self.eval()

    def forward(self, features: Tensor) -> Tensor:
        """Returns logits float32 [n, classes]: numbers in [-1, 1] and codes of categories are tokens."""
        parts = features.split(self._widths, dim=1)
        numbers = [2 * part.float() - 1 for part in parts if part.shape[1] == 1]
        codes = [part.argmax(1)[:, None] for part in parts if part.shape[1] > 1]
        return self.network(torch.cat(numbers, dim=1) if numbers else None, torch.cat(codes, dim=1) if codes else None)


@registered
class FtTransformer(OfTables, Descending, frozen=True, title="FTTransformer"):
    """Sizes of the network, and the descent. Width, depth, heads and epochs are the paper's."""

    leaves: ClassVar[type[TableModel]] = Transformer
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

    def event(self, noise: float, task: Task) -> ComposedEvent:
        """Returns counts and steps, whose noise multiplier this is."""
        counts = GaussianReleaseEvent(
            what="class counts",
            noise_multiplier=self.counts_factor * noise,
            l2_sensitivity=class_counts.L2_SENSITIVITY,
        )
        prob = min(1.0, self.batch_size / task.records)
        steps = max(1, math.ceil(self.epochs / prob))
        segment = NoiseSegment(steps=steps, noise_multiplier=noise, l2_clip_norm=self.l2_clip_norm)
        return ComposedEvent(events=(counts, DpSgdEvent(sampling_prob=prob, segments=(segment,))))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Counts, weights, steps."""
        features = features_of(records.inputs)
        columns = Columns.of(run.schema, features.shape[1], bins=1)
        event = plan.event
        assert isinstance(event, ComposedEvent)

        def make(state: KeyedState) -> Transformer:
            with seeded(run.seed, "ft-transformer"):
                network = _Network(self, columns, run.classes)
            self._descend(network, FeatureInputs(features), records.labels, plan, run, state)
            return Transformer(network, columns, self, run.classes)

        return Fitted(fit_or_load(run.folder, FILE, new_key=run.new_key, load=Transformer.load, fit=make), event)

    def _descend(
        self,
        network: _Network,
        inputs: FeatureInputs,
        labels: Tensor,
        plan: Plan,
        run: Run,
        state: KeyedState,
    ) -> None:
        event = plan.event
        assert isinstance(event, ComposedEvent)
        (counts,), sgd = event.releases, descent_of(event)
        noisy = class_counts.with_noise(run.layout.counts(labels), std=counts.std, stream=state.stream)
        settings = ClassWeightsConfig(noise_multiplier=counts.noise_multiplier, smallest_count=self.smallest_count)
        parameters = list(network.parameters())
        flat = nn.utils.parameters_to_vector(parameters).detach().clone()
        nn.utils.vector_to_parameters(flat, parameters)  # which are views of it from here on
        ends = torch.tensor([0, *(p.numel() for p in parameters)]).cumsum(0).tolist()
        spans = {id(p): slice(*span) for p, span in zip(parameters, pairwise(ends), strict=True)}
        clipper = PerRecordClipping(
            network, spans, lambda output, label: nn.functional.cross_entropy(output[None], label[None])
        )

        def coefficients(segment: NoiseSegment, own: Tensor | None) -> Coefficients:
            assert own is not None
            return lambda norms: clip_factors(segment)(norms) * own

        clipped_sum = SampledSum(
            clipper,
            inputs,
            labels,
            state.stream,
            sgd.sampling_prob,
            coefficients,
            class_counts.class_weights(noisy, settings)[labels],
            min(_BLOCK, clipper.most_records),
        )
        update = Optimised(flat, lambda theta: torch.optim.Adam([theta], lr=self.learning_rate))
        remedy = f"lower learning_rate (now {self.learning_rate:g})"
        epochs = min(self.epochs, sgd.steps)
        descent = NoisyDescent(state, sgd, epochs=epochs, remedy=remedy, canaries=run.canaries, progress=run.progress)
        descent.run(update, clipped_sum, divisor=sgd.sampling_prob * plan.records)
