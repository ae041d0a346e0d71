"""Describes the promise of a release in sentences that an officer can sign.

The page of a plan begins with these sentences, and `autocoder approve` prints them before it asks.
"""

from __future__ import annotations

from mechanisms.privacy.events import Claim, Event, ParallelEvent
from mechanisms.privacy.numerics import epsilon_text
from storage.figures import delta_text
from tasks.pages.render import odds

_NOTHING = "Nothing is promised: the model was trained without protection."


def promise_of(claim: Claim, event: Event, *, listed: str = "below") -> tuple[str, ...]:
    """Returns who is protected, against what, how strongly, and what is not covered.

    Args:
        listed: where the reader finds the items that are not covered.
    """
    if claim.guarantee_kind == "formal":
        return _formal(claim, of_test=isinstance(event, ParallelEvent), listed=listed)
    if claim.guarantee_kind == "asymptotic-local":
        return _estimated(claim)
    return (_NOTHING,)


def strength_of(claim: Claim) -> str:
    """Returns the one sentence of a promise that says how strong it is."""
    if claim.guarantee_kind == "formal":
        return _strength(claim)
    if claim.guarantee_kind == "asymptotic-local":
        return _estimated(claim)[0]
    return _NOTHING


def _strength(claim: Claim) -> str:
    assert claim.epsilon is not None
    unit, replaced = _unit(claim), claim.neighbouring_relation == "replace-one"
    change = f"Changing the values of one {unit}" if replaced else f"Adding or removing one {unit}"
    return (
        f"{change} changes the probability of anything that is released by at most a factor of "
        f"{odds(claim.epsilon)} (ε = {epsilon_text(claim.epsilon)}){_excess(claim)}."
    )


def _excess(claim: Claim) -> str:
    return f", plus δ = {delta_text(claim.delta)}" if claim.delta else ""


def _formal(claim: Claim, *, of_test: bool, listed: str) -> tuple[str, ...]:
    unit, replaced = _unit(claim), claim.neighbouring_relation == "replace-one"
    records = "the training records and the held-out records" if of_test else "the training records"
    sentences = [
        f"Each {unit} among {records} is protected, "
        "whoever holds the released folder and whatever else they know.",
        _strength(claim),
    ]
    if not replaced and claim.epsilon_replaced is not None:
        sentences.append(
            f"If someone already knows that a {unit} was used, what it says is protected less: the "
            f"factor is {odds(claim.epsilon_replaced)} "
            f"(ε = {epsilon_text(claim.epsilon_replaced)}){_excess(claim)}."
        )
    sentences.append(_whom(claim))
    number = len(claim.unprotected_inputs)
    listed_items = f" and the {number} items that are listed {listed}" if number else ""
    test = "" if of_test else "the held-out records, "
    sentences.append(
        f"This does not cover {test}figures that are published elsewhere{listed_items}."
    )
    return tuple(sentences)


def _whom(claim: Claim) -> str:
    if claim.privacy_unit == "record":
        return (
            "One record, not one person, is protected, on the assumptions that the plan lists. "
            "A person with several records is protected less."
        )
    return (
        f"All used records of one {claim.privacy_unit} are protected together, on the assumptions "
        "that the plan lists."
    )


def _estimated(claim: Claim) -> tuple[str, ...]:
    assert claim.epsilon is not None
    return (
        f"No formal guarantee is given. ε = {epsilon_text(claim.epsilon)} was estimated on these "
        f"records for one {_unit(claim)}, and δ is not known.",
        "Audits have measured more leakage than such an estimate states. It must not be compared "
        "with a formal ε.",
    )


def _unit(claim: Claim) -> str:
    if claim.max_records_per_unit == 1:
        return claim.privacy_unit
    return f"{claim.privacy_unit} with at most {claim.max_records_per_unit} records"
