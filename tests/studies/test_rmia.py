"""RMIA as it is published: the score by its definition, what leaks is found and what does not is
not.
"""

from pathlib import Path

import numpy as np
import pytest

from studies import results, rmia


def test_the_score_is_the_share_of_population_records_that_are_less_likely() -> None:
    """By the definition, record by record: references that saw x and those that did not weigh the
    same.
    """
    draws = np.random.default_rng(0)
    target, references = draws.random(30), draws.random((6, 30))
    population = np.arange(30) < 10
    included = (draws.random((6, 30)) < 0.5) & ~population
    included[0, 10:], included[1, 10:] = True, False
    scores = rmia.scores(target, references, included, population)

    def ratio(record: int) -> float:
        seen, unseen = (
            references[included[:, record], record],
            references[~included[:, record], record],
        )
        mean = unseen.mean() if population[record] else (seen.mean() + unseen.mean()) / 2
        return target[record] / mean

    for record in range(10, 30):
        below = [ratio(record) / ratio(z) >= rmia.GAMMA for z in range(10)]
        assert scores[record] == pytest.approx(np.mean(below))


@pytest.mark.parametrize(("leak", "least", "most"), [(0.0, 0.0, 0.6), (4.0, 1.0, 7.0)])
def test_a_bound_is_above_nothing_where_records_leak(
    leak: float, least: float, most: float
) -> None:
    """Likelihoods that rise by e to the leak for those who trained."""
    draws = np.random.default_rng(1)
    population = draws.random(1500) < 0.2
    included = (draws.random((8, 1500)) < 0.5) & ~population
    right = np.exp(np.minimum(0, draws.normal(-5, 0.5, (8, 1500)) + leak * included))
    scores = rmia.scores(right[0], right[1:], included[1:], population)
    found, _ = rmia.bound(scores[~population], included[0][~population], 0.0, draws)
    assert least <= found <= most


def test_the_page_says_what_was_measured() -> None:
    """Least and largest bound and claim of SWAG-PPM, and of prior descent's bounds."""
    docs = Path(__file__).parents[2] / "docs/studies"
    rows = results.load(docs / "results/rmia.csv")

    def ends(name: str, figure: str) -> str:
        values = [row[figure] for row in rows if row["mechanism"] == name]
        return f"{min(values):.2f} to {max(values):.2f}"

    page = (docs / "audits.md").read_text(encoding="utf-8")
    assert f"({ends('swag-ppm', 'bound')} against {ends('swag-ppm', 'claimed')}; " in page
    assert f"prior descent {ends('prior-descent', 'bound')} of 5" in page
