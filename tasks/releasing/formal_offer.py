"""What is offered in place of a claim that is refuted or weak: the formal branch, with the command that makes it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from storage.ingest import IngestConfig
from storage.ledger import BudgetRefused, Ledger
from storage.ledger.amounts import short
from storage.ledger.records import RecordSet
from tasks.parameters import DEMO
from tasks.releasing.allowed_delta import of_policy
from tasks.releasing.made_with import made_with, private_of, section
from tasks.releasing.plan import PlannedRelease

PROFILE, OF_FIELDS, OF_DEMO = "osha-formal", "osha-fields", "demo-formal"
"""The profiles that release formally: one field, several, and the invented narratives."""
_PROFILES = Path(__file__).resolve().parents[2] / "deployments" / "profiles"
USUAL = Decimal(5)
"""Asked for where more remains: the epsilon that docs/formal.md has figures of."""


def command(planned: PlannedRelease, epsilon: Decimal | float) -> str:
    """The retrain of the same records, in the same workspace, that ends in a formal plan.

    With files and columns where what the plan was made with lies beside it; else whoever runs it names them.
    """
    shown = short(epsilon) if isinstance(epsilon, Decimal) else f"{epsilon:g}"
    made = section(made_with(planned), "parameters")
    data, known = section(made, "data"), bool(made)
    fields = _fields(data)
    files = [("--data", data.get("source") or "RECORDS")]
    if not planned.fields and (data.get("codelist") or not known):
        files += [("--codelist", data.get("codelist") or "CODELIST")]
    name = formal_profile(planned)
    words = ["autocoder", "retrain", "--profile", name, *(word for pair in files for word in pair)]
    if fields:
        told = {name: {key: value for key, value in field.items() if value} for name, field in fields.items()}
        words += ["--set", f"data.ingest.fields={json.dumps(told, ensure_ascii=False)}"]
    for key, value in _other(name, made, planned).items():
        words += ["--set", f"{key}={_written(value)}"]
    if known:
        words += ["--home", str(private_of(planned).parent)]
    return shlex.join([*words, "--target-epsilon", shown])


def formal_profile(planned: PlannedRelease) -> str:
    """The profile that releases as many fields formally, of invented narratives their own."""
    if planned.fields:
        return OF_FIELDS
    return OF_DEMO if planned.plan.population == DEMO else PROFILE


_COLUMNS = ("text_columns", "template", "label_column", "id_column", "unit_column", "max_per_unit", "date_column",
            "date_format", "cohort", "cohorts")  # fmt: skip
_NAMES = ("population", "classification", "classification_version", "public")
_ASKED = ("text_columns", "label_column", "fields")
"""Where one of these is other than the profile's, `retrain` wants all names said."""


def _written(value: Any) -> str:
    """As `--set` reads it, which is YAML: a text that would be read as something else, such as `null`, in quotes."""
    try:
        plain = isinstance(value, str) and yaml.safe_load(value) == value
    except yaml.YAMLError:
        plain = False
    return value if plain else json.dumps(value, ensure_ascii=False)


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    return section(section(data, "ingest"), "fields")


def _other(name: str, made: Mapping[str, Any], planned: PlannedRelease) -> dict[str, Any]:
    """What the profile has otherwise, by its keys: names, columns, and what it has for its own records alone."""
    profile = yaml.safe_load((_PROFILES / f"{name}.yaml").read_text(encoding="utf-8"))
    theirs, data = profile["data"], section(made, "data") | {"population": planned.plan.population}
    own, ingest = theirs["ingest"], section(data, "ingest")
    columns = {key: ingest[key] for key in _COLUMNS if key in ingest and ingest[key] != _default(own, key)}
    if _fields(data) and _labels(_fields(data)) != _labels(own.get("fields", {})):
        columns["fields"] = None
    asked = any(key in columns for key in _ASKED)
    names = {key: data[key] for key in _NAMES if key in data and (asked or data[key] != theirs.get(key))}
    columns.pop("fields", None)  # said already
    if made and (asked or "population" in names or not _both_sides(planned.plan.cohorts, own["train_before"])):
        columns["train_before"] = ingest.get("train_before")
    of_others = asked or "classification" in names
    model = {} if not made else _of_the_prior(profile["model"], section(made, "model"), data, of_others=of_others)
    return (
        {f"data.{key}": value for key, value in names.items()}
        | {f"data.ingest.{key}": value for key, value in columns.items()}
        | {f"model.{key}": value for key, value in model.items()}
    )


