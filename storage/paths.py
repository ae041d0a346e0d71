"""Locates the private files, the bundles and the ledger of one installation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.errors import OutOfRange


@dataclass(frozen=True)
class Workspace:
    """Holds the folders of one workspace. `private` never leaves the agency; `bundles` may."""

    home: Path

    @property
    def private(self) -> Path:
        """Returns the folder of records, posteriors, weights and checkpoints: mode 0700."""
        return self.home / "private"

    @property
    def bundles(self) -> Path:
        """Returns the folder of released bundles, one per release."""
        return self.home / "bundles"

    @property
    def roots(self) -> Path:
        """Returns the file of the agency's roots, for those who read bundles and may not read the
        ledger.
        """
        return self.bundles / ".roots.json"

    @property
    def ledger(self) -> Path:
        """Returns the file of the default ledger."""
        return self.home / "ledger.db"

    @property
    def ledger_url(self) -> str:
        """Returns the default ledger: a SQLite file next to the folders, apart from Prefect's
        database.

        Raises:
            InputError: no URL can name it.
        """
        file = self.ledger.resolve()
        if "?" in str(file):  # a URL ends its file there: two workspaces would share another one
            raise OutOfRange(
                f"--home {self.home}: the path of a workspace cannot contain a "
                "question mark. Choose another folder",
                kind="question-mark",
            )
        return f"sqlite:///{file}"

    def create(self) -> Workspace:
        """Creates the folders, the private one closed to others."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.private.mkdir(mode=0o700, exist_ok=True)
        self.private.chmod(0o700)
        self.bundles.mkdir(exist_ok=True)
        return self
