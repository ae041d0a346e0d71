"""The branches of a comparison: a name, a title and a mechanism with its settings. They are data: files of branches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mechanisms.mechanism import AnyMechanism, Mechanism, form_of
from mechanisms.model.classifier import ModelConfig, Prior
from storage.errors import InputError
from tasks.parameters import RELEASED, DataParameters, RetrainParameters

STANDARD = Path(__file__).resolve().parents[2] / "deployments" / "branches.yaml"


class Branch(BaseModel):
    """One rival: a mechanism under a name of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Branch")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")
    title: str = Field(min_length=1, max_length=200)
    mechanism: AnyMechanism
    on_tokens: dict[str, Any] = Field(
        default={}, description="Settings that differ where more than a head on cached features trains."
    )
    delta: float | None = Field(default=None, gt=0, lt=1, description="Its own, in place of the run's.")
    unprotected: tuple[str, ...] = Field(default=(), description="What its settings took from records without account.")
    prior: Prior | None = Field(
        default=None,
        description="Where its head starts, in place of the run's own; `titles` only where the run has a code list and "
        "a linear head on pooled features.",
    )
    needs_titles: bool = Field(
        default=False, description="Without a code list there is no such branch: `all` leaves it out."
    )
    in_all: bool = True
    releasable: bool = True

    def takes_target_from_records(self, settings: CompareParameters) -> bool:
        """Whether its epsilon is what another mechanism came out with on the same records: not to be released."""
        own = getattr(self.mechanism, "target_epsilon", None)
        return settings.target_epsilon == "match" and self.mechanism.aims and own is None

    def model(self, parameters: RetrainParameters) -> ModelConfig:
        """The run's model, with the branch's own prior where that can be."""
        model = parameters.model
        possible = self.prior != "titles" or (parameters.data.listed and model.pooling == "mean")
        return model if self.prior is None or not possible else model.model_copy(update={"prior": self.prior})

    def settled(self, parameters: RetrainParameters, settings: CompareParameters) -> Mechanism:
        """The mechanism with what it leaves open taken from the run."""
        mechanism, fit = self.mechanism, parameters.fit
        if self.on_tokens and form_of(parameters.model) == "tokens":
            mechanism = type(mechanism).model_validate(mechanism.model_dump() | self.on_tokens)
        return mechanism.with_defaults(
            {
                "phase": fit.adamw.model_copy(update={"epochs": settings.epochs}),
                "epochs": settings.epochs,
                "batch_size": settings.batch_size,
                "fine_tune": fit.adamw,
                "collect": fit.sgd,
                "moments": fit.swag,
                "pseudo_posterior": parameters.pseudo_posterior,
            }
        )

    def passes(self, parameters: RetrainParameters, settings: CompareParameters) -> int:
        """How often a fit passes over its records: the mechanism's own epochs, or the run's."""
        return getattr(self.settled(parameters, settings), "epochs", None) or settings.epochs


