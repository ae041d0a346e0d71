"""The workspace: where the private files, the bundles and the ledger of one installation lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Workspace:
    """Folders of one workspace. `private` never leaves the house; `bundles` is what may."""

    home: Path

    @property
    def private(self) -> Path:
        """Records, posteriors, weights, checkpoints: mode 0700."""
        return self.home / "private"

    @property
    def bundles(self) -> Path:
        """Released folders, one a release."""
        return self.home / "bundles"

    @property
    def revocations(self) -> Path:
        """The newest list of what was revoked, for those who read bundles and may not read the ledger."""
        return self.bundles / ".revocations.json"

    @property
    def ledger_url(self) -> str:
        """The default ledger: a SQLite file beside the folders, apart from Prefect's database."""
        return f"sqlite:///{(self.home / 'ledger.db').resolve()}"

    def create(self) -> Workspace:
        """Make the folders, the private one closed to others."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.private.mkdir(mode=0o700, exist_ok=True)
        self.private.chmod(0o700)
        self.bundles.mkdir(exist_ok=True)
        return self
