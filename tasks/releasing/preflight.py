"""Refuses a run that cannot succeed within its first second, and estimates its time
and disk space.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mechanisms.errors import MechanismError
from mechanisms.mechanism import Workload
from mechanisms.model import devices, encoder_files
from mechanisms.model.config import HASHED_COLUMNS
from storage.errors import Contradiction, InputError, Missing, StorageError, Unknown
from storage.ingest import check_source
from storage.ledger import Ledger
from tasks.fitting.ingest import ingest_figures, ingest_records
from tasks.fitting.prior import INDEX_HEAD, INDEX_TEXTS
from tasks.parameters import RetrainParameters, require_index
from tasks.releasing import publish
from tasks.releasing.ledger_access import given_policy, ledger_url
from tasks.running import engine, timings
from tasks.running.provenance import provenance
from tasks.running.stage import Context

DEVICES = ("cpu", "cuda")
_ENCODE_PER_SECOND = {"cpu": 70.0, "cuda": 4000.0}
_TRAIN_PER_SECOND = {"cpu": 13.0, "cuda": 900.0}
"""Narratives per second for an encoder of 23 million parameters; scaled by size. A rough figure,
and labelled so when printed.
"""
_HEAD_STEPS_PER_SECOND = 3000.0
_PRODUCTS_PER_SECOND = 2e10
_SIDE_BY_SIDE = 5.0
"""Speed-up of a linear head's reruns that are computed as one product instead of one by one."""
_WITNESSED = 3.0
"""Factor on the time of a fit if each of its noisy sums is examined."""
_INDEX_PRODUCTS = 300
"""Products of all entries and weights until a head is fitted to public examples."""
_LABELS, _BATCH = 100, 8
_START = 15.0
"""Seconds for imports and Prefect."""


