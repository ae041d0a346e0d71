"""What goes in and out of the service."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_CHARACTERS = 20_000
MOST_NARRATIVES = 64

Narrative = Annotated[str, Field(max_length=MOST_CHARACTERS)]

_EXAMPLE = "Employee fell from a ladder while changing a light bulb and broke his left wrist."


def _whole(value: object) -> object:
    """2.0 is an integer in JSON Schema; strict reading alone would refuse it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class CodeRequest(BaseModel):
    """One narrative, or several."""

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
    top_k: Annotated[int, BeforeValidator(_whole)] = Field(default=1, ge=1, le=20, description="Codes a narrative.")
    threshold: float | None = Field(
        default=None, ge=0, le=1, description="Score below which a person must look; adds needs_review and group."
    )

    @property
    def texts(self) -> list[str]:
        """The narratives as a list."""
        return [self.narratives] if isinstance(self.narratives, str) else self.narratives


class Answer(BaseModel):
    """A code, or a group of codes; the score is the model's probability."""

    code: str
    title: str
    score: float = Field(ge=0, le=1)


class FieldResult(BaseModel):
    """What the model makes of one narrative in one field."""

    codes: list[Answer] = Field(description="Best first; none for a blank narrative.")
    needs_review: bool | None = Field(description="Whether a person must look; null without a threshold.")
    group: Answer | None = Field(
        description="Where the best code is unsure: the most detailed group of codes that reaches the threshold."
    )


class Result(FieldResult):
    """What a model of one field makes of one narrative."""


class Conflict(BaseModel):
    """Two codes that a rule says never occur together; a code that ends in `*` is all that begin so."""

    field: str
    code: str
    other_field: str
    other_code: str
    why: str = ""


class Case(BaseModel):
    """What a model of several fields makes of one narrative."""

    fields: dict[str, FieldResult] = Field(description="By the field's name.")
    needs_review: bool | None = Field(
        description="Whether a person must look, at any field or at a contradiction; null without threshold and rules."
    )
    conflicts: list[Conflict] | None = Field(description="Rules that the best codes break; null without rules.")


class Origin(BaseModel):
    """The model and the classification that codes come from."""

    model: str = Field(description="Release id.")
    classification: str
    classification_version: str
    bundle_digest: str = Field(description="SHA-256 of the bundle's content, as in the ledger.")
    score_temperature: str = Field(
        description="What logits were divided by, `0.94`, or `nature 0.94 part 1` of several fields: scores of another "
        "one are not comparable."
    )


class CodeResponse(Origin):
    """Results in the order of the narratives."""

    results: list[Result] | list[Case]


class Version(Origin):
    """What runs here."""

    software: str
    codes: int = Field(description="Codes that the model knows, of all fields.")
    coded_fields: str | None = Field(default=None, description="Names of several fields; null where there is one.")
    signed_by: str | None = Field(description="Id of the key that signed the bundle; null if it was not checked.")
    calibrated_on: str | None = Field(description="What the scores' temperature was fitted on, field by field.")
    withdrawn: str | None = Field(description="Why nothing is coded any more, such as a revocation; null while it is.")


class Health(BaseModel):
    """Whether the service answers."""

    status: str = Field(examples=["ok"])


class Problem(BaseModel):
    """What was wrong, without what was sent."""

    detail: str
