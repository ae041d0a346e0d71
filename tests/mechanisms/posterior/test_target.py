"""The search for a target epsilon, on models of a fit whose answer is known: few fits, never above
the goal.
"""

import pytest
import torch
from refusals import of_kind

from mechanisms.errors import MechanismError
from mechanisms.posterior.risks import reweight, risk_weights
from mechanisms.posterior.target import CLOSE, LARGEST_C, search

RISK = 5 * torch.rand(400, generator=torch.Generator().manual_seed(0)) ** 2


class Fits:
    """A fit in which a record of weight alpha has risk r (1 + more (1 - alpha)): downweighted
    records surprise more.
    """

    def __init__(self, more: float, *, again: bool) -> None:
        self.more, self.again, self.seen = more, again, list[float]()

    def __call__(self, c: float) -> float:
        alpha = risk_weights(RISK, c=c, g=0.0)
        risk = RISK * (1 + self.more * (1 - alpha))
        if self.again:
            alpha = reweight(alpha, risk, k=0.95)
            risk = RISK * (1 + self.more * (1 - alpha))
        self.seen.append(float((alpha * risk).max()))
        return self.seen[-1]


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("more", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("goal", [0.5, 1.5, 3.0])
def test_meets_the_goal_in_few_fits(goal: float, more: float, again: bool) -> None:
    """At most the goal, within a tenth of it, in at most four fits."""
    fits = Fits(more, again=again)
    c = search(goal, risk=RISK, fit=fits)
    assert len(fits.seen) <= 4
    assert CLOSE * goal <= Fits(more, again=again)(c) <= goal


def test_one_fit_where_risks_stay() -> None:
    """Without inflation the first c is right."""
    fits = Fits(0.0, again=False)
    search(1.5, risk=RISK, fit=fits)
    assert len(fits.seen) == 1


def test_more_than_the_data_have_is_not_chased() -> None:
    """A goal above the largest risk: full weights, and no further fits."""
    fits = Fits(0.0, again=False)
    assert search(50.0, risk=RISK, fit=fits) == LARGEST_C
    assert len(fits.seen) == 1


def test_an_unreachable_goal_says_how_near_it_came() -> None:
    """A fit that always answers 2 is refused, with the smallest Delta seen."""
    with pytest.raises(
        MechanismError, check=of_kind("unreachable-sensitivity"), match=r"0\.5.*\b2\b"
    ):
        search(0.5, risk=RISK, fit=lambda _: 2.0)
