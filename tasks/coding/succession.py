"""Compares a planned release with the release in use, on held-out records, before anyone decides on it.

The pages hold figures by code that were computed from records without protection. They lie in the private folder next
to the plan. The plan's page names them; Prefect gets their path, and neither a figure nor a code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanisms.model import checkpoint
from mechanisms.model.calibration import coded_alone
from mechanisms.model.classifier import Classifier
from mechanisms.model.seeding import generator
from mechanisms.posterior import risks, swag
from storage.artifacts import ArtifactRef
from storage.bundle.folder import bundle_digest
from storage.datasets import load_codes, load_labels, load_table
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ledger import Row
from storage.ledger.reader import LedgerReader
from tasks.coding.coder import Coder, open_bundle
from tasks.coding.successor import Answers, compare
from tasks.fitting.candidate import Candidate
from tasks.fitting.model_inputs import build, load_inputs
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.plan_page import succession_file
from tasks.running.failures import SAFE
from tasks.running.stage import Context, Step, Work

_MOST = 5_000
"""Held-out records that both models answer."""
_PAGE = "page.html"
BASIS = (
    "Both models coded the same held-out records of this plan, which also stand for the records without codes. The "
    "release in use may have been trained on some of them: it then looks better than it is. Where the plan is a "
    "posterior, the new model is one seeded draw from it, not the one that would be released."
)


def release_in_use(planned: PlannedRelease, ledger: LedgerReader) -> Row | None:
    """Returns the newest committed release of the plan's population that is not revoked; None without one."""
    rows = ledger.current()
    revoked = {row.release_id for row in rows if row.kind == "revocation"}
    committed = [
        row
        for row in rows
        if row.kind == "release"
        and row.state == "committed"
        and row.population == planned.plan.population
        and row.release_id not in revoked
    ]
    return max(committed, key=lambda row: row.sequence, default=None)


def compare_with_release(
    context: Context, planned: PlannedRelease, ledger: LedgerReader, do: Callable[[Step], ArtifactRef]
) -> str | None:
    """Writes the pages of a plan that has a predecessor here and is not released; returns a warning if it cannot."""
    earlier = release_in_use(planned, ledger)
    if earlier is None or ledger.release_of(planned.plan) is not None or not planned.has_bundle(context.store):
        return None
    release = str(earlier.release_id)
    folder = context.workspace.bundles / release
    if not folder.is_dir():
        return (
            f"release {release}, now in use, has no bundle in {context.workspace.bundles}: not compared with the plan"
        )
    try:
        output = do(_step(planned.candidate, folder, str(earlier.bundle_digest)))
        page = context.store.open(output) / _PAGE
        write_atomically(succession_file(context, planned), page.read_bytes())
    except SAFE as error:
        return f"the plan was not compared with release {release}, now in use: {error}"
    return None


def _step(candidate: Candidate, bundle: Path, digest: str) -> Step:
    """Declares the comparison."""
    return Step(
        name="successor",
        label="successor",
        config={
            "bundle": digest,
            "model": candidate.model.model_dump(mode="json"),
            "seed": candidate.seed,
            "std_scale": candidate.std_scale,
            "draw": candidate.measured is not None,
            "records": _MOST,
        },
        inputs={"dataset": candidate.dataset, "prepared": candidate.prepared, "fitted": candidate.fitted},
        body=partial(_compare, candidate=candidate, bundle=bundle, digest=digest),
        modules=("tasks.coding.succession",),
    )


def _compare(work: Work, *, candidate: Candidate, bundle: Path, digest: str) -> Mapping[str, Any]:
    if bundle_digest(bundle) != digest:
        raise StorageError(f"bundle {bundle} is not the committed one. Restore it")
    earlier = open_bundle(bundle)
    dataset = work.inputs["dataset"]
    codes, table = [code.code for code in load_codes(dataset)], load_table(dataset, "test")
    facts = work.context.store.figures(candidate.dataset)
    named = f"{facts.get('classification', '')} {facts.get('classification_version', '')}".strip()
    if named and f"{earlier.classification} {earlier.version}" != named:
        raise InputError("they code different versions of a classification")
    if 2 * len(set(codes) & set(earlier.model.codes)) < min(len(codes), len(earlier.model.codes)):
        raise InputError("they code different fields. Compare the bundles of one field after the release")
    records, labels = load_inputs(work.inputs["prepared"], "test")
    if not np.array_equal(load_labels(dataset, "test"), labels.numpy()):
        raise StorageError("the prepared records are not those of the data set. Run the retrain again")
    model = _model(work, candidate)
    order = torch.randperm(len(labels), generator=generator(candidate.seed, "successor"))[:_MOST].sort().values
    work.sized(2 * len(order))
    logits = model.predict(records)[order]
    chosen = table.take(order.numpy())
    texts, cohorts = chosen.column("text").to_pylist(), np.array(chosen.column("cohort").to_pylist(), dtype=str)
    answered = _answers(earlier, texts, logits, codes, labels[order], cohorts)
    page = replace(compare(earlier.release, "the planned release", answered, answered), basis=BASIS).page()
    write_atomically(work.out / _PAGE, page.encode())
    return {"records": len(order)}


def _model(work: Work, candidate: Candidate) -> Classifier:
    """Builds the fit that would be released; of a posterior the draw that `evaluate` scores too."""
    model = build(work.context, candidate.model, work.inputs["dataset"], seed=candidate.seed)
    if candidate.measured is None:
        model.flat.copy_(checkpoint.load(work.inputs["fitted"] / "theta.safetensors")[0]["theta"])
    else:
        posterior = swag.load(work.inputs["fitted"], std_scale=candidate.std_scale)
        risks.load_draw(model, posterior, seed=candidate.seed, purpose="evaluate", draw=0)
    return model


def _answers(
    old: Coder, texts: list[str], logits: Tensor, codes: list[str], right: Tensor, cohorts: np.ndarray
) -> Answers:
    """Returns what the release in use and the planned one answer; `right` are indices into `codes`."""
    before = old.scores(texts)
    names = np.array(codes)[right.numpy()]
    place = {code: at for at, code in enumerate(old.model.codes)}
    known = torch.tensor([place.get(code, -1) for code in names.tolist()])
    return Answers(
        old=np.array(old.model.codes)[before.argmax(-1)],
        new=np.array(codes)[logits.argmax(-1).numpy()],
        right=names,
        groups=cohorts,
        alone=(
            coded_alone(torch.from_numpy(before).double().log(), known) if bool((known >= 0).any()) else {},
            coded_alone(logits.double().log_softmax(-1), right),
        ),
    )
