"""The ledger that a command reads or writes, and the workspace of a plan."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.commands.options import Home
from flows.server.settings import configure_prefect, home_of, workspace_of
from storage.durable import read_regular
from storage.errors import Unreadable
from storage.paths import Workspace

if TYPE_CHECKING:
    from storage.ledger import Ledger
    from storage.ledger.checkpoints import Checkpoint
    from storage.ledger.journal import Journal
    from tasks.parameters import LedgerParameters
    from tasks.running.stage import Context


@dataclass(frozen=True)
class LedgerOptions:
    home: Home = None

    @property
    def workspace(self) -> Workspace:
        return Workspace(home_of(self.home))

    @property
    def url(self) -> str:
        return os.environ.get("AUTOCODER_LEDGER_URL") or self.workspace.ledger_url

    def journals(self) -> Sequence[Journal]:
        """The journals of the workspace and of the witness, with which the ledger must agree."""
        from storage.ledger.journal import journals_of

        has_journals = self.workspace.private.is_dir() or self.url == self.workspace.ledger_url
        return journals_of(self.workspace) if has_journals else ()

    def journal_checkpoints(self) -> list[Checkpoint]:
        """Returns their newest positions as checkpoints that the ledger must contain."""
        from storage.ledger.checkpoints import state_checkpoint

        checkpoints: list[Checkpoint] = []
        for journal in self.journals():
            newest = journal.last()
            if newest is not None:
                checkpoints.append(state_checkpoint(1, newest.ledger))
                checkpoints.append(state_checkpoint(newest.sequence, newest.hash))
        return checkpoints

    def open(self) -> Ledger:
        """Opens the ledger. Never creates one."""
        from storage.ledger import Ledger

        return Ledger.require_existing(self.url)

    def open_to_sign(self) -> Ledger:
        """Opens the ledger with the key of this machine, or of the workspace, to
        add signed rows.
        """
        from storage.bundle.seal import release_key
        from storage.ledger import Ledger

        Ledger.require_existing(self.url)
        return Ledger.open(self.url, journals=self.journals(), key=release_key(self.workspace))


def select_ledger(workspace: Path) -> tuple[Context, LedgerParameters]:
    """Configures Prefect, and returns the context of a workspace and the settings of its ledger."""
    configure_prefect()
    from tasks.parameters import LedgerParameters
    from tasks.running.stage import Context

    return Context(home=str(workspace)), LedgerParameters()


def home_of_plan(plan: Path, home: Path | None) -> Path:
    """Returns the workspace of a plan: the option, or the workspace that contains the plan.

    Refuses a plan that cannot be read, before any slow import.
    """
    try:
        json.loads(read_regular(plan.expanduser(), 64 << 20, option="plan"))
    except (ValueError, RecursionError):
        raise Unreadable(
            f"plan {plan} is not a release plan: it is not JSON", kind="invalid-plan"
        ) from None
    return home_of(home) if home else workspace_of(plan)
