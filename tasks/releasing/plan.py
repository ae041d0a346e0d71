"""Defines the planned release, the file that an officer approves: what is released, on what claim,
made from which artifacts.

A plan is a function of its artifacts, of the settings of its method and of what was requested
(`build_plan`). A release builds it again and compares the whole. It is in the private workspace,
since it holds the references of private artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from mechanisms.errors import MechanismError
from mechanisms.model import encoder_files, packaged
from mechanisms.model.config import ModelConfig, Precision
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import is_exact
from storage.artifacts import Store, digest
from storage.datasets import load_codes
from storage.durable import copy_regular, read_regular, write_atomically
from storage.errors import InputError, StorageError
from storage.ingest import IngestConfig, Name
from storage.ledger import (
    BudgetRefused,
    ComparisonFit,
    Evaluated,
    Ledger,
    ReleasePlan,
    ReleaseRow,
    SearchFit,
)
from storage.ledger.content import anticipated
from storage.ledger.models import Mark
from storage.ledger.policy import RegistryStatement
from storage.ledger.records import same_records
from tasks.bundle import licence
from tasks.bundle.statement import repeated_fields
from tasks.bundle.texts import encoder_digest, name_of, own_texts
from tasks.catalogue import branch_bodies
from tasks.fitting.candidate import Candidate
from tasks.method import RELEASE_BRANCH, settings_of
from tasks.parameters import BundleParameters, RetrainParameters
from tasks.releasing import test_half
from tasks.releasing.claims import (
    CHOSEN,
    COMPARED,
    EXACT_ARITHMETIC,
    FLOATING_POINT,
    NOISE_OF_THE_FIT,
    RANDOMNESS,
    SEARCHED,
    TRUST_MODEL,
    claim_on,
    decode_event,
    key_of,
    method_of,
    public_inputs,
    unprotected_inputs,
)
from tasks.releasing.ledger_records import sample_of
from tasks.releasing.test_half import Untold
from tasks.running.provenance import provenance
from tasks.running.stage import Context

_NOT_APPROVED: Any = {"plan": {"prefect_run_id": True}}
"""What may differ between two runs of the same plan."""
_MOST = 64 << 20
"""Bytes of a plan's file."""
_DIGEST = "^[0-9a-f]{64}$"


class Request(BaseModel, frozen=True):
    """Holds what a plan takes at someone's word; the officer's signature is over it. None of it is
    free text.
    """

    population: Name
    release_label: Name
    requester: str
    supersedes: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")
    code_commit: str = Field(pattern="^([0-9a-f]{40}|unknown)$")
    code_dirty: bool
    lock_digest: str | None = Field(default=None, pattern=_DIGEST)
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


class Output(BaseModel, frozen=True, extra="forbid"):
    """Holds the settings of the released files other than the model; signed with the plan."""

    precision: Precision = "float32"
    int8: bool = False
    licence: str = Field(default=licence.OURS, pattern=r"^[A-Za-z0-9.+-]{1,64}$")
    """An SPDX name."""
    encoder: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Digest of the encoder in the released model."""
    public: tuple[Annotated[str, Field(pattern=_DIGEST)], ...] = ()
    """Digests of the stages that embedded public texts for the words of the released model."""
    registry: RegistryStatement | None = None
    """What the policy states for a registry, which the bundle repeats."""
    texts: tuple[str, ...] = ()
    """Every text of the bundle that no published list has and that is no name or number in a narrow
    form.
    """

    @staticmethod
    def from_settings(settings: BundleParameters) -> Output:
        """Takes the output settings from those of the planning run."""
        return Output(
            precision=settings.precision,
            int8=settings.int8,
            licence=licence.resolve(settings.licence),
        )

    def with_texts(
        self, context: Context, candidate: Candidate, plan: ReleasePlan, **changed: Any
    ) -> Output:
        """Returns the settings, some of them changed, with the texts of this plan's bundle."""
        output, store = self.model_copy(update=changed), context.store
        texts = own_texts(
            load_codes(store.open(candidate.dataset)),
            store.figures(candidate.dataset),
            candidate.model.encoder,
            statement=repeated_fields(anticipated(plan, audit=None)),
            label=plan.release_label,
            registry=output.registry,
        )
        return output.model_copy(update={"texts": texts})

    def with_contents(self, context: Context, candidate: Candidate, plan: ReleasePlan) -> Output:
        """Returns the settings with the encoder and the texts that a bundle of this plan contains."""
        contents: dict[str, Any] = {"encoder": encoder_digest(candidate.model.encoder)}
        if context.copies is None:  # a release takes them by the plan
            contents["public"] = _public_stages(context, candidate)
        return self.with_texts(context, candidate, plan, **contents)

    @property
    def texts_digest(self) -> str:
        """Returns the first 16 digits of a digest of the texts: it states that someone read them."""
        return digest(list(self.texts))[:16]

    def apply_to(self, settings: BundleParameters) -> BundleParameters:
        """Applies the planned output to the settings of the releasing run; refuses settings that
        ask for another.
        """
        if settings.precision not in ("float32", self.precision):
            raise InputError(
                f"precision: the approved plan has {self.precision}. Plan again to change it"
            )
        if settings.int8 and not self.int8:
            raise InputError("int8: the approved plan has none. Plan again with release.int8=true")
        # guard: test_a_licence_other_than_the_one_signed
        if settings.licence is not None and licence.resolve(settings.licence) != self.licence:
            raise InputError(
                f"licence: the approved plan has {self.licence}. Plan again with "
                f"release.licence={settings.licence}"
            )
        return settings.model_copy(
            update={"precision": self.precision, "int8": self.int8, "licence": self.licence}
        )


