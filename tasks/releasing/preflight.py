"""What can be refused in the first second, before an hour of training: files, columns, encoder, ledger, disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from prefect.runtime import deployment

from mechanisms.errors import MechanismError
from mechanisms.model import classifier, encoders
from storage.errors import InputError, StorageError
from storage.ingest import check_source
from storage.ledger import Ledger, Policy
from tasks.fitting.risks import precision
from tasks.fitting.shard_runs import ShardRuns
from tasks.parameters import DEMO, RetrainParameters
from tasks.releasing import publish
from tasks.releasing.claims import ledger_url
from tasks.running.provenance import provenance
from tasks.running.stage import Context

_MARGIN = 200 << 20
"""Bytes kept free beyond what the stages write."""


@dataclass(frozen=True)
class Estimate:
    """What a run would take, roughly."""

    records: int
    parameters: int
    disk_bytes: int
    seconds: float


def check(context: Context, parameters: RetrainParameters) -> Estimate:
    """Refuse what cannot work; return what it would take.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    if parameters.release.policy and not Path(parameters.release.policy).expanduser().is_file():
        raise InputError(f"release.policy: no file {parameters.release.policy}")
    if parameters.model.prior == "titles" and parameters.data.codelist is None:
        raise InputError("model.prior: `titles` are the code list's: give --codelist, or --prior none")
    device = check_device(context)
    context.store.check()
    _check_shards(context, parameters)
    source = check_source(parameters.source_path, parameters.data.ingest, parameters.codelist_path)
    _check_ledger(context, parameters)
    _check_release(context, parameters)
    estimate = _estimate(parameters, rows=source.estimated_rows, features=source.features, device=device)
    existing = next(p for p in (context.workspace.home, *context.workspace.home.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < estimate.disk_bytes + _MARGIN:
        raise StorageError(
            f"disk: {existing} has {free / 1e9:.1f} GB free, this run writes about {estimate.disk_bytes / 1e9:.1f} GB; "
            "free space, lower swag.rank, or choose another --home"
        )
    return estimate


def check_device(context: Context) -> str:
    """`cpu` or `cuda`.

    Raises:
        MechanismError: there is no such device.
    """
    try:
        kind = classifier.device_of(context.device).type
    except RuntimeError:
        kind = ""
    if kind not in _ENCODE_PER_SECOND:
        raise MechanismError(f"device: `{context.device}` is not known; use auto, cpu or cuda")
    if kind == "cuda" and not _has_cuda():
        raise MechanismError("device: `cuda` was asked for, but torch sees no CUDA device; use `cpu` or `auto`")
    return kind


def _check_shards(context: Context, parameters: RetrainParameters) -> None:
    """Shards can be asked for, and would come out as in one process."""
    if context.fan_out.shards == 1:
        return
    if precision(parameters.model, parameters.pseudo_posterior) != "float32":
        raise InputError(
            "fan_out.shards: a risk pass in bfloat16 (pseudo_posterior.precision, model.precision) looks again at what "
            "is near the maximum over all draws, which no shard knows; use float32 with shards"
        )
    with ShardRuns.at(context):
        pass


def _check_ledger(context: Context, parameters: RetrainParameters) -> None:
    """The policy can be read, has a cap for this population, its approvals can be had; the ledger opens.

    Whether the budget suffices is known only when the cost is.
    """
    wanted = parameters.release
    policy = Policy.load(Path(wanted.policy).expanduser()) if wanted.policy else None
    url = ledger_url(context, parameters.release)
    if not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).exists():
        ledger = Ledger.open(url, policy=policy)
        in_force = ledger.policy()
        if wanted.supersedes is not None:
            ledger.release(wanted.supersedes)
        if policy is not None and policy.digest != in_force.digest:
            raise InputError(
                f"release.policy: {wanted.policy} is not the policy in force ({in_force.name}); "
                "record it with `autocoder ledger change-policy`, or leave release.policy empty"
            )
        policy = in_force
    elif wanted.supersedes is not None:
        raise InputError(f"release.supersedes: {wanted.supersedes} is not in this ledger, which is not there yet")
    policy = policy or Policy.load(None)
    if not wanted.enabled:
        return
    if policy.populations.get(parameters.data.population, policy.default) is None:
        raise InputError(
            f"data.population: policy {policy.name} has no budget for {parameters.data.population}; "
            f"it knows {', '.join(sorted(policy.populations)) or 'none'}"
        )
    if policy.approvals.minimum and wanted.deployment is None:
        raise InputError(
            f"release.enabled: policy {policy.name} asks for {policy.approvals.minimum} signed approvals of the plan, "
            "which there is after the training; set release.enabled=false and go on with `autocoder approve` and "
            "`autocoder release`, or name the deployment that waits for them (release.deployment=release/release)"
        )
    if policy.require_clean_code and provenance().code_dirty:
        raise InputError(f"policy {policy.name} releases only from committed code; commit the changes first")


def _check_release(context: Context, parameters: RetrainParameters) -> None:
    """What a release in this very run needs. A deployment hands its plan to another, whose worker alone signs."""
    wanted, kind = parameters.release, parameters.data.ingest.kind
    if wanted.enabled and kind != "text":
        raise InputError(
            f"release.enabled: a model on `{kind}` data has no bundle yet: compare and audit it, or set "
            "release.enabled=false"
        )
    if not wanted.enabled or wanted.deployment is not None:
        return
    if deployment.id and parameters.data.population != DEMO:
        raise InputError(
            f"release.deployment: a deployment releases the population {DEMO} alone by itself; name the deployment "
            "that waits for approvals and signs (release/release), or set release.enabled=false"
        )
    publish.check(context, wanted)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


_ENCODE_PER_SECOND = {"cpu": 70.0, "cuda": 4000.0}
_TRAIN_PER_SECOND = {"cpu": 13.0, "cuda": 900.0}
"""Narratives a second for a 23-million-parameter encoder; scaled by size. Rough: printed as such."""
_HEAD_STEPS_PER_SECOND = 3000.0


def _estimate(parameters: RetrainParameters, *, rows: int, features: int | None, device: str) -> Estimate:
    ingest, fit, config = parameters.data.ingest, parameters.fit, parameters.pseudo_posterior
    labels = 100
    records = rows if ingest.cap_per_code is None else min(rows, labels * ingest.cap_per_code)
    train = int(records * (1 - ingest.test_share))
    rounds = 0 if parameters.formal is not None else len(parameters.rounds)
    draws = config.risk_draws + (rounds - 1) * config.sensitivity_draws if rounds else 0
    size, width = (0, features or 1) if parameters.model.pooling == "none" else encoders.shape(parameters.model.encoder)
    scale = size / 23e6
    steps = rounds * (fit.adamw.steps(max(train, 1)) + fit.sgd.steps(max(train, 1)))
    if parameters.model.trainable == "head":
        trained = width * labels
        seconds = records / _ENCODE_PER_SECOND[device] * scale + steps / _HEAD_STEPS_PER_SECOND
        seconds += draws * train * trained / 2e10
        disk = records * width * 4
    else:
        trained = size if parameters.model.trainable == "full" else size // 100
        passes = rounds * (fit.adamw.epochs + fit.sgd.epochs)
        seconds = train * scale * (passes / _TRAIN_PER_SECOND[device] + draws / _ENCODE_PER_SECOND[device])
        disk = 0
    disk += rounds * trained * 4 * (fit.swag.rank + 3) + trained * 16 + size * 4
    return Estimate(records=records, parameters=trained, disk_bytes=int(disk), seconds=15 + seconds)
