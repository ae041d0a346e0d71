"""Defines the requests and responses of the service."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import ErrorDetails

from tasks.coding.coder import ModelKind

MOST_CHARACTERS = 20_000
MOST_NARRATIVES = 1000
MOST_EXPLAINED = 9

Narrative = Annotated[str, Field(max_length=MOST_CHARACTERS)]

_EXAMPLE = "Employee fell from a ladder while changing a light bulb and broke his left wrist."


def _whole(value: object) -> object:
    """Turns 2.0 into 2, which JSON Schema accepts as an integer and strict mode does not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class CodeRequest(BaseModel):
    """One narrative, or a list of narratives."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"narratives": _EXAMPLE, "top_k": 3},
                {
                    "narratives": [_EXAMPLE, "Cook spilled hot oil and burned both forearms."],
                    "threshold": 0.8,
                },
            ]
        },
    )

    narratives: (
        Narrative | Annotated[list[Narrative], Field(min_length=1, max_length=MOST_NARRATIVES)]
    ) = Field(
        description=(
            f"A narrative, or a list of at most {MOST_NARRATIVES}. A blank narrative gets no code."
        )
    )
    top_k: Annotated[int, BeforeValidator(_whole)] = Field(
        default=1, ge=1, le=20, description="Codes per narrative."
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Flag scores below this for manual review; adds needs_review and group.",
    )

    @property
    def texts(self) -> list[str]:
        return self.narratives if isinstance(self.narratives, list) else [self.narratives]


class Answer(BaseModel):
    """A code or a group of codes, with the probability that the model assigns to it."""

    code: str
    title: str
    score: float = Field(ge=0, le=1)


class Result(BaseModel):
    """The codes of one narrative."""

    codes: list[Answer] = Field(description="Best first; empty for a blank narrative.")
    needs_review: bool | None = Field(
        description="Whether a person must review it; null without a threshold."
    )
    group: Answer | None = Field(
        description=(
            "If the best code is below the threshold: the most detailed group of codes that "
            "reaches it."
        )
    )


class ListedCode(BaseModel):
    """A code of the list, with its title and its position in the classification."""

    code: str
    title: str
    description: str = Field(description="From the operator's list; empty if there is none.")
    above: list[str] = Field(description="The groups that contain it, the coarsest first.")


class ExplainRequest(BaseModel):
    """One narrative and the codes to explain."""

    model_config = ConfigDict(extra="forbid", strict=True)

    narrative: Narrative
    codes: Annotated[
        list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=MOST_EXPLAINED)
    ]


class Reason(BaseModel):
    """The contribution of each word to the logit of a code, relative to the mean over all codes."""

    code: str
    score: float = Field(ge=0, le=1)
    lexical: list[float] = Field(
        description="Per word, exact: feature times weight. Empty without such features."
    )
    encoder: list[float] = Field(
        description="Per word, to first order: gradient times input of the encoder."
    )


class Origin(BaseModel):
    """Identifies the model and the classification of the codes."""

    model: str = Field(description="Release id, or `untrained`.")
    model_kind: ModelKind = Field(
        description="`untrained`: scores come from the titles of a code list, without any records."
    )
    classification: str
    classification_version: str
    bundle_digest: str = Field(description="SHA-256 of the bundle's content, as in the ledger.")
    score_temperature: str = Field(
        description="Divisor of the logits, such as `0.94`. Scores at different temperatures are "
        "not comparable."
    )


class CodeResponse(Origin):
    """Results in the order of the narratives."""

    results: list[Result]
    warnings: list[str] = Field(
        description="Sentences on narratives that the model cannot read in full, because they were "
        "truncated or are in another language."
    )


class CodeList(Origin):
    """The public code list."""

    codes: list[ListedCode]
    sensitive: list[str] = Field(description="Codes that the operator wants reviewed.")


class ExplainResponse(Origin):
    """The words of the narrative and their contributions."""

    words: list[tuple[int, int]] = Field(
        description="Start and end of the word in code points; the end is exclusive."
    )
    reasons: list[Reason]
    read: int = Field(description="Characters that the encoder read.")


class Version(Origin):
    """Identifies the software and the model of the service."""

    software: str
    codes: int = Field(description="Number of codes of the model.")
    signed_by: str | None = Field(
        description="Id of the key that signed the bundle; null if it was not checked."
    )
    accuracy: list[str] = Field(
        description="Sentences on the accuracy of the model, as the agency reports it."
    )
    calibrated_on: str | None = Field(
        description="The records that the temperature of the scores was fitted on."
    )
    withdrawn: str | None = Field(
        description=("Why the service no longer codes, such as a revocation; null while it codes.")
    )


class Health(BaseModel):
    """Confirms that the service answers and can code."""

    status: str = Field(examples=["ok"])


class Problem(BaseModel):
    """An error. It never quotes the request."""

    detail: str


_OTHER_FORM = ("string_type", "list_type")
"""Error types that pydantic reports for the form of `narratives` that was not sent."""


def fault_of(errors: Sequence[ErrorDetails]) -> str:
    """Returns what is wrong with a request and how to correct it, from pydantic's errors.

    `narratives` has two forms, and only errors of the form that was sent are used. No value is
    quoted.
    """
    sent = (
        error
        for error in errors
        if error["type"] not in _OTHER_FORM or isinstance(error["loc"][-1], int)
    )
    error = next(sent, errors[0])
    place, kind = error["loc"], error["type"]
    if place == ("body",) and kind != "json_invalid":
        return (
            "the body is not a JSON object. Send one, with the header Content-Type: "
            "application/json"
        )
    if place[:2] == ("body", "narratives") and kind != "missing":
        item = f", item {place[-1] + 1}" if isinstance(place[-1], int) else ""
        words = {
            "string_type": "not a text. Send a string" + ("" if item else ", or a list of strings"),
            "string_too_long": f"longer than {MOST_CHARACTERS:,} characters. Shorten it",
            "too_long": (
                f"more than {MOST_NARRATIVES} narratives. Send at most {MOST_NARRATIVES} "
                "per request"
            ),
            "too_short": "an empty list. Send at least one narrative",
        }
        if kind in words:
            return f"narratives{item}: {words[kind]}"
    return f"{place_of(error)}: {error['msg']}"


def place_of(error: ErrorDetails) -> str:
    """Returns the path of the faulty field. The name of an unknown field is the client's text, so
    it is not quoted.
    """
    place = error["loc"]
    if error["type"] == "extra_forbidden":
        place = (*place[:-1], "a field with another name")
    return ".".join(map(str, place))
