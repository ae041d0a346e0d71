"""Stores a bundle that a partner adopted, the trusted key, and how the partner's tables are read.

The folder contains the bundle, the public key, the partner's own thresholds, and `adoption.json`.
Each use verifies the bundle again, against the most recent roots from the agency.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.bundle.folder import STATEMENT, THRESHOLDS, UnsoundBundle
from storage.durable import write_atomically
from storage.errors import Unreadable

if TYPE_CHECKING:
    from storage.bundle.check import VerifiedBundle
    from storage.bundle.trust import Trust

FILE, KEY, REPORT = "adoption.json", "signing-key.pub.pem", "report.html"


class Adoption(BaseModel):
    """Defaults that later commands take from an adopted bundle."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    statement: Literal["autocoder adoption"] = "autocoder adoption"
    release_id: str = Field(pattern="^[0-9a-f]{16}$")
    columns: tuple[str, ...] = ()
    template: str | None = None
    roots: str | None = None
    """File that the partner replaces with newer ones from the agency. None means that no revocation
    is known.
    """
    has_thresholds: bool = False
    """Whether the folder contains the partner's own thresholds."""
    accuracy: float | None = Field(default=None, gt=0, lt=1)
    """Accuracy whose threshold determines which rows are marked for review."""


@dataclass(frozen=True)
class AdoptedBundle:
    """The folder of an adopted bundle."""

    folder: Path
    adoption: Adoption

    @classmethod
    def read(cls, folder: Path | None) -> AdoptedBundle | None:
        """The adopted bundle in a folder; None for any other path, such as a bundle itself."""
        folder = None if folder is None else folder.expanduser()
        if folder is None or not (folder / FILE).is_file():
            return None
        try:
            return cls(folder, Adoption.model_validate_json((folder / FILE).read_bytes()))
        except (OSError, ValidationError):
            raise Unreadable(
                f"--bundle: {folder / FILE} cannot be read. Adopt the bundle again.",
                kind="unreadable-adoption",
            ) from None

    @property
    def bundle(self) -> Path:
        return self.folder / self.adoption.release_id

    @property
    def key(self) -> Path:
        return self.folder / KEY

    @property
    def roots(self) -> Path | None:
        return None if self.adoption.roots is None else Path(self.adoption.roots)

    @property
    def trust(self) -> Trust:
        from storage.bundle.trust import Trust

        return Trust(self.key, self.roots)

    @property
    def thresholds(self) -> Path | None:
        return self.folder / THRESHOLDS if self.adoption.has_thresholds else None

    def check(self) -> VerifiedBundle:
        """Verifies the bundle as at its adoption, but against the newest roots."""
        from storage.bundle.check import (
            check,
        )  # it takes the ledger's libraries, which `code` need not wait for

        sound = check(self.bundle, self.trust)
        # guard: test_another_release_in_its_place
        if sound.release_id != self.adoption.release_id:
            problem = (
                f"is of release {sound.release_id}, and {self.adoption.release_id} was "
                "adopted. Adopt it again"
            )
            raise UnsoundBundle(STATEMENT, problem, kind="another-release")
        return sound

    def save(self) -> None:
        write_atomically(
            self.folder / FILE, self.adoption.model_dump_json(indent=2).encode() + b"\n"
        )
