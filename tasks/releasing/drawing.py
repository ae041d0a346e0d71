"""Draws the sample of a release once, and reads it back after a crash.

A draw exists once its file is in place, and nothing depends on it earlier. The file is put in place
by a link, which fails if one exists, so that there is never a second draw. A sample from before a
crash is accepted if its digest is in the ledger's row, or if this machine signed it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import rfc8785

from mechanisms.privacy.events import ParallelEvent
from storage.code_levels import groups
from storage.datasets import load_codes
from storage.durable import read_regular, write_atomically
from storage.errors import DamagedData, StorageError, WrongState
from storage.ledger import ReleasePlan, ReleaseRow, keys
from storage.ledger.recovery import BEGUN_DRAW, FRESH_DRAW, draw_path, draws
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.samples import Sample
from tasks.running.stage import Context

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_MOST_OF_A_DRAW = 16 << 30
"""Largest size of a sample's file, in bytes."""


def require_undrawn(context: Context, plan: ReleasePlan) -> None:
    from mechanisms.model import checkpoint

    for draw in draws(context.workspace):
        if checkpoint.description(draw).get("plan") == plan.idempotency_key:
            raise StorageError(
                f"plan {plan.idempotency_key[:16]}: its sample is in "
                f"{draw.parent}, but this ledger has no release of it. Use the "
                "ledger that charged it, or choose another release.label",
                kind="sample-of-another-ledger",
            )


@dataclass(frozen=True)
class Draw:
    """A release's sample, in memory, and the digest of its file."""

    sample: Sample
    digest: str


def draw_once(
    context: Context,
    row: ReleaseRow,
    planned: PlannedRelease,
    key: EllipticCurvePrivateKey,
) -> Draw:
    """Returns the sample of a release: the one on disk, or the first one.

    A note is written to disk before a sample or the noise of a table is drawn. If the note exists
    without the sample, no second sample is drawn, because the first may have been read in the
    unfinished file. A fit that is released as it is, without a table, needs no note, because its
    parameters are always the same.
    """
    from mechanisms.model import checkpoint

    release_id = row.release_id
    file = draw_path(context.workspace, release_id)
    fresh, begun = file.with_name(FRESH_DRAW), file.with_name(BEGUN_DRAW)
    if file.is_file() or row.state != "reserved":
        draw = saved_draw(context, file, row, planned, key)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        draw = _unlinked_draw(context, fresh, row, planned, key)
        if draw is None:
            sample = Sample.draw(context, planned, note=partial(_note, begun, release_id))
            content = _signed_draw(sample, row, planned, key)
            write_atomically(fresh, content)
            draw = Draw(sample, hashlib.sha256(content).hexdigest())
        try:
            os.link(fresh, file)
        except FileExistsError:
            raise StorageError(
                f"release {release_id}: another program wrote {file}. Run `autocoder ledger "
                "recover`",
                kind="written-by-another",
            ) from None
        checkpoint.sync(file.parent)
    fresh.unlink(missing_ok=True)
    begun.unlink(missing_ok=True)
    return draw


def _note(begun: Path, release_id: str) -> None:
    from mechanisms.model import checkpoint

    try:
        # guard: test_a_sample_that_was_lost_is_not_taken_again
        begun.open("x").close()
    except FileExistsError:
        raise WrongState(
            f"release {release_id}: the run that sampled it was killed before the "
            "sample was on disk, and a release is never sampled twice. Run "
            "`autocoder ledger recover`, which burns it, and plan again with "
            "another release.label",
            kind="killed-while-sampling",
        ) from None
    checkpoint.sync(begun)
    checkpoint.sync(begun.parent)


def _described(row: ReleaseRow, planned: PlannedRelease) -> dict[str, str]:
    return {
        "release_id": row.release_id,
        "plan": planned.plan.idempotency_key,
        "plan_digest": planned.digest,
    }


def _vouched(sample: Sample, described: Mapping[str, str]) -> bytes:
    """Returns the bytes of a sample that the releasing worker signs."""
    values = {
        name: hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        for name, tensor in sample.tensors.items()
    }
    return rfc8785.dumps({"statement": "autocoder draw", **values, **described})


def _signed_draw(
    sample: Sample, row: ReleaseRow, planned: PlannedRelease, key: EllipticCurvePrivateKey
) -> bytes:
    from mechanisms.model import checkpoint

    described = _described(row, planned)
    signature = keys.sign_bytes(_vouched(sample, described), key)
    return checkpoint.to_bytes(sample.tensors, described | {"signature": signature})


def _unlinked_draw(
    context: Context,
    fresh: Path,
    row: ReleaseRow,
    planned: PlannedRelease,
    key: EllipticCurvePrivateKey,
) -> Draw | None:
    if not fresh.is_file():
        return None
    return saved_draw(context, fresh, row, planned, key)


def saved_draw(
    context: Context,
    file: Path,
    row: ReleaseRow,
    planned: PlannedRelease,
    key: EllipticCurvePrivateKey,
) -> Draw:
    """Reads a sample once. It is accepted by its digest in the ledger's row. Before there is such a
    row, a sample is accepted by the signature of this machine's key, and a fit without a table by
    its parameters.
    """
    from mechanisms.model import checkpoint

    release_id = row.release_id
    if not file.is_file():
        raise DamagedData(
            f"release {release_id}: its sample is gone from {file}. Restore it, or run "
            "`autocoder ledger recover`",
            kind="sample-gone",
        )
    content = read_regular(file, _MOST_OF_A_DRAW)
    digest = hashlib.sha256(content).hexdigest()
    # guard: test_a_sample_that_is_changed_after_it_was_recorded
    if row.draw_digest is not None and digest != row.draw_digest:
        raise DamagedData(
            f"release {release_id}: the sample on disk is not the recorded one. "
            "Run `autocoder ledger recover`",
            kind="another-sample",
        )
    try:
        tensors, described = checkpoint.from_bytes(content)
        sample = Sample.of(tensors, groups=_groups(context, planned))
    except (ValueError, KeyError):
        sample, described = None, {}
    expected = _described(row, planned)
    if sample is None or {name: described.get(name) for name in expected} != expected:
        raise DamagedData(
            f"release {release_id}: {file} is not a sample of the reserved plan. Run "
            "`autocoder ledger recover`",
            kind="not-a-sample",
        )
    # guard: test_weights_of_another_fit_where_the_draw_lies
    planned.candidate.require_draw(context, sample.theta)
    signature, public = str(described.get("signature")), key.public_key()
    random = planned.candidate.is_sampled or sample.table is not None
    recorded = row.draw_digest is not None or not random
    # guard: test_a_sample_that_another_program_put_there
    if not recorded and not keys.verify_bytes(_vouched(sample, expected), signature, public):
        raise DamagedData(
            f"release {release_id}: this machine's key did not sign the sample {file}. Run "
            "`autocoder ledger recover`",
            kind="unsigned-sample",
        )
    return Draw(sample, digest)


def _groups(context: Context, planned: PlannedRelease) -> int | None:
    if not isinstance(planned.plan.event, ParallelEvent):
        return None
    codes = load_codes(context.store.open(planned.candidate.dataset))
    return len(groups(codes)[0])
