"""Locations of the private files, the bundles and the ledger of a workspace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from storage.errors import InputError, OutOfRange


@dataclass(frozen=True)
class Workspace:
    """The folders of one workspace. `private` never leaves the agency; `bundles` may."""

    home: Path

    @property
    def private(self) -> Path:
        """Folder of records, posteriors, weights and checkpoints, with mode 0700."""
        return self.home / "private"

    @property
    def bundles(self) -> Path:
        """Folder of released bundles, one per release."""
        return self.home / "bundles"

    @property
    def roots(self) -> Path:
        """File of the agency's roots, for readers of bundles who may not read the ledger."""
        return self.bundles / ".roots.json"

    @property
    def ledger(self) -> Path:
        """File of the default ledger."""
        return self.home / "ledger.db"

    @property
    def ledger_url(self) -> str:
        """URL of the default ledger: a SQLite file next to the folders, separate from Prefect's
        database.

        Raises:
            InputError: the path cannot be used in a URL.
        """
        file = self.ledger.resolve()
        # a URL would end the file name there, so that two workspaces would share another file
        if "?" in str(file):
            raise OutOfRange(
                f"--home {self.home}: the path of a workspace cannot contain a "
                "question mark. Choose another folder",
                kind="question-mark",
            )
        return f"sqlite:///{file}"

    def create(self) -> Workspace:
        """Creates the folders. The private one is not accessible to others."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.private.mkdir(mode=0o700, exist_ok=True)
        self.private.chmod(0o700)
        self.bundles.mkdir(exist_ok=True)
        return self

    def require_bundles(self) -> None:
        """Refuse a folder of bundles that cannot take a release, before a release is charged.

        Raises:
            InputError: something else has its place, or it cannot be written to.
        """
        exists = os.path.lexists(self.bundles)
        if exists and not self.bundles.is_dir():
            raise InputError(
                f"--home {self.home}: {self.bundles} is not a folder. Move it away, and run again",
                kind="bundles-not-a-folder",
            )
        if not os.access(self.bundles if exists else self.home, os.W_OK | os.X_OK):
            raise InputError(
                f"--home {self.home}: the folder {self.bundles} cannot be written to. Make "
                "it writable, and run again",
                kind="bundles-not-writable",
            )
