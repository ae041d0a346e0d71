"""What can be refused in the first second, before an hour of training: files, columns, encoder, ledger, disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from prefect.runtime import deployment

from mechanisms.errors import MechanismError
from mechanisms.model import classifier
from storage.demo_data import is_demo_data
from storage.errors import InputError, StorageError
from storage.ingest import SPLITS, check_source
from storage.ledger import Ledger, Policy
from tasks.fitting import data
from tasks.fitting.risks import precision
from tasks.parameters import DEMO, RetrainParameters
from tasks.releasing import code_lists, publish
from tasks.releasing.claims import ledger_url
from tasks.releasing.estimate import DEVICES, Estimate
from tasks.running import timings
from tasks.running.provenance import provenance
from tasks.running.shard_runs import ShardRuns
from tasks.running.shards import place_of
from tasks.running.stage import Context

_MARGIN = 200 << 20
"""Bytes kept free beyond what the stages write."""


def check(context: Context, parameters: RetrainParameters, *, to_release: bool = False) -> Estimate:
    """Refuse what cannot work; return what it would take.

    Args:
        to_release: the run plans a release, or makes one. What only measures needs neither budget nor approval.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    if parameters.release.policy and not Path(parameters.release.policy).expanduser().is_file():
        raise InputError(f"release.policy: no file {parameters.release.policy}")
    for name, file in parameters.data.codelists.items():
        if parameters.model.prior == "titles" and file is None:
            option = f"data.ingest.fields.{name}.codelist" if name else "--codelist"
            raise InputError(f"model.prior: `titles` are the code list's: give {option}, or --prior none")
    device = check_device(context)
    context.store.check()
    _check_shards(context, parameters)
    estimate = estimated(context, parameters, device=device)
    _check_demo(parameters)
    _check_ledger(context, parameters, to_release=to_release)
    if to_release:
        _check_release(context, parameters)
    existing = next(p for p in (context.workspace.home, *context.workspace.home.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < estimate.disk_bytes + _MARGIN:
        raise StorageError(
            f"disk: {existing} has {free / 1e9:.1f} GB free, this run writes about {estimate.disk_bytes / 1e9:.1f} GB; "
            "free space, lower swag.rank, or choose another --home"
        )
    return estimate


def estimated(
    context: Context, parameters: RetrainParameters, *, device: str, sampled: Mapping[str, int] | None = None
) -> Estimate:
    """What a retrain would take.

    Args:
        sampled: records by split, of who has read every row; else what an earlier ingest of the same file found, and
            where there was none a guess from the first megabyte.

    Raises:
        InputError: names the file, column or row and what to do.
    """
    source = check_source(parameters.source_path, parameters.data.ingest, parameters.codelist_path)
    done = None if sampled is not None else data.ingest(parameters.data).find(context.store)
    if done is not None:
        figures = context.store.figures(done)
        sampled = {name: figures[name] for name in SPLITS[:2]}
    return Estimate.of(
        parameters,
        rows=source.estimated_rows,
        features=source.features,
        device=device,
        timed=timings.read(context.workspace.private),
        sampled=sampled,
    )


def check_device(context: Context) -> str:
    """`cpu` or `cuda`.

    Raises:
        MechanismError: there is no such device.
    """
    try:
        kind = classifier.device_of(context.device).type
    except RuntimeError:
        kind = ""
    if kind not in DEVICES:
        raise MechanismError(f"device: `{context.device}` is not known; use auto, cpu or cuda")
    if kind == "cuda" and not _has_cuda():
        raise MechanismError("device: `cuda` was asked for, but torch sees no CUDA device; use `cpu` or `auto`")
    return kind


def _check_demo(parameters: RetrainParameters) -> None:
    """The population of the invented narratives, which is released at once and under no policy, is theirs alone."""
    if parameters.data.population == DEMO and not is_demo_data(parameters.source_path):
        raise InputError(
            f"--population (data.population): {parameters.source_path.name} is not what `autocoder demo-data` writes, "
            f"and the population {DEMO} is of that alone; say whose records these are: --population NAME"
        )


def _check_shards(context: Context, parameters: RetrainParameters) -> None:
    """Shards can be asked for, and would come out as in one process."""
    if context.fan_out.shards == 1:
        return
    if precision(parameters.model, parameters.pseudo_posterior) != "float32":
        raise InputError(
            "fan_out.shards: a risk pass in bfloat16 (pseudo_posterior.precision, model.precision) looks again at what "
            "is near the maximum over all draws, which no shard knows; use float32 with shards"
        )
    with ShardRuns.at(context.fan_out.deployment, place_of(context)):
        pass


def _check_ledger(context: Context, parameters: RetrainParameters, *, to_release: bool) -> None:
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
    if not to_release or (parameters.data.ingest.kind != "text" and not wanted.enabled):
        return
    if policy.populations.get(parameters.data.population, policy.default) is None:
        raise InputError(
            f"data.population: policy {policy.name} has no budget for {parameters.data.population}; "
            f"it knows {', '.join(sorted(policy.populations)) or 'none'}"
        )
    if wanted.enabled and wanted.deployment is None:
        _check_at_once(policy)
    if policy.require_clean_code and provenance().code_dirty:
        raise InputError(f"policy {policy.name} releases only from committed code; commit the changes first")


def _check_at_once(policy: Policy) -> None:
    """Nothing that the policy wants of the plan can be there when the training ends."""
    wanted = [policy.approvals.wanted] if policy.approvals.minimum else []
    wanted += ["an audit"] if policy.require_audit else []
    if wanted:
        raise InputError(
            f"release.enabled: policy {policy.name} asks for {' and '.join(wanted)} of the plan, which there is after "
            "the training; leave --release out (or give --plan-only), and go on with `autocoder audit PLAN`, "
            "`autocoder approve PLAN` and `autocoder release PLAN`"
        )


def _check_release(context: Context, parameters: RetrainParameters) -> None:
    """What a release of this run's plan needs. A deployment hands its plan to another, whose worker alone signs."""
    wanted, kind = parameters.release, parameters.data.ingest.kind
    if wanted.enabled and kind != "text":
        raise InputError(
            f"release.enabled: a model on `{kind}` data has no bundle yet: compare and audit it, and leave --release "
            "out"
        )
    if kind != "text":
        return
    if wanted.enabled:
        _check_lists(context, parameters)
    if wanted.deployment is not None:
        return
    if wanted.enabled and deployment.id and parameters.data.population != DEMO:
        raise InputError(
            f"release.deployment: a deployment releases the population {DEMO} alone by itself; name the deployment "
            "that waits for approvals and signs (release/release), or switch release.enabled off"
        )
    publish.check(context, wanted)


def _check_lists(context: Context, parameters: RetrainParameters) -> None:
    """What the gate would refuse at the end, as far as it is certain before the records are ingested."""
    dataset = data.ingest(parameters.data).find(context.store)
    if publish.standing(context, parameters, dataset) is None:  # one that is there passed the gate, or is past it
        code_lists.require(parameters, code_lists.of_parameters(context, parameters))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
