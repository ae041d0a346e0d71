"""Defines requests and answers of the service."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tasks.coding.coder import ModelKind

MOST_CHARACTERS = 20_000
MOST_NARRATIVES = 1000
MOST_EXPLAINED = 9

Narrative = Annotated[str, Field(max_length=MOST_CHARACTERS)]

_EXAMPLE = "Employee fell from a ladder while changing a light bulb and broke his left wrist."


def _whole(value: object) -> object:
    """Turns 2.0 into 2: an integer in JSON Schema, but not in strict mode."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class CodeRequest(BaseModel):
    """Holds one narrative, or several."""

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
            f"A narrative, or a list of at most {MOST_NARRATIVES}. A blank one gets no code."
        )
    )
    top_k: Annotated[int, BeforeValidator(_whole)] = Field(
        default=1, ge=1, le=20, description="Codes per narrative."
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Score below which a person must check; adds needs_review and group.",
    )

    @property
    def texts(self) -> list[str]:
        return self.narratives if isinstance(self.narratives, list) else [self.narratives]


class Answer(BaseModel):
    """Holds a code, or a group of codes; the score is the model's probability."""

    code: str
    title: str
    score: float = Field(ge=0, le=1)


class Result(BaseModel):
    """Holds the codes of one narrative."""

    codes: list[Answer] = Field(description="Best first; none for a blank narrative.")
    needs_review: bool | None = Field(
        description="Whether a person must check; null without a threshold."
    )
    group: Answer | None = Field(
        description=(
            "Where the best code is unsure: the most detailed group of codes that "
            "reaches the threshold."
        )
    )


class ListedCode(BaseModel):
    """Holds a code of the list, its title, and where it is in the classification."""

    code: str
    title: str
    description: str = Field(description="From the operator's list; empty without one.")
    above: list[str] = Field(description="The groups above it, the coarsest first.")


class ExplainRequest(BaseModel):
    """Holds one narrative and the codes to explain."""

    model_config = ConfigDict(extra="forbid", strict=True)

    narrative: Narrative
    codes: Annotated[
        list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=MOST_EXPLAINED)
    ]


class Reason(BaseModel):
    """Holds what each word added to the logit of a code, relative to the mean of all codes."""

    code: str
    score: float = Field(ge=0, le=1)
    lexical: list[float] = Field(
        description="Per word, exact: feature times weight; empty without such features."
    )
    encoder: list[float] = Field(
        description="Per word, to first order: gradient times input of the encoder."
    )


class Origin(BaseModel):
    """Identifies the model and the classification of the codes."""

    model: str = Field(description="Release id; `untrained` without one.")
    model_kind: ModelKind = Field(
        description="`untrained`: the titles of a code list alone, without any record."
    )
    classification: str
    classification_version: str
    bundle_digest: str = Field(description="SHA-256 of the bundle's content, as in the ledger.")
    score_temperature: str = Field(
        description="Divisor of the logits, `0.94`: scores at another one are not comparable."
    )


class CodeResponse(Origin):
    """Holds results in the order of the narratives."""

    results: list[Result]
    warnings: list[str] = Field(
        description="What of the narratives the model does not read, in sentences: those that are "
        "cut, another language."
    )


class CodeList(Origin):
    """Holds the public code list."""

    codes: list[ListedCode]
    sensitive: list[str] = Field(description="Codes that the operator wants looked at.")


class ExplainResponse(Origin):
    """Holds the words of the narrative, and what they added."""

    words: list[tuple[int, int]] = Field(
        description="First character and the one behind the last, in code points."
    )
    reasons: list[Reason]
    read: int = Field(description="Characters that the encoder read.")


class Version(Origin):
    """Identifies software and model of the service."""

    software: str
    codes: int = Field(description="Number of codes of the model.")
    signed_by: str | None = Field(
        description="Id of the key that signed the bundle; null if it was not checked."
    )
    accuracy: list[str] = Field(
        description="How often the model is right, as the agency states it, in sentences."
    )
    calibrated_on: str | None = Field(
        description="What the temperature of the scores was fitted on."
    )
    withdrawn: str | None = Field(
        description=(
            "Reason that nothing is coded any more, such as a revocation; null while the "
            "service codes."
        )
    )


class Health(BaseModel):
    """Reports that the service answers."""

    status: str = Field(examples=["ok"])


class Problem(BaseModel):
    """Describes an error, without quoting the request."""

    detail: str


_OTHER_FORM = ("string_type", "list_type")
"""What the form of `narratives` that was not sent reports."""


def fault_of(errors: Sequence[Mapping[str, Any]]) -> str:
    """Returns what is wrong with a request and what to do, by the kinds and places of pydantic's
    errors.

    Of errors of both forms of `narratives`, those of the form that was sent count. No value is
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
            "the body is no JSON object. Send one, with the header Content-Type: application/json"
        )
    if place[:2] == ("body", "narratives") and kind != "missing":
        item = f", item {place[-1] + 1}" if isinstance(place[-1], int) else ""
        words = {
            "string_type": "no text. Send a string" + ("" if item else ", or a list of strings"),
            "string_too_long": f"longer than {MOST_CHARACTERS:,} characters. Shorten it",
            "too_long": (
                f"more than {MOST_NARRATIVES} narratives. Send at most {MOST_NARRATIVES} "
                "in a request"
            ),
            "too_short": "an empty list. Send at least one narrative",
        }
        if kind in words:
            return f"narratives{item}: {words[kind]}"
    return f"{place_of(error)}: {error['msg']}"


def place_of(error: Mapping[str, Any]) -> str:
    """Returns where a request is wrong; the name of a field that the service does not know is the
    client's text, and is not quoted.
    """
    place = error["loc"]
    if error["type"] == "extra_forbidden":
        place = (*place[:-1], "a field with another name")
    return ".".join(map(str, place))
