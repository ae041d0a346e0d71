"""What went to whom, and what was taken back: rows of the ledger, and the revocations of a root."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import of_kind
from releases import release_key
from sealed_bundle import Sealed, plan

from storage.bundle.folder import UnsoundBundle
from storage.bundle.registry import (
    hand_over,
    record_revocation,
    require_committed,
    revoked_releases,
)
from storage.bundle.trust import Root, with_next_root
from storage.errors import InputError, StorageError
from storage.ledger import Ledger, ReleaseRow
from storage.ledger.entries import HandedOver, Row
from storage.ledger.report import partners_of


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", key=release_key())


def released(ledger: Ledger, key: str = "first") -> ReleaseRow:
    """A committed release."""
    row = ledger.reserve(plan(key))
    assert row.release_id
    ledger.mark_drawn(row.release_id, draw_digest="d" * 64)
    return ledger.commit(row.release_id, bundle_digest="b" * 64)


def handovers(ledger: Ledger) -> list[str]:
    rows = (row.entry for row in ledger.rows() if isinstance(row, Row))
    return [entry.release_id for entry in rows if isinstance(entry, HandedOver)]


def to(partner: str, ledger: Ledger, row: ReleaseRow, place: Path) -> Row[HandedOver]:
    """Hand a bundle of one file over."""
    bundle = place / "bundles" / str(row.release_id)
    bundle.mkdir(parents=True, exist_ok=True)
    (bundle / "LICENSE").write_text("free")
    wanted: Any = {"partner": partner, "requester": "r", "check": lambda packed: None}
    return hand_over(ledger, row, bundle, place / "outbox", **wanted)[1]


def test_handovers_are_rows_of_the_ledger(ledger: Ledger, tmp_path: Path) -> None:
    """Each partner once, on any day, charged nothing, and the chain stays sound; all of a partner's
    name counts.
    """
    row = released(ledger)
    first = to("Statistics Office", ledger, row, tmp_path)
    again = to(" Statistics Office ", ledger, row, tmp_path)
    to("Labour Office", ledger, row, tmp_path)
    to("A" * 199 + "B", ledger, row, tmp_path)
    to("A" * 199 + "C", ledger, row, tmp_path)
    assert first == again
    assert partners_of(ledger, str(row.release_id)) == [
        "A" * 199 + "B",
        "A" * 199 + "C",
        "Labour Office",
        "Statistics Office",
    ]
    assert handovers(ledger) == [row.release_id] * 4
    assert ledger.verify().ok
    assert [path.name for path in (tmp_path / "outbox").iterdir()] == [f"{row.release_id}.tar.zst"]


def test_a_handover_taken_up_on_another_day_is_the_same_row(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever day a command reads, should it read any."""
    row = released(ledger)
    first = to("Statistics Office", ledger, row, tmp_path)
    later = SimpleNamespace(now=lambda _: datetime(2100, 1, 1, tzinfo=UTC))
    monkeypatch.setattr("storage.bundle.registry.datetime", later, raising=False)
    assert to("Statistics Office", ledger, row, tmp_path) == first


@pytest.mark.parametrize(
    "step", ["storage.bundle.registry.pack", "storage.ledger.Ledger.note", "pathlib.Path.replace"]
)
def test_no_archive_that_the_ledger_does_not_know_of(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whichever step fails; the same command then makes it good."""
    row = released(ledger)

    def fails(*_: object) -> None:
        raise StorageError("the ledger is locked", kind="locked")

    with monkeypatch.context() as patch:
        patch.setattr(step, fails)
        with pytest.raises(StorageError, check=of_kind("locked")):
            to("Statistics Office", ledger, row, tmp_path)
    assert not list((tmp_path / "outbox").iterdir())
    to("Statistics Office", ledger, row, tmp_path)
    assert handovers(ledger) == [row.release_id]
    assert len(list((tmp_path / "outbox").iterdir())) == 1


def test_a_revoked_release(ledger: Ledger, sealed: Sealed, tmp_path: Path) -> None:
    """The next root names it, with the reason, and is not shared any more; a second revocation is
    the first.
    """
    row = released(ledger)
    assert row.release_id
    to("Statistics Office", ledger, row, tmp_path)
    first = record_revocation(
        ledger, row.release_id, reason="an error in the code list", requester="r"
    )
    assert (
        record_revocation(ledger, row.release_id, reason="another reason", requester="r") == first
    )
    key = sealed.key
    root = with_next_root(
        (Root.first(key.public_key()),), revoked=revoked_releases(ledger), days=9
    )[-1]
    assert [one.release_id for one in root.revoked] == [row.release_id]
    with pytest.raises(StorageError, check=of_kind("revoked-release")):
        require_committed(ledger, row.release_id, tmp_path)
    with pytest.raises(
        UnsoundBundle, check=of_kind("revoked-bundle", saying="an error in the code list")
    ):
        root.check(row.release_id, "0" * 64, None)
    with pytest.raises(UnsoundBundle, check=of_kind("revoked-bundle")):
        root.check("renamed", "b" * 64, None)
    root.check("another", "0" * 64, None)


def test_only_what_left_can_be_revoked(ledger: Ledger) -> None:
    """A reserved release has no bundle; and a reason is needed, since partners read it."""
    row = ledger.reserve(plan("only reserved"))
    assert row.release_id
    with pytest.raises(StorageError, check=of_kind("not-committed")):
        record_revocation(ledger, row.release_id, reason="why", requester="r")
    with pytest.raises(StorageError, check=of_kind("uncommitted-release")):
        require_committed(ledger, row.release_id, Path())
    with pytest.raises(InputError, check=of_kind("reason-length")):
        record_revocation(ledger, row.release_id, reason=" ", requester="r")