class Selection(BaseModel, frozen=True, extra="forbid"):
    """Holds how a fit was chosen, by what the ledger knows; `lines` says it in words, among what is
    not protected.

    A fit may have been chosen among several on the same records: by seed, sample, settings or
    mechanism. Each fit whose scores anyone saw is in the ledger. Records count as the same under
    one fingerprint, or where their samples of marks overlap: another seed, another population name
    or an added record does not make them different.
    """

    fits: int = 1
    """Fits on these records that the ledger has, this one included."""
    searched: bool = False
    """Settings were searched for a target epsilon on these records."""
    tuned: tuple[str, ...] = ()
    """Branches that ship whose settings the fit has, where these were found on other records."""
    compared: bool = False
    """Several mechanisms were compared on these records."""

    @property
    def lines(self) -> tuple[str, ...]:
        return (
            *([SEARCHED] if self.searched else []),
            *dict.fromkeys(line for name in self.tuned for line in _lines_of(name)),
            *([COMPARED] if self.compared else []),
            CHOSEN,
        )

    def since(self, earlier: Selection) -> str:
        """Describes what was done with the records since an earlier selection was stated."""
        fits = f" (the ledger has {self.fits} training runs on them, the plan {earlier.fits})"
        also = [
            *(["settings were searched on them"] if self.searched and not earlier.searched else []),
            *(
                ["mechanisms were compared on them"]
                if self.compared and not earlier.compared
                else []
            ),
        ]
        return "; ".join(
            ["the same records were used again since" + fits * (self.fits != earlier.fits), *also]
        )

    @staticmethod
    def of(
        measurements: Sequence[Evaluated],
        context: Context,
        planned: Candidate,
        *,
        fingerprint: str,
        weighted: bool,
    ) -> Selection:
        """Returns how a candidate was chosen, by the ledger's rows on its records.

        Args:
            measurements: that the ledger has.
            fingerprint: of the records.
            weighted: the candidate is a posterior with risk weights.
        """
        for ref in (planned.dataset, planned.fitted):
            context.store.open(ref)
        sample = sample_of(context, planned.dataset)
        same: list[Evaluated] = []
        for row in measurements:
            measured = row.evaluation
            if measured.kind != "evaluation":
                continue
            # guard: test_the_scores_of_another_sample_of_the_same_records
            if measured.data_fingerprint == fingerprint or same_records(measured.sample, sample):
                same.append(row)
        fit = planned.fitted.sha256
        branches = {_branch(row) for row in same if fit in row.evaluation.artifact_digests.values()}
        settings = context.store.recipe(planned.fitted)["config"].get("mechanism", {})
        return Selection(
            fits=len(
                {planned.fitted.sha256, *(_fit(row) for row in same if row.event is not None)}
            ),
            searched=weighted
            and any(isinstance(row.evaluation.subject, SearchFit) for row in same),
            tuned=tuple(
                name
                for name, body in branch_bodies().items()
                if body.get("unprotected") and (name in branches or _has_settings(settings, body))
            ),
            compared=len(
                {_branch(row) for row in same if isinstance(row.evaluation.subject, ComparisonFit)}
            )
            > 1,
        )


def release_lock(plan: ReleasePlan) -> str:
    """Returns the name of the lock that a release of this plan holds."""
    return f"release-{plan.idempotency_key[:32]}"


