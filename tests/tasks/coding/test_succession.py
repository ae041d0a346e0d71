"""A planned fit and the release in use answer the same records: equal parameters agree."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sealed_bundle import Sealed

from mechanisms.model import checkpoint
from storage.bundle.folder import bundle_digest
from storage.errors import InputError, StorageError
from tasks.coding import succession
from tasks.fitting import data
from tasks.fitting.candidate import Candidate
from tasks.running.stage import Context, Step, Work, run_step


def _fit(bundle: Sealed, home: Path, *, noise: float) -> tuple[Context, Candidate]:
    """A fit on the bundle's records, in a workspace of its own; without noise it has the bundle's parameters."""
    context = Context(home=str(home), device="cpu")
    context.workspace.create()
    given = bundle.candidate
    shutil.copytree(given.dataset.path, context.store.private / "stages" / given.dataset.kind / given.dataset.path.name)
    made = given.model_copy(update={"dataset": context.store.adopt(given.dataset)})

    def body(work: Work) -> dict[str, Any]:
        theta = made.build_untrained(bundle.context).flat.clone()
        theta += torch.randn(theta.shape, generator=torch.Generator().manual_seed(1))  # as the bundle was made
        theta += noise * torch.randn(theta.shape, generator=torch.Generator().manual_seed(2))
        checkpoint.save(work.out / "theta.safetensors", {"theta": theta}, {})
        return {}

    fitted = run_step(context, Step("fit", "fit", {"noise": noise}, {}, body, modules=("tasks.fitting.candidate",)))
    prepared = run_step(context, data.prepare(made.model, made.dataset))
    return context, made.model_copy(update={"fitted": fitted, "prepared": prepared})


def _page(context: Context, candidate: Candidate, bundle: Path, digest: str) -> str:
    step = succession._step(candidate, bundle, digest)
    return (context.store.open(run_step(context, step)) / "page.html").read_text()


def test_equal_parameters_agree_on_every_record(sealed: Sealed, tmp_path: Path) -> None:
    """One reads prepared inputs, the other texts: agreement says that records and codes are in one order.

    Other parameters do not agree, so that the test could fail.
    """
    known = (sealed.folder, str(sealed.row.bundle_digest))
    text = _page(*_fit(sealed, tmp_path / "same", noise=0.0), *known)
    assert "They agree on 100.0%" in text
    assert "held-out records of this plan" in text
    assert not any(narrative in text for narrative in sealed.narratives)
    found = re.search(r"They agree on ([\d.]+)%", _page(*_fit(sealed, tmp_path / "other", noise=2.0), *known))
    assert found is not None
    assert float(found[1]) < 95


def test_what_cannot_be_compared_is_refused(sealed: Sealed, tiny_bundle: Path, tmp_path: Path) -> None:
    """A changed bundle, and one that codes another field: few of its codes are the planned release's."""
    context, candidate = _fit(sealed, tmp_path, noise=0.0)
    with pytest.raises(StorageError, match="is not the committed one"):
        run_step(context, succession._step(candidate, sealed.folder, "0" * 64))
    other = Path(shutil.copytree(tiny_bundle, tmp_path / "other"))
    codes = [f"9{at}" for at in range(6)]
    (other / "labels.json").write_text(json.dumps({"codes": codes}))
    rows = [f"{code},,OIICS,2.01" for code in codes]
    (other / "codelist.csv").write_text("\n".join(["code,title,classification,version", *rows]) + "\n")
    with pytest.raises(InputError, match="they code different fields"):
        run_step(context, succession._step(candidate, other, bundle_digest(other)))


def test_the_release_in_use_is_the_newest_of_its_population() -> None:
    """Revoked ones, uncommitted ones and those of others do not count."""

    def row(sequence: int, release: str, **changes: Any) -> Any:
        usual = {"kind": "release", "state": "committed", "population": "demo"}
        return SimpleNamespace(sequence=sequence, release_id=release, **(usual | changes))

    rows = [
        row(1, "a"),
        row(2, "b"),
        row(3, "c"),
        row(4, "d", population="other"),
        row(5, "e", state="drawn"),
        row(6, "c", kind="revocation", state="internal"),
    ]
    ledger: Any = SimpleNamespace(current=lambda: rows)
    planned: Any = SimpleNamespace(plan=SimpleNamespace(population="demo"))
    found = succession.release_in_use(planned, ledger)
    assert found is not None
    assert found.release_id == "b"
    rows.clear()
    assert succession.release_in_use(planned, ledger) is None
