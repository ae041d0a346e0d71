"""A bounded log-likelihood with a gradient everywhere: what the censored likelihood is for, in a form that trains.

The strict mechanism (Hu, Williams and Savitsky 2022, arXiv 2205.05003) censors each record's log-likelihood at
-epsilon/2. A hard clamp has gradient zero where it binds, and at the start it binds for every record: a uniform
classifier over 102 codes has l = -ln 102 = -4.6, so nothing is ever learned. Here the log-likelihood l <= 0, raised to
the risk weight alpha where there is one, goes through

    u(l) = B (exp(q alpha l) - 1),    B = epsilon/2,    q = min(1/B, 1/2)

For q = 1/B it is the Box-Cox transform of the likelihood, (p^q - 1)/q (the generalised cross entropy of Zhang and
Sabuncu 2018): slope 1 at l = 0, where it equals the log-likelihood, and l itself as epsilon grows.

**Bound.** alpha l lies in [-inf, 0], so exp(q alpha l) lies in [0, 1] and u in [-B, 0]: for every parameter vector and
every record that could be, not only for those held or drawn.

**Guarantee of an exact draw.** Let xi(theta | D) be proportional to xi(theta) exp(sum_i u_i(theta)), the prior proper.
The normalising constant lies in [exp(-nB), 1], so the posterior exists. With a record d added,

    xi(theta | D + d) / xi(theta | D) = exp(u_d(theta)) / E_{xi(. | D)}[ exp(u_d) ]

where numerator and denominator both lie in [exp(-B), 1]: the ratio is in [exp(-B), exp(B)]. With d replaced by d' the
same holds of u_d' - u_d in [-B, B], and the ratio is in [exp(-2B), exp(2B)]. One draw is therefore B-private for
neighbours by adding or removing one record and epsilon = 2B private for replacing one, with delta = 0, at every n: the
exponential mechanism with scores u. The proof takes alpha as fixed; where alpha is computed from the records
(`both`), a removed record moves other records' alpha, and the statement is conditional on alpha.

**What SWAG leaves unproven.** A draw of SWAG is no exact draw: its mean is where an optimiser stopped and its width is
set by the step size. Nothing above bounds the density ratio of two SWAG Gaussians. Worse, an optimiser hardly notices
that a loss was multiplied by a constant, so that lowering B by a factor would lower the claim and change nothing. Hence
q never exceeds 1/2, training minimises -u/s with the slope s = q B <= 1 taken out, and the factor goes where it
belongs: a posterior whose log-likelihood is multiplied by s is, in the Gaussian approximation, wider by 1/sqrt(s)
(`temperature` = 1/s).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechanisms.errors import MechanismError

if TYPE_CHECKING:
    from torch import Tensor

MAX_POWER = 0.5
"""Largest q. At the start p is 1/classes and the gradient of a record is p^q of what it would be without the bound:
with q = 1 and 615 codes nothing moves (weighted F1 0.43 on OSHA reports after 30 epochs, 0.59 with q = 1/2)."""


@dataclass(frozen=True, kw_only=True)
class BoundedLikelihood:
    """u(l) = B (exp(q l) - 1), in [-B, 0] for every l <= 0.

    bound: B in nats, epsilon/2 of a draw.
    """

    bound: float

    @staticmethod
    def for_epsilon(epsilon: float) -> BoundedLikelihood:
        """Returns the likelihood of which one exact draw costs `epsilon`, above 0, when a record is replaced."""
        if not 0 < epsilon < float("inf"):
            raise MechanismError(f"target_epsilon is {epsilon}; it must be positive and finite")
        return BoundedLikelihood(bound=epsilon / 2)

    @property
    def power(self) -> float:
        """q: how soon a badly predicted record stops mattering."""
        return min(1 / self.bound, MAX_POWER)

    @property
    def temperature(self) -> float:
        """1/s >= 1, what training leaves out: the factor by which the posterior's covariance grows."""
        return 1 / (self.power * self.bound)

    def __call__(self, ell: Tensor) -> Tensor:
        """u of (weighted) log-likelihoods l <= 0 of any shape; in [-B, 0] in floating point too."""
        return (self.power * ell).expm1().mul(self.bound)

    def slope(self, ell: Tensor) -> Tensor:
        """du/dl, in (0, 1]."""
        return (self.power * ell).exp().mul_(self.power * self.bound)

    def objective(self, ell: Tensor) -> Tensor:
        """u/s, slope 1 at l = 0: what training maximises."""
        return (self.power * ell).expm1() / self.power

    def at(self, loss: float) -> float:
        """|u| of one loss |l| >= 0 in nats; u is monotone, so the largest of many losses gives the largest |u|."""
        import torch

        return -float(self(torch.tensor(-loss, dtype=torch.float64)))