class CompareParameters(BaseModel):
    """What all branches share, and branches of one's own."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Compare")

    target_epsilon: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | Literal["match"] = Field(
        default="match",
        title="Target epsilon",
        description="Of the formal and the bounded branches. `match`: the largest that SWAG-PPM claims over the seeds, "
        "rounded up; that is computed from the records, and such branches are for study: no plan releases them.",
    )
    delta: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        title="Delta",
        description="Of the formal branches; empty: 1e-5, or the policy's cap where that is less.",
    )
    epsilons: tuple[Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)], ...] = Field(
        default=(),
        title="Further target epsilons",
        description="The formal and the bounded branches are fitted at each of these too: what which epsilon costs.",
    )
    protocols: tuple[Literal["paper", "all-records"], ...] = Field(
        default=(),
        title="Protocols",
        description="Which records are taken: as in the paper, or all of them; both give two tables. Empty: as the "
        "profile says.",
    )
    seeds: int = Field(default=5, ge=1, le=100, title="Seeds", description="How often every branch is fitted.")
    epochs: int = Field(default=30, ge=1, le=10_000, title="Epochs", description="Of the non-private and DP-SGD fits.")
    batch_size: int = Field(
        default=512,
        ge=1,
        title="Expected batch of DP-SGD",
        description="In the paper's setting; the tuned branches have their own.",
    )
    slots: int = Field(
        default=1, ge=1, le=64, title="Branches at once", description="Processes; heads on mean-pooled features only."
    )
    branches: dict[str, dict[str, Any]] = Field(
        default={},
        title="Branches of one's own",
        description="By name, as in deployments/branches.yaml: a title, and a mechanism with its kind and settings.",
    )

    @property
    def known(self) -> Mapping[str, Branch]:
        """The standard branches and one's own, which win.

        Raises:
            InputError: a branch that cannot be, by its name.
        """
        return standard() | parsed(self.branches, "branches")


def parsed(content: Mapping[str, Any], source: str) -> dict[str, Branch]:
    """Branches of a file's content; keys that begin with `x-` hold what others refer to.

    Raises:
        InputError: names the branch and the field.
    """
    branches = {}
    for name, body in content.items():
        if str(name).startswith("x-"):
            continue
        if name == RELEASED or not isinstance(body, Mapping):
            raise InputError(f"{source}.{name}: a branch is a mapping, and `{RELEASED}` is taken")
        try:
            branches[name] = Branch.model_validate({"name": name, **body})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in (name, *first["loc"]))
            raise InputError(f"{source}.{where}: {first['msg']}") from None
    return branches


@cache
def standard() -> dict[str, Branch]:
    """The branches that ship."""
    return parsed(yaml.safe_load(STANDARD.read_text(encoding="utf-8")), STANDARD.name)


def choose(
    names: str, *, model: ModelConfig, data: DataParameters | None = None, known: Mapping[str, Branch] | None = None
) -> tuple[Branch, ...]:
    """Branches by comma-separated names, `all` for every one that the model allows.

    Args:
        data: whether it codes several fields, which few mechanisms fit at once, and has a code list; None: one field
            with a list.

    Raises:
        InputError: an unknown branch, or one whose mechanism this model or these records do not fit.
    """
    known, form = standard() if known is None else known, form_of(model)
    several, listed = data is not None and bool(data.ingest.fields), data is None or data.listed
    chosen: dict[str, Branch] = {}
    for name in (part.strip() for part in names.split(",")):
        if name == "all":
            fits = {n: b for n, b in known.items() if b.in_all and form in b.mechanism.reads}
            fits = {n: b for n, b in fits.items() if listed or not b.needs_titles}
            chosen |= {n: b for n, b in fits.items() if b.mechanism.several or not several}
        elif name and name not in known:
            raise InputError(f"--branches: no branch {name}; there are {', '.join(known)}")
        elif name:
            if form not in known[name].mechanism.reads:
                raise InputError(f"--branches: {name} needs {_needs(known[name].mechanism)}")
            if several and not known[name].mechanism.several:
                can = ", ".join(n for n, b in known.items() if b.mechanism.several)
                raise InputError(f"--branches: {name} codes one field; several at once are fitted by {can}")
            if known[name].needs_titles and not listed:
                raise InputError(f"--branches: {name} starts at the titles of codes: give --codelist, or leave it out")
            chosen[name] = known[name]
    if not chosen:
        raise InputError(f"--branches: name at least one of {', '.join(known)}")
    return tuple(chosen.values())


_FORMS = {
    "features": "model.trainable=head and model.pooling=mean",
    "head-features": "model.trainable=head",
    "tokens": "model.trainable=full or lora",
    "table": "data.ingest.kind=table",
    "images": "data.ingest.kind=images",
}


def _needs(mechanism: Mechanism) -> str:
    return ", or ".join(_FORMS.get(form, form) for form in sorted(mechanism.reads))
