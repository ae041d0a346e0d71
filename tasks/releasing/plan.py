"""Defines the planned release, which is the file that an officer approves: what is released, under
which claim, and from which artifacts.

A plan is a function of its artifacts, the settings of its method and the request (`build_plan`). A
release builds it again and compares the two. It is in the private workspace, because it contains
references to private artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from mechanisms.errors import MechanismError
from mechanisms.model import encoder_files, packaged
from mechanisms.model.config import ModelConfig
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import is_exact
from storage.artifacts import Recipe, Store, digest
from storage.datasets import load_codes
from storage.durable import copy_regular, read_regular, write_atomically
from storage.errors import Changed, InputError, Unreadable
from storage.ingest import IngestConfig, Name
from storage.ledger import (
    BudgetRefused,
    Evaluated,
    Ledger,
    ReleasePlan,
    ReleaseRow,
)
from storage.ledger.models import LedgerPosition
from tasks.bundle.texts import name_of
from tasks.bundle.untold import Untold
from tasks.fitting.candidate import Candidate
from tasks.fitting.ingest import ingest_figures
from tasks.parameters import RetrainParameters
from tasks.releasing import held_out_table
from tasks.releasing.claims import (
    EXACT_ARITHMETIC,
    FLOATING_POINT,
    NOISE_OF_THE_FIT,
    RANDOMNESS,
    TRUST_MODEL,
    claim_on,
    decode_event,
    key_of,
    method_of,
    public_inputs,
    unprotected_inputs,
)
from tasks.releasing.output import DIGEST, Output
from tasks.releasing.selection import Selection
from tasks.running.provenance import provenance
from tasks.running.stage import Context

_NOT_APPROVED: Any = {"plan": {"prefect_run_id": True}}
"""Fields that may differ between two runs of the same plan."""
_MOST = 64 << 20
"""Largest size of a plan's file, in bytes."""


class Request(BaseModel, frozen=True):
    """The caller-supplied fields of a plan. They cannot be recomputed, so the signature covers
    them. None of them is free text.
    """

    population: Name
    release_label: Name
    requester: str
    supersedes: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")
    code_commit: str = Field(pattern="^([0-9a-f]{40}|unknown)$")
    code_dirty: bool
    lock_digest: str | None = Field(default=None, pattern=DIGEST)
    prefect_run_id: str | None = Field(default=None, pattern="^[0-9a-f-]{36}$")

    @staticmethod
    def of(parameters: RetrainParameters, *, prefect_run_id: str | None) -> Request:
        settings = parameters.release
        return Request(
            population=parameters.data.population,
            release_label=settings.label,
            requester=settings.requester,
            supersedes=settings.supersedes,
            **vars(provenance()),
            prefect_run_id=prefect_run_id,
        )


def release_lock(plan: ReleasePlan) -> str:
    """Returns the name of the lock that a release of this plan holds."""
    return f"release-{plan.idempotency_key[:32]}"


