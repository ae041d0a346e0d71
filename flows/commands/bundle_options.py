"""Defines the options of commands that use a bundle: which one, whom its partner trusts, how it computes."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.commands.options import Home
from flows.server.settings import home_of
from storage.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.bundle.adoption import AdoptedBundle
    from storage.bundle.trust import Trust
    from tasks.coding.coder import Coder

Precision = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(
        help="Precision of the encoder; auto: bfloat16 where the processor supports it and golden texts get the same "
        "codes.",
    ),
]
Roots = Annotated[Path | None, typer.Option(help="The agency's newest roots (roots.json): replaced keys, revocations.")]
State = Annotated[
    Path | None, typer.Option(help="With --roots: folder that records the newest.", show_default="~/.local/state")
]


_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


@dataclass(frozen=True)
class BundleOptions:
    """Selects the bundle that codes."""

    bundle: Annotated[
        Path | None,
        typer.Option(
            help="Bundle: folder, .tar.zst, or a folder of `autocoder adopt`.",
            show_default="the newest release in the workspace",
        ),
    ] = None
    home: Home = None
    allow_revoked: Annotated[
        bool, typer.Option("--allow-revoked", help="Use a bundle although it was revoked in this workspace.")
    ] = False

    def adopted(self) -> AdoptedBundle | None:
        """Returns what a partner decided on the bundle; None where --bundle names no adopted one."""
        from storage.bundle.adoption import AdoptedBundle

        return AdoptedBundle.read(self.bundle)

    def columns(self, columns: list[str] | None, template: str | None) -> tuple[Sequence[str], str | None]:
        """Returns the text columns and their template: the options, or those of an adopted bundle."""
        adopted = None if columns else self.adopted()
        if adopted is None:
            return columns or ("Final Narrative",), template
        return adopted.adoption.columns or ("Final Narrative",), template or adopted.adoption.template

    def opened(self) -> AbstractContextManager[Path]:
        """Opens the folder of the bundle; an archive is unpacked for the length of the block."""
        from storage.bundle.archive import open_folder
        from tasks.coding.coder import newest_bundle

        return open_folder(self.bundle.expanduser() if self.bundle is not None else newest_bundle(home_of(self.home)))

    def require_not_revoked(self, coder: Coder) -> None:
        """Refuse what was revoked in this workspace, unless it is wanted all the same.

        Raises:
            StorageError: it was, or the ledger that would know cannot be read.
        """
        from tasks.coding.coder import require_not_revoked

        if not self.allow_revoked:
            otherwise = "name a newer one with --bundle, or give --allow-revoked"
            require_not_revoked(coder, home_of(self.home), otherwise=otherwise)


@dataclass(frozen=True)
class SeveralBundleOptions:
    """Selects the bundles that code, each by a name that its columns begin with where there are several."""

    bundle: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]BUNDLE",
            help="Bundle: folder, .tar.zst, or a folder of `autocoder adopt`. Several, each with a NAME: their columns "
            "begin with NAME_, and texts are encoded once for those that share an encoder.",
            show_default="the newest release in the workspace",
        ),
    ] = None
    home: Home = None
    allow_revoked: Annotated[
        bool, typer.Option("--allow-revoked", help="Use a bundle although it was revoked in this workspace.")
    ] = False

    def each(self) -> dict[str, BundleOptions]:
        """Returns the options of each bundle by what its columns begin with; "" without a name.

        Raises:
            InputError: one of several has no name, two have the same, or a name is none that a column may begin with.
        """
        chosen: dict[str, BundleOptions] = {}
        for given in self.bundle or ():
            name, sign, path = given.partition("=")
            if not sign or Path(given).expanduser().exists():
                name, path = "", given
            elif not _NAME.fullmatch(name):
                raise InputError(
                    f"--bundle: {name!r} is no name of a column. Take letters, digits and _, such as nature=BUNDLE."
                )
            prefix = f"{name}_" if name else ""
            if prefix in chosen or (not prefix and len(self.bundle or ()) > 1):
                raise InputError("--bundle: several need a name each. Write nature=BUNDLE and part=OTHER.")
            chosen[prefix] = BundleOptions(Path(path), self.home, self.allow_revoked)
        return chosen or {"": BundleOptions(None, self.home, self.allow_revoked)}


def trust(key: Path | None, roots: Path | None, state: Path | None, *, option: str = "--key") -> Trust | None:
    """Returns whom a partner trusts; None without a key, which the other options require."""
    from storage.bundle.trust import Trust

    if key is None and (roots is not None or state is not None):
        raise InputError(f"--roots and --state: require {option}, the agency's first key from a safe source")
    if roots is None and state is not None:
        raise InputError("--state: requires --roots")
    if key is None:
        return None
    expanded = (path and path.expanduser() for path in (roots, state))
    return Trust(key.expanduser(), *expanded)