class PlannedRelease(BaseModel, frozen=True, extra="forbid"):
    """Holds a plan with the candidate that it releases."""

    schema_version: Literal[1] = 1
    plan: ReleasePlan
    candidate: Candidate
    output: Output = Output()
    method: dict[str, Any] = {}
    """The settings that the key names by their digest."""
    selection: Selection = Selection()
    """How the fit was chosen, by the ledger; `unprotected_inputs` says it in words."""
    untold: Untold | None = None
    """Why a partner is told nothing of the test half; None where a table of it is released."""

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

        The same records, method and label always give the same key, so that running again, also
        after a change of code that gave another fit, never releases and spends twice unless the
        operator asks by another label.

        Args:
            delta: of a formal claim.
        """
        request = Request.of(parameters, prefect_run_id=prefect_run_id)
        output = Output.from_settings(parameters.release)
        return build_plan(context, candidate, request=request, output=output, delta=delta)

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of everything that an approval covers, in canonical form (RFC 8785)."""
        return digest(self.model_dump(mode="json", exclude=_NOT_APPROVED))

    def has_bundle(self, store: Store) -> bool:
        """Checks whether a bundle can hold this model: not every mechanism has one."""
        return bool(store.figures(self.candidate.fitted).get("releasable", True))

    def attach_ledger(self, ledger: Ledger, context: Context) -> PlannedRelease:
        """Attaches the plan to this ledger at its newest row, and states how its fit was chosen by the
        ledger's rows and what its policy says for a registry.

        An equal saved plan stays, with its approvals.
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
            pass  # no saved plan, or one that no longer counts
        return bound.with_selection(
            context,
            bound.selection,
            ledger=ledger.ensure_genesis_row(requester=self.plan.requester),
        )

    def selection_now(self, measurements: Sequence[Evaluated], context: Context) -> Selection:
        """Returns how the fit was chosen, by the ledger's rows as they are now."""
        return Selection.of(
            measurements,
            context,
            self.candidate,
            fingerprint=self.plan.data_fingerprint,
            weighted=self.plan.event.risk_weights,
        )

    def with_selection(
        self, context: Context, selection: Selection, *, ledger: Mark | None
    ) -> PlannedRelease:
        facts, claim = context.store.figures(self.candidate.dataset), self.plan.claim
        inputs = unprotected_inputs(
            facts, weights=self.plan.event.risk_weights, model=self.candidate.model
        )
        claim = claim.model_copy(update={"unprotected_inputs": (*inputs, *selection.lines)})
        plan = self.plan.model_copy(update={"claim": claim, "ledger": ledger})
        return self.model_copy(update={"plan": plan, "selection": selection})

    def check(self, context: Context) -> None:
        """Refuses a plan other than its artifacts give, such as one edited manually."""
        candidate, store = self.candidate, context.store
        for ref in (candidate.fitted, candidate.dataset, candidate.prepared):
            store.open(store.local(ref))
        if not self.has_bundle(store):
            raise MechanismError(
                f"release plan: this model (event `{self.plan.event.of_training.mechanism}`) has no bundle, "
                "so it cannot be "
                "released. Compare it and audit it"
            )
        _require_equal(self, self._again(context))

    def require_consistent(self) -> None:
        """Refuses a plan whose claim, key or digests do not follow from its event, method and
        candidate.

        Needs no artifact; a release checks those too.
        """
        stated, claim = self.plan, self.plan.claim
        inputs = claim.unprotected_inputs[
            : len(claim.unprotected_inputs) - len(self.selection.lines)
        ]
        again = claim_of(
            stated.event,
            delta=claim.delta,
            privacy_unit=claim.privacy_unit,
            max_records_per_unit=claim.max_records_per_unit,
            unprotected_inputs=(*inputs, *self.selection.lines),
            public_inputs=public_inputs(self.candidate.model),
        )
        followed = {
            "claim": again,
            "idempotency_key": key_of(self.method, stated.data_fingerprint, stated.release_label),
            "parameters_digest": digest(self.method),
            "artifact_digests": self.candidate.artifact_digests,
        }
        _require_equal(self, self.model_copy(update={"plan": stated.model_copy(update=followed)}))

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
                f"release plan: {', '.join(sorted(fields))} has another form. Plan again"
            ) from None
        except (KeyError, FileNotFoundError):
            raise MechanismError(
                "release plan: its artifacts are of other stages than a training run's. Plan again"
            ) from None

    def file(self, context: Context) -> Path:
        return context.workspace.private / "plans" / f"{self.plan.idempotency_key[:16]}.json"

    def save(self, context: Context) -> Path:
        """Writes the plan into the private workspace; returns the file."""
        file = self.file(context)
        file.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(
            self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False
        )
        write_atomically(file, content.encode() + b"\n")
        return file

    def save_reserved(self, context: Context) -> None:
        """Keeps the plan by its digest, for the reservation that is about to be made of it."""
        file = _reserved_file(context, self.digest)
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, self.model_dump_json().encode())

    @staticmethod
    def reserved(context: Context, row: ReleaseRow) -> PlannedRelease:
        """Loads the plan that a release was reserved for; refuses one that was changed."""
        sha256 = str(row.plan_digest)
        file = _reserved_file(context, sha256)
        planned = PlannedRelease.load(file)
        if planned.digest != sha256:
            raise StorageError(
                f"plan {file} is not the one that release {row.release_id} was reserved for. "
                "Restore it from a copy"
            )
        return planned

    @staticmethod
    def load(file: Path) -> PlannedRelease:
        try:
            return PlannedRelease.model_validate_json(read_regular(file, _MOST, option="plan"))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "file"
            raise InputError(
                f"plan {file} is not a release plan: {field}: {first['msg']}"
            ) from None


