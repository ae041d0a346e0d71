"""Compares a plan with the artifacts that it names: what it states otherwise was edited by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechanisms.privacy.events import decode, is_exact
from storage.artifacts import MANIFEST, ArtifactRef, Store, digest, file_digest
from storage.ingest import IngestConfig
from tasks.releasing.claims import (
    EXACT_ARITHMETIC,
    FLOATING_POINT,
    RANDOMNESS,
    TRUST_MODEL,
    privacy_unit,
    unprotected_inputs,
)

if TYPE_CHECKING:
    from tasks.releasing.plan import PlannedRelease

NOISE_OF_THE_FIT = (
    "drawn once while training, from a secret AES-256 stream keyed by operating system entropy (os.urandom); the key "
    "is kept with the checkpoints alone and goes with them when the fit ends"
)

_DIGEST = "[0-9a-f]{64}"
_FORMS: dict[str, str] = {
    "idempotency_key": _DIGEST,
    "release_label": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "population": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "parameters_digest": _DIGEST,
    "lock_digest": _DIGEST,
    "code_commit": r"[0-9a-f]{40}|unknown",
    "supersedes": r"[0-9a-f]{16}",
    "prefect_run_id": r"[0-9a-f-]{36}",
}
"""Forms of identifiers and digests that the caller supplies; none is free text."""


def wrong_fields(planned: PlannedRelease, store: Store) -> list[str]:
    """Returns the names of what a plan states otherwise than its artifacts, whose files are there and whole."""
    made, event = planned.candidate, planned.plan.event
    wrong = [
        *_wrong_statements(planned, store),
        *_wrong_records(planned, store),
        *_wrong_candidate(planned, store),
        *_wrong_method(planned, store),
    ]
    if made.measured is None:
        as_run = decode(json.loads((store.open(made.fitted) / "event.json").read_text())) == event
    else:
        moments = store.figures(made.fitted)
        as_run = _as_measured(planned, store, made.measured) and all(
            getattr(event, name, None) == moments[name] for name in ("snapshots", "rank")
        )
    return wrong if as_run else [*wrong, "event"]


def _wrong_statements(planned: PlannedRelease, store: Store) -> list[str]:
    """Returns the fields whose fixed text or form is wrong."""
    plan, facts = planned.plan, store.figures(planned.candidate.dataset)
    key = {"data": plan.data_fingerprint, "method": plan.parameters_digest, "label": plan.release_label}
    fixed = {
        "idempotency_key": (plan.idempotency_key, digest(key)),
        "parameters_digest": (plan.parameters_digest, digest(planned.method)),
        "trust_model": (plan.trust_model, TRUST_MODEL),
        "randomness_source": (
            plan.randomness_source, NOISE_OF_THE_FIT if planned.candidate.measured is None else RANDOMNESS
        ),
        "floating_point_caveat": (
            plan.floating_point_caveat, EXACT_ARITHMETIC if is_exact(plan.event) else FLOATING_POINT
        ),
    }  # fmt: skip
    # guard: a plan's words are the pipeline's
    wrong = [name for name, (stated, actual) in fixed.items() if stated != actual]
    forms = {name: getattr(plan, name) for name in _FORMS}
    # guard: names and digests have a form
    wrong += [n for n, value in forms.items() if value is not None and not re.fullmatch(_FORMS[n], value)]
    inputs = unprotected_inputs(facts, weights=plan.event.risk_weights, model=planned.candidate.model)
    stated_inputs = plan.claim.unprotected_inputs
    if stated_inputs[: len(inputs)] != inputs:
        wrong.append("unprotected_inputs")
    return list(dict.fromkeys(wrong))


def _wrong_records(planned: PlannedRelease, store: Store) -> list[str]:
    """Returns the fields that differ from the data set's."""
    dataset = planned.candidate.dataset
    facts, ingest = store.figures(dataset), store.recipe(dataset)["config"]["ingest"]
    unit, most = privacy_unit(IngestConfig.model_validate(ingest))
    claim = planned.plan.claim
    fields = {
        "cohorts": (planned.plan.cohorts, tuple(facts["cohorts"])),
        "data_fingerprint": (planned.plan.data_fingerprint, facts["fingerprint"]),
        "records": (planned.plan.records_rounded, facts["records"]),
        "privacy_unit": (claim.privacy_unit, unit),
        "max_records_per_unit": (claim.max_records_per_unit, most),
    }
    return [name for name, (stated, actual) in fields.items() if stated != actual]


