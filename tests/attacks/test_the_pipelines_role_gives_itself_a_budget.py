"""Would win: a release that no policy allowed, recorded in good order by the role that the pipeline connects as."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from ledger_sites import Site
from releases import make_plan
from sqlalchemy import exc

from storage.ledger import Policy, chain
from storage.ledger.decisions import sign
from storage.ledger.heads import public_pem

DECLARES = (
    (
        "PostgreSQL keeps the budget",
        "raw inserts; another policy; 13 releases that do not follow; forms that `verify` could never "
        "pass; a temporary table in the place of the ledger's",
        "signatures: decisions that nobody signed are found by `verify`; a SQLite file's writer can insert",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

pytestmark = pytest.mark.postgres
Change = Callable[[dict[str, Any]], Any]


def strict_policy() -> Policy:
    """Caps of 5, and one approval."""
    from cryptography.hazmat.primitives.asymmetric import ec

    pem = public_pem(ec.generate_private_key(ec.SECP256R1()).public_key()).decode()
    caps = {"asymptotic-local": {"epsilon": 5}}
    return Policy.parse({"name": "strict", "approvals": {"minimum": 1, "approvers": {"Officer": pem}}, "default": caps})


OPEN = Policy.parse({"name": "open", "default": {"asymptotic-local": {"epsilon": 1000}}})


def bodies(site: Site) -> list[dict[str, Any]]:
    """The rows as plain data."""
    return [json.loads(body) for (body,) in site.rows("SELECT body FROM ledger_row ORDER BY sequence")]


def call(site: Site, content: dict[str, Any], form: Callable[[str], str] = str) -> str:
    """A call of the procedure with a row that is linked to the last one."""
    head = site.rows("SELECT sequence, hash FROM ledger_row ORDER BY sequence DESC LIMIT 1")[0]
    text = form(chain.canonical(content | {"sequence": head[0] + 1, "previous_hash": head[1]}))
    return "SELECT ledger_append('" + text.replace("'", "''").replace("%", "%%") + "')"


def refused(site: Site, content: dict[str, Any], form: Callable[[str], str] = str) -> str:
    """The database's answer to a row; nothing is recorded, and the ledger verifies."""
    before = site.rows("SELECT count(*), (SELECT count(*) FROM spend) FROM ledger_row")
    with pytest.raises(exc.DBAPIError) as error:
        site.sql(call(site, content, form))
    assert site.rows("SELECT count(*), (SELECT count(*) FROM spend) FROM ledger_row") == before
    assert site.open().verify().ok
    return str(error.value.orig)


def test_rows_and_totals_are_not_inserted(postgres_site: Site) -> None:
    """Neither a policy nor a total: the role may read, and call one procedure."""
    site = postgres_site
    site.open().reserve(make_plan())
    for statement in (
        "INSERT INTO ledger_row SELECT * FROM ledger_row LIMIT 0",
        "INSERT INTO spend SELECT * FROM spend LIMIT 0",
        "COPY spend FROM STDIN",
        "SELECT * FROM ledger_row FOR UPDATE",
        "CREATE OR REPLACE FUNCTION ledger_append(content text) RETURNS void LANGUAGE sql AS $$ SELECT $$",
        "ALTER FUNCTION ledger_append(text) SECURITY INVOKER",
    ):
        with pytest.raises(exc.DBAPIError, match=r"permission denied|must be owner"):
            site.sql(statement)


def test_a_policy_over_one_that_asks_for_approvals(postgres_site: Site) -> None:
    """Whoever has the pipeline's role cannot replace it, with or without names in the row; the owner can."""
    site = postgres_site
    site.open(strict_policy()).record(_evaluation())
    site.open().change_policy(strict_policy(), requester="operator", reason="first")
    row = bodies(site)[-1]
    looser = row | {
        "label": "open",
        "policy_digest": OPEN.digest,
        "details": {"policy": OPEN.as_json(), "previous_policy_digest": row["policy_digest"]},
    }
    assert "asks for approvals" in refused(site, looser)
    assert "asks for approvals" in refused(site, looser | {"approvals": ["Officer"]})
    with pytest.raises(exc.DBAPIError, match="asks for approvals"):
        site.sql("CREATE TEMP TABLE ledger_row (kind text, body text)", call(site, looser))


def _evaluation() -> Any:
    from storage.ledger import Evaluation

    return Evaluation(label="e", population="injuries", data_fingerprint="f", requester="operator")


def _charged(row: dict[str, Any], **changes: str) -> dict[str, Any]:
    return row | {"charges": [row["charges"][0] | changes]}


