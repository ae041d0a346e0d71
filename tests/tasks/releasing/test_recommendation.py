"""The recommendation: its rules as properties, over invented figures of branches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.releasing.recommendation import Figures, describe_loss, exclusion_reason, recommend

_F1 = st.floats(0, 1, allow_nan=False)


@st.composite
def branches(draw: st.DrawFn) -> list[Figures]:
    """Some branches of every kind, audited or not, within the budget or not; names are their own."""
    made = []
    for number in range(draw(st.integers(0, 7))):
        kind: Any = draw(st.sampled_from(["none", "formal", "formal", "asymptotic-local"]))
        made.append(
            Figures(
                name=f"branch-{number}",
                title=f"Branch {number}",
                kind=kind,
                weighted_f1=draw(_F1),
                spread=draw(st.sampled_from([0.0, 0.005, 0.1])),
                seeds=draw(st.sampled_from([1, 5])),
                epsilon=None if kind == "none" else draw(st.floats(0.01, 20)),
                delta=draw(st.sampled_from([1e-6, 1e-5])) if kind == "formal" else None,
                audit=draw(st.sampled_from([None, "contradicted", "not contradicted", "inconclusive"])),
                lower_bound=draw(st.sampled_from([None, 0.3])),
                refused=draw(st.sampled_from(["", "", "epsilon spent 6 + asked 5 = 11 > 8, over the cap"])),
            )
        )
    return made


@given(branches())
def test_what_is_recommended_is_formal_uncontradicted_and_affordable(made: list[Figures]) -> None:
    """Whatever the figures: else nothing is, and the sentence says that."""
    said = recommend(made)
    possible = [one for one in made if one.kind == "formal" and one.audit != "contradicted" and not one.refused]
    if said.chosen is None:
        assert not possible
        assert said.verdict == "warning"
        assert said.sentence.startswith("Nothing here should be released")
    else:
        assert said.chosen in possible
        assert f"Release {said.chosen.title} (formal, ε" in said.sentence


@given(branches())
def test_it_is_the_best_or_as_good_and_cheaper(made: list[Figures]) -> None:
    """No allowed branch is better beyond the spread; none that is as good has an epsilon below by a hundredth."""
    said = recommend(made)
    if said.chosen is None:
        return
    best = max(
        (one for one in made if one.kind == "formal" and not exclusion_reason(one)), key=lambda one: one.weighted_f1
    )
    apart = 2 * (said.chosen.spread**2 + best.spread**2) ** 0.5
    assert best.weighted_f1 - said.chosen.weighted_f1 <= apart + 1e-12
    assert said.chosen.epsilon is not None
    assert best.epsilon is not None
    assert said.chosen.epsilon <= 1.01 * best.epsilon


@given(branches(), st.randoms())
def test_the_order_of_the_branches_does_not_matter(made: list[Figures], random: Any) -> None:
    """They come from seeds, files and ledgers in any order."""
    other = list(made)
    random.shuffle(other)
    assert recommend(other) == recommend(made)


@given(branches())
def test_refuting_what_was_recommended_takes_it_away(made: list[Figures]) -> None:
    """One more contradiction never leaves the same recommendation; one of another branch does not change it."""
    said = recommend(made)
    if said.chosen is None:
        return
    refuted = [replace(one, audit="contradicted") if one is said.chosen else one for one in made]
    assert recommend(refuted).chosen != said.chosen
    local = [one for one in made if one.kind == "asymptotic-local"]
    others = [replace(one, audit="contradicted") if one in local else one for one in made]
    assert recommend(others).chosen == said.chosen


@given(branches())
def test_the_loss_against_no_privacy_is_always_said(made: list[Figures]) -> None:
    """With its reference, or that there was none; and a missing audit."""
    said = recommend(made)
    if said.chosen is None:
        return
    if said.reference is None:
        assert "was not measured" in said.sentence
    else:
        assert said.reference.kind == "none"
        assert f"{abs(said.reference.weighted_f1 - said.chosen.weighted_f1):.3f}" in said.sentence
    assert ("it was not audited" in said.sentence) == (said.chosen.audit is None)
    assert (said.verdict == "fine") == (said.chosen.audit == "not contradicted")


def test_the_sentence_by_hand() -> None:
    """The figures of a run, told as a person would; a better F1 that is refuted or not formal is not taken."""
    none = Figures("non-private", "Non-private", "none", 0.788)
    local = Figures(
        "swag-ppm", "SWAG-PPM", "asymptotic-local", 0.785, epsilon=4.6, audit="contradicted", lower_bound=6.1
    )
    formal = Figures(
        "prior-descent", "Prior descent", "formal", 0.772, spread=0.002, seeds=5, epsilon=5.0, delta=1e-5,
        audit="not contradicted", lower_bound=0.41,
    )  # fmt: skip
    smaller = replace(formal, epsilon=2.0, weighted_f1=0.769)
    worse = replace(formal, epsilon=1.0, weighted_f1=0.729)
    assert recommend([none, local, formal]).sentence == (
        "Release Prior descent (formal, ε 5, δ 1e-05, add-remove): weighted F1 0.772 ± 0.002 over 5 seeds, "
        "0.016 (2.0%) below Non-private (0.788, the best that was compared; adapters or a "
        "whole encoder may do better); its audit: not contradicted (it leaks at least ε 0.41)."
    )
    assert recommend([none, local, formal, smaller, worse]).chosen == smaller, "as good within the spread, and cheaper"
    assert recommend([none, local]).sentence == (
        "Nothing here should be released: no branch has a formal guarantee, and 1 of 1 claims are contradicted by an "
        "audit; compare a formal one."
    )


def test_a_loss_of_more_than_a_tenth_wants_a_look() -> None:
    """Of what is recommended, whatever the others lose; and one that nobody measured is not small."""
    none = Figures("non-private", "Non-private", "none", 0.8)
    formal = Figures("prior-descent", "Prior descent", "formal", 0.721, epsilon=5.0, delta=1e-5)
    poor = replace(formal, title="DP-SGD", weighted_f1=0.1)
    assert recommend([none, formal, poor]).loses_little
    assert not recommend([none, replace(formal, weighted_f1=0.719), poor]).loses_little
    assert not recommend([formal]).loses_little
    assert not recommend([none]).loses_little


def test_missing_references_are_named() -> None:
    """A loss against a head says that adapters and a whole encoder, which may do better, were not compared."""
    chosen = Figures("formal", "Formal", "formal", 0.75, epsilon=5.0, delta=1e-5, audit="not contradicted")
    plain = Figures("plain", "No privacy", "none", 0.77, trainable="head")
    assert "adapters or a whole encoder without privacy were not compared" in describe_loss(chosen, plain)
    assert "a whole encoder without privacy was not compared" in describe_loss(chosen, replace(plain, trainable="lora"))
    assert "not compared" not in describe_loss(chosen, replace(plain, trainable="full"))
    assert "the best that was compared; adapters or a whole encoder may do better" in describe_loss(
        chosen, replace(plain, trainable="")
    )


def test_epsilons_are_compared_for_one_relation() -> None:
    """An epsilon of 4 for one record replaced is less than one of 3 for one more or less, which is 6 there."""
    added = Figures("added", "Added", "formal", 0.7, epsilon=3.0, delta=1e-5)
    replaced = Figures("replaced", "Replaced", "formal", 0.7, epsilon=4.0, delta=1e-5, relation="replace-one")
    assert recommend([added, replaced]).chosen == replaced
    assert recommend([added, replace(replaced, epsilon=6.1)]).chosen == added


def test_digits_of_an_epsilon_that_was_solved_for_decide_nothing() -> None:
    """Two that aim at ε 5 differ in the seventh digit: the better F1 wins. A hundredth less is less."""
    better = Figures("better", "Better", "formal", 0.814, spread=0.007, seeds=2, epsilon=5.0, delta=1e-5)
    other = replace(better, name="other", weighted_f1=0.803, spread=0.029)
    for epsilon, chosen in ((4.9999996, "better"), (4.97, "better"), (4.9, "other")):
        recommended = recommend([replace(other, epsilon=epsilon), better]).chosen
        assert recommended is not None
        assert recommended.name == chosen, epsilon


def test_no_conclusion_from_a_difference_below_the_error_over_test_records() -> None:
    """Over ε 1, ε 5 is ahead by 0.006, with one seed each: chosen where the same test records show it, else not."""
    random = np.random.default_rng(1)
    base = 0.75 + 0.008 * random.normal(size=2000)
    strong = Figures("strong", "Strong", "formal", 0.750, epsilon=1.0, delta=1e-5, resampled={"weighted_f1": base})
    for error, chosen in ((0.001, "weak"), (0.005, "strong")):
        f1 = base + 0.006 + error * random.normal(size=2000)
        weak = Figures("weak", "Weak", "formal", 0.756, epsilon=5.0, delta=1e-5, resampled={"weighted_f1": f1})
        assert weak.minus(strong).of_records == pytest.approx(error, rel=0.1)
        recommended = recommend([strong, weak]).chosen
        assert recommended is not None
        assert recommended.name == chosen
    plain = Figures(
        "plain", "No privacy", "none", 0.757, resampled={"weighted_f1": base + 0.004 * random.normal(size=2000)}
    )
    assert "standard error over test records 0.004; no conclusion) below No privacy" in describe_loss(strong, plain)


def test_a_computed_epsilon_of_one_replaced_is_compared() -> None:
    """Gaussian noise at ε 3 for one more or less costs 6.9 replaced, more than twice: a draw of 6.5 is the smaller."""
    added = Figures("added", "Added", "formal", 0.7, epsilon=3.0, delta=1e-5, epsilon_replaced=6.9)
    replaced = Figures("replaced", "Replaced", "formal", 0.7, epsilon=6.5, delta=0.0, relation="replace-one")
    assert recommend([added, replaced]).chosen == replaced
    assert recommend([replace(added, epsilon_replaced=None), replaced]).chosen == replace(added, epsilon_replaced=None)
