"""Reads branches from files: a name, a title, and a mechanism with its settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from mechanisms.mechanism import AnyMechanism, Mechanism, Workload, form_of
from mechanisms.model.config import ModelConfig, Prior
from storage.errors import InputError
from tasks.catalogue import BRANCHES, branch_bodies
from tasks.parameters import RELEASE_BRANCH, Delta, Epsilon, RetrainParameters


class Branch(BaseModel, frozen=True, extra="forbid", title="Branch"):
    """Names one mechanism with its settings."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")
    title: str = Field(min_length=1, max_length=200)
    mechanism: AnyMechanism
    on_tokens: dict[str, Any] = Field(
        default={},
        description="Settings that differ where more than a head on cached features trains.",
    )
    delta: float | None = Field(default=None, gt=0, lt=1, description="Replaces the run's delta.")
    unprotected: tuple[str, ...] = Field(
        default=(), description="What its settings took from records outside the accounting."
    )
    prior: Prior | None = Field(
        default=None,
        description="Where its head starts, in place of the run's own; `titles` only where the "
        "run has a code list and "
        "a linear head on pooled features.",
    )
    settings_tried: int | None = Field(
        default=None, ge=1, description="Settings that its own were chosen among."
    )
    needs_titles: bool = Field(
        default=False,
        description="Without a code list there is no such branch: `all` leaves it out.",
    )

    @property
    def aims(self) -> bool:
        """Whether its noise is solved for the run's target epsilon and delta."""
        fixed = getattr(self.mechanism, "target_epsilon", None)
        return self.mechanism.has_target and fixed is None and self.delta is None

    def model(self, parameters: RetrainParameters) -> ModelConfig:
        """Returns the run's model, with the branch's prior where the data allow it."""
        model = parameters.model
        possible = self.prior != "titles" or (
            parameters.data.has_titles and model.pooling == "mean"
        )
        return (
            model
            if self.prior is None or not possible
            else model.model_copy(update={"prior": self.prior})
        )

    def mechanism_for(self, parameters: RetrainParameters, terms: Terms) -> Mechanism:
        """Returns the mechanism; the run fills in the settings that it leaves open."""
        mechanism, fit = self.mechanism, parameters.fit
        if self.on_tokens and form_of(parameters.model) == "tokens":
            mechanism = type(mechanism).model_validate(mechanism.model_dump() | self.on_tokens)
        return mechanism.with_defaults(
            {
                "phase": fit.adamw.model_copy(update={"epochs": terms.epochs}),
                "epochs": terms.epochs,
                "batch_size": terms.batch_size,
                "fine_tune": fit.adamw,
                "collect": fit.sgd,
                "moments": fit.swag,
                "pseudo_posterior": parameters.pseudo_posterior,
            }
        )

    def parts(self, parameters: RetrainParameters, terms: Terms) -> dict[str, Mechanism]:
        """The fits of this branch in order, by the names of their stages; the last is its own."""
        mechanism = self.mechanism_for(parameters, terms)
        parts = [(self.name, mechanism)]
        while (before := mechanism.continues) is not None:
            parts.insert(0, (f"{self.name}: {before.stage}", before))
            mechanism = before
        return dict(parts)

    def workloads(self, parameters: RetrainParameters, terms: Terms) -> dict[str, Workload]:
        """What each of these fits costs."""
        return {
            name: part.workload or Workload(getattr(part, "epochs", None) or terms.epochs)
            for name, part in self.parts(parameters, terms).items()
        }


class Terms(BaseModel, frozen=True, extra="forbid"):
    """Holds what all experiments of one run share."""

    target_epsilon: Epsilon | None = Field(
        default=None,
        title="Target epsilon",
        description="Target epsilon for methods that calibrate their noise.",
    )
    delta: Delta = None
    epochs: int = Field(
        default=30,
        ge=1,
        le=10_000,
        title="Epochs",
        description="Of the non-private and DP-SGD fits.",
    )
    batch_size: int = Field(
        default=512,
        ge=1,
        title="Expected batch of DP-SGD",
        description="In the paper's setting; the tuned branches have their own.",
    )
    branches: dict[str, dict[str, Any]] = Field(
        default={},
        title="Your branches",
        description=(
            "By name, as in deployments/branches.yaml: a title, and a mechanism with its "
            "kind and settings."
        ),
    )

    @property
    def all_branches(self) -> Mapping[str, Branch]:
        """The standard branches and the user's, which replace those of the same name."""
        return standard_branches() | parse_branches(self.branches, "branches")


class CompareParameters(Terms, frozen=True, title="Compare"):
    """Holds the terms of a comparison, and how many experiments it is."""

    epsilons: tuple[Epsilon, ...] = Field(
        default=(),
        title="Further target epsilons",
        description=(
            "Branches with a target are fitted at each of these too: what which epsilon costs."
        ),
    )
    seeds: int = Field(
        default=5, ge=1, le=100, title="Seeds", description="How often every branch is fitted."
    )


def parse_branches(content: Mapping[str, Any], source: str) -> dict[str, Branch]:
    branches = {}
    for name, body in content.items():
        if name == RELEASE_BRANCH or not isinstance(body, Mapping):
            raise InputError(
                f"{source}.{name} is not a branch. Write a mapping; the name `{RELEASE_BRANCH}` "
                "is taken"
            )
        try:
            branches[name] = Branch.model_validate({"name": name, **body})
        except ValidationError as error:
            raise InputError(first_fault(error, f"{source}.{name}")) from None
    return branches


def first_fault(error: ValidationError, place: str) -> str:
    """Words the first fault that pydantic found in the settings at this place."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join([place, *map(str, first['loc'])])}: {first['msg']}"


@cache
def standard_branches() -> dict[str, Branch]:
    return parse_branches(branch_bodies(), BRANCHES.name)


def choose(
    names: str, parameters: RetrainParameters, branches: Mapping[str, Branch]
) -> tuple[Branch, ...]:
    """Selects branches by comma-separated names; `all` selects every one that model and code list
    allow.
    """
    chosen: dict[str, Branch] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name == "all":
            chosen |= {n: b for n, b in branches.items() if not _obstacle(b, parameters)}
        elif name not in branches:
            raise InputError(
                f"--branches: branch {name} does not exist. Choose from {', '.join(branches)}"
            )
        elif obstacle := _obstacle(branches[name], parameters):
            raise InputError(f"--branches: {name} {obstacle}")
        else:
            chosen[name] = branches[name]
    if not chosen:
        raise InputError(f"--branches is empty. Name at least one of {', '.join(branches)}")
    return tuple(chosen.values())


_FORMS = {
    "features": "model.trainable=head and model.pooling=mean",
    "head-features": "model.trainable=head",
    "tokens": "model.trainable=full or lora",
}


def _obstacle(branch: Branch, parameters: RetrainParameters) -> str:
    if form_of(parameters.model) not in branch.mechanism.reads:
        return "needs " + ", or ".join(
            _FORMS.get(form, form) for form in sorted(branch.mechanism.reads)
        )
    if branch.needs_titles and not parameters.data.has_titles:
        return "starts at the titles of codes. Give --codelist, or leave it out"
    return ""
