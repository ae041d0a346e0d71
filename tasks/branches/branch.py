"""Selects the methods of a run, and fills in the settings that they leave open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, field_validator

from mechanisms.mechanism import Mechanism, Workload, form_of
from mechanisms.model.config import ModelConfig
from storage.errors import Contradiction, Fault, Missing, Unknown
from tasks.method import Method, parse_method, standard_methods
from tasks.parameters import Delta, Epsilon, RetrainParameters


class ComparisonSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings that all experiments of a run share."""

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
        description="Epochs of the non-private and DP-SGD fits.",
    )
    batch_size: int = Field(
        default=512,
        ge=1,
        title="Expected batch of DP-SGD",
        description="As in the paper; the tuned branches have their own.",
    )
    branches: tuple[dict[str, Any], ...] = Field(
        default=(),
        title="Your branches",
        description=(
            "A list of methods as in deployments/branches.yaml: each with a name, the kind of its "
            "mechanism, and settings."
        ),
    )

    @field_validator("branches", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            raise ValueError(
                "a mapping from names is now a list: `- {name: mine, kind: dp-sgd, …}`, with the "
                "settings of its mechanism next to the name"
            )
        return value

    @field_validator("branches")
    @classmethod
    def _each_once(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        names = [body.get("name") for body in value]
        if len(set(map(str, names))) < len(names):
            raise ValueError("a name occurs twice. Use each name once")
        return value

    @property
    def all_branches(self) -> Mapping[str, Method]:
        """The standard methods and the user's own, which take precedence under the same name."""
        user_methods = [parse_method(body, "branches") for body in self.branches]
        return standard_methods() | {method.name: method for method in user_methods}


class CompareParameters(ComparisonSettings, frozen=True, title="Compare"):
    """Settings of a comparison, including the number of experiments."""

    epsilons: tuple[Epsilon, ...] = Field(
        default=(),
        title="Further target epsilons",
        description=(
            "Methods with a target are also fitted at each of these, to show the accuracy at each "
            "epsilon."
        ),
    )
    seeds: int = Field(
        default=5, ge=1, le=100, title="Seeds", description="Number of fits of each method."
    )


def model_for(method: Method, parameters: RetrainParameters) -> ModelConfig:
    """Returns the run's model, with the method's prior if the data allow it."""
    model = method.model_of(parameters.model, has_titles=parameters.data.has_titles)
    index = parameters.data.coding_index
    if index is None or model.prior != "titles":
        return model
    return model.model_copy(update={"prior_examples": index.digest})


def mechanism_for(
    method: Method, parameters: RetrainParameters, terms: ComparisonSettings
) -> Mechanism:
    """Returns the method's mechanism, with open settings filled in from the run."""
    mechanism = method.mechanism
    if method.token_settings and form_of(parameters.model) == "tokens":
        mechanism = type(mechanism).model_validate(mechanism.model_dump() | method.token_settings)
    examples = bool(model_for(method, parameters).prior_examples)
    mechanism = mechanism.for_start(at_examples=examples)
    settings = parameters.open_settings(epochs=terms.epochs)
    common = {"epochs": terms.epochs, "batch_size": terms.batch_size}
    return mechanism.with_defaults(settings | common)


def parts(
    method: Method, parameters: RetrainParameters, terms: ComparisonSettings
) -> dict[str, Mechanism]:
    """Returns the fits of a method in order, by stage name. The last one is the method's own."""
    mechanism = mechanism_for(method, parameters, terms)
    found = [(method.name, mechanism)]
    while (before := mechanism.continues) is not None:
        found.insert(0, (f"{method.name}: {before.stage}", before))
        mechanism = before
    return dict(found)


def workloads(
    method: Method, parameters: RetrainParameters, terms: ComparisonSettings
) -> dict[str, Workload]:
    """Returns the cost of each of these fits."""
    return {
        name: part.workload or Workload(getattr(part, "epochs", None) or terms.epochs)
        for name, part in parts(method, parameters, terms).items()
    }


def choose(
    names: str, parameters: RetrainParameters, methods: Mapping[str, Method]
) -> tuple[Method, ...]:
    """Selects methods by comma-separated names; `all` selects every method that the model and the
    code list allow.
    """
    chosen: dict[str, Method] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name == "all":
            chosen |= {n: m for n, m in methods.items() if not obstacle(m, parameters)}
        elif name not in methods:
            raise Unknown(
                f"--branches: unknown branch {name}. Choose from {', '.join(methods)}",
                kind="unknown-branch",
            )
        elif fault := obstacle(methods[name], parameters):
            raise Contradiction(f"--branches: {name} {fault.text}", kind=fault.kind)
        else:
            chosen[name] = methods[name]
    if not chosen:
        raise Missing(
            f"--branches is empty. Choose at least one of {', '.join(methods)}", kind="no-branches"
        )
    return tuple(chosen.values())


_FORMS = {
    "features": "model.trainable=head and model.pooling=mean",
    "head-features": "model.trainable=head",
    "tokens": "model.trainable=full or lora",
}


def obstacle(method: Method, parameters: RetrainParameters) -> Fault | None:
    """Returns why a method cannot be fitted in this run, or None if it can."""
    reads = method.mechanism.reads
    if form_of(parameters.model) not in reads:
        forms = ", or ".join(_FORMS.get(form, form) for form in sorted(reads))
        return Fault(f"needs {forms}", kind="another-model-form")
    if method.needs_titles and not parameters.data.has_titles:
        return Fault(
            "starts at the titles of codes. Pass --codelist, or leave it out",
            kind="no-titles-to-start-at",
        )
    return None
