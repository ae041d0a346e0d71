"""A linear model on unit records, one logistic regression for two classes or one for each class against the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint
from mechanisms.model.inputs import Inputs
from mechanisms.tabular.columns import Columns, features_of

FILE = "linear.safetensors"
CURVATURE = 0.25
"""c: the largest second derivative of the logistic loss."""
GRADIENT_TOLERANCE = 1e-9
_NEWTON_STEPS = 200


@dataclass(frozen=True)
class UnitLinear:
    """Coefficients float64 [problems, d + 1] on `Columns.unit`."""

    coefficients: Tensor
    columns: Columns
    joint: bool = False
    """Whether the problems are one softmax over the classes."""

    def scores(self, inputs: Inputs) -> Tensor:
        """Float64 [n, problems]."""
        return self.columns.unit(features_of(inputs)) @ self.coefficients.T

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        """Float64 [n, classes]; with one problem a class, each class's own probability, made to sum to one."""
        scores = self.scores(inputs)
        if self.joint:
            return scores.log_softmax(-1)
        if scores.shape[1] == 1:
            scores = torch.cat([-scores, scores], dim=1)
        return torch.nn.functional.logsigmoid(scores).log_softmax(-1)

    def save(self, folder: Path) -> None:
        """One file."""
        meta = {"widths": self.columns.widths, "bins": self.columns.bins, "joint": self.joint}
        checkpoint.save(folder / FILE, {"coefficients": self.coefficients}, meta)

    @classmethod
    def load(cls, folder: Path) -> UnitLinear:
        """Read what `save` wrote."""
        tensors, meta = checkpoint.load(folder / FILE)
        return cls(tensors["coefficients"].clone(), Columns(tuple(meta["widths"]), meta["bins"]), meta["joint"])


def minimise(x: Tensor, y: Tensor, weights: Tensor, *, regularisation: float, linear: Tensor) -> Tensor:
    """Returns the minimiser of (1/n) sum_i w_i ln(1 + e^{-y_i x_i beta}) + (1/n) b beta + (regularisation/2) |beta|^2.

    Newton in float64, steps halved until the gradient's norm falls: it tells two points apart where terms of the value
    cancel and its digits no longer do. x [n, d], y in {-1, 1} [n], weights [n], linear b [d].

    Raises:
        MechanismError: the gradient's norm stays above `GRADIENT_TOLERANCE`: nothing may be claimed then.
    """
    n, d = x.shape
    beta = torch.zeros(d, dtype=torch.float64)

    def gradient_of(at: Tensor) -> Tensor:
        return (-(weights * y * torch.sigmoid(-y * (x @ at))) @ x + linear) / n + regularisation * at

    for _ in range(_NEWTON_STEPS):
        gradient = gradient_of(beta)
        norm = float(gradient.norm())
        if norm <= GRADIENT_TOLERANCE:
            return beta
        p = torch.sigmoid(x @ beta)
        hessian = (x * (weights * p * (1 - p))[:, None]).T @ x / n + regularisation * torch.eye(d, dtype=torch.float64)
        step = torch.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-10 and float(gradient_of(beta - size * step).norm()) > (1 - 1e-4 * size) * norm:
            size /= 2
        beta = beta - size * step
    raise MechanismError(
        f"the minimiser was not reached: gradient {float(gradient_of(beta).norm()):.2g} after {_NEWTON_STEPS} steps; "
        "raise regularisation"
    )
