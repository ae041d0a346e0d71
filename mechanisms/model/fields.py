"""Several fields that one record is coded in: classes of all of them side by side, a softmax within each.

A joint head has one vector of logits z [classes], the classes of field f at the place `spans[f]`; p_f is the softmax of
that part alone. Labels are int64 [n, fields], each an index into its own field, -1 where the record lacks it. A
record's log-likelihood is the sum over the fields that it has,

    l_i = sum_f l_if,    l_if = log p_f(y_if given x_i),    so that    d(-l_i)/dz = e_i = (e_i1, ..., e_iF),

with e_if = p_f - onehot(y_if), and 0 where the record lacks the field. So everything that is one gradient, one norm and
one clip a record for a single field, is one for all of them: e_i stands where e_i stood.

A single field is the case of one span over all classes; its labels are int64 [n].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from mechanisms.errors import MechanismError

_LEAST = -60.0
"""exp(-60) is nothing beside 1; less would be denormal numbers, on which processors are ten times slower."""


@dataclass(frozen=True)
class Fields:
    """Classes of each field, in the order of the head's rows."""

    sizes: tuple[int, ...]

    @property
    def classes(self) -> int:
        return sum(self.sizes)

    @property
    def spans(self) -> tuple[slice, ...]:
        """Returns the places of each field's classes."""
        ends = list(accumulate(self.sizes))
        return tuple(slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    def check(self, labels: Tensor) -> None:
        """Refuses labels of another number of fields, or outside of theirs; it names a field by its place."""
        columns = self.columns(labels)
        for at, (size, column) in enumerate(zip(self.sizes, columns, strict=True), start=1):
            least = 0 if len(self.sizes) == 1 else -1
            if len(column) and not least <= int(column.min()) <= int(column.max()) < size:
                raise MechanismError(f"labels of field {at} lie outside of its {size} classes")

    def columns(self, labels: Tensor) -> tuple[Tensor, ...]:
        """Returns the labels of each field, int64 [n] each; refuses those of another number of fields."""
        columns = (labels,) if labels.dim() == 1 else labels.unbind(1)
        if len(columns) != len(self.sizes):
            raise MechanismError(f"the head is of {len(self.sizes)} fields, the records have {len(columns)}")
        return columns

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Log-probabilities [..., classes], which sum to one within each field."""
        if len(self.sizes) == 1:
            return logits.log_softmax(-1)
        return torch.cat([logits[..., span].log_softmax(-1) for span in self.spans], -1)

    def log_likelihood(self, log_probabilities: Tensor, labels: Tensor) -> Tensor:
        """l_i [n], each <= 0; 0 of a record that lacks all fields."""
        if len(self.sizes) == 1 and labels.dim() == 1:
            return log_probabilities.gather(1, labels[:, None])[:, 0]
        total = torch.zeros_like(log_probabilities[:, 0])
        for span, column in zip(self.spans, self.columns(labels), strict=True):
            own = log_probabilities[:, span].gather(1, column.clamp(min=0)[:, None])[:, 0]
            total = total + torch.where(column >= 0, own, 0.0)
        return total

    def residuals_(self, log_probabilities: Tensor, labels: Tensor) -> Tensor:
        """e [n, classes], written over the log-probabilities."""
        residual = log_probabilities.clamp_(min=_LEAST).exp_()
        at = torch.arange(len(labels), device=labels.device)
        if len(self.sizes) == 1 and labels.dim() == 1:
            residual[at, labels] -= 1
            return residual
        for span, column in zip(self.spans, self.columns(labels), strict=True):
            there = column >= 0
            residual[:, span] *= there[:, None]
            residual[at[there], span.start + column[there]] -= 1
        return residual

    def counts(self, labels: Tensor) -> Tensor:
        """Records of each class, float32 [classes]. One record counts once in each field that it has."""
        columns = zip(self.sizes, self.columns(labels), strict=True)
        return torch.cat([torch.bincount(own[own >= 0].cpu(), minlength=size) for size, own in columns]).float()

    def mean(self, of_class: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Returns each record's mean, over the fields that it has, of its classes' values [n]; 0 where it has none.

        of_class: of each field, float32 [its classes].
        """
        columns = self.columns(labels)
        own = torch.stack([values[column.clamp(min=0)] for values, column in zip(of_class, columns, strict=True)])
        there = torch.stack(columns) >= 0
        return (own * there).sum(0) / there.sum(0).clamp(min=1)

    def log_shares(self, counts: Tensor) -> Tensor:
        """Natural log of the classes' shares, within each field [classes]."""
        return torch.cat([(counts[span] / counts[span].sum()).log() for span in self.spans])

    def predicted(self, scores: Tensor) -> Tensor:
        """The most probable class of each record, int64 [n]; of several fields [n, fields], each of its own."""
        if len(self.sizes) == 1:
            return scores.argmax(-1)
        return torch.stack([scores[:, span].argmax(-1) for span in self.spans], 1)
