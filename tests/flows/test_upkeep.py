"""The nightly check of the ledger, called as its deployment calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from flows.ledger_verify import ledger_verify
from storage.errors import StorageError
from storage.ledger import Ledger, Policy
from storage.paths import Workspace


def test_a_row_cut_off_since_the_night_before_is_found(tmp_path: Path) -> None:
    """From inside the ledger a cut tail cannot be seen; the head that the last check kept shows it."""
    workspace = Workspace(tmp_path / "home").create()
    ledger = Ledger.open(workspace.ledger_url)
    for epsilon in (5, 6, 7):
        policy = Policy.parse({"name": f"p{epsilon}", "default": {"asymptotic-local": {"epsilon": epsilon}}})
        ledger.change_policy(policy, requester="lead", reason="test")
    assert ledger_verify.fn(home=str(workspace.home)).rows == 3
    assert ledger_verify.fn(home=str(workspace.home)).sequence == 3, "again changes nothing"
    engine = sa.create_engine(workspace.ledger_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER ledger_row_no_delete")
        connection.exec_driver_sql("DELETE FROM ledger_row WHERE sequence = 3")
    engine.dispose()
    assert Ledger.open(workspace.ledger_url).verify().ok, "the ledger alone does not tell"
    with pytest.raises(StorageError, match="row 3 missing"):
        ledger_verify.fn(home=str(workspace.home))
