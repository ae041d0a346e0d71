"""DPPL-Public: a public prototype for each class, chosen by the exponential mechanism (Wahdany et al., AAAI 2025, 4.2).

The candidates are the directions t_k of the code list's titles, the rows of the untrained head with `prior: titles`;
any class may take any of them. For class c a candidate's utility is how near its records come to it,

    u_c(k) = sum_{i: y_i = c} s(x_i, t_k),   s = cos(x_i - M, t_k) / `ceiling`, cut to [0, 1],

and one is drawn with probability proportional to base_c(k) exp(eps u_c(k)). M is the titles' mean, found in the head's
bias. The base measure is public: e^`own_title` for a class's own title, 1 for the others, so that a code without a
record keeps its own with little doubt. (The paper has base measure 1, pictures as candidates, and several a class.)

**Cost.** A record added to class c raises every u_c(k) by something in [0, 1]: the weight of a candidate by a factor in
[1, e^eps], the sum of all weights too, so a probability changes by at most e^eps. It touches no other class's choice,
so all choices together are eps-differentially private, with delta 0. (By concentrated privacy rho = eps^2/8 a choice,
Cesar and Rogers 2021; the code of the paper takes eps^2/2.) A record replaced is one taken and one added: 2 eps.

**Several fields.** The classes of a field choose among its own titles. A record touches one choice a field, which add
up: of F fields every choice has eps / F.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.mechanism import Aimed, ClassifierModel, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.linear_head import features_of, linear_head
from mechanisms.privacy.claims import TUNED, claims
from mechanisms.privacy.events import Claim, Event


class PublicPrototypesEvent(Event, frozen=True):
    """One choice a class by the exponential mechanism; a record adds at most 1 to each utility of one class a field."""

    mechanism: Literal["dppl-public"] = "dppl-public"
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """What one record added or removed costs a choice, delta 0."""
    fields: int = Field(default=1, ge=1)
    """Choices that a record touches."""


@claims(PublicPrototypesEvent, formal=True)
def _claim(event: PublicPrototypesEvent, *, delta: float | None, unit: dict[str, Any]) -> Claim:
    """Claims m F epsilon for a unit of m records in F fields, with delta 0 whatever was asked for."""
    of_record = event.fields * event.epsilon
    cost = int(unit["max_records_per_unit"]) * of_record
    return Claim(
        guarantee_kind="formal",
        epsilon=cost,
        delta=0.0,
        delta_text="0 by proof",
        epsilon_add_remove=cost,
        neighbouring_relation="add-remove",
        accountant="exponential mechanism, monotone utility, parallel over classes",
        assumptions=(
            f"neighbours differ by one unit added or removed; replacing one costs epsilon {2 * cost:.4g}",
            TUNED,
            "Gumbel noise is sampled in floating point (float64, from a secret AES-256 stream): attacks on low-order "
            "bits are not covered",
        ),
        **unit,
    )


@registered
class DpplPublic(Aimed, frozen=True, title="DPPL-Public"):
    """The range of a record's say, and how much a class holds to its own title."""

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["dppl-public"] = "dppl-public"
    ceiling: float = Field(
        default=0.5, gt=0, le=1, title="Ceiling", description="A cosine from which a record's say is 1."
    )
    own_title: float = Field(
        default=10.0, ge=0, le=100, title="Own title", description="In nats, before any record: its head start."
    )

    def calibrate(self, task: Task) -> float:
        """Returns the epsilon of a choice: there is no noise to solve, and a unit has so many records and fields."""
        assert self.target_epsilon is not None
        return self.target_epsilon / task.records_per_unit / (len(task.fields) or 1)

    def event(self, noise: float, task: Task) -> PublicPrototypesEvent:
        """Returns choices of this epsilon."""
        return PublicPrototypesEvent(epsilon=noise, fields=len(task.fields) or 1)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Choose a title for each class. A finished fit is read back: a choice is made once."""
        assert isinstance(plan.event, PublicPrototypesEvent)
        run.layout.check(records.labels)
        load, fit = partial(ClassifierModel.load, run=run), partial(self._choose, plan.event, records, run)
        return Fitted(
            fit_or_load(run.folder, ClassifierModel.FILE, new_key=run.new_key, load=load, fit=fit), plan.event
        )

    def _choose(self, event: PublicPrototypesEvent, records: Records, run: Run, state: KeyedState) -> ClassifierModel:
        fields, classifier = run.layout, run.classifier()
        head, features = linear_head(classifier), features_of(records.inputs).cpu()
        weight, bias = head.weight.detach().cpu().clone(), head.bias.detach().cpu().clone()
        for field, (span, labels) in enumerate(zip(fields.spans, fields.columns(records.labels.cpu()), strict=True)):
            rows, offsets, present = weight[span], bias[span], labels >= 0
            centre = torch.linalg.lstsq(rows.double(), -offsets.double()[:, None], driver="gelsd").solution[:, 0]
            about, candidates = features[present] - centre.float(), nn.functional.normalize(rows, dim=1)
            utility = utilities(about, labels[present], candidates, self.ceiling)
            scores = event.epsilon * utility + self.own_title * torch.eye(len(rows), dtype=torch.float64)
            noise = state.stream.gumbel(scores.numel(), purpose="choices", step=field).view_as(scores)
            choices = (scores + noise).argmax(1)
            with torch.no_grad():
                head.weight[span] = rows[choices].to(head.weight.device)
                head.bias[span] = offsets[choices].to(head.bias.device)
        return ClassifierModel(classifier)


def utilities(about: Tensor, labels: Tensor, candidates: Tensor, ceiling: float) -> Tensor:
    """u float64 [classes, candidates]; a record adds something in [0, 1] to each entry of one row."""
    # in float64, or one record more would move how the others' products are rounded
    cosines = nn.functional.normalize(about.double(), dim=1) @ candidates.double().T
    says = (cosines / ceiling).clamp(0, 1)
    return torch.zeros(len(candidates), len(candidates), dtype=torch.float64).index_add_(0, labels, says)
