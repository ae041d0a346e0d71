"""What is offered in place of a claim that is refuted or weak: the formal branch, with the command that makes it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import yaml

from storage.ingest import IngestConfig
from storage.ledger import Ledger
from storage.ledger.amounts import short
from tasks.releasing.plan import PlannedRelease

PROFILE, OF_FIELDS = "osha-formal", "osha-fields"
"""The profiles that release formally: one field, and several."""
_PROFILES = Path(__file__).resolve().parents[2] / "deployments" / "profiles"
USUAL = Decimal(5)
"""Asked for where more remains: the epsilon that docs/formal.md has figures of."""


def remaining(ledger: Ledger, planned: PlannedRelease) -> Decimal | None:
    """What may still be spent formally on every cohort of a plan; None where the policy has no formal cap for one."""
    plan, policy = planned.plan, ledger.policy()
    spent = {(a.population, a.cohort): a for line in ledger.budget() if (a := line.account).guarantee_kind == "formal"}
    left = []
    for cohort in plan.cohorts:
        cap = policy.cap(plan.population, cohort, "formal")
        if cap is None:
            return None
        account = spent.get((plan.population, cohort))
        left.append(cap.epsilon - (Decimal(0) if account is None else account.epsilon))
    return max(Decimal(0), min(left)).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR)


def command(planned: PlannedRelease, epsilon: Decimal | float) -> str:
    """The retrain of the same records that ends in a formal plan.

    With files and columns where what the plan was made with lies beside it; else whoever runs it names them.
    """
    shown = short(epsilon) if isinstance(epsilon, Decimal) else f"{epsilon:g}"
    data = _made_with(planned)
    fields = _fields(data)
    files = [("--data", data.get("source") or "RECORDS")]
    files += [] if planned.fields else [("--codelist", data.get("codelist") or "CODELIST")]
    profile = formal_profile(planned)
    words = ["autocoder", "retrain", "--profile", profile, *(word for pair in files for word in pair)]
    if fields:
        told = {name: {key: value for key, value in field.items() if value} for name, field in fields.items()}
        words += ["--set", f"data.ingest.fields={json.dumps(told, ensure_ascii=False)}"]
    for name, value in _other(profile, data | {"population": planned.plan.population}).items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"]
    return shlex.join([*words, "--target-epsilon", shown])


def formal_profile(planned: PlannedRelease) -> str:
    """The profile that releases as many fields formally."""
    return OF_FIELDS if planned.fields else PROFILE


def _made_with(planned: PlannedRelease) -> dict[str, Any]:
    """The data section of the run that planned, from the settings beside the plan; empty where there are none."""
    private = Path(planned.candidate.dataset.path).parent.parent.parent
    try:
        kept = private / "plans" / f"{planned.plan.idempotency_key[:16]}.settings"
        data = json.loads(kept.read_text(encoding="utf-8"))["parameters"]["data"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return data if isinstance(data, dict) else {}


_COLUMNS = ("text_columns", "template", "label_column", "id_column", "unit_column", "max_per_unit", "date_column",
            "date_format", "cohort", "cohorts")  # fmt: skip
_NAMES = ("population", "classification", "classification_version")


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    return dict((data.get("ingest") or {}).get("fields") or {})


def _other(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Names and columns that the profile has otherwise, by their keys."""
    profile = yaml.safe_load((_PROFILES / f"{name}.yaml").read_text(encoding="utf-8"))["data"]
    own, ingest = profile["ingest"], data.get("ingest") or {}
    changed = {f"data.{name}": data[name] for name in _NAMES if name in data and data[name] != profile.get(name)}
    columns = {name: ingest[name] for name in _COLUMNS if name in ingest and ingest[name] != _default(own, name)}
    return changed | {f"data.ingest.{name}": value for name, value in columns.items()}


def _default(own: Mapping[str, Any], name: str) -> Any:
    return own.get(name, IngestConfig.model_validate(own).model_dump(mode="json").get(name))


def offer(ledger: Ledger, planned: PlannedRelease) -> str:
    """The command in a sentence, with what the budget has for it."""
    left = remaining(ledger, planned)
    if left is None:
        return (
            f"A formal release of the same records rests on no estimate: give {planned.plan.population} a formal cap "
            f"in the policy (`autocoder ledger change-policy`), then `{command(planned, USUAL)}`"
        )
    if left == 0:
        return "The formal budget of these records is spent, so that a formal release of them needs another policy"
    asked = min(left, USUAL)
    return (
        f"Release a formal fit of the same records instead (ε {short(left)} of the formal budget remain): "
        f"`{command(planned, asked)}`"
    )


def way_out(ledger: Ledger, planned: PlannedRelease) -> str:
    """What to do about a contradiction: the formal branch, and only then a person who answers for it."""
    signed = "`autocoder override` with a reason and an approver's key"
    if planned.plan.claim.guarantee_kind == "formal":
        return f"A formal claim that is refuted is a fault of the program: report it. It passes by {signed} alone"
    return f"{offer(ledger, planned)}. Or somebody answers for what was measured: {signed}"
