"""Encoder and head, with the trainable part as one flat vector.

Three trainable parts share one interface:

| part   | trains                                   | reads                                 |
|--------|------------------------------------------|---------------------------------------|
| `full` | every parameter                          | tokens                                |
| `lora` | low-rank adapters and the head (peft)    | tokens                                |
| `head` | all layers after the pooled features     | features, encoded once                |

With pooling `none` the records are features already, and part `head` is one linear layer on them.

The trainable parameters are views into `Classifier.flat`, float32 [P]. Writing a posterior draw
into that vector *is* loading the draw, without copies or name look-ups.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import encoder_files, encoders
from mechanisms.model.config import ModelConfig, Precision
from mechanisms.model.inputs import (
    Batch,
    Block,
    FeatureInputs,
    Inputs,
    TokenInputs,
    blocks,
    length_sorted_batches,
)
from mechanisms.model.lexicon import Lexicon
from mechanisms.model.linear import fast_linear
from mechanisms.model.precision import computing, resolved, rounded_once
from mechanisms.model.seeding import seeded
from mechanisms.model.threads import block_tokens, forward_batch_size, forward_passes
from mechanisms.model.transfer import brought_back


class MeanPooled(nn.Module):
    """An encoder, the mean of its token vectors under the attention mask, and one linear layer.

    With a lexicon, the layer also reads the lexicon's word columns. With `upper` (the encoder's
    last layers) it can also read hidden states from the layer below.
    """

    def __init__(
        self,
        encoder: nn.Module,
        width: int,
        num_labels: int,
        lexicon: Lexicon | None = None,
        upper: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.lexicon = lexicon
        self._upper = (upper,)  # in a tuple, because its layers are registered with the encoder
        self.head = nn.Linear(width + (0 if lexicon is None else lexicon.columns), num_labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        words: Tensor | None = None,
        states: Tensor | None = None,
    ) -> Tensor:
        """Logits [b, labels].

        Args:
            words: unscaled word columns of the lexicon [b, columns].
            states: hidden states below the last layers, float32 [b, longest, width], instead of
                ids.
        """
        assert attention_mask is not None
        upper = self._upper[0]
        if states is None or upper is None:
            hidden = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
        else:
            hidden = upper(inputs_embeds=states, attention_mask=attention_mask).last_hidden_state
        return self.scores(mean(hidden, attention_mask), words)

    def scores(self, features: Tensor, words: Tensor | None) -> Tensor:
        """Logits [b, labels] from pooled features and the word columns of the lexicon."""
        if self.lexicon is not None:
            if words is None:
                raise TypeError("this head reads words next to the encoder's features")
            features = self.lexicon.join(features, words)
        return self.head(features)


def mean_pool(encoder: nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean of each record's token vectors without padding, float32 [b, width]."""
    return mean(
        encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state,
        attention_mask,
    )