def build_plan(
    context: Context,
    candidate: Candidate,
    *,
    request: Request,
    output: Output,
    delta: float | None,
    selection: Selection = Selection(),
    ledger: Mark | None = None,
) -> PlannedRelease:
    """Returns the plan that artifacts give; everything but the request and delta follows from them
    and the ledger.

    Args:
        candidate: names the artifacts; its other fields are read from the stages that made them.
        delta: of a formal claim.
        selection: how the fit was chosen, by the ledger.
    """
    from tasks.fitting import fits  # brings torch, which a reader of plans does without

    store = context.store
    facts = store.figures(candidate.dataset)
    ingest = store.recipe(candidate.dataset)["config"]["ingest"]
    recipe, folder = store.recipe(candidate.fitted), store.open(candidate.fitted)
    planned = fits.plan_of(folder)
    event, untold = test_half.parallel_event(
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


def _public_stages(context: Context, candidate: Candidate) -> tuple[str, ...]:
    from tasks.fitting.prior import lexicon_of  # brings torch

    with context.copying(named=None) as own:
        lexicon_of(own, candidate.model, load_codes(own.store.open(candidate.dataset)))
        return () if own.copies is None else tuple(sorted(own.copies.found))


def own_candidate(context: Context, planned: PlannedRelease) -> Candidate:
    """Returns the candidate of a release with the copies of its encoder's files that this process
    made. Each is read once; an encoder that comes with the program, or from the hub, stays.

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
        raise StorageError(
            f"encoder {name_of(encoder)}: its files are not the planned ones. Restore them, or plan "
            "again"
        )
    model = candidate.model.model_copy(update={"encoder": str(folder)})
    return candidate.model_copy(update={"model": model})


def _as_recorded(
    recipe: Mapping[str, Any], candidate: Candidate, settled: Mapping[str, Any]
) -> Candidate:
    config, inputs = recipe["config"], recipe["inputs"]
    recorded: dict[str, Any] = {
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
            f"release plan: {', '.join(different)}: not what ran and was measured. Plan again"
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


def _lines_of(branch: str) -> list[str]:
    return branch_bodies().get(branch, {}).get("unprotected", [])


def _fit(row: Evaluated) -> str:
    artifacts = row.evaluation.artifact_digests
    return (
        artifacts.get("fit")
        or artifacts.get("posterior")
        or str(row.evaluation.idempotency_key or row.sequence)
    )


def _branch(row: Evaluated) -> str:
    subject = row.evaluation.subject
    return subject.branch if isinstance(subject, ComparisonFit) else RELEASE_BRANCH


def _has_settings(fitted: Any, branch: Mapping[str, Any]) -> bool:
    """Anyone who fits with a branch's settings, on features or on tokens, has them from there,
    under whatever name.
    """
    mechanism = settings_of(branch)
    return any(_holds(way, fitted) for way in (mechanism, mechanism | branch.get("on_tokens", {})))


def _holds(settings: Any, configuration: Any) -> bool:
    if isinstance(settings, Mapping):
        return isinstance(configuration, Mapping) and all(
            n in configuration and (v is None or _holds(v, configuration[n]))
            for n, v in settings.items()
        )
    return bool(settings == configuration)
