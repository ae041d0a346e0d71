"""The sentences of a statement: one source, in the bundle and in docs, and true of the release at
hand.
"""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sealed_bundle import Sealed

from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.accuracy_table import events_of
from mechanisms.privacy.events import DpSgdEvent, GaussianReleaseEvent, NoiseSegment, ParallelEvent
from mechanisms.privacy.numerics import lower_text, upper_text
from storage.bundle import folder as bundle
from storage.egress.documents import check_schema
from storage.figures import escape
from storage.ledger.content import anticipated
from storage.ledger.entries import StatedAudit
from tasks.bundle.sentences import AUDITED, EVERY, SECTIONS, sentences_of
from tasks.bundle.statement import claims_page, statement, statement_page
from tasks.bundle.untold import untold_of
from tasks.pages.render import odds, one_in

HOUSE = Path(__file__).resolve().parents[3]
RELEASE: dict[str, Any] = {
    "guarantee_kind": "formal",
    "mechanism": "dp-sgd",
    "max_records_per_unit": 1,
    "unprotected_inputs": [],
    "sampling": "stratified",
    "exact_arithmetic": False,
}


def texts(**changed: Any) -> str:
    """Everything said of such a release."""
    return " ".join(one["text"] for one in sentences_of(RELEASE | changed))


def test_the_page_is_what_the_source_says() -> None:
    """`python scripts/write_claims.py` leaves docs/reference/statement-sentences.md as it is."""
    page = (HOUSE / "docs" / "reference" / "statement-sentences.md").read_text(encoding="utf-8")
    assert page == claims_page(), "run `python scripts/write_claims.py`"
    for sentence in (*EVERY, *(one for section in SECTIONS for one in section.sentences)):
        assert sentence.text in page
        assert sentence.basis in page


def test_what_a_sentence_names_is_there() -> None:
    """Every file that proves something is where the sentence says."""
    named = set(
        re.findall(
            r"`(?:pytest )?((?:mechanisms|storage|tasks|tests|docs)/[\w./-]+)", claims_page()
        )
    )
    assert len(named) > 15
    assert not [name for name in named if not (HOUSE / name).exists()]


@pytest.mark.parametrize(
    ("changed", "said", "unsaid"),
    [
        ({}, "outside the claim", "does not move any other"),
        ({"sampling": "per-record"}, "does not move any other", "outside the claim"),
        ({}, "although no attack measured this release", "An attack on this mechanism found"),
        (
            {"audit": {}},
            "An attack on this mechanism found",
            "although no attack measured this release",
        ),
        ({}, "Each person has one record", "a unit with all of its records"),
        (
            {"max_records_per_unit": 3},
            "a unit with all of its records",
            "Each person has one record",
        ),
        ({}, "e^ε times", "SWAG"),
        ({}, "Low-order bits", "the released bits"),
        ({"exact_arithmetic": True}, "the released bits", "Low-order bits"),
        ({}, "cover all of its steps together", "SWAG"),
        ({}, "The held-out records are not protected", "noisy table of the held-out records"),
        ({"accuracy_stated": True}, "drawn once, with the model", "records are not protected"),
        ({"mechanism": "noisy-votes"}, "Training ran the event", "cover all of its steps together"),
        ({}, "(with n fixed)", "that differ in the values of one unit"),
        (
            {"neighbouring_relation": "replace-one"},
            "that differ in the values of one unit",
            "one unit added or removed",
        ),
        (
            {"guarantee_kind": "asymptotic-local", "mechanism": "swag-ppm"},
            "SWAG's Gaussian",
            "e^ε times",
        ),
    ],
)
def test_what_is_said_is_true_of_the_release(
    changed: dict[str, Any], said: str, unsaid: str
) -> None:
    """Kind, mechanism, sampling, audit and unit each decide which sentences are there."""
    assert said in texts(**changed)
    assert unsaid not in texts(**changed)


@pytest.mark.parametrize(
    ("split", "basis"),
    [
        ({}, "A keyed hash of its id or content decides"),
        ({"train_before": "2023-01-01"}, "The record's own date decides"),
        ({"privacy_unit": "unit (Employer)"}, "A keyed hash decides, of the unit"),
        (
            {"privacy_unit": "unit (Employer)", "train_before": "2023-01-01"},
            "Which records of a unit are used",
        ),
    ],
)
def test_what_decides_about_a_record_is_told_by_the_split(
    split: dict[str, Any], basis: str
) -> None:
    """One sentence of each split, and none where records decide about each other."""
    fields = RELEASE | {"sampling": "per-record"} | split
    found = [one for one in sentences_of(fields) if "in or out of training" in one["text"]]
    assert len(found) == 1
    assert basis in found[0]["basis"]
    assert ("another unit" in found[0]["text"]) == ("privacy_unit" in split)
    coupled = sentences_of(fields | {"sampling": "stratified"})
    assert not [one for one in coupled if "in or out of training" in one["text"]]