class PlannedRelease(BaseModel, frozen=True, extra="forbid"):
    """A plan and the candidate that it releases."""

    schema_version: Literal[1] = 1
    plan: ReleasePlan
    candidate: Candidate
    output: Output = Output()
    method: dict[str, Any] = {}
    """The settings with the digest that is part of the key."""
    selection: Selection = Selection()
    """How the fit was chosen, according to the ledger; `unprotected_inputs`
    describes it in words.
    """
    untold: Untold | None = None
    """Why no accuracy on the held-out records is reported to partners. None if a table of
    it is released.
    """

    @field_validator("plan", mode="before")
    @classmethod
    def _typed_event(cls, plan: Any) -> Any:
        return (
            {**plan, "event": decode_event(plan.get("event"))} if isinstance(plan, dict) else plan
        )

    @staticmethod
    def of_candidate(
        context: Context,
        candidate: Candidate,
        parameters: RetrainParameters,
        *,
        delta: float | None,
        prefect_run_id: str | None,
    ) -> PlannedRelease:
        """Plans the release of a candidate.

        The same records, method and label always give the same key. Running again never releases
        and charges twice, even if a change of code gave another fit, unless the operator chooses
        another label.

        Args:
            delta: delta of a formal claim.
        """
        request = Request.of(parameters, prefect_run_id=prefect_run_id)
        output = Output.from_settings(parameters.release)
        return build_plan(context, candidate, request=request, output=output, delta=delta)

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that an approval covers, in canonical
        form (RFC 8785).
        """
        return digest(self.model_dump(mode="json", exclude=_NOT_APPROVED))

    def has_bundle(self, store: Store) -> bool:
        """Whether a bundle can contain this model. Some mechanisms have no bundle."""
        return bool(store.figures(self.candidate.fitted).get("releasable", True))

    def attach_ledger(self, ledger: Ledger, context: Context) -> PlannedRelease:
        """Attaches the plan to this ledger at its newest row. Adds how its fit was chosen, from the
        ledger's rows, and the policy's statement for a registry.

        If an equal plan is saved, it is kept with its approvals.
        """
        registry, output = ledger.policy().registry, self.output
        if registry != output.registry:
            output = output.with_texts(context, self.candidate, self.plan, registry=registry)
        bound = self.model_copy(update={"output": output}).with_selection(
            context, self.selection_now(ledger.measurements(), context), ledger=None
        )
        try:
            saved = PlannedRelease.load(self.file(context))
            if saved.with_selection(context, saved.selection, ledger=None).digest == bound.digest:
                ledger.require_here(saved.plan)
                return saved
        except (InputError, BudgetRefused):
            pass  # no saved plan, or one that is no longer valid
        return bound.with_selection(
            context,
            bound.selection,
            ledger=ledger.ensure_genesis_row(requester=self.plan.requester),
        )

    def selection_now(self, measurements: Sequence[Evaluated], context: Context) -> Selection:
        """Returns how the fit was chosen, from the ledger's current rows."""
        return Selection.of(
            measurements,
            context,
            self.candidate,
            fingerprint=self.plan.data_fingerprint,
            weighted=self.plan.event.risk_weights,
        )

    def with_selection(
        self, context: Context, selection: Selection, *, ledger: LedgerPosition | None
    ) -> PlannedRelease:
        facts, claim = ingest_figures(context.store, self.candidate.dataset), self.plan.claim
        inputs = unprotected_inputs(
            facts, weights=self.plan.event.risk_weights, model=self.candidate.model
        )
        claim = claim.model_copy(update={"unprotected_inputs": (*inputs, *selection.lines)})
        plan = self.plan.model_copy(update={"claim": claim, "ledger": ledger})
        return self.model_copy(update={"plan": plan, "selection": selection})

    def check(self, context: Context) -> None:
        """Refuses a plan that does not follow from its artifacts, such as one that
        was edited manually.
        """
        candidate, store = self.candidate, context.store
        for ref in (candidate.fitted, candidate.dataset, candidate.prepared):
            store.open(store.local(ref))
        if not self.has_bundle(store):
            raise MechanismError(
                "release plan: this model (event "
                f"`{self.plan.event.of_training.mechanism}`) has no bundle, so it cannot be "
                "released. Compare it and audit it",
                kind="no-bundle-format",
            )
        _require_equal(self, self._again(context))

    def require_consistent(self) -> None:
        """Refuses a plan with a claim, key or digest that does not follow from its event, method
        and candidate.

        It needs no artifacts. A release checks those too.
        """
        plan, claim = self.plan, self.plan.claim
        inputs = claim.unprotected_inputs[
            : len(claim.unprotected_inputs) - len(self.selection.lines)
        ]
        again = claim_of(
            plan.event,
            delta=claim.delta,
            privacy_unit=claim.privacy_unit,
            max_records_per_unit=claim.max_records_per_unit,
            unprotected_inputs=(*inputs, *self.selection.lines),
            public_inputs=public_inputs(self.candidate.model),
        )
        followed = {
            "claim": again,
            "idempotency_key": key_of(self.method, plan.data_fingerprint, plan.release_label),
            "parameters_digest": digest(self.method),
            "artifact_digests": self.candidate.artifact_digests,
        }
        _require_equal(self, self.model_copy(update={"plan": plan.model_copy(update=followed)}))

    def _again(self, context: Context) -> PlannedRelease:
        try:
            return build_plan(
                context,
                self.candidate,
                request=Request.model_validate(
                    self.plan.model_dump(include=set(Request.model_fields))
                ),
                output=self.output,
                delta=self.plan.claim.delta,
                selection=self.selection,
                ledger=self.plan.ledger,
            )
        except ValidationError as error:
            fields = {
                str(part["loc"][0]) for part in error.errors(include_input=False, include_url=False)
            }
            raise MechanismError(
                f"release plan: {', '.join(sorted(fields))} has another form. Plan again",
                kind="plan-of-another-form",
            ) from None
        except (KeyError, FileNotFoundError):
            raise MechanismError(
                "release plan: its artifacts are of other stages than a training run's. Plan again",
                kind="plan-of-other-stages",
            ) from None

    def file(self, context: Context) -> Path:
        return context.workspace.private / "plans" / f"{self.plan.idempotency_key[:16]}.json"

    def save(self, context: Context) -> Path:
        """Writes the plan to the private workspace and returns the file."""
        file = self.file(context)
        file.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(
            self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False
        )
        write_atomically(file, content.encode() + b"\n")
        return file

    def save_reserved(self, context: Context) -> None:
        """Saves the plan under its digest, for the reservation that is about to be made."""
        file = _reserved_file(context, self.digest)
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, self.model_dump_json().encode())

    @staticmethod
    def reserved(context: Context, row: ReleaseRow) -> PlannedRelease:
        """Loads the plan that a release was reserved for. Refuses a plan that was changed."""
        sha256 = str(row.plan_digest)
        file = _reserved_file(context, sha256)
        planned = PlannedRelease.load(file)
        if planned.digest != sha256:
            raise Changed(
                f"plan {file} is not the one that release {row.release_id} was reserved for. "
                "Restore it from a copy",
                kind="another-plan",
            )
        return planned

    @staticmethod
    def load(file: Path) -> PlannedRelease:
        try:
            return PlannedRelease.model_validate_json(read_regular(file, _MOST, option="plan"))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "file"
            raise Unreadable(
                f"plan {file} is not a release plan: {field}: {first['msg']}",
                kind="not-a-plan",
                option=field,
            ) from None


