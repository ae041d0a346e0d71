"""A planned fit and the release in use answer the same records: equal parameters agree, field by field."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sealed_bundle import Sealed

from mechanisms.model import checkpoint
from storage.errors import InputError, StorageError
from tasks.coding import succession
from tasks.fitting import data
from tasks.fitting.candidate import Candidate
from tasks.running.stage import Context, Step, Work, run_step


def _fit(bundle: Sealed, home: Path, *, noise: float) -> tuple[Context, Candidate]:
    """A fit on the bundle's records, in a workspace of its own; without noise it has the bundle's parameters."""
    context = Context(home=str(home), device="cpu")
    context.workspace.create()
    made = bundle.candidate

    def body(work: Work) -> dict[str, Any]:
        theta = made.build_untrained(bundle.context).flat.clone()
        theta += torch.randn(theta.shape, generator=torch.Generator().manual_seed(1))  # as the bundle was made
        theta += noise * torch.randn(theta.shape, generator=torch.Generator().manual_seed(2))
        checkpoint.save(work.out / "theta.safetensors", {"theta": theta}, {})
        return {}

    fitted = run_step(context, Step("fit", "fit", {"noise": noise}, {}, body, modules=("tasks.fitting.candidate",)))
    prepared = run_step(context, data.prepare(made.model, made.dataset))
    return context, made.model_copy(update={"fitted": fitted, "prepared": prepared})


def _pages(context: Context, candidate: Candidate, bundle: Sealed) -> dict[str, str]:
    step = succession._step(candidate, bundle.folder, str(bundle.row.bundle_digest))
    place = context.store.open(run_step(context, step))
    return {page.stem: page.read_text() for page in sorted(place.glob("*.html"))}


@pytest.mark.parametrize(("name", "pages"), [("sealed", ["page"]), ("joint", ["page-event", "page-nature"])])
def test_equal_parameters_agree_on_every_record(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, pages: list[str]
) -> None:
    """One reads prepared inputs, the other texts: agreement says that records, fields and codes are in one order.

    Other parameters do not agree, so that the test could fail.
    """
    bundle: Sealed = request.getfixturevalue(name)
    same = _pages(*_fit(bundle, tmp_path / "same", noise=0.0), bundle)
    assert list(same) == pages
    for text in same.values():
        assert "They agree on 100.0%" in text
        assert "held-out records of this plan" in text
        assert not any(narrative in text for narrative in bundle.narratives)
    other = _pages(*_fit(bundle, tmp_path / "other", noise=2.0), bundle)
    for text in other.values():
        found = re.search(r"They agree on ([\d.]+)%", text)
        assert found is not None
        assert float(found[1]) < 95


def test_what_cannot_be_compared_is_refused(sealed: Sealed, joint: Sealed, tmp_path: Path) -> None:
    """A changed bundle, other fields."""
    context, candidate = _fit(sealed, tmp_path, noise=0.0)
    with pytest.raises(StorageError, match="is not the committed one"):
        run_step(context, succession._step(candidate, sealed.folder, "0" * 64))
    with pytest.raises(InputError, match="they code different fields"):
        run_step(context, succession._step(candidate, joint.folder, str(joint.row.bundle_digest)))


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