def test_only_a_table_of_the_scale_is_called_the_second() -> None:
    """By what the event lists; what training ran is assumed only where no test checks it."""
    told = {"accuracy_stated": True}
    assert "One noisy table" in texts(**told, scale_stated=True)
    assert "One noisy table" not in texts(**told)
    assert "noisy counts that the event in the agency's ledger lists" in texts(**told)
    assert "Training ran the event in the agency's ledger." not in texts()


FIGURES: dict[str, Any] = {
    **{
        "release_id": "r1",
        "population": "demo",
        "cohorts": ["2021"],
        "privacy_unit": "record",
        "sensitivity": None,
    },
    **{
        "epsilon": "4.99999845",
        "delta": "0.00001",
        "neighbouring_relation": "add-remove",
        "assumptions": [],
    },
    **{"epsilon_replace_one": "11.5211", "does_not_mean": []},
}


def page_of(**changed: Any) -> str:
    """The lawyer's page of such a release, on one line."""
    return " ".join(statement_page(RELEASE | FIGURES | changed).split())


def test_a_lawyer_reads_the_odds_at_this_epsilon() -> None:
    """In words, and in the table for both relations; delta is explained; nothing is almost as
    likely at epsilon 5.
    """
    page = page_of(chance_beyond_odds=4.84e-5)
    assert "trained with differential privacy: ε = 5, δ = 1e-5." in page
    assert (
        "at most 149 times as high with the record as without it, and the other way round, plus δ"
        in page
    )
    assert "at most 149 to 1, in all but at most one in 20,661 releases" in page
    assert "its content is protected at ε = 11.5211 and the same δ (a factor of 101,000)" in page
    assert "not the probability that the limit is exceeded" in page
    assert "2.8 times as high" in page_of(epsilon="1.0")
    assert "δ is 0: nothing exceeds this limit" in page_of(delta="0")
    assert "with some values in the record" in page_of(neighbouring_relation="replace-one")


def test_what_was_used_is_told_by_the_split() -> None:
    """A year after the day of the split trained nothing; what is counted is protected as well."""
    by_date = page_of(train_before="2023-01-01")
    assert "trained on records of demo dated before 2023-01-01. Records dated from then" in by_date
    assert "did not train it." in by_date
    assert "This protects the training records." in by_date
    assert "The probability that the released model is in that set" in by_date
    counted = page_of(train_before="2023-01-01", accuracy_stated=True)
    assert "but were counted, with noise, to measure its accuracy" in counted
    assert "The probability that the results are in that set" in counted
    assert "apart from what is listed under “Not covered by ε”" in counted
    assert "This protects training and held-out records." in counted
    scaled = page_of(train_before="2023-01-01", accuracy_stated=True, scale_stated=True)
    assert "with noise, to set the scale of its scores and to measure its accuracy." in scaled
    at_random = page_of(accuracy_stated=True, scale_stated=True)
    assert "train the model, to set the scale of its scores and to measure its" in at_random
    at_random = page_of(accuracy_stated=True)
    assert "demo, 2021, were used to train the model and to measure its accuracy." in at_random
    assert "were used to train the model. No record was written to this folder." in page_of()


def test_no_odds_are_stated_where_no_one_knows_how_often_they_hold() -> None:
    """Of sampled DP-SGD the privacy loss has no closed form; a pure guarantee has no exception."""
    assert "In odds" not in page_of()
    assert "at most 149 to 1." in page_of(chance_beyond_odds=0.0)


def test_what_is_claimed_is_never_rounded_down() -> None:
    """e^5 is 148.41, and epsilon 11.5211 a factor of 100,821."""
    assert [odds(5.0), odds(11.5211), odds(0.5), odds(2.25)] == ["149", "101,000", "1.7", "9.5"]
    assert one_in(4.84e-5) == "20,661"
    assert upper_text(11.5211) == "11.53"
    assert upper_text(5.0) == "5"
    assert lower_text(0.25269) == "0.252"