@dataclass(frozen=True)
class Estimate:
    """A rough estimate of a run's time and size."""

    records: int
    train: int
    parameters: int
    disk_bytes: int
    stages: Mapping[str, float]
    """Seconds of one stage of each kind, at the rough rates."""
    fits: Mapping[str, Workload]
    """Cost of each fit of the run, by stage name."""
    timed: Mapping[str, float]
    """Measured time of stages in this workspace, as a multiple of the rough rates, by kind."""

    @property
    def seconds(self) -> float:
        return _START + self.preparing + sum(map(self.of_kind, self.fits))

    @property
    def preparing(self) -> float:
        """Seconds of encoding, and of a head on public examples, once for all fits."""
        kinds = ("features", INDEX_TEXTS, INDEX_HEAD)
        return sum(self.of_kind(kind) for kind in kinds if kind in self.stages)

    @property
    def measured(self) -> bool:
        """Whether this workspace has timings of these stages."""
        return bool(set(self.timed) & set(self.stages))

    def of_kind(self, kind: str) -> float:
        """Returns the seconds of one stage. A kind without timings is scaled like
        the kinds with timings.
        """
        # encoding scales differently with threads and load, so it is not informative about fits
        usual = sorted(self.timed[name] for name in self.fits if name in self.timed)
        return self.stages[kind] * self.timed.get(kind, usual[len(usual) // 2] if usual else 1.0)

    def of_labels(self, labels: Iterable[str]) -> float:
        """Returns the total seconds of these stages, by their labels."""
        return _START + sum(
            self.of_kind(kind) for kind in map(timings.kind_of, labels) if kind in self.stages
        )

    def with_trials(
        self, labels: Mapping[str, str], *, trials: int, draws: int, batched: Collection[str] = ()
    ) -> Estimate:
        """Adds the stages of an audit's reruns, each with at most `draws` draws for risks and for
        Delta.

        Args:
            labels: labels with the branch that each reruns, including all fits that it continues.
            batched: branches with reruns that are computed side by side.
        """
        seconds = dict.fromkeys(labels.values(), 0.0)
        for name, load in self.fits.items():
            branch = name.partition(": ")[0]
            if branch in seconds:
                seconds[branch] += _seconds(
                    load._replace(draws=min(load.draws, draws)), self.stages
                )
        reruns = {
            label: trials * seconds[branch] / (_SIDE_BY_SIDE if branch in batched else 1)
            for label, branch in labels.items()
        }
        return replace(self, stages=dict(self.stages) | reruns)

    def with_witness(self, kind: str, branch: str) -> Estimate:
        """Adds the audit stage that examines the sums of one more fit, if the
        branch is a single fit.
        """
        return replace(
            self, stages=dict(self.stages) | {kind: _WITNESSED * self.stages.get(branch, 0.0)}
        )

    @staticmethod
    def of(
        parameters: RetrainParameters,
        *,
        rows: int,
        device: str,
        fits: Mapping[str, Workload],
        timed: Mapping[str, float],
        sampled: Mapping[str, int] | None = None,
    ) -> Estimate:
        """Estimates a training run of `rows` rows.

        Args:
            fits: cost of each fit, by stage name.
            sampled: number of records by split, once every row was read. A holdout is neither
                encoded nor trained on.
        """
        ingest = parameters.data.ingest
        if sampled is None:
            records = (
                rows if ingest.cap_per_code is None else min(rows, _LABELS * ingest.cap_per_code)
            )
            train = max(int(records * (1 - ingest.test_share)), 1)
        else:
            records, train = sampled["train"] + sampled["test"], sampled["train"]
        size, width = encoder_files.shape(parameters.model.encoder)
        if parameters.model.lexical != "none":
            width += HASHED_COLUMNS  # about as many as the number of stems in titles
        scale = size / 23e6
        if parameters.model.trainable == "head":
            trained = width * _LABELS
            stages = {
                "features": records / _ENCODE_PER_SECOND[device] * scale,
                "draw": train * trained / _PRODUCTS_PER_SECOND,
                "epoch": train / _BATCH / _HEAD_STEPS_PER_SECOND,
            }
            disk = records * width * 4
        else:
            trained = size if parameters.model.trainable == "full" else size // 100
            stages = {
                "features": 0.0,
                "draw": train * scale / _ENCODE_PER_SECOND[device],
                "epoch": train * scale / _TRAIN_PER_SECOND[device],
            }
            disk = 0
        stages |= _of_index(parameters, width=width, per_second=_ENCODE_PER_SECOND[device] / scale)
        stages |= {name: _seconds(load, stages) for name, load in fits.items()}
        vectors = sum(load.vectors for load in fits.values())
        disk += vectors * trained * 4 + trained * 16 + size * 4
        return Estimate(records, train, trained, int(disk), stages, fits, timed)


def _of_index(parameters: RetrainParameters, *, width: int, per_second: float) -> dict[str, float]:
    """Returns the seconds of a coding index's stages; empty if there is none."""
    index = parameters.data.coding_index
    if index is None:
        return {}
    number, codes = len(index.entries), len({code for _, code in index.entries})
    products = number * width * codes / _PRODUCTS_PER_SECOND
    return {INDEX_TEXTS: number / per_second, INDEX_HEAD: _INDEX_PRODUCTS * products}


def _seconds(load: Workload, stages: Mapping[str, float]) -> float:
    return load.epochs * stages["epoch"] + load.draws * stages["draw"]


_MARGIN = 200 << 20
"""Bytes kept free in addition to the stages' outputs."""


def check(
    context: Context,
    parameters: RetrainParameters,
    fits: Mapping[str, Workload],
    *,
    to_release: bool = False,
) -> Estimate:
    """Refuses a run that cannot succeed, and returns its estimate.

    Args:
        fits: cost of each of its fits, by stage name.
        to_release: whether the run plans or makes a release. Measurements need neither budget nor
            approval.
    """
    if parameters.release.policy and not Path(parameters.release.policy).expanduser().is_file():
        raise Missing(f"release.policy: no file {parameters.release.policy}", kind="no-policy-file")
    if not parameters.data.has_titles:
        if parameters.model.prior == "titles":
            raise Missing(
                "model.prior: `titles` requires a code list. Pass --codelist, or "
                "--set model.prior=none",
                kind="prior-without-list",
            )
        if parameters.model.lexical == "titles" and parameters.model.lexical_titles == "codelist":
            raise Missing(
                "model.lexical: `titles` requires a code list. Pass --codelist, "
                "or set model.lexical=hashed",
                kind="lexicon-without-list",
            )
    require_index(parameters)
    encoder_files.require_length(parameters.model.encoder, parameters.model.max_length)
    device = check_device(context)
    context.store.check()
    engine.check(context.engine)
    estimate = estimate_retrain(context, parameters, fits, device=device)
    _check_ledger(context, parameters, to_release=to_release)
    if to_release:
        _check_release(context, parameters)
    existing = next(
        p for p in (context.workspace.home, *context.workspace.home.parents) if p.exists()
    )
    free = shutil.disk_usage(existing).free
    if free < estimate.disk_bytes + _MARGIN:
        raise StorageError(
            f"disk: {existing} has {free / 1000000000.0:.1f} GB free, but this "
            f"run writes about {estimate.disk_bytes / 1000000000.0:.1f} GB. "
            "Remove files, lower method.moments.rank, or choose another --home",
            kind="disk-space",
        )
    return estimate


def estimate_retrain(
    context: Context,
    parameters: RetrainParameters,
    fits: Mapping[str, Workload],
    *,
    device: str,
    sampled: Mapping[str, int] | None = None,
) -> Estimate:
    """Estimates a training run.

    Args:
        sampled: number of records by split, once every row was read. Otherwise they come from an
            earlier ingest of the file, or are guessed from its first megabyte.
    """
    rows = check_source(parameters.data.sources, parameters.data.ingest, parameters.codelist_path)
    done = None if sampled is not None else ingest_records(parameters.data).find(context.store)
    if done is not None:
        figures = ingest_figures(context.store, done)
        sampled = {"train": figures["train"], "test": figures["test"]}
    return Estimate.of(
        parameters,
        rows=rows,
        device=device,
        fits=fits,
        timed=timings.read(context.workspace.private),
        sampled=sampled,
    )


def check_device(context: Context) -> str:
    kind = devices.kind_of(context.device)
    if kind not in DEVICES:
        raise MechanismError(
            f"device: `{context.device}` does not exist. Use auto, cpu or cuda",
            kind="unknown-device",
        )
    if kind == "cuda" and not devices.has_cuda():
        raise MechanismError(
            "device: torch finds no CUDA device. Use `cpu` or `auto`", kind="no-cuda"
        )
    return kind


def _check_ledger(context: Context, parameters: RetrainParameters, *, to_release: bool) -> None:
    # the budget cannot be checked before the cost is measured
    settings = parameters.release
    policy = given_policy(settings)
    ledger = Ledger.open_existing(ledger_url(context), policy=policy)
    if ledger is not None:
        if settings.supersedes is not None:
            ledger.release(settings.supersedes)
        if settings.policy and policy.digest != ledger.policy().digest:
            raise Contradiction(
                f"release.policy: {settings.policy} is not the current policy "
                f"({ledger.policy().name}). "
                "Record it with `autocoder ledger change-policy`, or leave release.policy empty",
                kind="policy-not-current",
            )
        policy = ledger.policy()
    elif settings.supersedes is not None:
        raise Unknown(
            f"release.supersedes: {settings.supersedes} is not in this ledger, which does not "
            "exist yet",
            kind="nothing-to-supersede",
        )
    if not to_release:
        return
    if policy.populations.get(parameters.data.population, policy.default) is None:
        raise Unknown(
            f"data.population: policy {policy.name} has no budget for "
            f"{parameters.data.population}. "
            f"It has budgets for: {', '.join(sorted(policy.populations)) or 'none'}",
            kind="no-budget",
        )
    required = [policy.approvals.signatures_required] if policy.approvals.minimum else []
    required += ["an audit"] if policy.require_audit else []
    if settings.enabled and settings.deployment is None and required:
        raise Contradiction(
            f"release.enabled: policy {policy.name} requires "
            f"{' and '.join(required)} of the plan, which exists only after "
            "training. Leave --release out (or use --plan-only), and continue "
            "with `autocoder audit PLAN`, `autocoder approve PLAN` and "
            "`autocoder release PLAN`",
            kind="plan-needs-review",
        )
    if policy.require_clean_code and provenance().code_dirty:
        raise InputError(
            f"policy {policy.name} releases only from committed code. Commit the changes first",
            kind="uncommitted-code",
        )


def _check_release(context: Context, parameters: RetrainParameters) -> None:
    settings = parameters.release
    if settings.deployment is not None:  # its worker signs
        return
    if settings.enabled and context.run.deployment:
        raise Contradiction(
            "release.deployment: a deployment that trains does not sign. Specify "
            "the deployment that waits for approvals and signs "
            "(release/release), or switch release.enabled off",
            kind="deployment-signs-nothing",
        )
    publish.check_signing(context, settings)