def build_plan(
    context: Context,
    candidate: Candidate,
    *,
    request: Request,
    output: Output,
    delta: float | None,
    selection: Selection = Selection(),
    ledger: LedgerPosition | None = None,
) -> PlannedRelease:
    """Returns the plan for these artifacts. Everything except the request and delta follows from
    them and the ledger.

    Args:
        candidate: identifies the artifacts. Its other fields are read from the stages that made
            them.
        delta: delta of a formal claim.
        selection: how the fit was chosen, according to the ledger.
    """
    from tasks.fitting import fits  # imports torch, which readers of plans do not need

    store = context.store
    facts = ingest_figures(store, candidate.dataset)
    ingest = store.recipe(candidate.dataset)["config"]["ingest"]
    recipe, folder = store.recipe(candidate.fitted), store.open(candidate.fitted)
    planned = fits.plan_of(folder)
    event, untold = held_out_table.parallel_event(
        fits.event_of(folder),
        facts=facts,
        ingest=IngestConfig.model_validate(ingest),
        codes=load_codes(store.open(candidate.dataset)),
    )
    draws = planned.mechanism.draws
    settled = {"mechanism": planned.mechanism.model_dump(mode="json"), "is_sampled": draws}
    candidate = _as_recorded(recipe, candidate, settled)
    method = method_of(
        recipe["config"],
        planned.task.model_dump(mode="json"),
        population=request.population,
        ingest=ingest,
    )
    claim = claim_on(
        facts,
        IngestConfig.model_validate(ingest),
        candidate.model,
        event,
        delta=delta,
        also_unprotected=selection.lines,
    )
    plan = ReleasePlan(
        **request.model_dump(),
        idempotency_key=key_of(method, facts["fingerprint"], request.release_label),
        cohorts=tuple(facts["cohorts"]),
        data_fingerprint=facts["fingerprint"],
        records_rounded=facts["records"],
        event=event,
        claim=claim,
        trust_model=TRUST_MODEL,
        randomness_source=RANDOMNESS if draws else NOISE_OF_THE_FIT,
        floating_point_caveat=EXACT_ARITHMETIC if is_exact(event) else FLOATING_POINT,
        parameters_digest=digest(method),
        artifact_digests=candidate.artifact_digests,
        ledger=ledger,
    )
    return PlannedRelease(
        plan=plan,
        candidate=candidate,
        output=output.with_contents(context, candidate, plan),
        method=method,
        selection=selection,
        untold=untold,
    )


def own_candidate(context: Context, planned: PlannedRelease) -> Candidate:
    """Returns the candidate of a release with this process's copies of its encoder's files. Each
    file is read once. An encoder that ships with the program, or from the hub, is not copied.

    Raises:
        StorageError: the files are not the planned ones.
    """
    candidate, copies = planned.candidate, context.copies
    encoder = candidate.model.encoder
    files = encoder_files.digest_parts(encoder)
    if copies is None or not files or encoder in packaged.PUBLISHED:
        return candidate
    folder = copies.private / "encoder" / name_of(encoder)
    copied = {
        file.name: copy_regular(file, folder / file.name, file.stat().st_size) for file in files
    }
    # guard: test_an_encoder_that_carries_a_narrative
    if digest(copied) != planned.output.encoder:
        raise Changed(
            f"encoder {name_of(encoder)}: its files are not the planned ones. Restore them, or "
            "plan again",
            kind="encoder-not-planned",
        )
    model = candidate.model.model_copy(update={"encoder": str(folder)})
    return candidate.model_copy(update={"model": model})


def _as_recorded(recipe: Recipe, candidate: Candidate, settled: Mapping[str, object]) -> Candidate:
    config, inputs = recipe["config"], recipe["inputs"]
    recorded: dict[str, object] = {
        name: getattr(candidate, name).model_copy(update={"sha256": inputs[name]})
        for name in ("dataset", "prepared")
    }
    recorded |= {**settled, "seed": config["seed"]}
    model = ModelConfig.model_validate(config["model"])
    return candidate.model_copy(update=recorded | {"model": model})


def _require_equal(stated: PlannedRelease, built: PlannedRelease) -> None:
    different = sorted(_differences(stated.model_dump(mode="json"), built.model_dump(mode="json")))
    # guard: test_a_word_written_by_hand
    if different:
        raise MechanismError(
            f"release plan: {', '.join(different)}: differs from what ran and was "
            "measured. Plan again",
            kind="plan-differs",
        )


def _differences(stated: Any, built: Any, name: str = "") -> Iterator[str]:
    if isinstance(stated, dict) and isinstance(built, dict):
        for key in stated.keys() | built.keys():
            yield from _differences(
                stated.get(key), built.get(key), f"{name}.{key}" if name else key
            )
    elif stated != built:
        yield name


def _reserved_file(context: Context, sha256: str) -> Path:
    return context.workspace.private / "plans" / "reserved" / f"{sha256}.json"