def _wrong_candidate(planned: PlannedRelease, store: Store) -> list[str]:
    """Returns the fields that differ from those of the stage that measured the posterior or made the fit."""
    made = planned.candidate
    recipe = store.recipe(made.fitted if made.measured is None else made.measured)
    config, inputs = recipe["config"], recipe["inputs"]
    fields: dict[str, tuple[object, object]] = {
        "model": (made.model.model_dump(mode="json"), config["model"]),
        "seed": (made.seed, config["seed"]),
        "dataset": (made.dataset.sha256, inputs["dataset"]),
        "prepared": (made.prepared.sha256, inputs["prepared"]),
    }
    if made.measured is not None:
        fields["std_scale"] = (made.std_scale, config["std_scale"])
        fields["posterior"] = (made.fitted.sha256, inputs["posterior"])
    return [name for name, (stated, actual) in fields.items() if stated != actual]


def _wrong_method(planned: PlannedRelease, store: Store) -> list[str]:
    """Returns the settings of the method that differ from the recipes of data set, fit and noise."""
    made = planned.candidate
    settings = section(planned.method, "parameters") or planned.method
    data, fit = section(settings, "data"), section(settings, "fit")
    ingest = store.recipe(made.dataset)["config"]["ingest"]
    fields = {
        "method.data.population": (data.get("population"), planned.plan.population),
        "method.data.ingest": (section(data, "ingest"), ingest),
        "method.fit.seed": (fit.get("seed"), made.seed),
    }
    if made.measured is not None:
        config = store.recipe(made.measured)["config"]
        fields |= {
            "method.model": (settings.get("model"), config["model"]),
            "method.fit.swag.std_scale": (section(fit, "swag").get("std_scale"), config["std_scale"]),
        }
    else:
        inputs = store.recipe(made.fitted)["inputs"]
        task = section(section(_recipe_by_digest(store, "plan", inputs["plan"]), "config"), "task")
        formal = section(settings, "formal")
        target = formal["target_epsilon"] if formal else planned.method.get("epsilon")
        aimed = task.get("target_epsilon")
        if aimed is not None:  # a mechanism without a target has none in its recipe, whatever a comparison asked
            fields["method.target_epsilon"] = (target, aimed)
    return [name for name, (stated, actual) in fields.items() if stated != actual]


def _as_measured(planned: PlannedRelease, store: Store, measured: ArtifactRef) -> bool:
    """Checks that the event has the measured sensitivity and draws and, where their stage is available, the
    weights.
    """
    figures, weights = store.figures(measured), store.recipe(measured)["inputs"].get("weights")
    made_by = [kind for kind in ("risk-weights", "reweight") if _recipe_by_digest(store, kind, weights)]
    event, reweighted = planned.plan.event, made_by[0] == "reweight" if made_by else None
    measured_so = event.is_measured(sensitivity=figures["sensitivity"], draws=figures["draws"])
    return measured_so and event.is_weighted(reweighted=reweighted)


def _recipe_by_digest(store: Store, kind: str, sha256: str | None) -> dict[str, Any]:
    """Returns the recipe of the stage whose manifest has this digest; empty where this workspace has none."""
    for manifest in (store.private / "stages" / kind).glob(f"*/{MANIFEST}"):
        if file_digest(manifest) == sha256:
            return json.loads(manifest.read_bytes())["recipe"]
    return {}


def section(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a mapping inside a mapping; empty where it is absent or not a mapping."""
    value = content.get(name)
    return value if isinstance(value, dict) else {}
