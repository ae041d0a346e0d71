"""Defines requests and answers of the service."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_CHARACTERS = 20_000
MOST_NARRATIVES = 64
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
                {"narratives": [_EXAMPLE, "Cook spilled hot oil and burned both forearms."], "threshold": 0.8},
            ]
        },
    )

    narratives: Narrative | Annotated[list[Narrative], Field(min_length=1, max_length=MOST_NARRATIVES)] = Field(
        description=f"A narrative, or a list of at most {MOST_NARRATIVES}. A blank one gets no code."
    )
    top_k: Annotated[int, BeforeValidator(_whole)] = Field(default=1, ge=1, le=20, description="Codes per narrative.")
    threshold: float | None = Field(
        default=None, ge=0, le=1, description="Score below which a person must check; adds needs_review and group."
    )

    @property
    def texts(self) -> list[str]:
        return self.narratives if isinstance(self.narratives, list) else [self.narratives]


class Answer(BaseModel):
    """Holds a code, or a group of codes; the score is the model's probability."""

    code: str
    title: str
    score: float = Field(ge=0, le=1)


class FieldResult(BaseModel):
    """Holds the codes of one narrative in one field."""

    codes: list[Answer] = Field(description="Best first; none for a blank narrative.")
    needs_review: bool | None = Field(description="Whether a person must check; null without a threshold.")
    group: Answer | None = Field(
        description="Where the best code is unsure: the most detailed group of codes that reaches the threshold."
    )


class Result(FieldResult):
    """Holds the codes of one narrative from a model of one field."""


class Conflict(BaseModel):
    """Names two codes that a rule excludes together; `*` at the end stands for all codes with this beginning."""

    field: str
    code: str
    other_field: str
    other_code: str
    why: str = ""


class Case(BaseModel):
    """Holds the codes of one narrative from a model of several fields."""

    fields: dict[str, FieldResult] = Field(description="By the field's name.")
    needs_review: bool | None = Field(
        description="Whether a person must check any field or a contradiction; null without threshold and rules."
    )
    conflicts: list[Conflict] | None = Field(description="Rules that the best codes break; null without rules.")


class ListedCode(BaseModel):
    """Holds a code of the list and its title."""

    code: str
    title: str


class Candidate(BaseModel):
    """Names a code of a field."""

    model_config = ConfigDict(extra="forbid", strict=True)

    field: str = Field(default="", max_length=100, description="Empty where the model codes one field.")
    code: str = Field(max_length=100)


class ExplainRequest(BaseModel):
    """Holds one narrative and the codes to explain."""

    model_config = ConfigDict(extra="forbid", strict=True)

    narrative: Narrative
    codes: Annotated[list[Candidate], Field(min_length=1, max_length=MOST_EXPLAINED)]


class Reason(BaseModel):
    """Holds what each word added to the logit of a code, relative to the mean of its field."""

    field: str
    code: str
    score: float = Field(ge=0, le=1)
    lexical: list[float] = Field(description="Per word, exact: feature times weight; empty without such features.")
    encoder: list[float] = Field(description="Per word, to first order: gradient times input of the encoder.")


class Origin(BaseModel):
    """Identifies the model and the classification of the codes."""

    model: str = Field(description="Release id.")
    classification: str
    classification_version: str
    bundle_digest: str = Field(description="SHA-256 of the bundle's content, as in the ledger.")
    score_temperature: str = Field(
        description="Divisor of the logits, `0.94`, or `nature 0.94 part 1` for several fields: scores at another one "
        "are not comparable."
    )


class CodeResponse(Origin):
    """Holds results in the order of the narratives."""

    results: list[Result] | list[Case]


class CodeList(Origin):
    """Holds the public code list of each field."""

    fields: dict[str, list[ListedCode]] = Field(description="By the field's name; empty for the only one.")
    sensitive: dict[str, list[str]] = Field(description="Codes that the operator wants looked at, by field.")


class ExplainResponse(Origin):
    """Holds the words of the narrative, and what they added."""

    words: list[tuple[int, int]] = Field(description="First character and the one behind the last, in code points.")
    reasons: list[Reason]
    read: int = Field(description="Characters that the encoder read.")


class Version(Origin):
    """Identifies software and model of the service."""

    software: str
    codes: int = Field(description="Number of codes of the model, in all fields.")
    coded_fields: str | None = Field(default=None, description="Names of several fields; null where there is one.")
    signed_by: str | None = Field(description="Id of the key that signed the bundle; null if it was not checked.")
    calibrated_on: str | None = Field(description="What the temperature of the scores was fitted on, per field.")
    withdrawn: str | None = Field(
        description="Reason that nothing is coded any more, such as a revocation; null while the service codes."
    )


class Health(BaseModel):
    """Reports that the service answers."""

    status: str = Field(examples=["ok"])


class Problem(BaseModel):
    """Describes an error, without quoting the request."""

    detail: str
