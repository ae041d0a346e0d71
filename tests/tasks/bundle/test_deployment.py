"""The record of a release for a public registry: its fields and figures, and nothing that no policy
states.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind

from storage.artifacts import digest
from storage.bundle.proof import proof_of
from storage.errors import InputError
from storage.figures import escape
from storage.ledger import Ledger, Policy
from tasks.bundle.deployment import Deployment, stated_deployment
from tasks.bundle.sentences import AUDITED
from tests.storage.ledger.test_ledger_composition import planned
from tests.support.releases import release_key

STATEMENT = {
    "curators": ["Bureau of Injuries"],
    "region": "United States",
    "domain": "narratives of injuries",
    "actors": "the bureau trains; partners get bundles",
    "refreshment": "Each quarter.",
    "justification": "The board decided.",
    "authors": ["A. Officer"],
}
REQUIRED = {
    "basic": (
        "name",
        "data_curators",
        "description",
        "intended_use",
        "data_product_type",
        "data_product_region",
        "publication_date",
    ),
    "administrative": ("registry_authors",),
}


def made(tmp_path, statement=STATEMENT, **claim):
    cap = {"default": {"formal": {"epsilon": 10, "delta": "0.001"}}}
    policy = Policy.parse({"name": "p", **cap, **({"registry": statement} if statement else {})})
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", policy=policy, key=release_key())
    plan = planned("a")
    plan = plan.model_copy(update={"claim": plan.claim.model_copy(update=claim)})
    release = ledger.reserve(plan).release_id or ""
    ledger.mark_drawn(release, draw_digest="d")
    ledger.commit(release, bundle_digest="b")
    return ledger, release


def test_a_record_has_every_required_field_and_the_ledgers_figures(tmp_path):
    ledger, release = made(tmp_path)
    record: Any = stated_deployment(ledger, release).registry_record()
    deployment = record["deployment"]
    for section, fields in REQUIRED.items():
        assert all(deployment[section][field] not in ("", []) for field in fields)
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0, "delta": 1e-06}
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert "at most ε 10 at δ 0.001" in deployment["accounting"]["composition"]
    assert record["url_slug"] == f"injuries-{release}"
    page = stated_deployment(ledger, release).answers()
    assert (
        "| Which data sets are neighbours? | two that differ by one record added or removed |"
        in page
    )
    assert ledger.verify().ok


def test_record_answers_and_proof_list_what_was_signed(tmp_path):
    """Also the item on audits, which a plan lists before any audit of it is made."""
    signed = ("the number of records", AUDITED)
    ledger, release = made(tmp_path, unprotected_inputs=signed)
    deployment = stated_deployment(ledger, release)
    record: Any = deployment.registry_record()
    variant = record["deployment"]["dp_variant"]
    assert variant["unprotected_quantities"] == "; ".join(signed)
    assert "; ".join(signed) in deployment.answers()
    row = replace(ledger.release(release), bundle_digest=digest({}))
    proof: Any = proof_of(row, {}, key=None)
    assert proof["row"]["unprotected_inputs"] == list(signed)


UTILITY = ("67 % right of 3,678 records", "Least often right: burns, 40 %")


def test_sources_code_access_and_utility_are_in_record_and_answers(tmp_path):
    """What no policy states is said to be unstated, not left out."""
    more = {
        "sources": ["https://example.org/paper", "https://example.org/bundle"],
        "code": "https://example.org/code",
        "access": "Three persons, on one machine without a network.",
    }
    stated = stated_deployment(*made(tmp_path, STATEMENT | more))
    record: Any = stated.registry_record(UTILITY)["deployment"]
    assert record["administrative"]["sources"].split("; ") == more["sources"]
    mechanisms = record["implementation"]["mechanisms"]
    assert f"Code {more['code']}, commit {stated.row.plan.code_commit}." in mechanisms
    assert more["access"] in mechanisms
    assert all(line in record["administrative"]["notes"] for line in UTILITY)
    rows = stated.answers(UTILITY)
    shown = (*more["sources"], more["code"], more["access"], *UTILITY)
    assert all(escape(text) in rows for text in shown)
    other = tmp_path / "other"
    other.mkdir()
    without: Any = stated_deployment(*made(other)).registry_record()["deployment"]
    unstated = "The agency has not answered this"
    assert unstated in without["administrative"]["sources"]
    assert unstated in without["implementation"]["mechanisms"]


def test_the_schema_is_the_registrys(tmp_path):
    """With AUTOCODER_REGISTRY_SCHEMA (its deployments-schema.yaml) a record validates by the
    original as well.
    """
    schema = os.environ.get("AUTOCODER_REGISTRY_SCHEMA")
    if not schema:
        pytest.skip(
            "AUTOCODER_REGISTRY_SCHEMA does not name deployments-schema.yaml of the registry"
        )
    import jsonschema
    import yaml

    record = stated_deployment(*made(tmp_path)).registry_record(UTILITY)
    jsonschema.validate(record, yaml.safe_load(Path(schema).read_text(encoding="utf-8")))


def test_a_record_says_what_was_stated_when_the_release_was_reserved(tmp_path):
    """Later releases and policies change nothing of it: a bundle that is built again has the same
    bytes.
    """
    ledger, release = made(tmp_path)
    first: Any = stated_deployment(ledger, release).registry_record()
    ledger.reserve(planned("b"))
    cap = {"default": {"formal": {"epsilon": 20, "delta": "0.001"}}}
    changed = Policy.parse({"name": "q", **cap, "registry": STATEMENT | {"region": "elsewhere"}})
    ledger.change_policy(changed, requester="o", reason="wider")
    assert stated_deployment(ledger, release).registry_record() == first
    assert first["deployment"]["deployment_model"]["release_type"] == "One release"


def test_without_a_statement_or_a_commit_there_is_no_record(tmp_path):
    ledger, release = made(tmp_path, statement=None)
    with pytest.raises(InputError, check=of_kind("policy-without-registry")):
        stated_deployment(ledger, release)
    unstated = Deployment.of(ledger, release)
    with pytest.raises(InputError, check=of_kind("no-registry-statement")):
        unstated.registry_record()
    answers = unstated.answers(("67% right", "least often right: burns"))
    assert "| How useful is the product? | 67% right. |" in answers
    assert "burns" in answers
    assert "The agency has not answered this" in answers
    assert "at most ε" not in answers, "caps are told only where the policy states them"
    reserved = ledger.reserve(planned("b")).release_id or ""
    with pytest.raises(InputError, check=of_kind("uncommitted-deployment", saying="is reserved")):
        stated_deployment(ledger, reserved)
    assert "registry" not in ledger.policy().as_json()