def _of_the_prior(
    profile: Mapping[str, Any], model: Mapping[str, Any], data: Mapping[str, Any], *, of_others: bool
) -> dict[str, Any]:
    """A sentence about injuries is for injuries; without a code list there are no titles to start at."""
    fields = _fields(data).values()
    listed = all(field.get("codelist") for field in fields) if fields else bool(data.get("codelist"))
    if not listed:
        return {"prior": "none", **({"prior_sentences": {}} if "prior_sentences" in profile else {})}
    sentences = ("prior_sentence", "prior_sentences") if of_others else ()
    return {key: model.get(key) or type(profile[key])() for key in sentences if key in profile}


def _labels(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: field.get("label_column") for name, field in fields.items()}


def _both_sides(cohorts: Sequence[str], day: str) -> bool:
    """Whether records of these cohorts lie before a day, and on it or after; by years, which `2016-Q1` begins with."""
    years = [int(cohort[:4]) for cohort in cohorts if cohort[:4].isdigit()]
    return bool(years) and min(years) <= int(day[:4]) <= max(years)


def _default(own: Mapping[str, Any], name: str) -> Any:
    return own.get(name, IngestConfig.model_validate(own).model_dump(mode="json").get(name))


def offer(ledger: Ledger, planned: PlannedRelease, records: RecordSet | None = None) -> str:
    """The command in a sentence, with what the budget has for it.

    Args:
        records: what the plan is made from; earlier formal releases of them count, by whatever name.
    """
    plan, policy = planned.plan, ledger.policy()
    if any(policy.cap(plan.population, cohort, "formal") is None for cohort in plan.cohorts):
        return (
            f"A formal release of the same records rests on no estimate: give {plan.population} a formal cap "
            f"in the policy (`autocoder ledger change-policy`), then `{command(planned, USUAL)}`"
        )
    left = remaining(ledger, planned, records)
    if left is None:
        return (
            "The formal budget of these records is spent, in ε or in δ, or kept in other terms, so that a formal "
            "release of them needs another policy"
        )
    return (
        f"Release a formal fit of the same records instead (ε {short(left)} of the formal budget remain): "
        f"`{command(planned, min(left, USUAL))}`"
    )


def remaining(ledger: Ledger, planned: PlannedRelease, records: RecordSet | None = None) -> Decimal | None:
    """The largest epsilon, in hundredths, that the ledger would take for a formal release of a plan's records at the
    delta that it would be stated at; None where it would take none.
    """
    policy = ledger.policy()
    caps = [policy.cap(planned.plan.population, cohort, "formal") for cohort in planned.plan.cohorts]
    most = min((cap.epsilon for cap in caps if cap is not None), default=Decimal(0))
    delta = of_policy(policy, planned.plan.population)
    low, high = 0, int(most / _STEP)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(ledger, planned, middle * _STEP, delta, records) else (low, middle - 1)
    return low * _STEP or None


_STEP = Decimal("0.01")


def _fits(ledger: Ledger, planned: PlannedRelease, epsilon: Decimal, delta: float, records: RecordSet | None) -> bool:
    """Whether the ledger would take a formal claim in a plan's place; relations, deltas and other names it knows."""
    claim = planned.plan.claim.model_copy(
        update={
            "guarantee_kind": "formal",
            "epsilon": float(epsilon),
            "delta": delta,
            "delta_text": None,
            "epsilon_add_remove": None,
            "sensitivity": None,
            "neighbouring_relation": "add-remove",
        }
    )
    try:
        ledger.quote(planned.plan.model_copy(update={"claim": claim}), records=records)
    except BudgetRefused:
        return False
    return True


def way_out(ledger: Ledger, planned: PlannedRelease, records: RecordSet | None = None) -> str:
    """What to do about a contradiction: the formal branch, and only then a person who answers for it."""
    signed = "`autocoder override` with a reason and an approver's key"
    if planned.plan.claim.guarantee_kind == "formal":
        return f"A formal claim that is refuted is a fault of the program: report it. It passes by {signed} alone"
    return f"{offer(ledger, planned, records)}. Or somebody answers for what was measured: {signed}"