RELEASES: dict[str, tuple[Change, str]] = {
    # named by the issue
    "400 over a cap of 20": (
        lambda row: _charged(row | {"epsilon": "400"}, epsilon="400", epsilon_after="404"),
        "exceeds the cap",
    ),
    # its neighbours
    "400 charged as 1": (lambda row: _charged(row | {"epsilon": "400"}, epsilon="1", epsilon_after="5"), "add up"),
    "a sum of its own": (lambda row: _charged(row, epsilon_before="0", epsilon_after="4"), "add up"),
    "a cohort uncharged": (lambda row: row | {"cohorts": ["2023", "2024"]}, "accounts charged"),
    "nothing charged": (lambda row: row | {"charges": []}, "accounts charged"),
    "no cost": (lambda row: row | {"epsilon": "0", "charges": []}, "without a cost"),
    "a cost below nothing": (lambda row: _charged(row | {"epsilon": "-4"}, epsilon="-4", epsilon_after="0"), "cost"),
    "not a number": (
        lambda row: _charged(row | {"epsilon": "NaN"}, epsilon="NaN", epsilon_after="NaN"),
        "refused|cap|add",
    ),
    "another kind of guarantee": (lambda row: row | {"guarantee_kind": "none"}, "without a cost"),
    "another policy": (lambda row: row | {"policy_digest": "0" * 64}, "another policy"),
    "committed at once": (lambda row: row | {"state": "committed", "bundle_digest": "b"}, "in this order"),
    "an unknown kind": (lambda row: row | {"kind": "gift"}, "spends nothing"),
    "an evaluation that spends": (lambda row: row | {"kind": "evaluation", "state": "internal"}, "spends nothing"),
}


@pytest.fixture
def spent(postgres_site: Site) -> Site:
    """A ledger with one reservation of 4."""
    postgres_site.open().reserve(make_plan("a"))
    return postgres_site


@pytest.mark.parametrize(("change", "problem"), RELEASES.values(), ids=RELEASES)
def test_a_release_that_does_not_follow(spent: Site, change: Change, problem: str) -> None:
    """Refused by the database, before anything is recorded."""
    row = bodies(spent)[-1]
    again = _charged(row | {"release_id": "f" * 16, "idempotency_key": "b"}, epsilon_before="4", epsilon_after="8")
    assert any(part in refused(spent, change(again)) for part in problem.split("|"))


def test_a_release_without_its_approvals(postgres_site: Site) -> None:
    """None, one of another plan, or the same one twice for two."""
    from cryptography.hazmat.primitives.asymmetric import ec

    site = postgres_site
    site.open(OPEN).reserve(make_plan("a"))
    row = bodies(site)[-1]
    site.open().change_policy(strict_policy(), requester="operator", reason="stricter")
    policy = strict_policy()
    forged = sign(
        ec.generate_private_key(ec.SECP256R1()), subject="release", decision="approve", digest="a" * 64, terms={}
    ).model_dump(mode="json")
    base = _charged(
        row | {"release_id": "f" * 16, "idempotency_key": "b", "policy_digest": bodies(site)[-1]["policy_digest"]},
        epsilon="1", epsilon_before="4", epsilon_after="5", epsilon_cap="5",
    ) | {"epsilon": "1"}  # fmt: skip
    assert policy.approvals.minimum == 1
    for details in ({}, {"plan_digest": "b" * 64, "decisions": [forged]}, {"plan_digest": "b" * 64, "decisions": []}):
        assert "fewer approvals" in refused(site, base | {"details": details, "approvals": ["Officer"]})


def test_the_columns_and_the_hash_are_the_bodys(postgres_site: Site) -> None:
    """A caller hands in one text; there is nothing beside it that could say something else."""
    site = postgres_site
    site.open().reserve(make_plan("a"))
    for body, row_hash, epsilon in site.rows("SELECT body, hash, epsilon FROM ledger_row"):
        assert hashlib.sha256(body.encode()).hexdigest() == row_hash
        assert epsilon is None or str(epsilon) == json.loads(body)["epsilon"]


FORMS: dict[str, Callable[[str], str]] = {
    "blanks": lambda text: text.replace('":', '": ', 1),
    "another order": lambda text: "{" + ",".join(reversed(text[1:-1].split(',"details"', 1))).lstrip(",") + "}",
    "a key twice": lambda text: text.replace('"draws":null', '"draws":null,"draws":null'),
    "an escape": lambda text: text.replace('"label":"e"', '"label":"\\u0065"'),
    "a number's zeros": lambda text: text.replace('"schema_version":1', '"schema_version":1.0'),
    "a field more": lambda text: text.replace('"draws":null', '"draws":null,"drawz":1'),
    "a field less": lambda text: text.replace('"draws":null,', ""),
    "a version to come": lambda text: text.replace('"schema_version":1', '"schema_version":2'),
    "no object": lambda text: "[]",
}


def test_a_row_that_verify_could_never_pass(postgres_site: Site) -> None:
    """Another form than the canonical one would make every later check fail, for good."""
    site = postgres_site
    site.open().record(_evaluation())
    row = bodies(site)[-1]
    floats = {"f1": 0.25, "small": 1e-7, "large": 1.5e300, "whole": 3.0, "long": 0.1 + 0.2, "edge": 1e21, "under": 1e-6}
    for name, form in FORMS.items():
        assert form(chain.canonical(row)) != chain.canonical(row), name
        refused(site, row, form)
    site.sql(call(site, row | {"details": floats | {"text": 'a "quoted" \\ line\nwith é, 工 and \x7f', "none": None}}))
    assert site.open().verify().ok