def mean(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean of hidden states [b, longest, width] over the tokens of each record, float32 [b,
    width].
    """
    hidden = hidden.float()
    mask = attention_mask[:, :, None].to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


class Classifier:
    """A classifier with trainable parameters that are views into one vector.

    `whole` is the complete model, as released. `part` is the module that training and draws run:
    the whole model for `full` and `lora`, and the layers after the features for `head`.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        whole: nn.Module,
        part: nn.Module,
        pool: Callable[[Batch], Tensor] | None,
        device: torch.device,
    ) -> None:
        self.config = config
        self.whole = whole.to(device)
        self.part = part
        self.device = device
        self._pool = pool
        self.centre: Tensor | None = None
        """Mean of the public texts at which the head starts, float32 [width]; None if it starts
        elsewhere.
        """
        self.parameters = [p for p in part.parameters() if p.requires_grad]
        self.flat = torch.empty(
            sum(p.numel() for p in self.parameters), dtype=torch.float32, device=device
        )
        self.spans: dict[int, slice] = {}
        """Position of each trainable parameter in `flat`, by the parameter's id."""
        start = 0
        for p in self.parameters:
            span = self.spans[id(p)] = slice(start, start + p.numel())
            view = self.flat[span].view_as(p)
            view.copy_(p.data)
            p.data = view
            start = span.stop
        self.part.eval()

    @property
    def precision(self) -> Precision:
        """Precision of the encoder's passes and of training steps."""
        return resolved(self.config.precision)

    @property
    def num_parameters(self) -> int:
        """P, the length of `flat`."""
        return self.flat.numel()

    @property
    def head_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters of the linear layer on an encoder that is also trained; empty if only the head
        is trained.
        """
        return tuple(self.part.head.parameters()) if isinstance(self.part, MeanPooled) else ()

    def logits(self, batch: Batch) -> Tensor:
        """Scores [b, labels] of one batch."""
        if "features" in batch:
            return self.part(batch["features"])
        output = self.part(**batch)
        return output if isinstance(output, Tensor) else output.logits

    def log_likelihood(self, batch: Batch, labels: Tensor) -> Tensor:
        """Per-record log-likelihood l_i = log p(y_i | x_i, theta), natural log, float32 [b], each
        <= 0.
        """
        return self.log_likelihood_of(self.logits(batch), labels)

    def log_likelihood_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Log-likelihoods from logits [b, classes]."""
        return logits.float().log_softmax(-1).gather(1, labels[:, None])[:, 0]

    def encode(
        self, tokens: TokenInputs, *, on_batch: Callable[[int], None] | None = None
    ) -> FeatureInputs:
        """Runs the frozen encoder once: pooled features float32 [n, width] for trainable part
        `head`.

        A record's features depend only on that record, bit for bit (`inputs.Block`).

        Args:
            on_batch: called with the number of records of each block, for progress.
        """
        if self._pool is None:
            raise TypeError("only trainable part `head` reads features")
        self.whole.eval()
        features = torch.zeros(len(tokens), encoders.width(self.whole), dtype=torch.float32)
        pool = self._pool

        def pooled(block: Block) -> tuple[Tensor, Tensor]:
            batch = block.batch(tokens, self.device)
            with torch.no_grad(), computing(self.precision, self.device):
                return block.index, pool(batch)[: len(block.index)].float()

        cut = blocks(tokens, budget=block_tokens(self.device))
        with (
            rounded_once(self.whole, self.precision),
            forward_passes(tokens, self.device) as over,
        ):
            for index, part in brought_back(over(pooled, cut)):
                features[index] = part
                if on_batch is not None:
                    on_batch(len(index))
        return FeatureInputs(features=features)

    def predict(self, inputs: Inputs, *, batch_size: int | None = None) -> Tensor:
        """Logits of every record, float32 [n, labels], in the order of the records."""

        def scores(index: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad(), fast_linear(self.device):
                return index, self.logits(inputs.batch(index, self.device)).float()

        out: Tensor | None = None
        with forward_passes(inputs, self.device) as over:
            size = batch_size or forward_batch_size(inputs, self.device)
            batches = length_sorted_batches(inputs, batch_size=size)
            for index, logits in brought_back(over(scores, batches)):
                if out is None:
                    out = torch.empty(len(inputs), logits.shape[1])
                out[index] = logits
        return torch.empty(0, 0) if out is None else out

    def releasable(self) -> nn.Module:
        """The complete model with its current parameters: adapters are merged and training
        structures removed.
        """
        if self.config.trainable != "lora":
            return self.whole
        if isinstance(self.whole, MeanPooled):
            self.whole.encoder = _merged(self.whole.encoder)
            return self.whole
        return _merged(self.whole)


def build(
    config: ModelConfig,
    *,
    num_labels: int,
    seed: int,
    device: torch.device | str = "cpu",
    width: int | None = None,
    lexicon: Lexicon | None = None,
) -> Classifier:
    """Loads the encoder and adds a new head, initialised from `seed`.

    Args:
        width: number of features per record, for pooling `none`.
        lexicon: the words that the head reads in addition to the encoder's features, if any.

    Raises:
        MechanismError: the encoder cannot be loaded, or its family has no known head.
    """
    device = torch.device(device)
    if ("none" if lexicon is None else lexicon.kind) != config.lexical:
        raise MechanismError(
            "model.lexical: the head needs the lexicon of its features, and without it none",
            kind="lexicon-missing",
        )
    with seeded(seed, "initialise"):
        if config.pooling == "none":
            if width is None:
                raise MechanismError(
                    "model.pooling=none is for features. Set their width", kind="no-feature-width"
                )
            head = nn.Linear(width, num_labels)
            return Classifier(config=config, whole=head, part=head, pool=None, device=device)
        if config.pooling == "mean":
            frozen = config.trainable == "head"
            encoder = (
                encoders.load_frozen(config.encoder, once=True)
                if frozen
                else encoders.load_encoder(config.encoder)
            )
            width = encoders.width(encoder)
            upper = (
                None
                if config.lora_layers is None
                else encoders.last_layers(encoder, config.lora_layers)
            )
            if config.trainable == "lora":
                encoder = _with_adapters(encoder, config, task="FEATURE_EXTRACTION")
            complete: nn.Module = MeanPooled(encoder, width, num_labels, lexicon, upper)
        else:
            complete = encoders.load_with_standard_head(config.encoder, num_labels=num_labels)
            if config.trainable == "lora":
                complete = _with_adapters(complete, config, task="SEQ_CLS")
    if config.trainable != "head":
        return Classifier(config=config, whole=complete, part=complete, pool=None, device=device)

    complete.requires_grad_(False)
    if isinstance(complete, MeanPooled):
        part: nn.Module = complete.head

        def pool(batch: Batch) -> Tensor:
            return mean_pool(complete.encoder, batch["input_ids"], batch["attention_mask"])
    else:
        part = encoders.standard_head(complete)

        def pool(batch: Batch) -> Tensor:
            return encoders.base(complete)(**batch).last_hidden_state[:, 0]

    part.requires_grad_(True)
    return Classifier(config=config, whole=complete, part=part, pool=pool, device=device)


def tokenize(config: ModelConfig, texts: list[str]) -> TokenInputs:
    return tokenizer(config)(texts)


def tokenizer(config: ModelConfig) -> Callable[[Sequence[str]], TokenInputs]:
    """A function from narratives to token ids, truncated to `max_length`, with the encoder's
    tokenizer.

    Raises:
        MechanismError: the encoder cannot be loaded, or reads fewer tokens than `max_length`.
    """
    encoder_files.require_length(config.encoder, config.max_length)
    return partial(
        encoders.token_inputs,
        encoder_files.load_tokenizer(config.encoder),
        max_length=config.max_length,
    )


def _with_adapters(
    model: nn.Module, config: ModelConfig, *, task: Literal["SEQ_CLS", "FEATURE_EXTRACTION"]
) -> nn.Module:
    from peft import LoraConfig, TaskType, get_peft_model

    maps = None
    if config.lora_layers is not None:
        maps = encoders.linear_maps(model, config.lora_layers)
    lora = LoraConfig(
        target_modules=maps,
        task_type=TaskType[task],
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
    )
    with warnings.catch_warnings():
        # peft uses a name that transformers is removing
        warnings.filterwarnings(
            "ignore", message=".*is_gradient_checkpointing", category=FutureWarning
        )
        return cast(nn.Module, get_peft_model(cast(Any, model), lora))


def states(
    config: ModelConfig,
    tokens: TokenInputs,
    *,
    device: torch.device,
    on_batch: Callable[[int], None] | None = None,
) -> Tensor | None:
    """Hidden states of the tokens below the layers with adapters, float32 [tokens, width]; None if
    the configuration has no such layers.

    Args:
        on_batch: called with the number of tokens of each batch.

    Raises:
        MechanismError: the encoder has too few layers.
    """
    if config.lora_layers is None:
        return None
    encoder = encoders.load_encoder(config.encoder)
    below = encoders.layers_below(encoder, config.lora_layers).to(device).eval()
    all_states, lengths = torch.empty(len(tokens.ids), encoders.width(encoder)), tokens.lengths
    precision = resolved(config.precision)

    def run(block: Block) -> tuple[Tensor, Tensor]:
        batch = block.batch(tokens, device)
        with torch.no_grad(), computing(precision, device):
            return block.index, below(**batch).last_hidden_state[: len(block.index)].float()

    with rounded_once(below, precision), forward_passes(tokens, device) as over:
        for index, hidden in brought_back(over(run, blocks(tokens, budget=block_tokens(device)))):
            column = torch.arange(hidden.shape[1])
            there = column < lengths[index, None]
            place = (tokens.offsets[index, None] + column)[there]
            all_states[place] = hidden[there]
            if on_batch is not None:
                on_batch(len(place))
    return all_states


def _merged(model: nn.Module) -> nn.Module:
    return cast(nn.Module, cast(Any, model).merge_and_unload())


def device_of(name: str) -> torch.device:
    """`auto` is CUDA if available, otherwise the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
