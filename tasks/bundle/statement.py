"""The privacy statement for people: what is promised, to whom, and what is not, without a formula."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from storage.ledger.amounts import brief, short
from storage.ledger.report import escape


def statement_page(statement: Mapping[str, Any]) -> str:
    """The statement as a page of Markdown; every figure in it is in `privacy_statement.json`."""
    formal = statement["guarantee_kind"] == "formal"
    bullets = {
        name: "\n".join(f"- {escape(line)}" for line in statement[name]) or "- nothing is listed"
        for name in ("assumptions", "unprotected_inputs", "does_not_mean")
    }
    unit = statement["privacy_unit"] or "record"
    most = statement["max_records_per_unit"] or 1
    return _PAGE.format(
        statement=statement,
        kind=_FORMAL if formal else _ASYMPTOTIC,
        unit=escape(unit),
        contributes="" if most == 1 else f" with at most {most} records",
        cohorts=escape(", ".join(statement["cohorts"])),
        population=escape(statement["population"]),
        epsilon=shown_amount(statement["epsilon"]),
        delta="not quantified" if statement["delta"] is None else short(Decimal(statement["delta"])),
        sensitivity=shown_amount(statement["sensitivity"]),
        scale="" if formal else "An asymptotic-local ε is such a bound only in the limit.",
        relation=escape(statement["neighbouring_relation"] or "not stated"),
        measured=escape(statement["audit"]["line"] if "audit" in statement else "nobody has measured what it leaks"),
        **bullets,
    )


def shown_amount(value: str | None) -> str:
    """An exact amount for people: rounded up to six decimals."""
    return "–" if value is None else brief(Decimal(value))


_FORMAL = """The kind is **formal**: for any set of records, and for anybody's part of it, the model's parameters would
have been almost as likely without that part. How nearly is what ε and δ measure: smaller is stronger."""

_ASYMPTOTIC = """The kind is **asymptotic-local**. It was estimated on these records and rests on theory that holds in
the limit of many records. It is weaker than a formal guarantee, and its ε must not be compared with a formal one."""

_PAGE = """# What this release promises about the records behind it

Release `{statement[release_id]}`. The model was trained on confidential injury records of **{population}**, periods
{cohorts}. The records are not in this folder. This page says how far they are protected from whoever holds it.

## In one paragraph

The aim: whoever has this folder, with any other knowledge and any computer, learns little about whether one
{unit}{contributes} was among the training records. How far that is reached, the kind of guarantee and its figures say.
{kind}

## The figures

| | |
|---|---|
| kind of guarantee | {statement[guarantee_kind]} |
| ε (epsilon), in nats | {epsilon} |
| δ (delta) | {delta} |
| sensitivity Δ, in nats | {sensitivity} |
| what one neighbour lacks | {unit}; {relation} |
| mechanism | `{statement[mechanism]}` |

A formal ε of 1 lets an observer's odds that a given {unit} was used change by a factor of at most 2.7 (but for δ), one
of 5 by 148. Below one is strong; above five says little by itself.
{scale}

Claim and measurement: {measured}. A measurement is a lower bound: that it is small proves nothing.

## What it rests on

{assumptions}

## What reached the model without protection

{unprotected_inputs}

## What it does not mean

{does_not_mean}

## Where it is recorded

The release is a row of the agency's ledger, which counts everything ever released of these records.
`ledger_proof.json` names that row; `autocoder verify` checks it against the signature.
"""
