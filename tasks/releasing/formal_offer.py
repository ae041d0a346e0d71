"""Offers a formal release in place of a claim that is refuted or weak, with the command that makes it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import yaml

from mechanisms.privacy.events import GaussianReleaseEvent
from storage import strict_yaml
from storage.ingest import IngestConfig
from storage.ledger import BudgetRefused, Ledger, amounts
from storage.ledger.amounts import short
from storage.ledger.composition import gaussian_loss
from storage.ledger.records import RecordSet
from tasks.catalogue import PROFILES
from tasks.parameters import DEMO_POPULATION
from tasks.releasing.ledger_access import allowed_delta
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.plan_artifacts import section

PROFILE, OF_FIELDS, OF_DEMO = "osha-formal", "osha-fields", "demo-formal"
"""The profiles that release formally: one field, several, and the invented narratives."""
DEFAULT_EPSILON = Decimal(5)
"""Asked for where more remains: the epsilon that README.md has figures of."""


def retrain_command(planned: PlannedRelease, epsilon: Decimal | float) -> str:
    """Returns the command that retrains the same records in the same workspace and ends in a formal plan.

    Fills in files and columns from the plan's settings file; without it the user names them.
    """
    shown = short(epsilon) if isinstance(epsilon, Decimal) else f"{epsilon:g}"
    made = section(planned.settings_from_file(), "parameters")
    data, recorded = section(made, "data"), bool(made)
    fields = _fields(data)
    files = [("--data", data.get("source") or "RECORDS")]
    if not planned.fields and (data.get("codelist") or not recorded):
        files += [("--codelist", data.get("codelist") or "CODELIST")]
    name = formal_profile(planned)
    words = ["autocoder", "retrain", "--profile", name, *(word for pair in files for word in pair)]
    if fields:
        given = {name: {key: value for key, value in field.items() if value} for name, field in fields.items()}
        words += ["--set", f"data.ingest.fields={json.dumps(given, ensure_ascii=False)}"]
    for key, value in _other(name, made, planned).items():
        words += ["--set", f"{key}={_written(value)}"]
    if recorded:
        words += ["--home", str(planned.private_folder.parent)]
    return shlex.join([*words, "--target-epsilon", shown])


def formal_profile(planned: PlannedRelease) -> str:
    """Returns the profile that releases as many fields formally; the demo data have a separate one."""
    if planned.fields:
        return OF_FIELDS
    return OF_DEMO if planned.plan.population == DEMO_POPULATION else PROFILE


_COLUMNS = ("text_columns", "template", "label_column", "id_column", "unit_column", "max_per_unit", "date_column",
            "date_format", "cohort", "cohorts")  # fmt: skip
_NAMES = ("population", "classification", "classification_version", "public")
_NAMED_COLUMNS = ("text_columns", "label_column", "fields")
"""Where one of these is other than the profile's, `retrain` requires all names."""


def _written(value: Any) -> str:
    """Writes a value as `--set` reads it, which is YAML: quotes a text that YAML would read as another type."""
    try:
        # guard: names in an offered command stay what they are
        plain = isinstance(value, str) and strict_yaml.load(value) == value
    except yaml.YAMLError:
        plain = False
    return value if plain else json.dumps(value, ensure_ascii=False)


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    return section(section(data, "ingest"), "fields")


def _other(name: str, made: Mapping[str, Any], planned: PlannedRelease) -> dict[str, Any]:
    """Returns the settings that differ from the profile's, by their keys: names, columns, and those of its records
    alone.
    """
    profile = strict_yaml.load((PROFILES / f"{name}.yaml").read_text(encoding="utf-8"))
    theirs, data = profile["data"], section(made, "data") | {"population": planned.plan.population}
    base, ingest = theirs["ingest"], section(data, "ingest")
    columns = {key: ingest[key] for key in _COLUMNS if key in ingest and ingest[key] != _default(base, key)}
    if _fields(data) and _labels(_fields(data)) != _labels(base.get("fields", {})):
        columns["fields"] = None
    other_columns = any(key in columns for key in _NAMED_COLUMNS)
    names = {key: data[key] for key in _NAMES if key in data and (other_columns or data[key] != theirs.get(key))}
    columns.pop("fields", None)  # given above
    if made and (other_columns or "population" in names or not _both_sides(planned.plan.cohorts, base["train_before"])):
        columns["train_before"] = ingest.get("train_before")
    of_others = other_columns or "classification" in names
    model = {} if not made else _of_the_prior(profile["model"], section(made, "model"), data, of_others=of_others)
    return (
        {f"data.{key}": value for key, value in names.items()}
        | {f"data.ingest.{key}": value for key, value in columns.items()}
        | {f"model.{key}": value for key, value in model.items()}
    )


