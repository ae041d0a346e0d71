"""The sentences of a statement: one source, in the bundle and in docs/claims.md, and true of the release at hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from sealed_bundle import Sealed

from storage.bundle import folder as bundle
from storage.egress.documents import check_schema
from storage.ledger.report import escape
from tasks.bundle.sentences import AUDITED, COUPLED, EVERY, SECTIONS, said_of
from tasks.bundle.statement import claims_page, statement, statement_page

HOUSE = Path(__file__).resolve().parents[3]
RELEASE: dict[str, Any] = {
    "guarantee_kind": "formal",
    "mechanism": "dp-sgd",
    "max_records_per_unit": 1,
    "unprotected_inputs": [COUPLED],
}


def texts(**changed: Any) -> str:
    """Everything said of such a release."""
    return " ".join(one["text"] for one in said_of(RELEASE | changed))


def test_the_page_is_what_the_source_says() -> None:
    """`python scripts/write_claims.py` leaves docs/claims.md as it is."""
    page = (HOUSE / "docs" / "claims.md").read_text(encoding="utf-8")
    assert page == claims_page(), "run `python scripts/write_claims.py`"
    for sentence in (*EVERY, *(one for section in SECTIONS for one in section.sentences)):
        assert sentence.text in page
        assert sentence.basis in page


def test_what_a_sentence_names_is_there() -> None:
    """Every file that proves something lies where the sentence says."""
    named = set(re.findall(r"`(?:pytest )?((?:mechanisms|storage|tasks|tests|docs)/[\w./-]+)", claims_page()))
    assert len(named) > 15
    assert not [name for name in named if not (HOUSE / name).exists()]


@pytest.mark.parametrize(
    ("changed", "said", "unsaid"),
    [
        ({}, "outside the claim", "moves no other"),
        ({"unprotected_inputs": []}, "moves no other", "outside the claim"),
        ({}, "Nobody has measured", "An attack on this mechanism found"),
        ({"audit": {}}, "An attack on this mechanism found", "Nobody has measured"),
        ({}, "A person has one record", "a unit with all of its records"),
        ({"max_records_per_unit": 3}, "a unit with all of its records", "A person has one record"),
        ({}, "e^epsilon times", "exact draw"),
        ({}, "the noise that it had", "exact draw"),
        ({"mechanism": "noisy-votes"}, "e^epsilon times", "the noise that it had"),
        ({"guarantee_kind": "asymptotic-local", "mechanism": "swag-ppm"}, "SWAG's Gaussian", "e^epsilon times"),
        ({"guarantee_kind": "asymptotic-local", "mechanism": "swag-bounded"}, "an exact one", "SWAG's Gaussian"),
    ],
)
def test_what_is_said_is_true_of_the_release(changed: dict[str, Any], said: str, unsaid: str) -> None:
    """Kind, mechanism, sampling, audit and unit each decide which sentences stand there."""
    assert said in texts(**changed)
    assert unsaid not in texts(**changed)


def test_a_bundle_holds_them(sealed: Sealed) -> None:
    """In the statement for machines and on its page; a bundle made before there were any still fits the schema."""
    told = json.loads((sealed.folder / bundle.STATEMENT).read_text())
    assert told["sentences"] == said_of(told)
    page = (sealed.folder / bundle.PAGE).read_text()
    for one in told["sentences"]:
        assert escape(one["text"]) in page
        assert escape(one["basis"]) in page
    before = {name: value for name, value in told.items() if name != "sentences"}
    check_schema(bundle.STATEMENT, before, "privacy_statement")
    assert "Sentence by sentence" in statement_page(before)


def test_figures_of_an_audit_are_not_protected(sealed: Sealed) -> None:
    """They are computed from the records and leave with the statement: listed, there and on its page."""
    audited = sealed.row.model_copy(
        update={"details": sealed.row.details | {"audit": {"auc": 0.6, "line": "measured"}}}
    )
    assert AUDITED not in statement(sealed.row)["unprotected_inputs"]
    told = statement(audited)
    assert told["unprotected_inputs"][-1] == AUDITED
    assert escape(AUDITED) in statement_page(told)
    check_schema(bundle.STATEMENT, told, "privacy_statement")
