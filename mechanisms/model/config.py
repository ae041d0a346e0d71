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
            "`full` and `lora` need a GPU to be practical; `head` freezes the encoder, "
            "caches its features and runs on a CPU."
        ),
    )
    pooling: Pooling = Field(
        default="first",
        title="Pooling",
        description=(
            "`first` is the standard head of transformers (first token); `mean` averages "
            "the tokens; with `none`, the records are features already (from "
            "`PrivateClassifier`), and no encoder is used."
        ),
    )
    max_length: int = Field(
        default=128,
        ge=8,
        le=512,
        title="Longest narrative",
        description="In tokens. Longer narratives are truncated.",
    )
    lora_rank: int = Field(
        default=8,
        ge=1,
        le=256,
        title="LoRA rank",
        description="Rank of the update. Only for `lora`.",
    )
    lora_alpha: int = Field(
        default=16, ge=1, title="LoRA alpha", description="Updates are scaled by alpha / rank."
    )
    lora_layers: int | None = Field(
        default=None,
        ge=1,
        title="Layers with LoRA",
        description=(
            "Adapters in every linear map of this number of last layers. The states of "
            "the tokens below them are computed once and stored with the features. Empty: "
            "adapters in queries and values of all layers, trained from tokens."
        ),
    )
    lora_dropout: float = Field(
        default=0.0, ge=0, lt=1, title="LoRA dropout", description="Only for `lora`."
    )
    prior: Prior = Field(
        default="none",
        title="Public prior",
        description=(
            "`titles`: the head starts at the encoded titles of the code list, which uses "
            "no record; requires pooling `mean` and a code list. `none`: the head starts "
            "at random."
        ),
    )
    prior_scale: Positive = Field(
        default=12.0, le=1000, title="Scale of the prior", description="Beta. Only for `titles`."
    )
    prior_sentence: str = Field(
        default="",
        title="Sentence of the prior",
        description=(
            "A sentence in the style of narratives, with {} for a title, such as `An "
            "employee suffered {}.`; for `titles`, which are then also encoded in this "
            "sentence. It must not come from a record. Empty: no sentence."
        ),
        max_length=200,
        pattern=r"^([^{}]*\{\}[^{}]*)?$",
    )
    prior_examples: str = Field(
        default="",
        title="Public examples",
        description=(
            "SHA-256 of the entries of the coding index at which the head starts; set "
            "from `data.examples`."
        ),
        pattern=r"^([0-9a-f]{64})?$",
        exclude_if=lambda value: not value,
    )
    lexical: Lexical = Field(
        default="none",
        title="Words next to the encoder",
        description=(
            "`titles`: one column for each word stem of the code list is added to the "
            "encoder's features, without reading any record. `hashed`: hashes of all "
            "stems, which need no code list. For trainable parts `head` and `lora` with "
            "pooling `mean`."
        ),
    )
    lexical_titles: TitlesOf = Field(
        default="codelist",
        title="Titles of the words",
        description=(
            "The titles whose words `lexical: titles` reads: those of the codes, or "
            "`injuries`: OIICS 2.01, nature of injury, for records about injuries whose "
            "codes have no titles."
        ),
    )
    lexical_language: str = Field(
        default="english",
        title="Language of the stems",
        description=(
            "Snowball's name of the language, such as `german`; for `titles` and `hashed`."
        ),
    )
    precision: Choice = Field(
        default="float32",
        title="Precision of the encoder",
        description=(
            "Precision of features and training steps. `bfloat16` is about twice as fast "
            "if the processor has instructions for it (AMX, AVX512-BF16); `auto` then "
            "selects it. DP-SGD's gradients are always float32."
        ),
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
        default="adamw", title="Optimiser", description="Optimiser of this phase."
    )
    learning_rate: Positive = Field(
        default=5e-5,
        le=100,
        title="Learning rate",
        description="Initial learning rate. The default for fine-tuning only a head is 0.003.",
    )
    head_rate: Positive = Field(
        default=1.0,
        le=1000,
        title="Rate of the head",
        description=(
            "Learning rate of the head, as a multiple of the encoder's, if both are trained."
        ),
    )
    epochs: int = Field(
        default=10,
        ge=1,
        le=10_000,
        title="Epochs",
        description="Number of passes over the records.",
    )
    batch_size: int = Field(
        default=8, ge=1, le=65_536, title="Batch size", description="Number of records per step."
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
        description="Weight of an L2 penalty on the distance to the start; 0 disables it.",
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, title="Momentum", description="SGD only.")
    max_grad_norm: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        title="Gradient norm cap",
        description="Largest norm of a batch's gradient. Empty: no limit.",
    )
    length_bucketing: bool = Field(
        default=False,
        title="Length bucketing",
        description=(
            "Batch narratives of similar length: two to three times faster on tokens, in "
            "a slightly less random order."
        ),
    )

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> OptimiserPhase:
        if self.momentum and self.optimiser != "sgd":
            raise ValueError("momentum goes with optimiser `sgd`")
        return self

    def steps(self, n: int) -> int:
        return self.epochs * math.ceil(n / self.batch_size)
