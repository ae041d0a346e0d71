"""Settings of a model and of its optimiser, validated before torch is imported."""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from mechanisms.errors import MechanismError
from mechanisms.model import packaged
from mechanisms.model.precision import Choice, Precision, resolved

TARGETS = (0.80, 0.90, 0.95)
SCHEMA = 1
"""Version of the thresholds file."""
"""Target accuracies of automatically coded records for which thresholds are searched."""
HASHED_COLUMNS = 768
"""Number of columns of hashed words, in addition to the encoder's features."""
NO_ENCODER = "none"
"""Value of `encoder` if the records are features already."""

TrainablePart = Literal["full", "lora", "head"]
Pooling = Literal["first", "mean", "none"]
Prior = Literal["none", "titles"]
Lexical = Literal["none", "titles", "hashed"]
TitlesOf = Literal["codelist", "injuries"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A finite number above 0."""


@cache
def stemmer(language: str) -> Any:
    """The Snowball stemmer of a language. The error for an unknown language lists the available
    ones.
    """
    import snowballstemmer

    try:
        return snowballstemmer.stemmer(language)
    except KeyError:
        names = ", ".join(snowballstemmer.algorithms())
        message = (
            f"model.lexical_language: the stemmer does not know `{language}`. It knows {names}."
        )
        raise MechanismError(message, kind="unknown-stemmer") from None


class ModelConfig(BaseModel, frozen=True, extra="forbid", title="Model"):
    """The encoder, its trainable part, and how a narrative becomes one vector."""

    encoder: str = Field(
        default="distilroberta-base",
        title="Encoder",
        description="Hub name, folder in the layout of transformers or sentence-transformers, "
        "`packaged-minilm` (in "
        "the extra `minilm`), `packaged-mpnet` (docs/explanation/formal-method.md), or "
        "`auto`: the better of these two that is installed.",
        min_length=1,
    )
    trainable: TrainablePart = Field(
        default="full",
        title="Trainable part",
        description=(
            "`full` and `lora` want a GPU; `head` freezes the encoder, caches its "
            "features and runs on a CPU."
        ),
    )
    pooling: Pooling = Field(
        default="first",
        title="Pooling",
        description="`first` is the standard head of transformers (first token); `mean` averages "
        "the tokens; `none`: "
        "the records are features already (of `PrivateClassifier`), and no encoder is used.",
    )
    max_length: int = Field(
        default=128,
        ge=8,
        le=512,
        title="Longest narrative",
        description="Tokens; longer narratives are cut.",
    )
    lora_rank: int = Field(
        default=8, ge=1, le=256, title="LoRA rank", description="Width of the update; for `lora`."
    )
    lora_alpha: int = Field(
        default=16, ge=1, title="LoRA alpha", description="Updates are scaled by alpha / rank."
    )
    lora_layers: int | None = Field(
        default=None,
        ge=1,
        title="Layers with LoRA",
        description="Adapters in every linear map of so many last layers. The states of the "
        "tokens below them are "
        "computed once and kept with the features. Empty: in queries and values of all layers, "
        "from tokens.",
    )
    lora_dropout: float = Field(
        default=0.0, ge=0, lt=1, title="LoRA dropout", description="For `lora`."
    )
    prior: Prior = Field(
        default="none",
        title="Public prior",
        description="`titles`: the head starts at the titles of the code list through the same "
        "encoder, for which no "
        "record is read; needs pooling `mean` and a code list. `none`: at random.",
    )
    prior_scale: Positive = Field(
        default=12.0, le=1000, title="Scale of the prior", description="Beta; for `titles`."
    )
    prior_sentence: str = Field(
        default="",
        title="Sentence of the prior",
        description="A sentence as narratives say it, with {} for a title, such as `An employee "
        "suffered {}.`; for "
        "`titles`, which are then read in it too. It comes from no record. Empty: none.",
        max_length=200,
        pattern=r"^([^{}]*\{\}[^{}]*)?$",
    )
    prior_examples: str = Field(
        default="",
        title="Public examples",
        description="SHA-256 of the entries of the coding index that the head starts at; it comes "
        "from `data.examples`.",
        pattern=r"^([0-9a-f]{64})?$",
        exclude_if=lambda value: not value,
    )
    lexical: Lexical = Field(
        default="none",
        title="Words next to the encoder",
        description="`titles`: columns for the stems of the code list's words join the encoder's "
        "features. No record "
        "is read for them. `hashed`: hashes of all stems, which need no code list. For trainable "
        "parts `head` and "
        "`lora` with pooling `mean`.",
    )
    lexical_titles: TitlesOf = Field(
        default="codelist",
        title="Titles of the words",
        description="Whose words `lexical: titles` reads: those of the codes, or `injuries`: "
        "OIICS 2.01, nature of "
        "injury, for records about injuries whose codes have no titles.",
    )
    lexical_language: str = Field(
        default="english",
        title="Language of the stems",
        description="As Snowball names it, such as `german`; for `titles` and `hashed`.",
    )
    precision: Choice = Field(
        default="float32",
        title="Precision of the encoder",
        description="Of features and training steps. `bfloat16` is about twice as fast where the "
        "processor has "
        "instructions for it (AMX, AVX512-BF16); `auto` takes it there. DP-SGD's gradients are "
        "float32 always.",
    )

    @field_validator("encoder")
    @classmethod
    def _that_is_installed(cls, value: str) -> str:
        return packaged.best_installed() if value == "auto" else value

    @field_validator("precision")
    @classmethod
    def _by_this_processor(cls, value: Choice) -> Precision:
        return resolved(value)

    @property
    def encoder_language(self) -> str | None:
        """Language of the encoder; None if the user supplied the encoder."""
        return "English" if self.encoder.startswith("packaged") else None

    @property
    def stems_language(self) -> str | None:
        """Language of the stems; None if the head reads no words."""
        return None if self.lexical == "none" else self.lexical_language

    def frozen(self) -> ModelConfig:
        """The model that reads only the encoder's features, with a randomly initialised head."""
        return self.model_copy(
            update={
                **{"trainable": "head", "prior": "none", "prior_examples": ""},
                **{"lexical": "none", "lora_layers": None},
            }
        )

    @property
    def linear_head(self) -> bool:
        """Whether one linear layer on cached features is the only trained part."""
        return self.trainable == "head" and self.pooling != "first"

    @model_validator(mode="before")
    @classmethod
    def _features_need_no_encoder(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("pooling") != "none":
            return values
        return {"trainable": "head"} | values | {"encoder": NO_ENCODER}

    @model_validator(mode="after")
    def _parts_go_together(self) -> ModelConfig:
        if self.pooling == "none" and self.trainable != "head":
            raise ValueError(
                "pooling `none` goes with trainable part `head`: there is no encoder to train"
            )
        if self.prior == "titles" and self.pooling != "mean":
            raise ValueError(
                "prior `titles` goes with pooling `mean`, whose head is one linear layer on the "
                "features"
            )
        if self.lexical != "none":
            if self.pooling != "mean" or self.trainable == "full":
                raise ValueError(
                    f"lexical `{self.lexical}` goes with trainable part `head` or `lora` and "
                    "pooling `mean`"
                )
            stemmer(self.lexical_language)
        if self.lora_layers is not None and (self.trainable != "lora" or self.pooling != "mean"):
            raise ValueError("lora_layers goes with trainable part `lora` and pooling `mean`")
        return self


class OptimiserPhase(BaseModel, frozen=True, extra="forbid", title="Optimiser phase"):
    """One optimiser with its settings, for a number of epochs."""

    optimiser: Literal["adamw", "sgd"] = Field(
        default="adamw", title="Optimiser", description="Of this phase."
    )
    learning_rate: Positive = Field(
        default=5e-5,
        le=100,
        title="Learning rate",
        description="At the start. Fine-tuning only a head has 0.003 by default.",
    )
    head_rate: Positive = Field(
        default=1.0,
        le=1000,
        title="Rate of the head",
        description="Of a head on an encoder that trains too, in learning rates.",
    )
    epochs: int = Field(
        default=10, ge=1, le=10_000, title="Epochs", description="Passes over the records."
    )
    batch_size: int = Field(
        default=8, ge=1, le=65_536, title="Batch size", description="Records a step."
    )
    schedule: Literal["constant", "linear"] = Field(
        default="constant", title="Schedule", description="`linear` falls to zero over the phase."
    )
    pull: float = Field(
        default=0.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        title="Pull to the start",
        description="An L2 penalty; 0: none.",
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, title="Momentum", description="SGD only.")
    max_grad_norm: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        title="Gradient norm cap",
        description="Of the batch; empty for none.",
    )
    length_bucketing: bool = Field(
        default=False,
        title="Length bucketing",
        description=(
            "Batch narratives of like length: two to three times faster on tokens, order "
            "a little less random."
        ),
    )

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> OptimiserPhase:
        if self.momentum and self.optimiser != "sgd":
            raise ValueError("momentum goes with optimiser `sgd`")
        return self

    def steps(self, n: int) -> int:
        return self.epochs * math.ceil(n / self.batch_size)