def _of_the_prior(
    profile: Mapping[str, Any], model: Mapping[str, Any], data: Mapping[str, Any], *, of_others: bool
) -> dict[str, Any]:
    """Returns the prior's settings: a sentence about injuries suits injuries alone, and titles need a code list."""
    fields = _fields(data).values()
    listed = all(field.get("codelist") for field in fields) if fields else bool(data.get("codelist"))
    if not listed:
        words = {"lexical": "hashed"} if "lexical" in profile else {}
        return {"prior": "none", **words, **({"prior_sentences": {}} if "prior_sentences" in profile else {})}
    sentences = ("prior_sentence", "prior_sentences") if of_others else ()
    return {key: model.get(key) or type(profile[key])() for key in sentences if key in profile}


def _labels(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: field.get("label_column") for name, field in fields.items()}


def _both_sides(cohorts: Sequence[str], day: str) -> bool:
    """Checks whether these cohorts have records before a day, and on it or later; by years, which start `2016-Q1`."""
    years = [int(cohort[:4]) for cohort in cohorts if cohort[:4].isdigit()]
    return bool(years) and min(years) <= int(day[:4]) <= max(years)


def _default(profile: Mapping[str, Any], name: str) -> Any:
    return profile.get(name, IngestConfig.model_validate(profile).model_dump(mode="json").get(name))


def describe_offer(ledger: Ledger, planned: PlannedRelease, records: RecordSet | None = None) -> str:
    """Returns the command in a sentence, with the budget that it may spend.

    Args:
        records: what the plan is made from; earlier formal releases of them count, by whatever name.
    """
    plan, policy = planned.plan, ledger.policy()
    if any(policy.cap(plan.population, cohort, "formal") is None for cohort in plan.cohorts):
        return (
            f"A formal release of the same records needs no estimate. Give {plan.population} a formal cap "
            f"in the policy (`autocoder ledger change-policy`), then `{retrain_command(planned, DEFAULT_EPSILON)}`"
        )
    left = remaining_epsilon(ledger, planned, records)
    if left is None:
        return (
            "The formal budget of these records is spent, in ε or in δ, or has other terms. A formal release of them "
            "needs another policy"
        )
    return (
        f"Release a formal fit of the same records instead (ε {short(left)} of the formal budget remain): "
        f"`{retrain_command(planned, min(left, DEFAULT_EPSILON))}`"
    )


def remaining_epsilon(ledger: Ledger, planned: PlannedRelease, records: RecordSet | None = None) -> Decimal | None:
    """Returns the largest epsilon, in hundredths, that the ledger would accept for a formal release of a plan's records
    at its default delta; None where it would accept none.
    """
    policy = ledger.policy()
    caps = [policy.cap(planned.plan.population, cohort, "formal") for cohort in planned.plan.cohorts]
    most = min((cap.epsilon for cap in caps if cap is not None), default=Decimal(0))
    delta = allowed_delta(policy, planned.plan.population)
    low, high = 0, int(most / _STEP)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(ledger, planned, middle * _STEP, delta, records) else (low, middle - 1)
    return low * _STEP or None


_STEP = Decimal("0.01")


def _fits(ledger: Ledger, planned: PlannedRelease, epsilon: Decimal, delta: float, records: RecordSet | None) -> bool:
    """Checks whether the ledger would accept a formal claim in the plan's place, of Gaussian noise without sampling."""
    rate = gaussian_loss(epsilon, amounts.delta(delta)).mu_squared
    if not rate:
        return False
    event = GaussianReleaseEvent(what="a formal fit", noise_multiplier=float(rate) ** -0.5, l2_sensitivity=1.0)
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
        ledger.quote(planned.plan.model_copy(update={"claim": claim, "event": event}), records=records)
    except BudgetRefused:
        return False
    return True


def remedy(ledger: Ledger, planned: PlannedRelease, records: RecordSet | None = None) -> str:
    """Describes what to do about a contradiction: the formal branch first, then an override."""
    signed = "`autocoder override` with a reason and an approver's key"
    if planned.plan.claim.guarantee_kind == "formal":
        return f"A formal claim that is refuted is a fault of the program: report it. Only {signed} lets it pass"
    return f"{describe_offer(ledger, planned, records)}. Or accept the measurement: {signed}"
