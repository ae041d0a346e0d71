"""Computes the claim and the cost of a release before anything is drawn."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mechanisms.model.config import ModelConfig
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import Claim, Event, decode
from storage.artifacts import digest
from storage.ingest import ALL, IngestConfig
from tasks.bundle.sentences import AUDITED, COUPLED
from tasks.parameters import RetrainParameters

if TYPE_CHECKING:
    from storage.json_values import Config, Json
    from tasks.fitting.ingest import IngestFigures


TRUST_MODEL = (
    "central: the operator of this pipeline sees the records; the claim is against "
    "anyone who holds the released folder"
)
RANDOMNESS = (
    "operating system entropy (os.urandom), one pair of 53-bit uniforms a pair of normals, no seed"
)
NOISE_OF_THE_FIT = (
    "generated once while training, from a secret AES-256 stream keyed by operating system "
    "entropy (os.urandom); the "
    "key is kept only with the checkpoints and is deleted with them when training ends"
)
EXACT_ARITHMETIC = (
    "none: sums are of integers, and the noise is a normal number rounded without error"
)
FLOATING_POINT = (
    "the sample is a float32 rounding of a Gaussian sampled in floating point; attacks on the "
    "low-order bits of such "
    "samples are not covered by the claim"
)
WEIGHTS = "risk weights alpha, sensitivity Delta and constant k are computed from the records"
NUMBER = "the numbers n of training records and of held-out records"
CHOSEN = (
    "how this model was chosen: its seed, sample, settings or mechanism, if figures of other "
    "training runs on these records decided them"
)
"""The text is the same with and without any one record. The number of runs is in the plan instead,
because one shared record changes it.
"""
SETTINGS = "settings (rates, epochs, encoder), if someone chose them by looking at these records"
CHAIN_SETTINGS = (
    "settings (rates, epochs, encoder, c, g, k), if someone chose them by looking at these records"
)
LABELS = "the label set: the codes observed in the records"
COHORTS = (
    "the names of the cohorts: the periods that the records are dated in; one record that is "
    "dated in another period would add a name"
)

_INJURIES = "titles of OIICS 2.01, nature of injury, which come with this program"

COMPARED = "the choice of this mechanism, after mechanisms were compared on these records"
SEARCHED = "c: searched for a target epsilon by fits on these records, each a row of the ledger"

NOT_METHOD: Any = {
    "release": True,
    "data": dict.fromkeys(
        (
            *("source", "codelist", "labels", "classification", "classification_version"),
            *("public", "examples", "examples_read"),
        ),
        True,
    ),
}
"""Parameters on paths and the requester, which do not affect the training."""

# Seeds of a branch share one event, and its accounting takes seconds.
_claim_of = lru_cache(maxsize=64)(claim_of)


def settings_of(parameters: RetrainParameters) -> dict[str, Json]:
    """Returns the parameters that fits depend on, as JSON. The fingerprint of the
    records covers the code list.
    """
    return parameters.model_dump(mode="json", exclude=NOT_METHOD)


def method_of(fit: Config, task: Config, *, population: str, ingest: Json) -> dict[str, Json]:
    """Returns the method of a fit. The release's key contains its digest. It excludes everything
    that the fit itself found, so that the same records, method and label have one release.

    Args:
        fit: configuration of the fit's stage.
        task: task of its plan, as JSON.
        ingest: settings of the records' ingest, as JSON.
    """
    return {
        "data": {"population": population, "ingest": ingest},
        **{name: fit[name] for name in ("model", "seed", "mechanism")},
        **{name: task[name] for name in ("target_epsilon", "delta")},
    }


def unprotected_inputs(
    dataset: IngestFigures, *, weights: bool = True, model: ModelConfig | None = None
) -> tuple[str, ...]:
    """Returns the inputs of the release that came from the records without protection, from the
    ingest's figures.

    Args:
        weights: whether risk weights were computed.
    """
    listed = {
        WEIGHTS: weights,
        NUMBER: True,
        CHAIN_SETTINGS if weights else SETTINGS: True,
        COUPLED: dataset["sampling"] != "per-record",
        LABELS: dataset["label_space_source"] != "codelist",
        COHORTS: dataset["cohorts_source"] == "records" and list(dataset["cohorts"]) != [ALL],
        "" if model is None else _prior_settings(model): model is not None
        and model.prior == "titles",
        AUDITED: True,
    }
    return tuple(line for line, holds in listed.items() if holds)


def public_inputs(model: ModelConfig) -> tuple[str, ...]:
    """Returns the model's inputs from public sources, apart from the encoder."""
    lines: list[str] = []
    if model.prior == "titles":
        lines.append(
            "the titles of the codes, with the levels above, through the encoder: where the head "
            "starts"
        )
    if model.prior == "titles" and model.prior_examples:
        lines.append(
            "the entries of a published coding index, texts with their codes (SHA-256 "
            f"{model.prior_examples}), through the encoder: where the head starts, near the "
            "titles. That no entry comes from a record is the operator's word"
        )
    if model.lexical == "titles":
        whose = (
            "codes' titles and descriptions" if model.lexical_titles == "codelist" else _INJURIES
        )
        lines.append(
            f"the words of the {whose}: the vocabulary that the model reads next to the encoder, "
            "and the scales of both"
        )
    if model.lexical == "hashed":
        lines.append(
            "synthetic narratives: the scales of the encoder's features and of the hashed words "
            "next to them"
        )
    return tuple(lines)