def test_the_odds_are_exceeded_as_often_as_is_stated() -> None:
    """Against two million draws of the Gaussian mechanism's privacy loss, and many times delta."""
    event = GaussianReleaseEvent(what="test", noise_multiplier=0.9, l2_sensitivity=1.0)
    epsilon = gaussian_cost.epsilon_of_event(event, delta=1e-3)
    stated = gaussian_cost.chance_beyond(event, epsilon)
    mu = 1 / 0.9
    loss = mu**2 / 2 + mu * np.random.default_rng(0).standard_normal(2_000_000)
    measured = float((loss > epsilon).mean())
    assert stated is not None
    assert stated == pytest.approx(measured, rel=0.05)
    assert stated > 3e-3


def test_a_statement_has_both_relations(sealed: Sealed) -> None:
    """One unit's values replaced cost as much as twice the sensitivity, for units of several
    records too.
    """
    event = GaussianReleaseEvent(what="test", noise_multiplier=6.0, l2_sensitivity=1.0)
    plan = sealed.row.plan
    changes: dict[str, Any] = {
        "guarantee_kind": "formal",
        "delta": 1e-5,
        "max_records_per_unit": 3,
    }
    claim = plan.claim.model_copy(update=changes)
    planned = plan.model_copy(update={"event": event, "claim": claim})
    both = ParallelEvent(training=event, evaluation=(event,), split="unit")
    told = anticipated(planned.model_copy(update={"event": both}), audit=None)
    with_table = statement(told, sampling="per-record")
    check_schema(bundle.STATEMENT, with_table, "privacy_statement")
    assert not with_table["scale_stated"]
    tables = ParallelEvent(training=event, evaluation=events_of(0.1), split="unit")
    told = anticipated(planned.model_copy(update={"event": tables}), audit=None)
    day = datetime.date(2023, 1, 1)
    by_date = statement(told, sampling="per-record", train_before=day)
    check_schema(bundle.STATEMENT, by_date, "privacy_statement")
    assert (by_date["scale_stated"], by_date["train_before"]) == (True, "2023-01-01")
    assert with_table["accuracy_stated"]
    assert "accuracy_untold" not in with_table
    made = statement(anticipated(planned, audit=None), sampling="stratified")
    check_schema(bundle.STATEMENT, made, "privacy_statement")
    exact = gaussian_cost.epsilon_of_event(event, delta=1e-5, records_per_unit=6)
    assert not made["accuracy_stated"]
    assert made["accuracy_untold"] == "coupled"
    segment = NoiseSegment(steps=9, noise_multiplier=1.0, l2_clip_norm=1.0)
    batches = DpSgdEvent(sampling_prob=0.1, segments=(segment,))
    whys = {"no noise": sealed.row.plan.event, "sampled": batches, "few": event}
    for why, one in whys.items():
        assert untold_of(one, sampling="per-record") == why
    same = ("epsilon_replace_one", "chance_beyond_odds")
    assert [with_table[name] for name in same] == [made[name] for name in same]
    assert float(made["epsilon_replace_one"]) == pytest.approx(exact, abs=1e-9)
    assert "epsilon_replace_one" not in statement(sealed.row, sampling="stratified")


def test_a_bundle_holds_them(sealed: Sealed) -> None:
    """All in the statement for machines; what is assumed also on the page that people read."""
    told = json.loads((sealed.folder / bundle.STATEMENT).read_text())
    assert told["sentences"] == sentences_of(told)
    page = (sealed.folder / bundle.PAGE).read_text()
    for one in told["sentences"]:
        assert (escape(one["text"]) in page) == (one["status"] == "assumed")


def test_figures_of_an_audit_are_not_protected(sealed: Sealed) -> None:
    """They are computed from the records and leave with the statement. The plan lists them from
    the start, so every paper lists what was signed, with an audit and without.
    """
    plan = sealed.row.plan
    signed = [*plan.claim.unprotected_inputs, AUDITED]
    claim = plan.claim.model_copy(update={"unprotected_inputs": tuple(signed)})
    plan = plan.model_copy(update={"claim": claim})
    for audit in (None, StatedAudit(line="measured", auc=0.6)):
        told = statement(anticipated(plan, audit=audit), sampling="stratified")
        assert told["unprotected_inputs"] == signed
        assert escape(AUDITED) in statement_page(told)
    check_schema(bundle.STATEMENT, told, "privacy_statement")
