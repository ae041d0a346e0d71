"""Reads branches from files: a name, a title, and a mechanism with its settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from mechanisms.mechanism import AnyMechanism, Mechanism, form_of
from mechanisms.model.config import ModelConfig, Prior
from storage.errors import InputError
from tasks.catalogue import BRANCHES, branch_bodies
from tasks.parameters import RELEASE_BRANCH, DataParameters, Delta, Epsilon, RetrainParameters


class Branch(BaseModel, frozen=True, extra="forbid", title="Branch"):
    """Names one mechanism with its settings."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")
    title: str = Field(min_length=1, max_length=200)
    mechanism: AnyMechanism
    on_tokens: dict[str, Any] = Field(
        default={}, description="Settings that differ where more than a head on cached features trains."
    )
    delta: float | None = Field(default=None, gt=0, lt=1, description="Replaces the run's delta.")
    unprotected: tuple[str, ...] = Field(
        default=(), description="What its settings took from records outside the accounting."
    )
    prior: Prior | None = Field(
        default=None,
        description="Where its head starts, in place of the run's own; `titles` only where the run has a code list and "
        "a linear head on pooled features.",
    )
    settings_tried: int | None = Field(
        default=None, ge=1, description="Settings that its own were chosen among; pages of results say it."
    )
    needs_titles: bool = Field(
        default=False, description="Without a code list there is no such branch: `all` leaves it out."
    )
    in_all: bool = True
    releasable: bool = True

    def takes_target_from_records(self, terms: Terms) -> bool:
        """Checks whether its target is computed from the records, so that it must not be released."""
        fixed = getattr(self.mechanism, "target_epsilon", None)
        return terms.target_epsilon == "match" and self.mechanism.has_target and fixed is None

    def model(self, parameters: RetrainParameters) -> ModelConfig:
        """Returns the run's model, with the branch's prior where the data allow it."""
        model = parameters.model
        possible = self.prior != "titles" or (parameters.data.has_titles and model.pooling == "mean")
        return model if self.prior is None or not possible else model.model_copy(update={"prior": self.prior})

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

    def epochs_for(self, parameters: RetrainParameters, terms: Terms) -> int:
        """Returns the epochs of a fit: the mechanism's, or the run's."""
        return getattr(self.mechanism_for(parameters, terms), "epochs", None) or terms.epochs


class Terms(BaseModel, frozen=True, extra="forbid"):
    """Holds what all experiments of one run share: their target, the settings that branches leave open, and the user's
    branches.
    """

    target_epsilon: Epsilon | Literal["match"] = Field(
        default="match",
        title="Target epsilon",
        description="Of the formal branches. `match`: the largest that SWAG-PPM claims over the seeds, "
        "rounded up; that is computed from the records, and such branches are for study: no plan releases them.",
    )
    delta: Delta = None
    epochs: int = Field(default=30, ge=1, le=10_000, title="Epochs", description="Of the non-private and DP-SGD fits.")
    batch_size: int = Field(
        default=512,
        ge=1,
        title="Expected batch of DP-SGD",
        description="In the paper's setting; the tuned branches have their own.",
    )
    branches: dict[str, dict[str, Any]] = Field(
        default={},
        title="Your branches",
        description="By name, as in deployments/branches.yaml: a title, and a mechanism with its kind and settings.",
    )

    @property
    def given_epsilon(self) -> float | None:
        """Returns the target epsilon where it is a number; None where it is matched."""
        return None if self.target_epsilon == "match" else self.target_epsilon

    @property
    def all_branches(self) -> Mapping[str, Branch]:
        """Returns the standard branches and the user's, which replace those of the same name."""
        return standard_branches() | parse_branches(self.branches, "branches")


class CompareParameters(Terms, frozen=True, title="Compare"):
    """Holds the terms of a comparison, and how many experiments it is."""

    epsilons: tuple[Epsilon, ...] = Field(
        default=(),
        title="Further target epsilons",
        description="The formal branches are fitted at each of these too: what which epsilon costs.",
    )
    protocols: tuple[Literal["paper", "all-records"], ...] = Field(
        default=(),
        title="Protocols",
        description="Which records are taken: as in the paper, or all of them; both give two tables. Empty: as the "
        "profile says.",
    )
    seeds: int = Field(default=5, ge=1, le=100, title="Seeds", description="How often every branch is fitted.")
    slots: int = Field(
        default=1, ge=1, le=64, title="Branches at once", description="Processes; heads on mean-pooled features only."
    )


def parse_branches(content: Mapping[str, Any], source: str) -> dict[str, Branch]:
    """Reads the branches of a file's content; keys that begin with `x-` hold what others refer to."""
    branches = {}
    for name, body in content.items():
        if str(name).startswith("x-"):
            continue
        if name == RELEASE_BRANCH or not isinstance(body, Mapping):
            raise InputError(f"{source}.{name} is not a branch. Write a mapping; the name `{RELEASE_BRANCH}` is taken")
        try:
            branches[name] = Branch.model_validate({"name": name, **body})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in (name, *first["loc"]))
            raise InputError(f"{source}.{where}: {first['msg']}") from None
    return branches


@cache
def standard_branches() -> dict[str, Branch]:
    """Returns the branches that ship."""
    return parse_branches(branch_bodies(), BRANCHES.name)


def choose(
    names: str, *, model: ModelConfig, data: DataParameters | None = None, branches: Mapping[str, Branch] | None = None
) -> tuple[Branch, ...]:
    """Selects branches by comma-separated names; `all` selects every one that the model allows.

    Args:
        data: whether it has a code list; None: it has one.
    """
    branches, form = standard_branches() if branches is None else branches, form_of(model)
    listed = data is None or data.has_titles
    chosen: dict[str, Branch] = {}
    for name in (part.strip() for part in names.split(",")):
        if name == "all":
            fits = {n: b for n, b in branches.items() if b.in_all and form in b.mechanism.reads}
            chosen |= {n: b for n, b in fits.items() if listed or not b.needs_titles}
        elif name and name not in branches:
            raise InputError(f"--branches: branch {name} does not exist. Choose from {', '.join(branches)}")
        elif name:
            if form not in branches[name].mechanism.reads:
                raise InputError(f"--branches: {name} needs {_needs(branches[name].mechanism)}")
            if branches[name].needs_titles and not listed:
                raise InputError(f"--branches: {name} starts at the titles of codes. Give --codelist, or leave it out")
            chosen[name] = branches[name]
    if not chosen:
        raise InputError(f"--branches is empty. Name at least one of {', '.join(branches)}")
    return tuple(chosen.values())


_FORMS = {
    "features": "model.trainable=head and model.pooling=mean",
    "head-features": "model.trainable=head",
    "tokens": "model.trainable=full or lora",
}


def _needs(mechanism: Mechanism) -> str:
    return ", or ".join(_FORMS.get(form, form) for form in sorted(mechanism.reads))
