"""Writes the record of a release for a public registry of deployments, and answers to NIST SP 800-226's questions.

The record has the fields of the registry of OpenDP (opendp/deployments-registry-data, schema of July 2026). What no
ledger knows, an agency states once under `registry` in its policy. Both say the same figures as the certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storage.errors import InputError
from storage.ledger.amounts import short
from storage.ledger.budget import Charge
from storage.ledger.models import Row
from storage.ledger.policy import RegistryStatement
from storage.ledger.reader import LedgerReader
from storage.ledger.report import markdown


@dataclass(frozen=True)
class Deployment:
    """Holds a drawn release, what its accounts were charged, and what the agency states about it."""

    row: Row
    charges: Sequence[Charge]
    stated: RegistryStatement
    repeated: bool
    """Whether the population was released before."""

    @staticmethod
    def of(ledger: LedgerReader, release_id: str, *, later: RegistryStatement | None = None) -> Deployment | None:
        """Returns the deployment as it was drawn; None where nothing is stated about it, when reserved or later."""
        history = ledger.history(release_id)
        rows = {row.state: row for row in history if row.kind == "release"}
        if "drawn" not in rows:
            raise InputError(
                f"release {release_id} is {history[-1].state}. Only one that is drawn or committed has a record."
            )
        reserved = rows["reserved"]
        stated = ledger.policy_before(reserved).registry or later
        charges = {charge.account: charge for charge in ledger.charges(release_id)}
        others = [
            release.reserved
            for release in ledger.state().releases.values()
            if release.row.population == reserved.population
        ]
        repeated = any(release.sequence < reserved.sequence for release in others)
        return None if stated is None else Deployment(rows["drawn"], tuple(charges.values()), stated, repeated)

    @property
    def budget(self) -> str:
        """Returns the caps of its accounts. Sums depend on which records other releases share, so none leaves."""
        parts = [
            f"{charge.account}: at most ε {short(charge.epsilon_cap)}"
            + (f" at δ {short(charge.after.delta_cap)}" if charge.after.delta_cap is not None else "")
            for charge in self.charges
            if charge.own
        ]
        return "Accounts of records, which all releases of the same records are charged to, never reset. " + "; ".join(
            parts
        )


def stated_deployment(ledger: LedgerReader, release_id: str) -> Deployment:
    """Returns a committed release's deployment; what no policy stated when it was reserved, the one in force states."""
    row, in_force = ledger.release(release_id), ledger.policy()
    if row.state != "committed":
        raise InputError(f"release {release_id} is {row.state}. Only a committed release has a record.")
    deployment = Deployment.of(ledger, release_id, later=in_force.registry)
    if deployment is None:
        raise InputError(
            f"policy {in_force.name} states nothing for a registry. Add `registry` to it, and record it with "
            "`autocoder ledger change-policy`."
        )
    return deployment


def registry_record(deployment: Deployment) -> dict[str, Any]:
    row, stated, many = deployment.row, deployment.stated, deployment.repeated
    pure = row.delta is not None and row.delta == 0
    parameters: dict[str, Any] = {"epsilon": float(row.epsilon or 0)}
    parameters["delta"] = row.delta_text if row.delta is None else float(row.delta)
    return {
        "url_slug": f"{_slug(row.population or 'release')}-{row.release_id}",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": row.label or str(row.population),
                "data_curators": list(stated.curators),
                "description": f"A model that codes narratives, trained on records of {row.population}.",
                "intended_use": stated.intended_use,
                "data_product_type": "Machine learning model",
                "data_product_region": stated.region,
                "data_product_sector": stated.sector,
                "publication_date": row.recorded_at[:10] or "0000-00-00",
            },
            "dp_variant": {
                "variant_name": _variant(row, pure=pure),
                "data_domain": stated.domain,
                "unprotected_quantities": _sentences(row.unprotected_inputs, "None."),
            },
            "privacy_loss": {
                "privacy_unit": row.privacy_unit or "record",
                "privacy_unit_details": (
                    f"About {row.records_rounded} records. Neighbouring data sets differ by {_neighbours(row)}."
                ),
                "privacy_parameters": parameters,
                "privacy_parameters_details": (
                    f"{row.guarantee_kind}, by {row.accountant}. It assumes: {_sentences(row.assumptions, 'nothing')}"
                ),
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": _paragraph(stated.actors, row.trust_model),
                "release_type": "Many releases" if many else "One release",
                "release_type_details": _paragraph(stated.refreshment, deployment.budget),
                "data_source_type": "Dynamic" if many else "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "composition": deployment.budget,
                "post_processing": "Rounding and packing of parameters; codes and thresholds follow from them.",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _sentences(
                    row.unprotected_inputs, "Nothing else reached the model."
                ),
                "mechanisms": _paragraph(
                    f"mechanism {row.mechanism}",
                    f"Code {row.code_commit}",
                    f"Randomness: {row.randomness_source}",
                    f"Floating point: {row.floating_point_caveat}",
                ),
                "justification": stated.justification,
            },
            "administrative": {"registry_authors": list(stated.authors)},
        },
    }


def answers(deployment: Deployment) -> str:
    """Returns a Markdown page with the questions of NIST SP 800-226 (2025) and this release's answers."""
    row, stated = deployment.row, deployment.stated
    rows = [
        ("Which unit is protected?", _unit(row)),
        ("Which data sets are neighbours?", f"two that differ by {_neighbours(row)}"),
        (
            "Which epsilon and delta?",
            f"ε {short(row.epsilon) if row.epsilon is not None else '–'}, δ "
            f"{short(row.delta) if row.delta is not None else row.delta_text} ({row.guarantee_kind}, {row.accountant})",
        ),
        ("How do releases compose?", deployment.budget),
        (
            "Which mechanism, which assumptions?",
            _paragraph(f"mechanism {row.mechanism}", _sentences(row.assumptions, "no assumptions")),
        ),
        ("Whom must data subjects trust?", _paragraph(row.trust_model, stated.actors)),
        (
            "Which side channels remain?",
            _paragraph(row.floating_point_caveat, f"Source of randomness: {row.randomness_source}"),
        ),
        ("What was computed from the data without protection?", _sentences(row.unprotected_inputs, "Nothing.")),
        ("How are the data collected, and which could be in them?", stated.domain),
        ("Who has access to data and product?", stated.actors),
        ("Why these parameters?", stated.justification),
    ]
    return markdown(f"NIST SP 800-226: release {row.release_id}", {"Questions and answers": rows})


def _variant(row: Row, *, pure: bool) -> str:
    if row.guarantee_kind != "formal":
        return "Custom"
    return "Pure DP" if pure else "Approximate DP"


def _unit(row: Row) -> str:
    most = row.max_records_per_unit or 1
    return (row.privacy_unit or "record") + (f" of at most {most} records" if most > 1 else "")


def _neighbours(row: Row) -> str:
    verb = "replaced" if row.neighbouring_relation == "replace-one" else "added or removed"
    return f"one {_unit(row)} {verb}"


def _paragraph(*sentences: str) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:].rstrip('. ')}." for text in sentences if text)


def _sentences(items: tuple[str, ...], nothing: str) -> str:
    return "; ".join(items) if items else nothing


def _slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() and c.isascii() else " " for c in text.lower()).split()) or "release"