def _prior_settings(model: ModelConfig) -> str:
    sentences = [model.prior_sentence] if model.prior_sentence else []
    quoted = " or ".join(f"`{sentence}`" for sentence in sentences)
    scale = f"({model.prior_scale:g})"
    if not quoted:
        return f"the scale of the titles {scale}, if it was chosen by looking at these records"
    return (
        f"the sentence that titles are read in ({quoted}) and their scale {scale}, if someone "
        "chose them by looking at these records"
    )


def privacy_unit(ingest: IngestConfig) -> tuple[str, int]:
    """Returns the protected unit, and how many records it may have."""
    if ingest.unit_column is None or ingest.max_per_unit is None:
        return "record", 1
    return f"unit ({ingest.unit_column})", ingest.records_per_unit


def claim_on(
    dataset: IngestFigures,
    ingest: IngestConfig,
    model: ModelConfig,
    event: Event,
    *,
    delta: float | None,
    also_unprotected: tuple[str, ...],
) -> Claim:
    """Returns the claim of an event on records, with all inputs of the model from outside the
    mechanism.

    Args:
        dataset: figures of the ingest.
        also_unprotected: unprotected inputs that do not follow from records and model.
    """
    unit, most = privacy_unit(ingest)
    inputs = unprotected_inputs(dataset, weights=event.risk_weights, model=model)
    return _claim_of(
        event,
        delta=delta,
        privacy_unit=unit,
        max_records_per_unit=most,
        unprotected_inputs=(*inputs, *also_unprotected),
        public_inputs=public_inputs(model),
    )


def claim_like(claim: Claim, event: Event) -> Claim:
    """Returns the claim of another event for the same unit, delta and unprotected inputs."""
    return claim_of(
        event,
        delta=claim.delta,
        privacy_unit=claim.privacy_unit,
        max_records_per_unit=claim.max_records_per_unit,
        unprotected_inputs=claim.unprotected_inputs,
    )


def claim_at(sensitivity: float, event: Event, claim: Claim) -> Claim:
    """Returns the claim for the same unit at another sensitivity of the event, in nats."""
    return claim_like(claim, event.model_copy(update={"sensitivity": sensitivity}))


def key_of(method: Config, fingerprint: str, label: str) -> str:
    """Returns the key of a release. The same records, method and label have one release."""
    return digest({"data": fingerprint, "method": digest(dict(method)), "label": label})


def decode_event(value: Any) -> Any:
    if isinstance(value, dict) and value.get("mechanism") not in Event.by_tag:
        from mechanisms.mechanism import kinds

        kinds()  # imports the mechanisms, which declare events of their own
    return decode(value)
